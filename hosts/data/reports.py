# SPDX-License-Identifier: Apache-2.0
"""Reports of a worker's transport: sums, failures and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import TypedDict

from hosts.data.submissions import Submission
from protocol.header import Array
from protocol.payloads import Floats


class EpochSums(NamedTuple):
    """Sums that arrived in one epoch, in order of arrival.

    found: (n,) SUM in hosts/worker/core.py.
    submissions: by the places that `found` names.
    workers: number in each sum: the world of the epoch.
    """

    found: Array
    submissions: Mapping[int, Submission]
    workers: int


class Completed:
    """Sums that have arrived, by epoch in order of arrival."""

    def __init__(self, epochs: Sequence[EpochSums]) -> None:
        self.epochs = epochs

    def __len__(self) -> int:
        return sum(len(one.found) for one in self.epochs)

    @property
    def tickets(self) -> npt.NDArray[np.int64]:
        """Returns the tickets (n,), as numbered by `submit`."""
        return self._column("ticket", np.int64)

    @property
    def chunks(self) -> npt.NDArray[np.int64]:
        """Returns the indices of the chunks (n,)."""
        return self._column("chunk", np.int64)

    @property
    def flags(self) -> npt.NDArray[np.uint8]:
        """Returns the flags (n,) of the results: `Flag.DIRECT` if the server summed the chunk in
        float32, with the reasons."""
        return self._column("flags", np.uint8)

    @property
    def workers(self) -> npt.NDArray[np.int64]:
        """Returns the number of workers in each sum (n,)."""
        return np.repeat([one.workers for one in self.epochs], [len(e.found) for e in self.epochs])

    @property
    def sums(self) -> Floats:
        """Returns a copy of the sums (n, lanes), of at least one chunk."""
        return np.stack(
            [
                one.submissions[place].sums[row]
                for one in self.epochs
                for place, row in one.found[["submission", "row"]].tolist()
            ]
        )

    def _column(self, name: str, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, kind), *(one.found[name] for one in self.epochs)])


@dataclass(frozen=True, slots=True)
class Failure:
    """A chunk whose sum no retransmission can repair; its job needs another plan."""

    stream: int
    seq: int
    chunk: int
    reason: str

    def __str__(self) -> str:
        return f"chunk {self.chunk} (stream {self.stream}, seq {self.seq}): {self.reason}"


class PlanCounts(TypedDict):
    """`Sums` as a plain value."""

    epoch: int
    tree: str
    roots: Sequence[str]
    chunks: int


class TransportCounts(TypedDict):
    """`Statistics` as plain values."""

    sent: int
    retransmitted: int
    queries: int
    states: int
    completed: int
    completed_direct: int
    exponent_rounds: int
    coarse: int
    initial: int
    ahead: int
    most_ahead: int
    congested: int
    duplicates: int
    wrong_checksum: int
    dropped: dict[str, int]
    plans: list[PlanCounts]


class ClientStatistics(TransportCounts):
    """Counts of a client: those of its transport, and of its `hosts.net.driver.Counters`."""

    socket: dict[str, int]


@dataclass(slots=True)
class Sums:
    """Chunks whose integer sum arrived under one plan, and the nodes that this plan sums at."""

    epoch: int
    tree: str
    roots: tuple[str, ...]
    chunks: int = 0


@dataclass(slots=True)
class Statistics:
    """Counts of packets and chunks since the start."""

    sent: int = 0  # CONTRIBUTEs, including retransmitted and DIRECT ones
    retransmitted: int = 0  # retransmitted CONTRIBUTEs
    queries: int = 0
    states: int = 0  # accepted answers to them
    # Chunks whose integer sum arrived, or, in an asynchronous job, parameters.
    completed: int = 0
    completed_direct: int = 0  # chunks that the server summed in float32
    exponent_rounds: int = 0
    # Of `completed`, those whose largest value had few binary digits left (Codec.coarse), because
    # it was so much smaller than in the round before, by which they were scaled.
    coarse: int = 0
    initial: int = 0  # chunks whose initial parameters arrived from servers with an optimizer
    # By how many contributions to a chunk this worker was ahead of the slowest when answers left,
    # in all and at most; 0 in a synchronous job.
    ahead: int = 0
    most_ahead: int = 0
    congested: int = 0  # results of contributions that met congestion (ECN)
    duplicates: int = 0  # results that had arrived before
    wrong_checksum: int = 0
    # Why other packets were dropped: foreign, wrong_source, stale, other_chunk, unexpected,
    # unasked, wrong_workers, wrong_lanes, wrong_exponent, frozen (after the halt of an epoch).
    dropped: Counter[str] = field(default_factory=Counter)
    plans: list[Sums] = field(default_factory=list)  # `completed` by plan, so far

    def counts(self) -> TransportCounts:
        """Returns all counts by name, as plain values."""
        # By hand, as asdict takes ten times as long, and there may be thousands of workers.
        return {
            "sent": self.sent,
            "retransmitted": self.retransmitted,
            "queries": self.queries,
            "states": self.states,
            "completed": self.completed,
            "completed_direct": self.completed_direct,
            "exponent_rounds": self.exponent_rounds,
            "coarse": self.coarse,
            "initial": self.initial,
            "ahead": self.ahead,
            "most_ahead": self.most_ahead,
            "congested": self.congested,
            "duplicates": self.duplicates,
            "wrong_checksum": self.wrong_checksum,
            "dropped": dict(self.dropped),
            "plans": [
                {"epoch": one.epoch, "tree": one.tree, "roots": one.roots, "chunks": one.chunks}
                for one in self.plans
            ],
        }
