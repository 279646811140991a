# SPDX-License-Identifier: Apache-2.0
"""A member's part in a change of epoch: instructions in, answers out.

State machines without connection, clock or thread. Their answers are messages for the job
service's Resync that lack only who sends them (nonce, role and rank). Instructions may be repeated,
as by a service that was connected to anew; those older than what is known change nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np

from hosts.boundary import Gate
from hosts.releases import Enough, Released
from hosts.reports import Failure
from hosts.server import NotHereError, ServerState
from hosts.shards import Chunks, Shards, Snapshot
from hosts.stepping import Clock, Seconds
from hosts.succession import batch_of, last_of
from hosts.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.fixed_point import float_words, floats_of, sum_checks
from protocol.header import Batch
from protocol.optimizer import OptimizerPlan
from protocol.plan import Address, ServerPlan, WorkerPlan
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


def _pages(results: Sequence[jobs_pb2.Result], lanes: int) -> Iterator[jobs_pb2.Handed]:
    """Results in messages that are not too large."""
    most = max(1, MOST_ANSWER_BYTES // (4 * lanes + _RESULT_OVERHEAD))
    starts = range(0, max(1, len(results)), most)
    for start in starts:
        yield jobs_pb2.Handed(results=results[start : start + most], last=start == starts[-1])


class WorkerFollower(_Follower):
    """A worker's transport from epoch to epoch.

    exponents: the policy that outlives them; start: makes the transport of the first plan, with
    that policy. `transport` is None before it. To a driver this is the machine that outlives the
    transports.

    gate: which rounds may begin. joined: what this worker was told when it joined a running job;
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
    def exponents(self) -> Exponents:
        """The policy; with the turn (see Participation)."""
        return self._exponents

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
        assert self.transport is not None
        exponents, last = self._exponents.export(), self.transport.last_results()
        calls, keys = self.gate.completed, self.gate.pushed
        return encode(State(calls, exponents, dict(arrays), *last, keys))

    def on_packets(self, now: float, batch: Batch) -> None:
        """See WorkerTransport; without one they are for nobody."""
        if self.transport is not None:
            self.transport.on_packets(now, batch)

    def on_train(
        self, times: Seconds, batch: Batch, clock: Clock, enough: Enough
    ) -> Released | None:
        """See WorkerTransport."""
        if self.transport is None:
            return None
        return self.transport.on_train(times, batch, clock, enough)

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """See WorkerTransport; without one there is nothing to send."""
        return self.transport.poll(now) if self.transport is not None else (None, math.inf)

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
        if self.transport is not None:
            self.transport = self.transport.successor(plan)
        else:
            transport = self._start(plan)
            if self.joined is not None and plan.optimizer is not None:
                transport.keep(self.joined.headers, self.joined.payloads)
                self.joined = self.joined._replace(headers=b"", payloads=b"")
            self.transport = transport
        self.members[plan.world] = plan.members or tuple(range(plan.world))
        self.gate.release()

    def _hand(self, hand: jobs_pb2.Hand) -> Iterator[jobs_pb2.Handed]:
        if self.transport is None:
            raise KeyError("results are asked of a worker that has run no plan")
        results = self.transport.results([(want.chunk, want.level) for want in hand.wants])
        return _pages(results, self.transport.lanes)

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
                if state.headers or state.payloads:
                    last_of(state.headers, state.payloads, self._exponents.levels())
                self.joined = state
                self.gate.begun = self.gate.completed = state.calls
                self.gate.pushed = state.keys
        except ValueError as error:  # StateError included
            restored.unable = str(error)
        return jobs_pb2.ResyncRequest(epoch=epoch, restored=restored)


@dataclass(frozen=True, slots=True)
class Errand:
    """Chunks (n,) to fetch from another server for an epoch."""

    epoch: int
    server: Address
    chunks: Chunks


