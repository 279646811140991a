# SPDX-License-Identifier: Apache-2.0
"""Counts what chunk maps have brought to a server: chunks, bytes and seconds of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosts.data.snapshot import Chunks, Snapshot
from protocol import jobs_pb2


@dataclass
class _Brought:
    """Counts of one map. began, ended: seconds; of the first call, and of the last answer."""

    began: float
    ended: float
    chunks: int = 0
    bytes: int = 0


class MoveCounts:
    """The counts in one plan epoch. Reports have totals, so that a repeated one changes nothing."""

    def __init__(self, chunks: int) -> None:
        self._number = np.zeros(chunks, np.uint32)  # of the map that a chunk comes by
        self._brought: dict[int, _Brought] = {}
        self._news: set[int] = set()

    def gain(self, chunks: npt.NDArray[np.bool_], number: int) -> None:
        """Records that a map gives the server these chunks (mask)."""
        self._number[chunks] = number

    def ask(self, chunks: Chunks, now: float) -> None:
        """Records a call for chunks."""
        for number in np.unique(self._number[chunks]).tolist():
            self._brought.setdefault(number, _Brought(now, now))

    def take(self, part: Snapshot, now: float) -> None:
        """Records chunks that have come."""
        numbers, counts = np.unique(self._number[part.chunks], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            one = self._brought.setdefault(number, _Brought(now, now))
            one.chunks += count
            one.bytes += count * (part.nbytes // len(part))
            one.ended = now
            self._news.add(number)

    @property
    def news(self) -> bool:
        """True if `reports` would return any."""
        return bool(self._news)

    def reports(self) -> list[jobs_pb2.MovedHere]:
        """Returns the totals that have changed since the last call."""
        news, self._news = sorted(self._news), set()
        return [
            jobs_pb2.MovedHere(
                number=number,
                chunks=one.chunks,
                bytes=one.bytes,
                seconds=one.ended - one.began,
            )
            for number, one in ((number, self._brought[number]) for number in news)
        ]
