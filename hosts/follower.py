# SPDX-License-Identifier: Apache-2.0
"""A member's part in a change of epoch: instructions in, answers out.

State machines without connection, clock or thread. Their answers are messages for the job
service's Resync that lack only who sends them (nonce, role and rank). Instructions may be repeated,
as by a service that was connected to anew; those older than what is known change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from hosts.boundary import Gate
from hosts.reports import Failure
from hosts.server import ServerState
from hosts.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.header import Batch
from protocol.plan import ServerPlan, WorkerPlan
from protocol.state import Arrays, Collector, State, StateError, decode, encode

MOST_ANSWER_BYTES = 4 << 20
# In how many epochs one chunk's sum may stay bad before its job is hopeless.
MOST_BROKEN = 3
_RESULT_OVERHEAD = 64  # bytes of a Result beside its payload, at most


class HopelessError(Exception):
    """A chunk's sum is bad in epoch after epoch; planning anew does not help."""


class _Follower:
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
        """Failures of `epoch` as the job service is told. Raises HopelessError."""
        for failure in failures:
            self._broken[failure.chunk] += 1
            if self._broken[failure.chunk] > MOST_BROKEN:
                raise HopelessError(f"{failure}, in {self._broken[failure.chunk]} epochs")
        return [
            jobs_pb2.ResyncRequest(
                epoch=epoch,
                broken=jobs_pb2.Broken(stream=f.stream, seq=f.seq, chunk=f.chunk, reason=f.reason),
            )
            for f in failures
        ]


