# SPDX-License-Identifier: Apache-2.0
"""The compiled data plane, and what its p4info says about sizes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from controller.p4rt.entries import P4Info

# Ethernet, IPv4, UDP and aggregation headers before the payload.
ETHERNET_BYTES = 14
PACKET_BYTES = 20 + 8 + 32
BYTES_PER_LANE = 4
# PHub spreads keys over servers in 32 KiB pieces (SoCC'18, section 3.2).
SLICE_BYTES = 32 * 1024


@dataclass(frozen=True)
class DataPlane:
    """A build of the P4 program: what is pushed to switches, and its sizes.

    empty_lanes: of chunks that only occupy the wire, in a build that sums none (BLOCKS=0).
    """

    p4info: P4Info
    device_config: bytes
    empty_lanes: int = 0

    @staticmethod
    def load(program: str | Path, p4info: str | Path, empty_lanes: int = 0) -> DataPlane:
        """Read p4c's BMv2 JSON and p4info text; ``EntryError`` or ``OSError`` if that fails."""
        return DataPlane(P4Info.load(p4info), Path(program).read_bytes(), empty_lanes)

    @property
    def lanes(self) -> int:
        """int32 lanes that a chunk has on the wire."""
        return self.summed_lanes or self.empty_lanes

    @property
    def sums(self) -> bool:
        """Whether chunks have a payload, which switches add up."""
        return self.summed_lanes > 0

    @cached_property
    def summed_lanes(self) -> int:
        """int32 lanes that a switch adds up: each block of a slot is one register of many."""
        blocks = self.p4info.registers_below("aggregation.blocks")
        bits = sum(int(block.type_spec.bitstring.bit.bitwidth) for block in blocks)
        return bits // (8 * BYTES_PER_LANE)

    @cached_property
    def slots(self) -> int:
        """Slots of a switch."""
        return int(self.p4info.register("aggregation.slots.state").size)

    @cached_property
    def cookie(self) -> int:
        """Tells a switch that has this program from one that has another: 64 bits of its hash."""
        whole = self.device_config + self.p4info.message.SerializeToString(deterministic=True)
        return int.from_bytes(hashlib.sha256(whole).digest()[:8], "big")

    @property
    def packet_bytes(self) -> int:
        """IP packet of a full contribution, to compare with an MTU."""
        return PACKET_BYTES + BYTES_PER_LANE * self.lanes

    @property
    def frame_bytes(self) -> int:
        """Ethernet frame of a full contribution, without FCS: what a queue holds of it."""
        return ETHERNET_BYTES + self.packet_bytes

    def chunks_per_slice(self, slice_bytes: int = 0) -> int:
        """Consecutive chunks that share a server and a stream; a slice of 0 bytes is PHub's."""
        chunk = BYTES_PER_LANE * self.lanes
        return max(1, (slice_bytes or SLICE_BYTES) // chunk) if chunk else 1
