# SPDX-License-Identifier: Apache-2.0
"""Records of the changes of running jobs' chunk maps: what moved, and how long it took."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from protocol import jobs_pb2

__all__ = ["MOST_RECORDS", "MoveRecord", "check"]

MOST_RECORDS = 1000
"""Records that are kept of a job, the newest."""

_MOST_COUNT = 1 << 53  # exact in a double
_MOST_SECONDS = 1e9


def check(moved: jobs_pb2.MovedHere) -> None:
    """Raises ValueError for a server's report that cannot be."""
    if max(moved.chunks, moved.bytes) >= _MOST_COUNT:
        raise ValueError(f"a count of {_MOST_COUNT} or more")
    if not 0 <= moved.seconds < _MOST_SECONDS:  # NaN is none of them
        raise ValueError("a move that took less than no time, or years")


@dataclass
class MoveRecord:
    """A change of a job's chunk map.

    version: of the map, from 1 for the job's first change.
    number: of the change among those of its plan epoch (``Remap``).
    from_round: first round of the map; 0 if it is not known yet.
    slices: that go to other servers.
    began: when it was decided, by the controller's clock.
    seconds: from then until the last member had it, and the last known bytes had come.
    brought: by the server's number in the job: chunks and bytes of parameters and optimizer state
        that it got from others, and the seconds that this took.
    """

    version: int
    number: int
    epoch: int
    reason: str
    slices: int
    began: float
    from_round: int = 0
    seconds: float = 0.0
    brought: dict[int, tuple[int, int, float]] = field(default_factory=dict)

    def take(self, server: int, moved: jobs_pb2.MovedHere, now: float) -> None:
        """Takes a server's report."""
        self.brought[server] = moved.chunks, moved.bytes, moved.seconds
        self.seconds = max(self.seconds, now - self.began)

    def to_message(self) -> jobs_pb2.Move:
        """Returns it as the service's status has it."""
        return jobs_pb2.Move(
            version=self.version,
            number=self.number,
            epoch=self.epoch,
            from_round=self.from_round,
            reason=self.reason,
            slices=self.slices,
            bytes=sum(count for _, count, _ in self.brought.values()),
            seconds=self.seconds,
            transfer_seconds=max((took for *_, took in self.brought.values()), default=0.0),
        )

    def to_json(self) -> str:
        """Returns it as the journal has it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> MoveRecord:
        """Reads what `to_json` wrote."""
        row: dict[str, Any] = json.loads(text)
        known = {one.name: row[one.name] for one in fields(MoveRecord)}
        known["brought"] = {int(server): tuple(of) for server, of in row["brought"].items()}
        return MoveRecord(**known)
