# SPDX-License-Identifier: Apache-2.0
"""What hosts have in C, with its loader."""
