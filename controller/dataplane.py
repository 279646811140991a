# SPDX-License-Identifier: Apache-2.0
"""The compiled data plane, and what its p4info says about sizes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from controller.entries import P4Info

# Ethernet, IPv4, UDP and aggregation headers before the payload.
ETHERNET_BYTES = 14
PACKET_BYTES = 20 + 8 + 32
BYTES_PER_LANE = 4
# PHub spreads keys over servers in 32 KiB pieces (SoCC'18, section 3.2).
SLICE_BYTES = 32 * 1024


@dataclass(frozen=True)
class DataPlane:
    """A build of the P4 program: what is pushed to switches, and its sizes."""

    p4info: P4Info
    device_config: bytes

    @staticmethod
    def load(program: str | Path, p4info: str | Path) -> DataPlane:
        """Read p4c's BMv2 JSON and p4info text; ``EntryError`` or ``OSError`` if that fails."""
        return DataPlane(P4Info.load(p4info), Path(program).read_bytes())

    @cached_property
    def lanes(self) -> int:
        """int32 lanes of a chunk: each block of a slot is one register of many lanes."""
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

    @property
    def chunks_per_slice(self) -> int:
        """Consecutive chunks that share a server and a stream, where a job does not say more."""
        return self.chunks_in(SLICE_BYTES)

    def chunks_in(self, slice_bytes: int) -> int:
        """Chunks of a slice of so many bytes, at least one; 0: as many as usual."""
        chunk = BYTES_PER_LANE * self.lanes
        return max(1, (slice_bytes or SLICE_BYTES) // chunk) if chunk else 1