class ServerFollower(_Follower):
    """A job of a server's state machine from epoch to epoch."""

    def __init__(self, state: ServerState, job: int) -> None:
        super().__init__()
        self.job = job
        self.fetches: list[Errand] = []
        self._state = state
        self._shards: Shards | None = None
        self._may_fetch: frozenset[int] = frozenset()
        self._owed = 0  # errands that are not done

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
            self._may_fetch = frozenset()
            self._state.install(ServerPlan.from_message(instruction.plan))
            return []
        if kind == "halt":
            return [self._halt(epoch, instruction.halt)]
        if self._shards is None:
            raise ValueError(f"a server was told to {kind}; it has no parameters")
        if kind == "fetch":
            self.fetches = [
                Errand(
                    epoch,
                    Address(source.server.ipv4, source.server.port),
                    np.frombuffer(source.chunks, "<u4").astype(np.int64),
                )
                for source in instruction.fetch.sources
            ]
            self._owed = len(self.fetches)
            return []
        if kind == "hand":
            return [
                jobs_pb2.ResyncRequest(epoch=epoch, handed=handed)
                for handed in self._hand(self._shards, instruction.hand)
            ]
        if kind == "take":
            return [self._take(self._shards, epoch, instruction.take)]
        raise ValueError(f"an instruction of epoch {epoch} that says nothing known: {kind}")

    def take_errands(self) -> list[Errand]:
        """What is to be fetched from other servers; each ends with `fetched`, or is in vain once
        `wants` says so."""
        errands, self.fetches = self.fetches, []
        return errands

    def wants(self, errand: Errand) -> bool:
        """Whether an errand still has a purpose."""
        return errand.epoch == self._newest and self.epoch < errand.epoch

    def take(self, errand: Errand, snapshot: Snapshot) -> None:
        """A part of what was to be fetched. Raises ValueError if it cannot be."""
        if self.wants(errand) and self._shards is not None:
            self._shards.take(snapshot)

    def fetched(self, errand: Errand) -> list[jobs_pb2.ResyncRequest]:
        """An errand is done; returns the answer after the last.

        Raises NotHereError if something that was asked for did not come.
        """
        if not self.wants(errand):
            return []
        assert self._shards is not None
        if (self._shards.levels[errand.chunks] == 0).any():
            raise NotHereError(f"{errand.server} did not have all that was asked for")
        self._owed -= 1
        if self._owed:
            return []
        return [jobs_pb2.ResyncRequest(epoch=errand.epoch, fetched=jobs_pb2.Fetched())]

    def give(self, epoch: int, source: int, chunks: Chunks) -> Snapshot:
        """What a server at an IPv4 address fetches while all have halted. Raises NotHereError."""
        if epoch != self._newest or source not in self._may_fetch or self._shards is None:
            who = IPv4Address(source)
            raise NotHereError(f"job {self.job}: nothing for {who} in epoch {epoch}")
        try:
            return self._shards.snapshot(chunks)
        except (KeyError, IndexError) as error:
            raise NotHereError(f"job {self.job}: {error}") from error

    def _halt(self, epoch: int, halt: jobs_pb2.Halt) -> jobs_pb2.ResyncRequest:
        if self.epoch:
            self._state.freeze(self.job)
        self._may_fetch = frozenset(address.ipv4 for address in halt.servers)
        if halt.HasField("optimizer"):
            plan = OptimizerPlan.from_message(halt.optimizer)
            self._shards = self._state.shards(self.job, plan, halt.chunks, halt.lanes, halt.workers)
        levels = self._state.levels(self.job)
        return jobs_pb2.ResyncRequest(epoch=epoch, report=jobs_pb2.Report(levels=levels))

    def _hand(self, shards: Shards, hand: jobs_pb2.Hand) -> Iterator[jobs_pb2.Handed]:
        held = shards.snapshot(np.array([want.chunk for want in hand.wants], np.int64))
        words = float_words(held.parameters)
        results = [
            jobs_pb2.Result(
                chunk=int(held.chunks[i]),
                level=int(held.levels[i]),
                header=held.headers[i].tobytes(),
                payload=words[i].tobytes(),
            )
            for i in range(len(held))
        ]
        return _pages(results, words.shape[1])

    def _take(self, shards: Shards, epoch: int, take: jobs_pb2.Take) -> jobs_pb2.ResyncRequest:
        """Parameters that a worker has kept, as no server has them: state begins anew."""
        chunk = take.results[0].chunk if take.results else 0
        try:
            batch = batch_of(take.results, shards.lanes)
            levels = np.array([result.level for result in take.results], np.uint32)
            holds = sum_checks(batch.headers, batch.payloads, batch.full) & batch.full
            if not holds.all():
                raise ValueError("parameters from a worker fail their check")
            applied = [np.frombuffer(result.applied, "<u4") for result in take.results]
            shards.restart(
                np.array([result.chunk for result in take.results], np.int64),
                levels,
                batch.headers,
                floats_of(batch.payloads),
                np.array(applied, np.uint32),
            )
        except ValueError as error:
            [report] = self._reports(epoch, [Failure(0, 0, chunk, str(error))])
            return report
        return jobs_pb2.ResyncRequest(epoch=epoch, taken=jobs_pb2.Taken(page=take.page))

    def broken(self, failures: Sequence[Failure]) -> list[jobs_pb2.ResyncRequest]:
        """Sums of this job that failed for good, for the job service to plan anew.

        Raises HopelessError when a chunk's has failed in too many epochs.
        """
        return self._reports(self.epoch, failures)
