# SPDX-License-Identifier: Apache-2.0
"""Sweeps: the same run in virtual time for every combination of values, see docs/sweeps.md."""
