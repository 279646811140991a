# SPDX-License-Identifier: Apache-2.0
"""Records which workers are in the sums of each iteration.

The *entry* of an iteration consists of parts ``[ranks, chunks]``, where ``chunks`` is None for all
chunks. It has several parts if a worker was lost within the iteration: some chunks were complete by
then, and the others were summed again without it.

A worker reports an iteration when the next one is complete, or at the end. A worker that dies may
have results that the others replace by sums without it; as it did not complete the next iteration,
it never reports these.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Part = tuple[tuple[int, ...], tuple[int, ...] | None]
Entry = tuple[Part, ...]


# Ranks that follow one another, from the first to the last: all workers of a job are one pair.
Runs = tuple[tuple[int, int], ...]


class ParticipationReport(TypedDict):
    """A worker's report of the entries that are certain (``ParticipationLog.tell``)."""

    after: int
    """Last iteration that was reported before."""
    until: int
    """Last iteration that this reports."""
    changes: list[tuple[int, tuple[tuple[Runs, tuple[int, ...] | None], ...]]]
    """Iterations whose entries differ from the one before, with these, ranks as runs."""


class Participants(TypedDict):
    """Workers whose gradients are in the sums of some chunks."""

    workers: list[str]
    """Their names."""
    chunks: int | None
    """Number of chunks; null: all."""


_SpanFrom = TypedDict("_SpanFrom", {"from": Annotated[int, Field(description="First iteration.")]})


class AttendanceSpan(_SpanFrom):
    """Successive iterations with the same workers in their sums."""

    to: int
    """Last iteration."""
    sums: list[Participants]
    """Workers in the sums; several if a worker was lost within an iteration."""


def entry_of(
    workers: Sequence[npt.NDArray[np.int64]], members: Mapping[int, Sequence[int]]
) -> Entry:
    """Returns the entry of an iteration.

    workers: by key (chunks,), number of workers in the sum of each chunk.
    members: ranks in a sum, by their number.
    """
    if len(members) == 1:
        return ((tuple(*members.values()), None),)
    import numpy as np  # slow to import, and every command imports this file

    chunks = np.concatenate(workers)
    counts = np.unique(chunks)[::-1].tolist()
    if len(counts) == 1:
        return ((tuple(members[counts[0]]), None),)
    return tuple((tuple(members[n]), tuple(np.flatnonzero(chunks == n).tolist())) for n in counts)


class ParticipationLog:
    """The entries that one worker process reports. It begins after iteration ``before``."""

    def __init__(self, before: int = 0) -> None:
        self._reported = before
        self._noted = before
        self._waiting: list[tuple[int, Entry]] = []
        self._last: Entry | None = None

    def note(self, entry: Entry) -> None:
        """Adds the entry of the next iteration, which is complete."""
        self._noted += 1
        self._waiting.append((self._noted, entry))

    def tell(self, *, all_of_it: bool = False) -> ParticipationReport:
        """Returns the certain entries that were not reported yet: iterations after ``after`` up to
        ``until``, and ``changes``, the entries that differ from the one before."""
        until = self._noted if all_of_it else max(self._reported, self._noted - 1)
        changes = []
        for iteration, entry in self._waiting:
            if iteration <= until and entry != self._last:
                runs = tuple((_runs(ranks), chunks) for ranks, chunks in entry)
                changes.append((iteration, runs))
                self._last = entry
        self._waiting = [one for one in self._waiting if one[0] > until]
        after, self._reported = self._reported, until
        return {"after": after, "until": until, "changes": changes}


