# SPDX-License-Identifier: Apache-2.0
"""A worker's rounds, and the boundaries between them at which other workers join.

State machines without connection, clock or thread. A round is a worker's calls up to one with a key
that the round already has: an iteration, whether it pushes its keys at once or one by one. All
workers make the same calls, so they have the same rounds.

On a boundary a worker reports how many rounds it has begun, and begins no other until it knows the
last round of all workers. After completing that one it reports so and waits: for the plan of a
newer epoch with the workers that joined, or for the current plan again, which ends a failed
attempt. Meanwhile it may be asked for the state of its application.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from hosts.worker.chunk_maps import ChunkMaps
from protocol import jobs_pb2
from protocol.state import Pages, StateError


class RoundBarrier:
    """Holds rounds back at a boundary. Answers are collected with `take_answers`.

    begun, completed: rounds.
    pushed: keys in the rounds begun.
    maps: may hold rounds back, too.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.completed = 0
        self.pushed = 0
        self.maps = ChunkMaps()
        self._hold: jobs_pb2.Boundary | None = None
        self._reached = False  # and reported
        self._donate: jobs_pb2.Donate | None = None
        self._given: tuple[int, Pages | str] | None = None  # number; state or refusal
        self._remapped: jobs_pb2.Remapped | None = None  # an answer that may have to wait
        self._answers: list[jobs_pb2.ResyncRequest] = []

    @property
    def open(self) -> bool:
        """True if another round may begin."""
        hold, most = self._hold, self.maps.most
        if most is not None and self.begun >= most:
            return False
        return hold is None or (hold.HasField("until") and self.begun < hold.until)

    @property
    def donation(self) -> int | None:
        """The number of the donation requested from the application; None if there is none."""
        if self._donate is None or (self._given and self._given[0] == self._donate.number):
            return None
        return self._donate.number

    def begin(self) -> bool:
        """Starts a round if the barrier is open; returns true if it did."""
        if not self.open:
            return False
        self.begun += 1
        return True

    def complete(self) -> None:
        """Records a completed round."""
        self.completed += 1
        self._look()

    def on_boundary(self, boundary: jobs_pb2.Boundary) -> None:
        """Takes the job service's announcement of a boundary."""
        before = self._hold
        if before is None or before.number != boundary.number:
            self._reached = False
        self._hold, self._donate = boundary, None
        if not boundary.HasField("until"):
            begun = jobs_pb2.Begun(number=boundary.number, calls=self.begun)
            self._answers.append(jobs_pb2.ResyncRequest(begun=begun))
        self._look()

    def on_remap(self, remap: jobs_pb2.Remap) -> None:
        """Takes the job service's next chunk map. It comes between attempts to join: the end of a
        failed one may have been replaced by it."""
        self.release()
        self._remapped = self.maps.on_remap(remap, self.begun)
        self._look()

    def on_donate(self, donate: jobs_pb2.Donate) -> None:
        """Takes the job service's request for a page of the application's state."""
        self._donate = donate
        self._look()

    def give(self, number: int, data: bytes | None, unable: str = "") -> None:
        """Provides the application's state for a donation, or the reason why there is none."""
        self._given = number, (Pages(data) if data is not None else unable)
        self._look()

    def release(self) -> None:
        """Removes the boundary."""
        self._hold = self._donate = self._given = self._remapped = None

    def take_answers(self) -> list[jobs_pb2.ResyncRequest]:
        """Returns the answers since the last call, complete but for the epoch."""
        answers, self._answers = self._answers, []
        return answers

    def _look(self) -> None:
        hold, donate, given = self._hold, self._donate, self._given
        remapped = self._remapped
        if remapped is not None and (not remapped.drained or self.completed >= self.maps.since - 1):
            self._answers.append(jobs_pb2.ResyncRequest(remapped=remapped))
            self._remapped = None
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
    """Assigns one worker's calls to rounds of a barrier. keys: number of keys."""

    def __init__(self, barrier: RoundBarrier, keys: int) -> None:
        self._barrier = barrier
        self._all = keys
        self._had: set[int] = set()  # keys of the newest round
        self._open = False  # calls may still be part of it
        self._flying: deque[int] = deque()  # calls without their sums, of each round not complete

    def begin(self, keys: Collection[int]) -> int | None:
        """Begins a call with these distinct keys; returns its round, None if that may not begin
        now.

        The call belongs to the current round if all its keys are new to it, else to the next one.
        """
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
        """Records that a call of that round has all its sums."""
        self._flying[number - self._barrier.completed - 1] -= 1
        self._look()

    def _look(self) -> None:
        """Completes rounds, in order, that have no calls under way and none to come."""
        while self._flying and not self._flying[0] and (len(self._flying) > 1 or not self._open):
            self._flying.popleft()
            self._barrier.complete()
