# SPDX-License-Identifier: Apache-2.0
"""A worker's part in a change of the chunk map while its job goes on.

A state machine without connection, clock or thread. A map holds from a round on, and all workers
have the same rounds: a worker that has not begun that round holds it back until it knows whether
the map holds. The job service chooses a round that is far enough ahead, so that this is known in
time as a rule.
"""

from __future__ import annotations

from protocol import jobs_pb2
from protocol.partition import Moved
from protocol.plan import moved_of


class ChunkMaps:
    """The next chunk map, and the round from which it holds."""

    def __init__(self) -> None:
        self._next: jobs_pb2.Remap | None = None

    @property
    def most(self) -> int | None:
        """The round after which none may begin yet; None if any may."""
        one = self._next
        if one is None or one.holds or not one.from_round:
            return None
        return int(one.from_round) - 1

    def on_remap(self, remap: jobs_pb2.Remap, begun: int) -> jobs_pb2.Remapped:
        """Takes an instruction; returns its answer. begun: rounds that this worker has begun."""
        decided = remap.holds or remap.cancelled
        answer = jobs_pb2.Remapped(
            number=remap.number, from_round=remap.from_round, decided=decided, begun=begun
        )
        if remap.cancelled:
            self._next = None
        elif decided or begun < remap.from_round:
            self._next = remap
        return answer

    def on_plan(self, moved: Moved) -> None:
        """Takes the plan at hand again, from a job service that was away: its map holds."""
        if self._next is not None and not self._next.holds:
            if moved_of(self._next.moved) == moved:
                self._next.holds = True
            else:
                self._next = None

    def take(self, number: int) -> Moved | None:
        """Returns the map that holds from a round on which is this one or an earlier one, once;
        None if there is none."""
        one = self._next
        if one is None or not one.holds or number < one.from_round:
            return None
        self._next = None
        return moved_of(one.moved)

    def drop(self) -> None:
        """Forgets the next map, as another plan has a map of its own."""
        self._next = None
