# SPDX-License-Identifier: Apache-2.0
"""Baseline all-reduce algorithms over byte streams, without in-network aggregation.

Each function is one member's part of one in-place sum over all workers. Members are numbered:
workers from 0, then servers. The same code runs over TCP (``baselines.sockets``) and in virtual
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
    """One member's connections: a reliable stream each way to every peer that it needs.

    piece: the most values sent at once, so that the first can be forwarded before the rest arrive.
    """

    piece: int

    def send(self, peer: int, values: Array) -> None:
        """Copies values into the stream, without waiting for the peer."""

    def receive(self, peer: int, into: Array) -> None:
        """Blocks until `into` is filled."""


def bounds(size: int, parts: int) -> list[int]:
    """Returns the boundaries of `parts` parts of `size` values, as equal as possible."""
    return [size * part // parts for part in range(parts + 1)]


def ring(member: int, workers: int, values: Array, streams: Streams) -> None:
    """Ring all-reduce (Patarasuk and Yuan, JPDC 2009).

    A reduce-scatter, then an all-gather. A piece is forwarded as soon as it arrives, so a step does
    not wait for the one before to end.
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

    In each round a worker keeps half of its values, sends the other half to the worker 1, 2, 4..
    places away and adds what arrives from there; then all rounds run backwards. The number of
    places is a power of two: in the first pairs of workers, one sends all its values to the other
    and receives the sum at the end.
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
    """The worker's part with parameter servers, each of which sums one shard."""
    ends = bounds(len(values), len(servers))
    for i, server in enumerate(servers):
        _send(server, values[ends[i] : ends[i + 1]], streams)
    for i, server in enumerate(servers):
        _receive(server, values[ends[i] : ends[i + 1]], streams)


def serve_sums(workers: int, size: int, streams: Streams) -> None:
    """The parameter server's part for a shard of `size` values: it returns a piece to all workers
    as soon as all have sent it."""
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
