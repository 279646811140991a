# SPDX-License-Identifier: Apache-2.0
"""Sockets, segmentation offload, the driver of state machines, and the host's environment."""
