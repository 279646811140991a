# SPDX-License-Identifier: Apache-2.0
"""Byte streams between members, and the steps that collectives are made of.

The same code runs over TCP (``baselines.sockets``) and in virtual time
(``simulation.nodes.byte_streams``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Streams", "Switches", "add", "add_all", "pieces", "receive", "send"]

Array: TypeAlias = npt.NDArray[np.float32]
"""(n,) values, contiguous."""


class Switches(Protocol):
    """Sums of a few servers in the network, tensor by tensor in keys.

    bounds: boundaries of keys in the tensor, no further apart than a piece of a stream: a worker
        waits for sums after a few pieces.
    """

    bounds: Sequence[int]

    def add(self, key: int, values: Array, then: Callable[[Array], None]) -> None:
        """Adds a copy of values to those of the other servers, without waiting for them.

        Every server adds all keys in order. `then` gets the sums, in the same order, perhaps in
        another thread, and must not block.
        """

    def wait(self) -> None:
        """Waits until `then` has had the sums of all keys."""


class Streams(Protocol):
    """One member's connections: a reliable stream each way to every peer that it needs.

    piece: the most values sent at once, so that the first can be forwarded before the rest arrive.
    switches: those that sum for this member; None: none.
    """

    piece: int
    switches: Switches | None

    def send(self, peer: int, values: Array) -> None:
        """Copies values into the stream, without waiting for the peer."""

    def receive(self, peer: int, into: Array) -> None:
        """Blocks until `into` is filled."""


def pieces(values: Array, streams: Streams) -> Iterator[Array]:
    """Yields consecutive pieces of values."""
    for first in range(0, len(values), streams.piece):
        yield values[first : first + streams.piece]


def send(peer: int, values: Array, streams: Streams) -> None:
    """Sends values piece by piece."""
    for piece in pieces(values, streams):
        streams.send(peer, piece)


def receive(peer: int, values: Array, streams: Streams) -> None:
    """Receives values piece by piece."""
    for piece in pieces(values, streams):
        streams.receive(peer, piece)


def add(peer: int, piece: Array, streams: Streams) -> None:
    """Receives one piece and adds it to `piece`."""
    came = np.empty_like(piece)
    streams.receive(peer, came)
    piece += came


def add_all(peer: int, values: Array, streams: Streams) -> None:
    """Receives values piece by piece and adds them to `values`."""
    for piece in pieces(values, streams):
        add(peer, piece, streams)
