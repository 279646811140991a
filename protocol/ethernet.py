# SPDX-License-Identifier: Apache-2.0
"""Sizes of Ethernet frames on a wire, and of the headers that frames of streams have."""

from __future__ import annotations

HEADER = 14  # destination, source and type (IEEE 802.3, 3.1.1)
LEAST_ON_WIRE = 60  # an Ethernet frame without FCS; shorter ones are padded (IEEE 802.3, 3.2.8)
FRAMING = 8 + 4 + 12  # preamble and start, FCS, gap between frames (IEEE 802.3, 3.1.1 and 4.4.2)
# Bytes of a frame before a TCP segment's data: Ethernet, IPv4, and TCP with the timestamps that all
# systems send by default (RFC 7323, 3.2).
TCP_HEADERS = HEADER + 20 + 32
