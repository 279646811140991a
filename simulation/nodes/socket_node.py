# SPDX-License-Identifier: Apache-2.0
"""A host in virtual time whose programs use byte streams as well as sockets."""

from __future__ import annotations

from simulation.links.trains import Frames, Lengths, Times, Train
from simulation.nodes.host import HostNode
from simulation.nodes.stream_node import StreamNode
from topologies.model.addressing import Addressing

_PROTOCOL = 23  # the byte of a frame that says what its IPv4 packet carries
_TCP = 6


class SocketNode(StreamNode):
    """A host with stream ends and UDP sockets."""

    def __init__(self, name: str, addressing: Addressing, *, payload: bool = True) -> None:
        super().__init__(name, addressing, payload=payload)
        self.trains = False  # streams may send in between

    # See StreamNode

    def sort(self, times: Times, lengths: Lengths, frames: Frames) -> None:
        """Implements StreamNode: gives frames to the streams, and to the sockets."""
        streams = frames[:, _PROTOCOL] == _TCP
        if streams.any():
            super().sort(times[streams], lengths[streams], frames[streams])
        if not streams.all():
            others = ~streams
            self._incoming.append(Train(times[others], frames[others], lengths[others]))

    def arrival(self) -> int:
        """Implements TaskNode."""
        return min(super().arrival(), HostNode.arrival(self))

    def limit(self) -> int:
        """Implements StreamNode."""
        return min(super().limit(), HostNode.arrival(self))

    def arrive(self) -> None:
        """Implements TaskNode."""
        HostNode.arrive(self)
        super().arrive()
