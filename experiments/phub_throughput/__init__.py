# SPDX-License-Identifier: Apache-2.0
"""Experiment: training throughput of nine models with PHub, and what of its gain is traffic."""
