# SPDX-License-Identifier: Apache-2.0
"""Streams over kernel TCP: one connection per pair of members."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Collection, Sequence

import numpy as np

from planner.collectives.streams import Array, Switches

_HELLO = struct.Struct(">I")
_CONNECT_SECONDS = 60.0


class TcpStreams:
    """One member's streams (implements ``streams.Streams``).

    Listens from construction on: construct all members before opening any.

    addresses: Listening addresses of all members.
    peers: The members to connect with.
    piece: Values forwarded before the rest has arrived.
    """

    switches: Switches | None = None

    def __init__(
        self,
        member: int,
        addresses: Sequence[tuple[str, int]],
        peers: Collection[int],
        piece: int,
    ) -> None:
        self.piece = piece
        self._member, self._addresses = member, addresses
        self._peers = sorted(peers)
        self._listener = socket.create_server(addresses[member], backlog=max(1, len(peers)))
        self._sockets: dict[int, socket.socket] = {}
        self._queues: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._threads: list[threading.Thread] = []
        self._errors: list[OSError] = []

    def open(self) -> None:
        """Connects with all peers; the higher number of each pair initiates."""
        for peer in self._peers:
            if peer < self._member:
                host = self._addresses[self._member][0]
                made = socket.create_connection(
                    self._addresses[peer], _CONNECT_SECONDS, source_address=(host, 0)
                )
                made.sendall(_HELLO.pack(self._member))
                self._sockets[peer] = made
        self._listener.settimeout(_CONNECT_SECONDS)
        while len(self._sockets) < len(self._peers):
            made, _ = self._listener.accept()
            made.settimeout(_CONNECT_SECONDS)
            (peer,) = _HELLO.unpack(made.recv(_HELLO.size, socket.MSG_WAITALL))
            self._sockets[peer] = made
        for peer, one in self._sockets.items():
            one.settimeout(None)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._queues[peer] = queue.SimpleQueue()
            thread = threading.Thread(target=self._pump, args=[peer], daemon=True)
            thread.start()
            self._threads.append(thread)

    def send(self, peer: int, values: Array) -> None:
        """Implements ``Streams.send``."""
        self._queues[peer].put(values.tobytes())

    def receive(self, peer: int, into: Array) -> None:
        """Implements ``Streams.receive``. Raises OSError if the connection ended."""
        view = into.view(np.uint8).data
        while view:
            count = self._sockets[peer].recv_into(view)
            if not count:
                raise next(iter(self._errors), OSError(f"member {peer} closed its connection"))
            view = view[count:]

    def close(self) -> None:
        """Sends what is queued, then closes all connections."""
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join()
        for one in (*self._sockets.values(), self._listener):
            one.close()

    def _pump(self, peer: int) -> None:
        waiting, connection = self._queues[peer], self._sockets[peer]
        while (data := waiting.get()) is not None:
            try:
                connection.sendall(data)
            except OSError as error:
                self._errors.append(error)
                connection.close()
                return
