# SPDX-License-Identifier: Apache-2.0
"""The view of a job that a worker's client has."""

from __future__ import annotations

from collections.abc import Callable

from hosts.data.reports import ClientStatistics, Statistics
from hosts.errors import CallOrderError, UseAfterLeaveError
from hosts.net.driver import Attachment
from hosts.session.beginning import Joined
from hosts.session.checkpointing import Restoration
from hosts.session.participation import Participation
from hosts.worker.explanation import Outline, Waiting
from hosts.worker.transport import WorkerTransport
from protocol.optimizer_plan import OptimizerPlan
from protocol.runtime import Runtime


class JobView:
    """The state of a worker in its job; most of it stays readable, as it was, after `leave`.

    A Client fills it in.
    """

    _endpoint: Attachment

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._part: Participation | None = None
        self._optimizer: OptimizerPlan | None = None  # that the servers run
        self._restoration: Restoration | None = None
        self._left = False

    @property
    def job(self) -> int:
        """The job's number."""
        return self._known().membership.job

    @property
    def rank(self) -> int:
        """This worker's rank in the job."""
        return self._known().membership.rank

    @property
    def joined(self) -> Joined | None:
        """The state from which this worker joined a running job; None if it started with it."""
        follower = self._known().follower
        if follower is None or follower.joined is None:
            return None
        return Joined(self._calls(follower.joined.calls), follower.joined.arrays)

    @property
    def restored(self) -> Joined | None:
        """The state of the checkpoint that the job started from; its calls are included in
        `joined`."""
        if self._restoration is None:
            return None
        return Joined(self._restoration.checkpoint.calls, self._restoration.checkpoint.arrays)

    def _calls(self, rounds: int) -> int:
        """Returns the application's calls among `rounds` of this job, plus those before the job."""
        # init_service made the call of initial parameters.
        own = max(0, rounds - (self._optimizer is not None))
        return own + (self._restoration.checkpoint.calls if self._restoration is not None else 0)

    @property
    def world(self) -> int:
        """Number of workers in the current plan."""
        part = self._known()
        return part.membership.world if part.transport is None else part.transport.plan.world

    @property
    def epoch(self) -> int:
        """Number of the current plan; each new plan of the job gets the next one."""
        return self._transport.plan.epoch

    @property
    def blocked(self) -> float:
        """Seconds for which changes of the chunk map held this worker's rounds back."""
        return sum(self.blocked_by_change.values())

    @property
    def blocked_by_change(self) -> dict[int, float]:
        """The same by the change's number, of those that did."""
        return self._known().blocked

    @property
    def statistics(self) -> ClientStatistics:
        """Counts since the start: those of `hosts.data.reports.Statistics`, and the socket's.

        `completed` chunks were summed as integers in the tree, `completed_direct` ones by the
        server in float32; `coarse` ones had fewer than 8 binary digits left; `retransmitted` counts
        packets; `socket` has the counters of `hosts.net.driver.Counters`.
        """
        counts = self._statistics().counts()
        return {**counts, "socket": vars(self._endpoint.counters).copy()}

    @property
    def chunks_done(self) -> int:
        """Number of chunks of all calls whose sums have arrived since the start; from any
        thread."""
        statistics = self._statistics()
        return statistics.completed + statistics.completed_direct

    def explain(self) -> list[Waiting]:
        """Returns each chunk that this worker waits for, with its state."""
        with self._connected().turn:
            return self._transport.explain(self._runtime.now())

    def inquire(self, tell: Callable[[Outline | None], None], most: int = 8) -> None:
        """Calls `tell` with an outline of what this worker waits for; None before a plan.

        Any thread may call it, also while another is in `push_pull`.

        Args:
            tell: Takes the outline.
            most: Chunks of each stream in it.

        Raises:
            UseAfterLeaveError: This client has left its job.
            CallOrderError: Before `connect_service`.
        """
        tell(self._connected().outline(most))

    def _not_left(self) -> None:
        if self._left:
            raise UseAfterLeaveError(
                "this worker has left its job; make a new Client to join another"
            )

    def _connected(self) -> Participation:
        self._not_left()
        return self._known()

    def _known(self) -> Participation:
        """Returns the participation, also of a job that this worker has left."""
        if self._part is None:
            self._not_left()
            raise CallOrderError("call connect_service first")
        return self._part

    def _statistics(self) -> Statistics:
        part = self._known()
        if part.transport is None:
            self._not_left()
        return part.statistics()

    @property
    def _transport(self) -> WorkerTransport:
        """Returns the transport of the current plan, or the last one."""
        part = self._known()
        if part.transport is None:
            self._not_left()
        return part.running_transport()
