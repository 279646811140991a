# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run, and a running testbed in figures."""
