# SPDX-License-Identifier: Apache-2.0
"""Experiment: faults that a job must survive, and recovery (docs/results/reliability.md)."""
