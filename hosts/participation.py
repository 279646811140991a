# SPDX-License-Identifier: Apache-2.0
"""A worker in a job: its membership, and its transport from epoch to epoch.

Two threads may have to carry out an instruction: the one that waits for sums, which drives the
transport, and while none does, the membership's, so that a worker that computes does not hold up a
change for all others. Whoever has the turn does it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hosts.follower import WorkerFollower
from hosts.membership import JobRefusedError, Membership
from hosts.patience import Patience
from hosts.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.plan import Address
from protocol.state import Arrays

_log = logging.getLogger(__name__)


class Participation:
    """See Membership. `turn` is held by whoever touches `follower` or its transport.

    wake: called from any thread when whoever waits should look (`obey`) for what there is.
    """

    def __init__(
        self,
        service: str,
        nonce: str,
        rank: int,
        address: Address,
        wake: Callable[[], None],
        outage: float,
    ) -> None:
        self.follower: WorkerFollower | None = None
        self.turn = threading.Lock()
        self._wake = wake
        self._looks: deque[Callable[[WorkerTransport | None], None]] = deque()
        self._changed = threading.Event()  # since the last look at whether there is a plan
        self._ready = threading.Event()  # the line below is done
        self.membership = Membership(
            service,
            nonce,
            jobs_pb2.WORKER,
            rank,
            address,
            self._on_change,
            unanswered=self._unanswered,
            outage=outage,
        )
        self._ready.set()

    @property
    def transport(self) -> WorkerTransport | None:
        """Of the plan at hand; None before the first."""
        return self.follower.transport if self.follower is not None else None

    def begin(self, follower: WorkerFollower) -> None:
        """From now on instructions are carried out."""
        self.follower = follower
        self.serve()  # what came before

    def wait_for_plan(self, timeout: float | None) -> None:
        """Blocks until the first plan. Raises ClientError, or TimeoutError after `timeout` s."""
        began = time.monotonic()
        while True:
            self._changed.clear()
            if self.membership.failure is not None:
                raise self.membership.failure
            if self.transport is not None:
                return
            left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
            if not self._changed.wait(left):
                raise TimeoutError(
                    f"job {self.membership.job} has no plan after {timeout} s: not every worker "
                    "and server has connected and named its keys"
                )

    @contextmanager
    def call(self, patience: Patience, provide: Callable[[], Arrays]) -> Iterator[None]:
        """Around one call, which begins when there is no boundary before it; with the turn.

        provide: the application's arrays for a worker that joins; called in this thread, before
        the call begins. Raises what Patience does, ClientError, HopelessError.
        """
        while not self._begin():
            follower = self.follower
            assert follower is not None
            wanted = follower.gate.wanted
            if wanted is not None:
                self._donate(wanted, provide)
            elif not self._changed.wait(max(0.0, patience.next - time.monotonic())):
                patience.look()
        patience.begin()
        try:
            yield
            assert self.follower is not None
            self.follower.gate.complete()
            self.membership.answer(self.follower.said())
        finally:
            self.turn.release()
            self.serve()

    def _begin(self) -> bool:
        """Begins a call if one may; then this thread has the turn."""
        self._changed.clear()
        begun = False
        self.turn.acquire()
        try:
            self.obey()
            if self.membership.failure is not None:
                raise self.membership.failure
            assert self.follower is not None
            begun = self.follower.gate.begin()
        finally:
            if not begun:
                self.turn.release()
        if not begun:
            self.serve()
        return begun

    def _donate(self, number: int, provide: Callable[[], Arrays]) -> None:
        """Gives the application's state to one that joins."""
        assert self.follower is not None
        data, unable = None, ""
        try:
            data = self.follower.state(provide())
        except Exception as error:  # the application's own: whoever wants to join is told
            _log.exception("job %d: a worker that joins gets no state", self.membership.job)
            unable = f"{type(error).__name__}: {error}"
        with self.turn:
            self.follower.gate.give(number, data, unable)
            self.membership.answer(self.follower.said())
        self.serve()

    def serve(self) -> None:
        """Carries out instructions unless somebody else has the turn, who will."""
        # Who gives the turn back looks once more, so none is left when two meet here.
        while (
            self.follower is not None
            and (self.membership.pending or self._looks)
            and self.turn.acquire(blocking=False)
        ):
            try:
                self.obey()
            finally:
                self.turn.release()

    def obey(self) -> None:
        """Carries out what the job service says; with the turn."""
        follower, membership = self.follower, self.membership
        assert follower is not None
        while self._looks:
            self._looks.popleft()(follower.transport)
        while (instruction := membership.take_instruction()) is not None:
            before = follower.epoch
            try:
                membership.answer(follower.answer(instruction))
            except (ValueError, KeyError) as error:  # PlanError included
                text = f"what the job service says cannot be done: {error}"
                membership.fail(JobRefusedError(text))
                return
            if follower.epoch != before:
                _log.info("job %d: epoch %d", membership.job, follower.epoch)
                membership.runs(follower.epoch)

    def look(self, what: Callable[[WorkerTransport | None], None]) -> None:
        """Has this called soon by whoever has the turn, with the transport; from any thread."""
        if self.follower is None:
            what(None)
            return
        self._looks.append(what)
        self.serve()
        self._wake()

    def report_failures(self) -> None:
        """Tells the job service of sums that failed for good; with the turn.

        Raises HopelessError if planning anew does not help.
        """
        if self.follower is not None:
            self.membership.answer(self.follower.broken())

    def leave(self, reason: str) -> None:
        """See Membership; a worker that finished hands over what others may lack."""
        results: list[jobs_pb2.Result] = []
        levels = b""
        with self.turn:
            transport = self.transport
            if transport is not None:
                transport.freeze()
                if not reason:
                    results = transport.results()
                    levels = transport.levels().astype("<u4").tobytes()
        self.membership.leave(reason, results, levels)

    def _on_change(self) -> None:
        self._ready.wait()
        self.serve()
        self._changed.set()
        self._wake()

    def _unanswered(self) -> float:
        # Read from another thread as it is at the moment: a sign of life may just come in.
        return self.follower.unanswered(time.monotonic()) if self.follower is not None else 0.0
