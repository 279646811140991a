# SPDX-License-Identifier: Apache-2.0
"""A server's part in a change of epoch: instructions in, answers out. See `hosts.epoch_change`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np

from hosts.data.reports import Failure
from hosts.data.snapshot import Chunks, Snapshot
from hosts.epoch_change import EpochMember, pages_of
from hosts.server.shards import Shards
from hosts.server.state import NotHereError, ServerState
from hosts.worker.epoch_transfer import batch_of
from protocol import jobs_pb2
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import float_words, floats_of, sum_checks
from protocol.plan import Address, ServerPlan, moved_of


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Chunks (n,) to fetch from another server for an epoch."""

    epoch: int
    server: Address
    chunks: Chunks


class ServerEpochs(EpochMember):
    """One job of a server's state machine from epoch to epoch."""

    def __init__(self, state: ServerState, job: int) -> None:
        super().__init__()
        self.job = job
        self.fetches: list[FetchTask] = []
        self._state = state
        self._shards: Shards | None = None
        self._may_fetch: frozenset[int] = frozenset()
        self._owed: list[FetchTask] = []  # unfinished, of the last instruction to fetch

    @property
    def epoch(self) -> int:
        """The epoch of the installed plan; 0 before the first."""
        return self._state.epoch(self.job)

    def answer(self, instruction: jobs_pb2.Instruction) -> list[jobs_pb2.ResyncRequest]:
        """Carries out an instruction; returns the answers, in order.

        Raises ValueError (PlanError included) for a plan that cannot be served.
        """
        epoch = instruction.epoch
        kind = instruction.WhichOneof("what")
        if kind == "remap" and epoch == self.epoch >= self._newest:
            remap = instruction.remap
            before, moved = moved_of(remap.before), moved_of(remap.moved)
            self._state.own(self.job, remap.number, before, moved)
            remapped = jobs_pb2.Remapped(number=remap.number)
            return [jobs_pb2.ResyncRequest(epoch=epoch, remapped=remapped)]
        if kind == "plan" and epoch == self.epoch >= self._newest:
            self._state.restate(self.job, moved_of(instruction.plan.moved))
        if not self._counts(epoch, self.epoch):
            return []
        if kind == "plan":
            self._may_fetch = frozenset()
            self._state.install(ServerPlan.from_message(instruction.plan))
            return []
        if kind == "halt":
            return [self._halt(epoch, instruction.halt)]
        if self._shards is None:
            raise ValueError(f"instruction {kind} for a server without parameters")
        if kind == "fetch":
            self.fetches = [
                FetchTask(
                    epoch,
                    Address(source.server.ipv4, source.server.port),
                    np.frombuffer(source.chunks, "<u4").astype(np.int64),
                )
                for source in instruction.fetch.sources
            ]
            self._owed = list(self.fetches)
            return []
        if kind == "hand":
            return [
                jobs_pb2.ResyncRequest(epoch=epoch, handed=handed)
                for handed in self._hand(self._shards, instruction.hand)
            ]
        if kind == "take":
            return [self._take(self._shards, epoch, instruction.take)]
        raise ValueError(f"an instruction of epoch {epoch} that says nothing known: {kind}")

    def take_fetch_tasks(self) -> list[FetchTask]:
        """Returns the fetch tasks since the last call; each ends with `fetched`, or is obsolete
        once `wants` is false."""
        tasks, self.fetches = self.fetches, []
        return tasks

    def wants(self, task: FetchTask) -> bool:
        """Returns true while a task's chunks are needed."""
        owed = any(one is task for one in self._owed)
        return owed and task.epoch == self._newest and self.epoch < task.epoch

    def take(self, task: FetchTask, snapshot: Snapshot) -> None:
        """Takes fetched chunks. Raises ValueError if they are invalid."""
        if self.wants(task) and self._shards is not None:
            self._shards.take(snapshot)

    def fetched(self, task: FetchTask) -> list[jobs_pb2.ResyncRequest]:
        """Completes a task; returns the answer after the last one.

        Raises NotHereError if requested chunks are missing.
        """
        if not self.wants(task):
            return []
        assert self._shards is not None
        if (self._shards.levels[task.chunks] == 0).any():
            raise NotHereError(f"{task.server} did not have all requested chunks")
        self._owed = [one for one in self._owed if one is not task]
        if self._owed:
            return []
        return [jobs_pb2.ResyncRequest(epoch=task.epoch, fetched=jobs_pb2.Fetched())]

    def give(self, epoch: int, source: int, chunks: Chunks) -> Snapshot:
        """Returns the chunks that a server at an IPv4 address fetches during a halt. Raises
        NotHereError."""
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
        return pages_of(results, words.shape[1])

    def _take(self, shards: Shards, epoch: int, take: jobs_pb2.Take) -> jobs_pb2.ResyncRequest:
        """Takes parameters kept by a worker, as no server has them: optimizer state restarts."""
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
        """Reports sums of this job that failed for good, so that the job service plans again.

        Raises UnrecoverableChunkError when a chunk has failed in too many epochs.
        """
        return self._reports(self.epoch, failures)
