# SPDX-License-Identifier: Apache-2.0
"""Sweeps: a run in virtual time for every combination of parameter values (docs/howto/sweep.md)."""
