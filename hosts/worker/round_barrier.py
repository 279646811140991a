# SPDX-License-Identifier: Apache-2.0
"""A worker's rounds, and the boundaries between them at which others may join.

State machines without connection, clock or thread. A round is a worker's calls until one has a key
that the round has had: an iteration, whether it pushes its keys at once or one by one. All workers
make the same calls, so they have the same rounds.

Told of a boundary, a worker says how many rounds it has begun and begins no other until it knows
how far all go; when it has completed that many it says so, and waits: for a plan of a newer epoch,
with those who have joined, or for the one at hand once more, which ends an attempt that came to
nothing. Meanwhile it may be asked for what its application knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from protocol import jobs_pb2
from protocol.state import Pages, StateError


class RoundBarrier:
    """`begun` and `completed` count rounds, `pushed` the keys in those begun. Answers are taken
    with `take_answers`."""

    def __init__(self) -> None:
        self.begun = 0
        self.completed = 0
        self.pushed = 0
        self._hold: jobs_pb2.Boundary | None = None
        self._reached = False  # and said so
        self._donate: jobs_pb2.Donate | None = None
        self._given: tuple[int, Pages | str] | None = None  # number, and what or why not
        self._answers: list[jobs_pb2.ResyncRequest] = []

    @property
    def open(self) -> bool:
        """Whether another round may begin."""
        hold = self._hold
        return hold is None or (hold.HasField("until") and self.begun < hold.until)

    @property
    def donation(self) -> int | None:
        """The number of the donation that the application is asked for; None: of none."""
        if self._donate is None or (self._given and self._given[0] == self._donate.number):
            return None
        return self._donate.number

    def begin(self) -> bool:
        """Begins a round, if one may; whether it has."""
        if not self.open:
            return False
        self.begun += 1
        return True

    def complete(self) -> None:
        """A round is complete."""
        self.completed += 1
        self._look()

    def on_boundary(self, boundary: jobs_pb2.Boundary) -> None:
        """The job service speaks of a boundary."""
        before = self._hold
        if before is None or before.number != boundary.number:
            self._reached = False
        self._hold, self._donate = boundary, None
        if not boundary.HasField("until"):
            begun = jobs_pb2.Begun(number=boundary.number, calls=self.begun)
            self._answers.append(jobs_pb2.ResyncRequest(begun=begun))
        self._look()

    def on_donate(self, donate: jobs_pb2.Donate) -> None:
        """The job service asks for a page of the application's state."""
        self._donate = donate
        self._look()

    def give(self, number: int, data: bytes | None, unable: str = "") -> None:
        """The application's state for a donation, as bytes, or why there is none."""
        self._given = number, (Pages(data) if data is not None else unable)
        self._look()

    def release(self) -> None:
        """There is no boundary any more."""
        self._hold = self._donate = self._given = None

    def take_answers(self) -> list[jobs_pb2.ResyncRequest]:
        """What there is to say since the last call; only the epoch is missing in it."""
        answers, self._answers = self._answers, []
        return answers

    def _look(self) -> None:
        hold, donate, given = self._hold, self._donate, self._given
        if hold is not None and hold.HasField("until") and not self._reached:
            self._reached = self.completed >= hold.until
            if self._reached:
                reached = jobs_pb2.Reached(number=hold.number)
                self._answers.append(jobs_pb2.ResyncRequest(reached=reached))
        if donate is None or given is None or given[0] != donate.number:
            return
        donated = jobs_pb2.Donated(number=donate.number)
        try:
            if isinstance(given[1], str):
                donated.unable = given[1]
            else:
                donated.page.CopyFrom(given[1].page(donate.page))
        except StateError as error:
            donated.unable = str(error)
        self._answers.append(jobs_pb2.ResyncRequest(donated=donated))


class Rounds:
    """One worker's calls as rounds of a barrier. keys: how many there are, numbered from 0."""

    def __init__(self, barrier: RoundBarrier, keys: int) -> None:
        self._barrier = barrier
        self._all = keys
        self._had: set[int] = set()  # by the newest round
        self._open = False  # calls may still be part of it
        self._flying: deque[int] = deque()  # calls without their sums, of each round not complete

    def begin(self, keys: Collection[int]) -> int | None:
        """Begins a call with these keys, each once, in the round at hand or, where they are not all
        new to it, in another; returns the round's number, or None if that may not begin now."""
        if self._open and self._had.isdisjoint(keys):
            self._had.update(keys)
            self._flying[-1] += 1
        else:
            self._open = False
            self._look()
            if not self._barrier.begin():
                return None
            self._had = set(keys)
            self._flying.append(1)
        self._open = len(self._had) < self._all
        self._barrier.pushed += len(keys)
        return self._barrier.begun

    def complete(self, number: int) -> None:
        """A call of that round has all its sums."""
        self._flying[number - self._barrier.completed - 1] -= 1
        self._look()

    def _look(self) -> None:
        """Rounds are complete, in order, once they have no calls under way and none to come."""
        while self._flying and not self._flying[0] and (len(self._flying) > 1 or not self._open):
            self._flying.popleft()
            self._barrier.complete()