class Attendance:
    """The entries of a job, from all workers' reports. It begins after iteration ``before``."""

    def __init__(self, before: int = 0) -> None:
        self._before = before
        self._entries: dict[int, Entry] = {}
        self._last: dict[int, Entry] = {}  # by rank

    def begin(self, rank: int) -> None:
        """Prepares for the reports of a new process of this rank."""
        self._last.pop(rank, None)

    def take(self, rank: int, report: ParticipationReport) -> None:
        """Takes a report of ``ParticipationLog.tell``."""
        changes = {
            iteration: _entry(tuple((_ranks(tuple(map(tuple, one))), at) for one, at in given))
            for iteration, given in report["changes"]
        }
        for iteration in range(report["after"] + 1, report["until"] + 1):
            self._last[rank] = changes.get(iteration, self._last.get(rank, ()))
            self._entries[iteration] = self._last[rank]

    def counts(self) -> list[int | None]:
        """Returns the number of workers in the sums of each iteration, the minimum over chunks;
        None where no worker has reported."""
        last = max(self._entries, default=0)
        return [
            min(len(ranks) for ranks, _ in self._entries[i]) if i in self._entries else None
            for i in range(self._before + 1, last + 1)
        ]

    def absent(self, rank: int) -> bool:
        """Returns whether a worker is missing in the last reported sums."""
        last = self._entries[max(self._entries)] if self._entries else ()
        return bool(last) and not any(rank in ranks for ranks, _ in last)

    def spans(self) -> list[tuple[int, int, Entry]]:
        """Returns (first iteration, last, entry), in order."""
        numbered = sorted(self._entries.items())
        spans = []
        for entry, group in groupby(numbered, key=lambda item: item[1]):
            inside = [iteration for iteration, _ in group]
            spans.append((inside[0], inside[-1], entry))
        return spans

    def summary(self, names: Sequence[str]) -> list[AttendanceSpan]:
        """Returns ``spans`` for the summary: workers' names, and numbers of chunks (None: all)."""
        return [
            {
                "from": first,
                "to": last,
                "sums": [
                    {
                        "workers": [names[r] for r in ranks],
                        "chunks": None if chunks is None else len(chunks),
                    }
                    for ranks, chunks in entry
                ],
            }
            for first, last, entry in self.spans()
        ]

    def unknown(self, iterations: int, world: int, *, start: bool = False) -> str:
        """Returns why a reference run cannot reproduce the job; empty if it can.

        start: the first iteration's exponents come from initial parameters or a checkpoint, not
        from the workers in it.
        """
        first = self._before + 1
        missing = [i for i in range(first, iterations + 1) if i not in self._entries]
        if missing:
            return (
                f"no worker that was in iteration {missing[0]} is left, so who else took part is"
                " unknown"
            )
        everyone: Entry = ((tuple(range(world)), None),)
        if first <= iterations and not start and self._entries[first] != everyone:
            # Its exponent rounds may have had more workers than its sums.
            return (
                "a worker was lost in the first iteration, and whether its values counted for that"
                " one's exponents is not recorded"
            )
        return ""


def entries(
    spans: Iterable[tuple[int, int, Entry]], iterations: int, before: int = 0
) -> Iterator[Entry]:
    """Yields the entry of each iteration after ``before``, from ``Attendance.spans``, also read
    from JSON."""
    by_first = {first: (last, _entry(given)) for first, last, given in spans}
    iteration = before + 1
    while iteration <= iterations:
        last, entry = by_first[iteration]
        for _ in range(iteration, last + 1):
            yield entry
        iteration = last + 1


@functools.lru_cache(maxsize=16)
def _runs(ranks: tuple[int, ...]) -> Runs:
    """Returns ranks as runs, in their order."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return tuple((first, last) for first, last in runs)


@functools.lru_cache(maxsize=16)
def _ranks(runs: Runs) -> tuple[int, ...]:
    """Inverts `_runs`; equal runs give the same tuple, which is compared at once."""
    return tuple(rank for first, last in runs for rank in range(first, last + 1))


def _entry(given: Entry) -> Entry:
    """Returns an entry whose parts may be lists, as JSON has them."""
    return tuple(
        (tuple(ranks), None if chunks is None else tuple(chunks)) for ranks, chunks in given
    )
