# SPDX-License-Identifier: Apache-2.0
"""Experiment: loss and accuracy against time, by how gradients are summed, with equal links."""
