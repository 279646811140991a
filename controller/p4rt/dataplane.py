# SPDX-License-Identifier: Apache-2.0
"""The compiled data plane and the sizes that its p4info declares."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from controller.p4rt.entries import EntryError, P4Info
from controller.p4rt.program import Program
from protocol import ethernet
from protocol.frames import OVERHEAD
from protocol.header import LANE_BYTES, packet_bytes

# Data planes that the controller can program; the first whose names a p4info has is taken.
PROGRAMS: tuple[type[Program], ...] = (Program,)

# PHub spreads keys over servers in 32 KiB pieces (SoCC'18, section 3.2).
SLICE_BYTES = 32 * 1024


@dataclass(frozen=True)
class DataPlane:
    """A build of the P4 program.

    p4info, device_config: the configuration to push to switches.
    empty_lanes: lanes of chunks that are only forwarded, in a build without sums (BLOCKS=0).
    """

    p4info: P4Info
    device_config: bytes
    empty_lanes: int = 0

    @staticmethod
    def load(program: str | Path, p4info: str | Path, empty_lanes: int = 0) -> DataPlane:
        """Reads p4c's BMv2 JSON and p4info text.

        Raises OSError, and EntryError for a p4info that is not of one of ``PROGRAMS``.
        """
        plane = DataPlane(P4Info.load(p4info), Path(program).read_bytes(), empty_lanes)
        try:
            _ = plane.program
        except EntryError as error:
            raise EntryError(f"{p4info}: {error}") from error
        return plane

    @cached_property
    def program(self) -> Program:
        """Builds entries of this data plane; raises EntryError if it is none of ``PROGRAMS``."""
        reasons = []
        for kind in PROGRAMS:
            program = kind(self.p4info)
            try:
                program.check()
            except EntryError as error:
                reasons.append(f"it differs from {kind.name}: {error}")
            else:
                return program
        raise EntryError(f"not a data plane that the controller knows; {'; '.join(reasons)}")

    @property
    def lanes(self) -> int:
        """Number of int32 lanes of a chunk on the wire."""
        return self.program.lanes or self.empty_lanes

    @property
    def summed_lanes(self) -> int:
        """Number of int32 lanes of a chunk that switches add up and servers hold; 0: none."""
        return self.program.lanes

    @property
    def sums(self) -> bool:
        """True if switches add up payloads."""
        return self.summed_lanes > 0

    @property
    def slots(self) -> int:
        """Number of slots of a switch."""
        return self.program.slots

    @cached_property
    def cookie(self) -> int:
        """The P4Runtime cookie that identifies this program: 64 bits of its hash."""
        whole = self.device_config + self.p4info.message.SerializeToString(deterministic=True)
        return int.from_bytes(hashlib.sha256(whole).digest()[:8], "big")

    @property
    def packet_bytes(self) -> int:
        """Size of a full contribution's IP packet, to compare with an MTU."""
        return self.frame_bytes - ethernet.HEADER

    @property
    def frame_bytes(self) -> int:
        """Size of a full contribution's Ethernet frame, without FCS, as queues count it."""
        return OVERHEAD + packet_bytes(self.lanes)

    def chunks_per_slice(self, slice_bytes: int = 0) -> int:
        """Counts the consecutive chunks that share a server and a stream; 0 bytes: PHub's size."""
        chunk = LANE_BYTES * self.lanes
        return max(1, (slice_bytes or SLICE_BYTES) // chunk) if chunk else 1
