# SPDX-License-Identifier: Apache-2.0
"""Placements in which switches sum, with a switch or a server as root."""

from __future__ import annotations

from specs.placements.kind import Kind

_TO_A_SERVER = {
    "two-level": "two-level-server",
    "tor": "tor",
    "core": "core-server",
    "two-level-server": "two-level-server",
    "core-server": "core-server",
}

PLACEMENTS = (
    Kind(
        "inc",
        "switches sum, and one is the root",
        lambda workers, servers: 0,
        "0",
        {"two-level": "two-level", "core": "core"},
        steps="workers",
    ),
    Kind(
        "inc-server",
        "switches sum, and a server is the root",
        lambda workers, servers: 2 / servers,
        "2, with tree `tor` 2 for each rack",
        _TO_A_SERVER,
        single=True,
        steps="servers",
    ),
)
