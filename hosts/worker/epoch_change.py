# SPDX-License-Identifier: Apache-2.0
"""A worker's part in a change of epoch: instructions in, answers out. See `hosts.epoch_change`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from hosts.data.reports import Failure
from hosts.epoch_change import EpochMember, pages_of
from hosts.net.arrivals import Clock, Enough, Pending, Released, Seconds
from hosts.worker.epoch_transfer import last_of
from hosts.worker.round_barrier import RoundBarrier
from hosts.worker.transport import WorkerTransport
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.header import Batch
from protocol.partition import Moved
from protocol.plan import WorkerPlan, moved_of
from protocol.state import Arrays, Collector, State, StateError, decode, encode


class WorkerEpochs(EpochMember):
    """A worker's transport from epoch to epoch: the machine for a driver, which outlives
    transports.

    exponents: the policy shared by all transports.
    start: creates the transport of the first plan with that policy; `transport` is None before.
    barrier: says which rounds may begin.
    joined: the state received when joining a running job; None for a member from the start.
    members: members of sums by their number of workers, from the newest plan of that number.
    """

    def __init__(
        self, exponents: Exponents, start: Callable[[WorkerPlan], WorkerTransport]
    ) -> None:
        super().__init__()
        self.transport: WorkerTransport | None = None
        self.barrier = RoundBarrier()
        self.joined: State | None = None
        self.members: dict[int, tuple[int, ...]] = {}
        self._exponents = exponents
        self._start = start
        self._collector = Collector()

    @property
    def exponents(self) -> Exponents:
        """The exponent policy; hold the turn (see Participation)."""
        return self._exponents

    @property
    def epoch(self) -> int:
        """The epoch of the plan in use, or last in use during a change; 0 before the first."""
        return self.transport.plan.epoch if self.transport is not None else 0

    def answer(self, instruction: jobs_pb2.Instruction) -> list[jobs_pb2.ResyncRequest]:
        """Carries out an instruction; returns the answers, in order.

        Raises ValueError (PlanError included) for a plan or chunk map that cannot be followed, and
        KeyError for a result to hand over that this worker does not have.
        """
        epoch = instruction.epoch
        kind = instruction.WhichOneof("what")
        if self.transport is not None and epoch == self.epoch >= self._newest:
            # Instructions that apply between two changes.
            if kind == "boundary":
                self.barrier.on_boundary(instruction.boundary)
            elif kind == "donate":
                self.barrier.on_donate(instruction.donate)
            elif kind == "remap":
                # Now, and not when its round begins: a map that cannot be is an error.
                _ = replace(self.transport.plan, moved=moved_of(instruction.remap.moved)).shares
                self.barrier.on_remap(instruction.remap)
                if instruction.remap.holds and not instruction.remap.from_round:
                    self._redirect(moved_of(instruction.remap.moved))
            elif kind == "plan":
                self.barrier.maps.on_plan(moved_of(instruction.plan.moved))
                if self.transport.plan.is_asynchronous:
                    self._redirect(moved_of(instruction.plan.moved))
                self.barrier.release()
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

    def _redirect(self, moved: Moved) -> None:
        """Takes a chunk map that holds from now on."""
        assert self.transport is not None
        if moved != self.transport.plan.moved:
            self.transport.remap(moved)

    def begins(self, number: int) -> None:
        """Prepares for a round that begins: its chunk map holds from here on."""
        moved = self.barrier.maps.take(number)
        if moved is not None and self.transport is not None:
            self.transport.remap(moved)

    def said(self) -> list[jobs_pb2.ResyncRequest]:
        """Returns the barrier's answers since the last call."""
        answers = self.barrier.take_answers()
        for answer in answers:
            answer.epoch = self.epoch
        return answers

    def state(self, arrays: Arrays) -> bytes:
        """Encodes the state that a joining worker needs, with the application's `arrays`.

        Raises ValueError (StateError included) if it cannot be encoded, or not now.
        """
        assert self.transport is not None
        exponents, last = self._exponents.export(), self.transport.last_results()
        calls, keys = self.barrier.completed, self.barrier.pushed
        return encode(State(calls, exponents, dict(arrays), *last, keys))

    def on_packets(self, now: float, batch: Batch) -> None:
        """See WorkerTransport; without a transport packets are dropped."""
        if self.transport is not None:
            self.transport.on_packets(now, batch)

    def on_train(
        self, times: Seconds, batch: Batch, clock: Clock, enough: Enough | None
    ) -> Released | Pending | None:
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
        """Reports sums that failed for good since the last call, so that the job service plans
        again.

        Raises UnrecoverableChunkError when a chunk has failed in too many epochs.
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
        self.members[plan.world] = plan.members or _all_of(plan.world)
        self.barrier.maps.drop()
        self.barrier.release()

    def _hand(self, hand: jobs_pb2.Hand) -> Iterator[jobs_pb2.Handed]:
        if self.transport is None:
            raise KeyError("results are requested from a worker that has run no plan")
        results = self.transport.results([(want.chunk, want.level) for want in hand.wants])
        return pages_of(results, self.transport.lanes)

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
        """Takes a page of the state that this worker needs to join; the last one completes it."""
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
                self.barrier.begun = self.barrier.completed = state.calls
                self.barrier.pushed = state.keys
        except ValueError as error:  # StateError included
            restored.unable = str(error)
        return jobs_pb2.ResyncRequest(epoch=epoch, restored=restored)


@functools.lru_cache(maxsize=4)
def _all_of(world: int) -> tuple[int, ...]:
    """Returns all ranks; the workers of a process share them."""
    return tuple(range(world))
