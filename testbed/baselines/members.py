# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a sum of everybody's values, by whichever way: three steps, the same in
emulation and in virtual time.

`prepare`, then `open` when all have, then `iterate` as often as wanted, each time when all are
ready, then `close`. Values are whole numbers, and so are their sums: float32 and fixed point hold
both exactly, so a sum is right or wrong, in whatever order it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hosts.client import Client
from hosts.jobservice import create_service
from hosts.outside import HERE, Outside
from testbed.baselines.collectives import (
    Array,
    Streams,
    halving_doubling,
    pull_sums,
    ring,
    serve_sums,
)

__all__ = ["InNetwork", "Member", "Report", "StreamMember", "sum_of", "values_of"]

MOST_WORKERS = 1024  # so that sums stay below 2^24, which float32 counts to
_NUMBERS = 16


@dataclass(frozen=True)
class Report:
    """Of an iteration at one member: when it began and ended (s), and how many values of the sum
    were wrong."""

    began: float
    ended: float
    wrong: int = 0


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
    return _places(number, size, rank + 1)


def sum_of(workers: int, number: int, size: int) -> Array:
    """What all workers' values add up to."""
    return _places(number, size, workers * (workers + 1) // 2)


def _places(number: int, size: int, times: int) -> Array:
    # (Multiplicative hashing: neighbours differ, and so does every iteration.)
    mixed = (np.arange(size, dtype=np.uint32) + np.uint32(number)) * np.uint32(2654435769)
    odd: Array = (mixed >> 28).astype(np.float32) * 2 - (_NUMBERS - 1)
    odd *= times
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
        return Report(began, ended, _wrong(values, self._workers, number))

    def close(self) -> None:
        """See Member."""
        self._closed()


class InNetwork:
    """A worker whose sums are made as its job says: by switches, or servers.

    sizes: values of each key. create: what ``create_service`` takes, for the one that creates the
    job; None for the others.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        sizes: Sequence[int],
        client: Callable[[], Client],
        create: Mapping[str, Any] | None,
        service: str | None = None,
        outside: Outside = HERE,
    ) -> None:
        self._rank, self._workers = rank, workers
        self._ends = np.cumsum([0, *sizes]).tolist()
        self._make, self._create = client, create
        self._service, self._outside = service, outside
        self._client: Client | None = None

    def prepare(self) -> Any:
        """See Member: creates the job."""
        if self._create is None:
            return None
        made = create_service(self._service, **self._create, outside=self._outside)
        return {"nonce": made.nonce, "servers": list(made.servers)}

    def open(self, told: Any) -> None:
        """See Member."""
        self._client = self._make()
        self._client.connect_service(told["nonce"], self._rank)
        keys = zip(self._ends, self._ends[1:], strict=False)
        self._client.init_service({str(i): b - a for i, (a, b) in enumerate(keys)})

    def iterate(self, number: int) -> Report:
        """See Member."""
        assert self._client is not None
        clock = self._outside.world.now
        values = values_of(self._rank, number, self._ends[-1])
        keys = zip(self._ends, self._ends[1:], strict=False)
        parts = {str(i): values[a:b] for i, (a, b) in enumerate(keys)}
        began = clock()
        sums = self._client.push_pull(parts)
        ended = clock()
        came = np.concatenate([sums[key].reshape(-1) for key in parts])
        return Report(began, ended, _wrong(came, self._workers, number))

    def close(self) -> None:
        """See Member."""
        if self._client is not None:
            self._client.leave()


def _wrong(came: Array, workers: int, number: int) -> int:
    return int(np.count_nonzero(came != sum_of(workers, number, len(came))))
