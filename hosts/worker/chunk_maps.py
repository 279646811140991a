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
    """The next chunk maps, and the rounds from which they hold.

    since: the round from which the last map holds that is known to; 0: the plan's.
    """

    def __init__(self) -> None:
        self.since = 0
        self._next: jobs_pb2.Remap | None = None  # undecided
        self._held: list[jobs_pb2.Remap] = []  # in order; their rounds have not begun

    @property
    def most(self) -> int | None:
        """The round after which none may begin yet; None if any may."""
        return None if self._next is None else int(self._next.from_round) - 1

    @property
    def undecided(self) -> int | None:
        """The number of the change of maps that holds rounds back; None if none may."""
        return None if self._next is None else int(self._next.number)

    def on_remap(self, remap: jobs_pb2.Remap, begun: int) -> jobs_pb2.Remapped:
        """Takes an instruction; returns its answer. begun: rounds that this worker has begun."""
        decided = remap.holds or remap.cancelled
        if self._next is not None and self._next.number != remap.number:
            # The job service was away, and the end of that attempt was lost.
            self.on_plan(moved_of(remap.before))
        if begun < remap.from_round:  # else it was taken, or is too late
            self._next = None if decided else remap
            if remap.holds and remap.number not in [one.number for one in self._held]:
                self._hold(remap)
        return jobs_pb2.Remapped(
            number=remap.number,
            from_round=remap.from_round,
            decided=decided,
            begun=begun,
            drained=remap.drain,
        )

    def on_plan(self, moved: Moved) -> None:
        """Takes the map that holds from a job service that was away: the next one, if that is
        it."""
        if self._next is not None and moved_of(self._next.moved) == moved:
            self._hold(self._next)
        self._next = None

    def _hold(self, remap: jobs_pb2.Remap) -> None:
        self._held.append(remap)
        self.since = int(remap.from_round)

    def take(self, number: int) -> Moved | None:
        """Returns the map that holds from a round on which is this one or an earlier one, once;
        None if there is none."""
        due = [place for place, one in enumerate(self._held) if one.from_round <= number]
        if not due:
            return None
        one = self._held[due[-1]]
        del self._held[: due[-1] + 1]
        return moved_of(one.moved)

    def drop(self) -> None:
        """Forgets the next maps, as another plan has a map of its own."""
        self._next, self._held, self.since = None, [], 0
