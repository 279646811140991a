# SPDX-License-Identifier: Apache-2.0
"""Sizes for pacing packets to the rate of the link: a packet handed to the network cannot be
overtaken, so little is handed over ahead of time (``hosts/native/send.c``)."""

from __future__ import annotations

from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, LANE_BYTES

BACKLOG = 0.004  # s


def wire_bytes(lanes: int) -> tuple[int, int]:
    """Returns the bytes on the wire of packets without and with a payload."""
    return HEADER_BYTES + OVERHEAD, HEADER_BYTES + OVERHEAD + LANE_BYTES * lanes
