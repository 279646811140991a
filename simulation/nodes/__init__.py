# SPDX-License-Identifier: Apache-2.0
"""Hosts, switches and the controller as nodes of virtual time."""
