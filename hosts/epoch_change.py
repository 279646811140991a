# SPDX-License-Identifier: Apache-2.0
"""The part of a member's epoch change that workers and servers share: instructions in, answers out.

State machines without connection, clock or thread. Their answers are messages for the job service's
Resync that lack only their sender (nonce, role and rank). Instructions may be repeated, as after a
reconnect; instructions of older epochs are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hosts.data.reports import Failure
from protocol import jobs_pb2
from protocol.header import LANE_BYTES

MOST_ANSWER_BYTES = 4 << 20
# Epochs in which a chunk's sum may fail before its job is given up.
MOST_BROKEN = 3
_RESULT_OVERHEAD = 64  # bytes of a Result beside its payload, at most


class UnrecoverableChunkError(Exception):
    """A chunk's sum failed its check in epoch after epoch; another plan does not help."""


class EpochMember:
    """Filters instructions by epoch and reports failures."""

    def __init__(self) -> None:
        self._newest = 0
        self._broken: Counter[int] = Counter()  # epochs, by chunk

    def _counts(self, epoch: int, running: int) -> bool:
        """Returns true if an instruction of `epoch` applies to a member that runs the plan of
        `running`."""
        if epoch < self._newest or epoch <= running:
            return False
        self._newest = epoch
        return True

    def _reports(self, epoch: int, failures: Sequence[Failure]) -> list[jobs_pb2.ResyncRequest]:
        """Returns the messages that report failures of `epoch`. Raises UnrecoverableChunkError."""
        for failure in failures:
            self._broken[failure.chunk] += 1
            if self._broken[failure.chunk] > MOST_BROKEN:
                raise UnrecoverableChunkError(f"{failure}, in {self._broken[failure.chunk]} epochs")
        return [
            jobs_pb2.ResyncRequest(
                epoch=epoch,
                broken=jobs_pb2.Broken(stream=f.stream, seq=f.seq, chunk=f.chunk, reason=f.reason),
            )
            for f in failures
        ]


def pages_of(results: Sequence[jobs_pb2.Result], lanes: int) -> Iterator[jobs_pb2.Handed]:
    """Splits results into messages of limited size."""
    most = max(1, MOST_ANSWER_BYTES // (LANE_BYTES * lanes + _RESULT_OVERHEAD))
    starts = range(0, max(1, len(results)), most)
    for start in starts:
        yield jobs_pb2.Handed(results=results[start : start + most], last=start == starts[-1])
