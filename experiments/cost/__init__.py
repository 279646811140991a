# SPDX-License-Identifier: Apache-2.0
"""Experiment: throughput of a rack per dollar, by what sums gradients."""
