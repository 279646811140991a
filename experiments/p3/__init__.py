# SPDX-License-Identifier: Apache-2.0
"""Experiment: P3, priority-based parameter propagation, against the baseline that it was published
with."""
