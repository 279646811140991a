# SPDX-License-Identifier: Apache-2.0
"""Sockets, offload, the driver, and what hosts have of the machine that they run on."""
