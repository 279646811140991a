# SPDX-License-Identifier: Apache-2.0
"""The P4Info of a program: its declarations, and the encoding of values."""
