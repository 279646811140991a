# SPDX-License-Identifier: Apache-2.0
"""The simulation kernel: event loop, cooperative tasks and calls between nodes."""
