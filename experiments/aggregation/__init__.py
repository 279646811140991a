# SPDX-License-Identifier: Apache-2.0
"""Experiment: aggregation in the network against workers, windows, losses and stragglers."""
