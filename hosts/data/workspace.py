# SPDX-License-Identifier: Apache-2.0
"""Memory that a worker's transport needs during a call only."""

from __future__ import annotations

from typing import Any

import numpy as np

from hosts.data.array_pool import ArrayPool
from protocol.header import PEER, Array, Wire
from switch.ports.paced_line import address

_BLOCK = 1 << 18  # bytes; one packet that stays keeps all of it
_ALIGNED = 64


class Workspace:
    """Memory for one call of a transport at a time; all transports of a thread may share it.

    pool: of blocks of packets to send, which are held until all of a block are on their way; None:
        its own.
    sent: packets that `full`, `leaving`, `peers` and their addresses `sent_at` have room for.
    received: packets that the addresses of `received_at` have room for: three int64 for each.
    """

    _entries: Array | None = None

    def __init__(self, pool: ArrayPool | None = None) -> None:
        self.pool = pool or ArrayPool()
        self._block, self._held = np.empty(0, np.uint8), 0
        self.sent = self.received = -1
        self.make_room_to_send(0)
        self.make_room_to_receive(0)

    def make_room_to_send(self, packets: int) -> None:
        """Makes room for so many packets to send, and as many more."""
        if packets <= self.sent:
            return
        self.sent = 2 * packets
        self.full = np.empty(self.sent, np.bool_)
        self.leaving = np.empty(self.sent)
        self.peers: Array = np.empty(self.sent, PEER)
        self.sent_at = address(self.full), address(self.leaving), address(self.peers)

    def packets(self, most: int, stride: int) -> Wire:
        """Returns memory (most, stride) for packets to send; later calls return it again, but for
        what `hold` is called with."""
        size = most * stride
        if self._held + size > len(self._block):
            self._block, self._held = self.pool.empty((max(_BLOCK, 2 * size),), np.uint8), 0
        return self._block[self._held : self._held + size].reshape(most, stride)

    def hold(self, packets: Wire) -> None:
        """Keeps the first packets of the last call of `packets` until nothing refers to them."""
        self._held += -(-packets.nbytes // _ALIGNED) * _ALIGNED

    def entries(self, most: int, kind: np.dtype[Any]) -> Array:
        """Returns memory for so many entries of streams."""
        if self._entries is None or len(self._entries) < most:
            self._entries = np.empty(most, kind)
        return self._entries

    def make_room_to_receive(self, packets: int) -> None:
        """Makes room for so many packets that arrive, and as many more."""
        if packets <= self.received:
            return
        self.received = 2 * packets
        self._scratch = np.empty((3, self.received), np.int64)
        self.received_at = [address(row) for row in self._scratch]
