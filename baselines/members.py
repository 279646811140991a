# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a sum of everybody's values, by whichever way: three steps, the same in
emulation and in virtual time.

`prepare`, then `open` when all have, then `iterate` as often as wanted, each time when all are
ready, then `close`. Values are whole numbers, and so are their sums: float32 and fixed point hold
both exactly, so a sum is right or wrong, in whatever order it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from planner.collectives import Array, Streams, halving_doubling, pull_sums, ring, serve_sums

__all__ = ["GLOO", "IN_NETWORK", "Member", "Report", "StreamMember", "sum_of", "values_of", "wrong"]

IN_NETWORK = "in-network"
GLOO = "gloo"  # an optional extra, for emulation only

MOST_WORKERS = 1024  # so that sums stay below 2^24, which float32 counts to
_NUMBERS = 16
_PART = 1 << 14


@dataclass(frozen=True)
class Report:
    """Of an iteration at one member: when it began and ended (s), and how many values of the sum
    were wrong; None: there were none, only chunks."""

    began: float
    ended: float
    wrong: int | None = 0


class Member(Protocol):
    """See the module."""

    def prepare(self) -> Any:
        """Before the others open; what the first of them returns, all are told."""

    def open(self, told: Any) -> None:
        """Gets ready to iterate."""

    def iterate(self, number: int) -> Report:
        """Takes part in one sum."""

    def close(self) -> None:
        """It is over."""


def values_of(rank: int, number: int, size: int) -> Array:
    """What a worker adds in an iteration: odd numbers that differ by place, times one that differs
    by rank."""
    found = np.empty(size, np.float32)
    for first, part in _parts(found):
        part[...] = _places(number, first, len(part), rank + 1)
    return found


def sum_of(workers: int, number: int, size: int) -> Array:
    """What all workers' values add up to."""
    return values_of(_times_all(workers) - 1, number, size)


def wrong(came: Array, workers: int, number: int) -> int:
    """How many values of a sum are not what they should be."""
    times = _times_all(workers)
    return sum(
        int(np.count_nonzero(part != _places(number, first, len(part), times)))
        for first, part in _parts(came)
    )


def _times_all(workers: int) -> int:
    return workers * (workers + 1) // 2


def _parts(values: Array) -> Iterator[tuple[int, Array]]:
    """Of which a processor's cache holds one and all that it is made of, with their beginnings."""
    for first in range(0, len(values), _PART):
        yield first, values[first : first + _PART]


def _places(number: int, first: int, size: int, times: int) -> Array:
    # (Multiplicative hashing: neighbours differ, and so does every iteration.)
    mixed = np.arange(first, first + size, dtype=np.uint32)
    mixed += np.uint32(number)
    mixed *= np.uint32(2654435769)
    mixed >>= 28
    odd: Array = mixed.astype(np.float32)
    odd *= 2 * times
    odd -= (_NUMBERS - 1) * times
    return odd


class StreamMember:
    """Of a baseline: a worker, or a server with a number that is `workers` or more.

    name: of the baseline. sizes: values of the whole and, for servers, of this one's part. open,
    close: of the streams.
    """

    def __init__(
        self,
        name: str,
        member: int,
        workers: int,
        servers: int,
        sizes: tuple[int, int],
        streams: Streams,
        clock: Callable[[], float],
        opened: Callable[[], None] = lambda: None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._member = name, member
        self._workers, self._servers, self._sizes = workers, servers, sizes
        self._streams, self._clock = streams, clock
        self._opened, self._closed = opened, closed

    def prepare(self) -> None:
        """See Member: it listens from when it was made."""

    def open(self, told: Any) -> None:
        """See Member."""
        self._opened()

    def iterate(self, number: int) -> Report:
        """See Member."""
        size, part = self._sizes
        if self._member >= self._workers:
            began = self._clock()
            serve_sums(self._workers, part, self._streams)
            return Report(began, self._clock())
        values = values_of(self._member, number, size)
        began = self._clock()
        if self._name == "ring":
            ring(self._member, self._workers, values, self._streams)
        elif self._name == "halving-doubling":
            halving_doubling(self._member, self._workers, values, self._streams)
        else:
            servers = range(self._workers, self._workers + self._servers)
            pull_sums(servers, values, self._streams)
        ended = self._clock()
        return Report(began, ended, wrong(values, self._workers, number))

    def close(self) -> None:
        """See Member."""
        self._closed()
