# SPDX-License-Identifier: Apache-2.0
"""A member's part in a change of epoch: instructions in, answers out.

State machines without connection, clock or thread. Their answers are messages for the job
service's Resync that lack only who sends them (nonce, role and rank). Instructions may be repeated,
as by a service that was connected to anew; those older than what is known change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hosts.data.reports import Failure
from protocol import jobs_pb2

MOST_ANSWER_BYTES = 4 << 20
# In how many epochs one chunk's sum may stay bad before its job is hopeless.
MOST_BROKEN = 3
_RESULT_OVERHEAD = 64  # bytes of a Result beside its payload, at most


class UnrecoverableChunkError(Exception):
    """A chunk's sum is bad in epoch after epoch; planning anew does not help."""


class EpochMember:
    """What both roles have in common: which instructions count."""

    def __init__(self) -> None:
        self._newest = 0
        self._broken: Counter[int] = Counter()  # epochs, by chunk

    def _counts(self, epoch: int, running: int) -> bool:
        """Whether an instruction of `epoch` holds for a member that runs the plan of `running`."""
        if epoch < self._newest or epoch <= running:
            return False
        self._newest = epoch
        return True

    def _reports(self, epoch: int, failures: Sequence[Failure]) -> list[jobs_pb2.ResyncRequest]:
        """Failures of `epoch` as the job service is told. Raises UnrecoverableChunkError."""
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
    """Results in messages that are not too large."""
    most = max(1, MOST_ANSWER_BYTES // (4 * lanes + _RESULT_OVERHEAD))
    starts = range(0, max(1, len(results)), most)
    for start in starts:
        yield jobs_pb2.Handed(results=results[start : start + most], last=start == starts[-1])
