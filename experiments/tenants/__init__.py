# SPDX-License-Identifier: Apache-2.0
"""Experiment: several jobs on one hub, a server with many links or a switch that sums."""
