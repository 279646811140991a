# SPDX-License-Identifier: Apache-2.0
"""The event loop of virtual time: nodes in order, tasks that wait, calls between nodes."""
