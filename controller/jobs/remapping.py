# SPDX-License-Identifier: Apache-2.0
"""State machine of one change of a running job's chunk map, without a new plan epoch.

Events go in, each member's instruction comes out; there is no clock, socket or lock. Servers first
take the chunks that the map gives them, and keep those that they had. Then workers report how many
rounds they have begun; the map is to hold from a round that none has begun, some rounds ahead.
Workers hold that round back until all know whether it holds; those that were faster than expected
have begun it, and then it does not. So all copies of a chunk of one round go to one server, and
nothing waits that need not.

What a map changes is the server of a chunk alone: sums of earlier rounds are completed where they
began. Parameters that servers hold follow with the first contributions (hosts.server.chunk_moves).
For that, workers first complete the rounds of the map before the one at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from controller.jobs.members import Membership, Role
from controller.jobs.resync import ResyncError
from protocol import jobs_pb2
from protocol.partition import Moved
from protocol.plan import moved_message

__all__ = ["AHEAD", "Remap"]

_MOST_ROUNDS = 1 << 62
AHEAD = 2
"""Usual number of rounds until a map holds."""


class Remap:
    """One change of a job's chunk map.

    epoch: the plan epoch.
    number: unique within it.
    moved: the map, with ranks of the plan's servers.
    ahead: rounds between the most that any worker has begun and the one from which it holds.
    before: the map that holds until then.
    apart: workers are in different rounds, and each takes the map when it hears of it; servers see
        to it that a chunk is at one of them (hosts.server.chunk_custody). There is no `from_round`.
    drains: servers hold parameters. They follow a chunk with its first contribution at its next
        server, which must not be one of a round in which that server had the chunk before.
    """

    def __init__(
        self,
        epoch: int,
        number: int,
        moved: Moved,
        workers: Iterable[Membership],
        servers: Iterable[Membership],
        ahead: int = AHEAD,
        before: Moved = (),
        drains: bool = False,
        apart: bool = False,
    ) -> None:
        self.epoch = epoch
        self.number = number
        self.moved = moved
        self._ahead = ahead
        self._apart = apart
        self.from_round = 0
        self.holds: bool | None = None  # known once all workers have answered
        self._workers = set(workers)
        self._servers = set(servers)
        self._waiting = set(self._workers if drains else self._servers)
        self._begun: dict[Membership, int] = {}
        self._message = jobs_pb2.Remap(
            number=number, moved=moved_message(moved), before=moved_message(before), drain=drains
        )
        self._instructions: dict[Membership, jobs_pb2.Instruction] = {}
        self._asked = False
        self._tell(self._waiting)

    def instruction(self, place: Membership) -> jobs_pb2.Instruction | None:
        """Returns a member's instruction, the same object until it is replaced; None if none."""
        return self._instructions.get(place)

    @property
    def owing(self) -> list[Membership]:
        """Members that have yet to answer, in order."""
        return sorted(self._waiting, key=lambda place: (place.role.value, place.rank))

    @property
    def settled(self) -> bool:
        """True if all workers know whether the map holds."""
        return self.holds is not None and not self._waiting

    def answer(self, place: Membership, remapped: jobs_pb2.Remapped) -> bool:
        """Takes a member's answer; returns false if it is to an earlier instruction, or repeated.

        Raises ResyncError for a number of rounds that nobody has begun.
        """
        if remapped.begun >= _MOST_ROUNDS:
            raise ResyncError(f"{remapped.begun} rounds")
        decided = self.holds is not None
        current = (
            remapped.number == self.number
            and (place.role is Role.SERVER or remapped.from_round == self.from_round)
            and remapped.decided == (decided and place.role is Role.WORKER)
            and remapped.drained == self._message.drain
        )
        if not current or place not in self._waiting:
            return False
        self._waiting.discard(place)
        if place.role is Role.WORKER and not remapped.drained:
            self._begun[place] = remapped.begun
        self._advance()
        return True

    def left(self, place: Membership) -> None:
        """Goes on without a member that has left."""
        self._workers.discard(place)
        self._servers.discard(place)
        self._begun.pop(place, None)
        if place in self._waiting:
            self._waiting.discard(place)
            self._advance()

    def _advance(self) -> None:
        if self._waiting or self.settled:
            return
        if self._message.drain:
            self._message.drain, self._waiting = False, set(self._servers)
            self._tell(self._servers)
            return
        if self._apart:
            self.holds = self._message.holds = True
        elif not self._asked:
            self._asked = True
        elif not self.from_round:
            self.from_round = self._message.from_round = (
                max(self._begun.values(), default=0) + self._ahead
            )
        else:
            late = any(begun >= self.from_round for begun in self._begun.values())
            self._message.holds, self._message.cancelled = not late, late
            self.holds = not late
        self._waiting = set(self._workers)
        self._tell(self._workers)

    def _tell(self, places: Collection[Membership]) -> None:
        for place in places:
            said = jobs_pb2.Remap()
            said.CopyFrom(self._message)
            self._instructions[place] = jobs_pb2.Instruction(epoch=self.epoch, remap=said)
