# SPDX-License-Identifier: Apache-2.0
"""The same packets for several destinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.recycling import Recycler
from protocol.header import PEER, Array, Batch, Wire, opaque, parts_of

_WRITTEN_OUT = frozenset({"headers", "payloads", "full", "peers", "wire"})


class Cast(Batch):
    """n packets for each of k destinations, one destination's after the other's: a Batch that is
    written out only when it is looked at. Sent natively it never is: what differs from destination
    to destination are a few bytes of the headers, which are changed between the trains. So it
    is only to be read: what somebody changes in what was written out is not what is sent.

    packets: (n, HEADER_BYTES + 4 lanes), as they are sent but for their field sender, which is the
    destination's index, and node; whole: (n,) which carry their payload; destinations: (k,) PEER;
    nodes: (k,) uint16; memory: to write them out to.
    """

    __slots__ = ("_memory", "destinations", "nodes", "packets", "whole")

    def __init__(
        self,
        packets: Wire,
        whole: npt.NDArray[np.bool_],
        destinations: Array,
        nodes: npt.NDArray[np.uint16],
        memory: Recycler,
    ) -> None:
        # The fields of a Batch stay unset: `__getattr__` is asked for what is.
        self.packets, self.whole = packets, whole
        self.destinations, self.nodes = destinations, nodes
        self._memory = memory

    def __len__(self) -> int:
        return len(self.packets) * len(self.destinations)

    def __getattr__(self, name: str) -> Any:
        if name not in _WRITTEN_OUT:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        n, k = len(self.packets), len(self.destinations)
        wire = self._memory.empty((k * n, self.packets.shape[1]), np.uint8)
        wire.reshape(k, n, -1)[:] = self.packets
        headers, words = parts_of(wire)
        headers["sender"] = np.arange(k).repeat(n)
        headers["node"] = self.nodes.repeat(n)
        peers = opaque(self.destinations).repeat(n).view(PEER)
        super().__init__(headers, words, np.tile(self.whole, k), peers, wire)
        return getattr(self, name)
