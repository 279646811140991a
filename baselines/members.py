# SPDX-License-Identifier: Apache-2.0
"""Members of a comparison, the same in emulation and in virtual time.

A member is driven by `prepare`, `open`, `iterate` (repeatedly) and `close`; each call waits until
all members have finished the previous one. Values and sums are whole numbers that float32 and
fixed point hold exactly, so every correct summation order gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import numpy as np

from planner.collectives import Collective, Team
from planner.collectives.streams import Array, Streams

IN_NETWORK = "in-network"
GLOO = "gloo"  # an optional extra, for emulation only

MOST_WORKERS = 1024  # keeps sums below 2^24, up to which float32 holds every integer
_NUMBERS = 16
_PART = 1 << 14


class ServiceOptions(TypedDict):
    """Arguments of ``Client.create_service``."""

    namespace: str
    workers: list[str]
    servers: list[str]
    tree: str
    window: int
    streams: int
    lease: float
    admission: str
    slice_bytes: int


@dataclass(frozen=True)
class Report:
    """One member's measurement of an iteration.

    began, ended: In seconds.
    wrong: The number of wrong values in its sum; None if chunks had no payload.
    """

    began: float
    ended: float
    wrong: int | None = 0


class Member(Protocol):
    """A worker or server of a contender (see the module)."""

    def prepare(self) -> Any:
        """Runs before any member opens; the result, of the one that has any, is passed to `open` of
        all."""

    def open(self, setup: Any) -> None:
        """Connects. setup: the result of `prepare`; None if no member has one."""

    def iterate(self, number: int) -> Report:
        """Takes part in one sum."""

    def close(self) -> None:
        """Disconnects."""


def values_of(rank: int, number: int, size: int) -> Array:
    """Returns a worker's values: pseudo-random odd numbers by position, times rank + 1."""
    found = np.empty(size, np.float32)
    for first, part in _parts(found):
        part[...] = _pattern(number, first, len(part), rank + 1)
    return found


def sum_of(workers: int, number: int, size: int) -> Array:
    """Returns the sum of all workers' values."""
    return values_of(_times_all(workers) - 1, number, size)


def wrong(came: Array, workers: int, number: int) -> int:
    """Counts the wrong values of a sum."""
    times = _times_all(workers)
    return sum(
        int(np.count_nonzero(part != _pattern(number, first, len(part), times)))
        for first, part in _parts(came)
    )


def _times_all(workers: int) -> int:
    return workers * (workers + 1) // 2


def _parts(values: Array) -> Iterator[tuple[int, Array]]:
    """Yields cache-sized parts with their offsets."""
    for first in range(0, len(values), _PART):
        yield first, values[first : first + _PART]


def _pattern(number: int, first: int, size: int, times: int) -> Array:
    # Multiplicative hashing: neighbours differ, and so do iterations.
    mixed = np.arange(first, first + size, dtype=np.uint32)
    mixed += np.uint32(number)
    mixed *= np.uint32(2654435769)
    mixed >>= 28
    odd: Array = mixed.astype(np.float32)
    odd *= 2 * times
    odd -= (_NUMBERS - 1) * times
    return odd


class ComputedStreams:
    """Streams of a worker that computes its values, sent once each, while it sends them.

    seconds: That it takes for all `size` values.
    now, sleep: The worker's clock.
    """

    def __init__(
        self,
        streams: Streams,
        size: int,
        seconds: float,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.piece, self.switches = streams.piece, streams.switches
        self.receive = streams.receive
        self._streams, self._each, self._size = streams, seconds / size, size
        self._now, self._sleep = now, sleep
        self._began, self._sent = 0.0, 0

    def send(self, peer: int, values: Array) -> None:
        """Implements ``Streams.send``."""
        if not self._sent:
            self._began = self._now()
        self._sent += len(values)
        self._sleep(max(0.0, self._began + self._each * self._sent - self._now()))
        self._streams.send(peer, values)
        self._sent %= self._size


class StreamMember:
    """A collective's worker, or one of its servers (a ``Member``).

    size: Values of a sum.
    opened, closed: Open and close the streams.
    checked: Sums are checked; they have no values if switches sum chunks without payload.
    """

    def __init__(
        self,
        collective: Collective,
        member: int,
        team: Team,
        size: int,
        streams: Streams,
        clock: Callable[[], float],
        opened: Callable[[], None] = lambda: None,
        closed: Callable[[], None] = lambda: None,
        checked: bool = True,
    ) -> None:
        self._checked = checked
        self._collective, self._member, self._team = collective, member, team
        self._size, self._streams, self._clock = size, streams, clock
        self._opened, self._closed = opened, closed

    def prepare(self) -> Any:
        """Implements ``Member.prepare``: nothing to do, the streams listen from the start."""

    def open(self, setup: Any) -> None:
        """Implements ``Member.open``."""
        self._opened()

    def iterate(self, number: int) -> Report:
        """Implements ``Member.iterate``."""
        member, team = self._member, self._team
        if member in team.server_members:
            began = self._clock()
            self._collective.serve(member, team, self._size, self._streams)
            return Report(began, self._clock())
        values = values_of(member, number, self._size)
        began = self._clock()
        self._collective.reduce(member, team, values, self._streams)
        ended = self._clock()
        if not self._checked:
            return Report(began, ended, None)
        return Report(began, ended, wrong(values, len(team.workers), number))

    def close(self) -> None:
        """Implements ``Member.close``."""
        self._closed()
