# SPDX-License-Identifier: Apache-2.0
"""Experiment: link traffic of every placement on every target (docs/results/placements.md)."""
