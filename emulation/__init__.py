# SPDX-License-Identifier: Apache-2.0
"""A testbed in real time: Mininet, processes, faults and jobs."""
