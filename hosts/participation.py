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
from collections.abc import Callable

from hosts.follower import WorkerFollower
from hosts.membership import JobRefusedError, Membership
from hosts.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.plan import Address

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
