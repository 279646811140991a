# SPDX-License-Identifier: Apache-2.0
"""Reports of a worker's transport: sums, failures and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import TypedDict

from hosts.data.submissions import ChunkRefs
from protocol.payloads import Floats


@dataclass(slots=True)
class Completed:
    """Sums that have arrived, in order of arrival.

    tickets: (n,) as numbered by `submit`.
    chunks: (n,) indices.
    places: references (n,) to the sums.
    flags: (n,) of the results: `Flag.DIRECT` if the server summed the chunk in float32, with the
        reasons.
    workers: (n,) number in each sum: the world of its epoch.
    lanes: of a chunk.
    """

    tickets: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    places: ChunkRefs
    flags: npt.NDArray[np.uint8]
    workers: npt.NDArray[np.int64]
    lanes: int

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def sums(self) -> Floats:
        """Returns a copy of the sums (n, lanes)."""
        return self.places.sums(self.lanes)

    def select(self, which: Any) -> Completed:
        """Returns some of them, or another order."""
        return Completed(
            self.tickets[which],
            self.chunks[which],
            self.places.select(which),
            self.flags[which],
            self.workers[which],
            self.lanes,
        )

    @staticmethod
    def concatenate(parts: Sequence[Completed], lanes: int) -> Completed:
        """Joins `parts` in order; none gives an empty one."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none = np.zeros(0, np.int64)
            places = ChunkRefs({}, none, none)
            return Completed(none, none, places, none.astype(np.uint8), none, lanes)
        return Completed(
            np.concatenate([part.tickets for part in parts]),
            np.concatenate([part.chunks for part in parts]),
            ChunkRefs(
                dict(item for part in parts for item in part.places.submissions.items()),
                np.concatenate([part.places.identifiers for part in parts]),
                np.concatenate([part.places.rows for part in parts]),
            ),
            np.concatenate([part.flags for part in parts]),
            np.concatenate([part.workers for part in parts]),
            lanes,
        )


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
        # asdict would build a Counter from its items, counting those.
        counts = asdict(replace(self, dropped=Counter()))
        counts["dropped"] = dict(self.dropped)
        return cast(TransportCounts, counts)
