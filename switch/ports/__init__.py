# SPDX-License-Identifier: Apache-2.0
"""Moves packets between a program and network interfaces, or lines in virtual time."""

from switch.ports.interfaces import NoPermission, NoSuchInterface, PortOptions, Ports, PortsError

__all__ = ["NoPermission", "NoSuchInterface", "PortOptions", "Ports", "PortsError"]
