# SPDX-License-Identifier: Apache-2.0
"""Sizes for pacing packets to the rate of the link: a packet handed to the network cannot be
overtaken, so little is handed over ahead of time (``hosts/native/send.c``)."""

from __future__ import annotations

from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, LANE_BYTES

BACKLOG = 0.004  # s
URGENT_BACKLOG = 0.003
"""Seconds where urgent packets are to overtake others: a host's timers tick once a millisecond."""
URGENT_PACKETS = 4
"""The least packets of it, so that one waits for the link while the next are chosen."""


def urgent_bytes(rate: int, packet: int, seconds: float = URGENT_BACKLOG) -> int:
    """Returns the bytes that may wait for a link where urgent packets are to overtake others.

    rate: of the link, in bit/s; packet: bytes of the largest.
    """
    return max(URGENT_PACKETS * packet, int(seconds * rate / 8))


def wire_bytes(lanes: int) -> tuple[int, int]:
    """Returns the bytes on the wire of packets without and with a payload."""
    return HEADER_BYTES + OVERHEAD, HEADER_BYTES + OVERHEAD + LANE_BYTES * lanes
