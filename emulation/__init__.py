# SPDX-License-Identifier: Apache-2.0
"""Testbeds in real time: Mininet networks, processes, faults and jobs."""
