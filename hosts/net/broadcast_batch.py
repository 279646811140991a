# SPDX-License-Identifier: Apache-2.0
"""Packets that go to several destinations unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.array_pool import ArrayPool
from protocol.header import PEER, Array, Batch, Wire, Words, opaque, parts_of

_WRITTEN_OUT = frozenset({"headers", "payloads", "full", "peers", "wire"})


class BroadcastBatch(Batch):
    """n packets for each of k destinations, ordered by destination.

    This Batch is written out only when its fields are read. Native sending never writes it out: it
    patches the few header bytes that depend on the destination between trains. The batch is
    read-only: changes to its written-out arrays are not sent.

    packets: (n, HEADER_BYTES + 4 lanes) wire format but for the header fields sender (the index of
        the destination) and node.
    whole: (n,) true for packets that carry their payload.
    destinations: (k,) PEER.
    nodes: (k,) uint16.
    memory: pool for the written-out packets.
    """

    __slots__ = ("_memory", "destinations", "nodes", "packets", "whole")

    def __init__(
        self,
        packets: Wire,
        whole: npt.NDArray[np.bool_],
        destinations: Array,
        nodes: npt.NDArray[np.uint16],
        memory: ArrayPool,
    ) -> None:
        # The fields of a Batch stay unset, so that `__getattr__` writes them out on demand.
        self.packets, self.whole = packets, whole
        self.destinations, self.nodes = destinations, nodes
        self._memory = memory

    def __len__(self) -> int:
        return len(self.packets) * len(self.destinations)

    def __getattr__(self, name: str) -> Any:
        if name not in _WRITTEN_OUT:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        k = len(self.destinations)
        wire = self._memory.empty((len(self), self.packets.shape[1]), np.uint8)
        wire.reshape(k, len(self.packets), -1)[:] = self.packets
        destinations = np.arange(k).repeat(len(self.packets))
        headers, words, peers = self._addressed(wire, destinations)
        super().__init__(headers, words, np.tile(self.whole, k), peers, wire)
        return getattr(self, name)

    def by_packet(self) -> Batch:
        """Returns the same packets written out, ordered by packet."""
        k = len(self.destinations)
        wire = self._memory.empty((len(self), self.packets.shape[1]), np.uint8)
        wire.reshape(len(self.packets), k, -1)[:] = self.packets[:, None]
        destinations = np.tile(np.arange(k), len(self.packets))
        headers, words, peers = self._addressed(wire, destinations)
        return Batch(headers, words, self.whole.repeat(k), peers, wire)

    def _addressed(
        self, wire: Wire, destinations: npt.NDArray[np.intp]
    ) -> tuple[Array, Words, Array]:
        """Returns headers, payloads and peers of packets for these destinations."""
        headers, words = parts_of(wire)
        headers["sender"] = destinations
        headers["node"] = self.nodes[destinations]
        peers = opaque(self.destinations)[destinations].view(PEER)
        return headers, words, peers
