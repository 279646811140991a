# SPDX-License-Identifier: Apache-2.0
"""The model of a P4 program: declarations, expressions and the bounds of their values."""
