# SPDX-License-Identifier: Apache-2.0
"""Sums over all workers without any help of the network, over streams of bytes.

Each function is what one member does for one sum of everybody's values, in place. Members are known
by number: workers from 0, then servers. The same code runs over TCP (``sockets``) and in virtual
time (``simulation.nodes.byte_streams``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Streams", "bounds", "halving_doubling", "pull_sums", "ring", "serve_sums"]

Array: TypeAlias = npt.NDArray[np.float32]
"""(n,) values, contiguous."""


class Streams(Protocol):
    """One member's connections: a reliable stream each way to each of the others that it needs.

    piece: values that are sent at once at most, so that what came first can go on before the rest.
    """

    piece: int

    def send(self, peer: int, values: Array) -> None:
        """Copies them into the stream, without waiting for the peer."""

    def receive(self, peer: int, into: Array) -> None:
        """Waits for as many values as fit."""


def bounds(size: int, parts: int) -> list[int]:
    """Where each of so many parts of `size` values begins, and the end: as equal as they can be."""
    return [size * part // parts for part in range(parts + 1)]


def ring(member: int, workers: int, values: Array, streams: Streams) -> None:
    """Ring all-reduce (Patarasuk and Yuan, JPDC 2009).

    Parts go round twice: once to collect the sum, once to tell it. A piece goes on as soon as it is
    there, so a round does not wait for the one before to end.
    """
    if workers == 1:
        return
    ends = bounds(len(values), workers)
    parts = [values[ends[i] : ends[i + 1]] for i in range(workers)]
    after, before = (member + 1) % workers, (member - 1) % workers
    _send(after, parts[member], streams)
    last = 2 * (workers - 1) - 1
    for step in range(last + 1):
        for piece in _pieces(parts[(member - step - 1) % workers], streams):
            if step < workers - 1:
                _add(before, piece, streams)
            else:
                streams.receive(before, piece)
            if step < last:
                streams.send(after, piece)


def halving_doubling(member: int, workers: int, values: Array, streams: Streams) -> None:
    """Recursive halving, then doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005).

    In each round everybody keeps half of what it has, gives the other half to the worker that is 1,
    2, 4.. places away and adds what comes from there; then all rounds backwards. Places are a power
    of two: of the first pairs of workers one gives all it has to the other, and gets the sum.
    """
    places = 1 << (workers.bit_length() - 1)
    extra = workers - places
    folded = member < 2 * extra
    if folded and member % 2:
        _send(member - 1, values, streams)
        _receive(member - 1, values, streams)
        return
    if folded:
        _add_all(member + 1, values, streams)
    place = member // 2 if folded else member - extra
    ends = bounds(len(values), places)
    low, high, distance = 0, places, 1
    rounds: list[tuple[int, Array, Array]] = []
    while distance < places:
        other = place ^ distance
        peer = 2 * other if other < extra else other + extra
        middle = (low + high) // 2
        lower, upper = values[ends[low] : ends[middle]], values[ends[middle] : ends[high]]
        kept, given = (upper, lower) if place & distance else (lower, upper)
        low, high = (middle, high) if place & distance else (low, middle)
        _send(peer, given, streams)
        _add_all(peer, kept, streams)
        rounds.append((peer, kept, given))
        distance *= 2
    for peer, kept, given in reversed(rounds):
        _send(peer, kept, streams)
        _receive(peer, given, streams)
    if folded:
        _send(member + 1, values, streams)


def pull_sums(servers: Sequence[int], values: Array, streams: Streams) -> None:
    """What a worker does with parameter servers: each of them sums one part for everybody."""
    ends = bounds(len(values), len(servers))
    for i, server in enumerate(servers):
        _send(server, values[ends[i] : ends[i + 1]], streams)
    for i, server in enumerate(servers):
        _receive(server, values[ends[i] : ends[i + 1]], streams)


def serve_sums(workers: int, size: int, streams: Streams) -> None:
    """What a parameter server does with its part of so many values: a piece that has come from all
    goes back to all at once."""
    for piece in _pieces(np.empty(size, np.float32), streams):
        piece[...] = 0
        for worker in range(workers):
            _add(worker, piece, streams)
        for worker in range(workers):
            streams.send(worker, piece)


def _pieces(values: Array, streams: Streams) -> Iterator[Array]:
    for first in range(0, len(values), streams.piece):
        yield values[first : first + streams.piece]


def _send(peer: int, values: Array, streams: Streams) -> None:
    for piece in _pieces(values, streams):
        streams.send(peer, piece)


def _receive(peer: int, values: Array, streams: Streams) -> None:
    for piece in _pieces(values, streams):
        streams.receive(peer, piece)


def _add(peer: int, piece: Array, streams: Streams) -> None:
    came = np.empty_like(piece)
    streams.receive(peer, came)
    piece += came


def _add_all(peer: int, values: Array, streams: Streams) -> None:
    for piece in _pieces(values, streams):
        _add(peer, piece, streams)