class WorkerFollower(_Follower):
    """A worker's transport from epoch to epoch.

    exponents: the policy that outlives them; start: makes the transport of the first plan, with
    that policy. `transport` is None before it. To a driver this is the machine that outlives the
    transports.

    gate: which calls may begin. joined: what this worker was told when it joined a running job;
    None if it was in from the start. members: who is in sums of so many workers, by the newest
    plan of so many.
    """

    def __init__(
        self, exponents: Exponents, start: Callable[[WorkerPlan], WorkerTransport]
    ) -> None:
        super().__init__()
        self.transport: WorkerTransport | None = None
        self.gate = Gate()
        self.joined: State | None = None
        self.members: dict[int, tuple[int, ...]] = {}
        self._exponents = exponents
        self._start = start
        self._collector = Collector()

    @property
    def epoch(self) -> int:
        """Of the plan that this worker runs, or ran until the change at hand; 0: none yet."""
        return self.transport.plan.epoch if self.transport is not None else 0

    def answer(self, instruction: jobs_pb2.Instruction) -> list[jobs_pb2.ResyncRequest]:
        """Carries out an instruction; returns the answers, to be given in order.

        Raises ValueError (PlanError included) for a plan that cannot be followed and KeyError for
        a result to hand over that this worker does not have.
        """
        epoch = instruction.epoch
        kind = instruction.WhichOneof("what")
        if self.transport is not None and epoch == self.epoch >= self._newest:
            # What holds between two changes.
            if kind == "boundary":
                self.gate.told(instruction.boundary)
            elif kind == "donate":
                self.gate.asked(instruction.donate)
            elif kind == "plan":
                self.gate.release()
            return self.said()
        if not self._counts(epoch, self.epoch):
            return []
        if kind == "plan":
            self._run(WorkerPlan.from_message(instruction.plan))
            return []
        if self.transport is not None:
            self.transport.freeze()
        if kind == "halt":
            levels = self._exponents.levels().astype("<u4").tobytes()
            return [jobs_pb2.ResyncRequest(epoch=epoch, report=jobs_pb2.Report(levels=levels))]
        if kind == "hand":
            return [
                jobs_pb2.ResyncRequest(epoch=epoch, handed=handed)
                for handed in self._hand(instruction.hand)
            ]
        if kind == "take":
            return [self._take(epoch, instruction.take)]
        if kind == "restore":
            return [self._restore(epoch, instruction.restore)]
        raise ValueError(f"an instruction of epoch {epoch} that says nothing known: {kind}")

    def said(self) -> list[jobs_pb2.ResyncRequest]:
        """What there is to say of a boundary since the last call."""
        answers = self.gate.take_answers()
        for answer in answers:
            answer.epoch = self.epoch
        return answers

    def state(self, arrays: Arrays) -> bytes:
        """What one that joins has to know, with the application's `arrays`. Raises ValueError
        (StateError included) if that cannot be told, or not now."""
        return encode(State(self.gate.completed, self._exponents.export(), dict(arrays)))

    def on_packets(self, now: float, batch: Batch) -> None:
        """See WorkerTransport, there must be one."""
        assert self.transport is not None
        self.transport.on_packets(now, batch)

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """See WorkerTransport, there must be one."""
        assert self.transport is not None
        return self.transport.poll(now)

    def unanswered(self, now: float) -> float:
        """See WorkerTransport; 0 without one."""
        return self.transport.unanswered(now) if self.transport is not None else 0.0

    def broken(self) -> list[jobs_pb2.ResyncRequest]:
        """Sums that failed for good since the last call, for the job service to plan anew.

        Raises HopelessError when a chunk's has failed in too many epochs.
        """
        if self.transport is None:
            return []
        return self._reports(self.epoch, self.transport.take_failures())

    def _run(self, plan: WorkerPlan) -> None:
        before = self.transport
        self.transport = self._start(plan) if before is None else before.successor(plan)
        self.members[plan.world] = plan.members or tuple(range(plan.world))
        self.gate.release()

    def _hand(self, hand: jobs_pb2.Hand) -> Iterator[jobs_pb2.Handed]:
        if self.transport is None:
            raise KeyError("results are asked of a worker that has run no plan")
        results = self.transport.results([(want.chunk, want.level) for want in hand.wants])
        room = 4 * self.transport.lanes + _RESULT_OVERHEAD
        most = max(1, MOST_ANSWER_BYTES // room)
        starts = range(0, max(1, len(results)), most)
        for start in starts:
            yield jobs_pb2.Handed(results=results[start : start + most], last=start == starts[-1])

    def _take(self, epoch: int, take: jobs_pb2.Take) -> jobs_pb2.ResyncRequest:
        if self.transport is None:
            raise ValueError("results are given to a worker that has run no plan")
        try:
            self.transport.take_results(take.results)
        except ValueError as error:
            # Spoiled on its way, or not what its holder made of it: another round of the change
            # may find another holder, and plans what no result can be had for.
            chunk = take.results[0].chunk if take.results else 0
            [report] = self._reports(epoch, [Failure(0, 0, chunk, str(error))])
            return report
        return jobs_pb2.ResyncRequest(epoch=epoch, taken=jobs_pb2.Taken(page=take.page))

    def _restore(self, epoch: int, restore: jobs_pb2.Restore) -> jobs_pb2.ResyncRequest:
        """A page of what this worker needs to join; with the last one it has all."""
        page = restore.page
        restored = jobs_pb2.Restored(number=restore.number, page=page.page)
        try:
            if self.transport is not None:
                raise StateError("it runs a plan already")
            data = self._collector.take(page)
            if data is not None:
                state = decode(data)
                self._exponents.restore(state.exponents)
                self.joined = state
                self.gate.begun = self.gate.completed = state.calls
        except ValueError as error:  # StateError included
            restored.unable = str(error)
        return jobs_pb2.ResyncRequest(epoch=epoch, restored=restored)


class ServerFollower(_Follower):
    """A job of a server's state machine from epoch to epoch."""

    def __init__(self, state: ServerState, job: int) -> None:
        super().__init__()
        self.job = job
        self._state = state

    @property
    def epoch(self) -> int:
        """Of the plan that is installed; 0: none yet."""
        return self._state.epoch(self.job)

    def answer(self, instruction: jobs_pb2.Instruction) -> list[jobs_pb2.ResyncRequest]:
        """Carries out an instruction; returns the answers, to be given in order.

        Raises ValueError (PlanError included) for a plan that cannot be served.
        """
        epoch = instruction.epoch
        if not self._counts(epoch, self.epoch):
            return []
        kind = instruction.WhichOneof("what")
        if kind == "plan":
            self._state.install(ServerPlan.from_message(instruction.plan))
            return []
        if kind != "halt":
            raise ValueError(f"a server was told to {kind}; it has no results")
        if self.epoch:
            self._state.freeze(self.job)
        return [jobs_pb2.ResyncRequest(epoch=epoch, report=jobs_pb2.Report())]

    def broken(self, failures: Sequence[Failure]) -> list[jobs_pb2.ResyncRequest]:
        """Sums of this job that failed for good, for the job service to plan anew.

        Raises HopelessError when a chunk's has failed in too many epochs.
        """
        return self._reports(self.epoch, failures)
