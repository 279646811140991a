# SPDX-License-Identifier: Apache-2.0
"""Tests jobs across epochs: instructions of members, membership, and the end of a job. No switch
takes part (tree NONE)."""

from __future__ import annotations

import numpy as np
import pytest

from controller.jobs.epochs import ANSWER_SECONDS, LAST_EPOCH, LEAVE_SECONDS
from controller.jobs.job import Job, JobError, Refusal, Role, State
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from protocol.call_status import LOST
from protocol.plan import ServerPlan, WorkerPlan
from tests.unit.controller.test_jobs import SERVERS, WORKERS, Table, role_of
from tests.unit.controller.test_resync import result

CHUNKS = 4  # of 256 lanes: 640 elements make 3, 10 make 1
PAYLOAD = 1024


class Members(Table):
    """A table, and members that answer."""

    def train(self, workers: int = 3) -> Job:
        """A job whose servers and workers run its first plan."""
        job = self.create("digits", WORKERS[:workers], SERVERS, TreeKind.NONE)
        for place in (*(f"w{rank}" for rank in range(workers)), "s0", "s1"):
            self.enter(job, place)
        self.serve(job)
        return job

    def serve(self, job: Job) -> None:
        """Every server in the plan runs it."""
        for rank in job.scheme.servers:
            assert self.instruction_kind(job, f"s{rank}") == "plan"
            self.heartbeat(job.nonce, Role.SERVER, rank, job.epoch)

    def instruction_kind(self, job: Job, place: str) -> str | None:
        """The kind of a member's instruction."""
        instruction = self.instruction(job.nonce, *role_of(place))
        if instruction is None:
            return None
        assert instruction.epoch == job.epoch
        assert instruction is self.instruction(job.nonce, *role_of(place))
        return instruction.WhichOneof("what")

    def say(self, job: Job, place: str, epoch: int = 0, **what: object) -> None:
        request = jobs_pb2.ResyncRequest(epoch=epoch or job.epoch, **what)  # type: ignore[arg-type]
        self.resync(job.nonce, *role_of(place), request)

    def report(self, job: Job, place: str, *levels: int) -> None:
        self.say(job, place, report=jobs_pb2.Report(levels=bits(*levels)))

    def worker_plan(self, job: Job, place: str) -> WorkerPlan:
        instruction = self.instruction(job.nonce, *role_of(place))
        assert instruction is not None
        return WorkerPlan.from_message(instruction.plan)

    def pass_time(self, seconds: float, but: str = "") -> None:
        """Time in which everybody in any job is heard, but some."""
        for _ in range(int(seconds)):
            self.time.now += 1
            for job in self.jobs():
                for place, member in job.members.items():
                    if member.active and f"{place.role.name[0].lower()}{place.rank}" not in but:
                        self.heartbeat(job.nonce, place.role, place.rank, member.epoch)
            self.expire()


def bits(*levels: int) -> bytes:
    return np.array(levels, "<u4").tobytes()


@pytest.fixture
def table() -> Members:
    return Members()


def test_a_change_from_halt_to_plan(table: Members) -> None:
    job = table.train()
    assert table.worker_plan(job, "w1").epoch == 1
    table.replan(job, "window", window=8)
    assert job.epoch == 2
    everyone = ("w0", "w1", "w2", "s0", "s1")
    for place in everyone:
        instruction = table.instruction(job.nonce, *role_of(place))
        assert instruction is not None
        assert instruction.halt.reason == "window"
    table.report(job, "s0")
    table.report(job, "s1")
    table.report(job, "w0", 3, 3, 3, 2)
    table.report(job, "w1", 3, 2, 2, 2)
    assert job.status == "changes to plan epoch 2 (window); waits for worker 2 (w2) to report"
    table.report(job, "w2", 2, 3, 3, 2)
    # w0 and w1 share what w2 lacks, w0 and w2 what w1 lacks.
    assert [table.instruction_kind(job, place) for place in everyone] == [
        "hand",
        "halt",
        "hand",
    ] + 2 * ["halt"]
    for place in ("w0", "w2"):
        instruction = table.instruction(job.nonce, *role_of(place))
        assert instruction is not None
        for want in instruction.hand.wants:
            handed = jobs_pb2.Handed(results=[result(want.chunk, want.level, PAYLOAD)])
            table.say(job, place, handed=handed)
        table.say(job, place, handed=jobs_pb2.Handed(last=True))
    for place, chunks in (("w1", [1, 2]), ("w2", [0])):
        instruction = table.instruction(job.nonce, *role_of(place))
        assert instruction is not None
        assert list(instruction.take.results) == [result(chunk, 3, PAYLOAD) for chunk in chunks]
        table.say(job, place, taken=jobs_pb2.Taken(page=0))
    # Workers' chunks must not come before their servers.
    assert [table.instruction_kind(job, place) for place in ("s0", "s1")] == ["plan", "plan"]
    assert "plan" not in [table.instruction_kind(job, place) for place in ("w0", "w1", "w2")]
    assert job.status.endswith(
        "waits for server 0 (s0) to run plan epoch 2; server 1 (s1) to run plan epoch 2"
    )
    table.serve(job)
    plans = [table.worker_plan(job, f"w{rank}") for rank in range(3)]
    assert {plan.epoch for plan in plans} == {2}
    assert {plan.streams[0].window for plan in plans} == {8}
    assert job.status == ""


def test_stale_answers_are_ignored_and_new_cause_restarts(table: Members) -> None:
    job = table.train(2)
    table.replan(job.number, "first")
    table.report(job, "w0", 1, 1, 1, 1)
    table.replan(job, "second")
    assert job.epoch == 3
    for place in ("w0", "w1", "s0", "s1"):
        table.say(job, place, epoch=2, report=jobs_pb2.Report())
        assert table.instruction_kind(job, place) == "halt"
    table.say(job, "w0", epoch=2, broken=jobs_pb2.Broken(chunk=1, reason="old"))
    assert job.epoch == 3
    assert "w0" in job.status
    for place in ("w0", "w1", "s0", "s1"):
        table.say(job, place, report=jobs_pb2.Report())
    assert table.instruction_kind(job, "s0") == "plan"
    table.serve(job)
    assert table.instruction_kind(job, "w0") == "plan"


def test_a_chunk_that_cannot_be_completed_needs_a_new_epoch(table: Members) -> None:
    job = table.train(2)
    table.say(job, "w1", broken=jobs_pb2.Broken(chunk=3, reason="checksum failed\ntwice"))
    assert job.epoch == 2
    instruction = table.instruction(job.nonce, Role.WORKER, 0)
    assert instruction is not None
    assert instruction.halt.reason == "worker 1 (w1): chunk 3: checksum failed twice"


def test_job_continues_without_dead_worker(table: Members) -> None:
    job = table.train()
    table.pass_time(11, but="w1")
    assert job.state is State.RUNNING
    assert job.epoch == 2
    says = r"job 1 \(digits\) goes on without worker 1 \(w1\), which was not heard of for 11 s"
    for call in (
        lambda: table.instruction(job.nonce, Role.WORKER, 1),
        lambda: table.heartbeat(job.nonce, Role.WORKER, 1, 1),
        lambda: table.report(job, "w1", 1, 1, 1, 1),
        lambda: table.enter(job, "w1"),
    ):
        with pytest.raises(JobError, match=says) as caught:
            call()
        assert caught.value.refusal is Refusal.ABORTED
        assert caught.value.left_behind == LOST
    for place in ("w0", "w2"):
        table.report(job, place, 1, 1, 0, 0)
    for place in ("s0", "s1"):
        table.report(job, place)
    table.serve(job)
    first, second = (table.worker_plan(job, place) for place in ("w0", "w2"))
    # Ranks move up, in the old order.
    assert [(plan.world, plan.rank) for plan in (first, second)] == [(2, 0), (2, 1)]
    instruction = table.instruction(job.nonce, Role.SERVER, 1)
    assert instruction is not None
    plan = ServerPlan.from_message(instruction.plan)
    assert [address.port for address in plan.workers] == [40000, 40002]
    assert [child.workers for child in plan.roots[0].children] == [1, 1]


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_a_lost_servers_chunks_go_to_the_others(table: Members, how: str) -> None:
    job = table.train(2)
    if how == "dies":
        table.pass_time(11, but="s0")
    else:
        table.leave(job.nonce, Role.SERVER, 0)
    assert job.epoch == 2
    for place in ("w0", "w1", "s1"):
        table.say(job, place, report=jobs_pb2.Report())
    table.serve(job)
    plan = table.worker_plan(job, "w0")
    assert plan.servers == (job.members[list(job.scheme.places)[-1]].address,)
    instruction = table.instruction(job.nonce, Role.SERVER, 1)
    assert instruction is not None
    assert ServerPlan.from_message(instruction.plan).rank == 0
    table.leave(job.nonce, Role.SERVER, 1)
    assert job.state is State.FAILED
    assert job.reason == ("server 1 (s1) left while workers were running; no other server is left")


def test_member_failure_during_change_restarts_it(table: Members) -> None:
    job = table.train()
    table.replan(job, "first")
    for place, levels in (("w0", (1, 1, 1, 1)), ("w2", (1, 0, 0, 0))):
        table.report(job, place, *levels)
    table.pass_time(11, but="w1")
    assert job.epoch == 3
    assert [table.instruction_kind(job, place) for place in ("w0", "w2", "s0")] == ["halt"] * 3


def test_results_handed_over_by_dead_worker_are_kept(table: Members) -> None:
    job = table.train()
    table.replan(job, "first")
    for place, levels in (("w0", 1), ("w1", 0), ("w2", 0)):
        table.report(job, place, levels, levels, levels, levels)
    for place in ("s0", "s1"):
        table.report(job, place)
    table.say(job, "w0", handed=jobs_pb2.Handed(results=[result(2, 1, PAYLOAD)]))
    table.pass_time(11, but="w0")
    for place in ("w1", "w2"):
        table.report(job, place, 0, 0, 0, 0)
    for place in ("s0", "s1"):
        table.report(job, place)
    for place in ("w1", "w2"):
        instruction = table.instruction(job.nonce, *role_of(place))
        assert instruction is not None
        assert list(instruction.take.results) == [result(2, 1, PAYLOAD)]


def test_unresponsive_member_times_out(table: Members) -> None:
    job = table.train()
    table.replan(job, "first")
    for place in ("w0", "w1", "s0", "s1"):
        table.say(job, place, report=jobs_pb2.Report())
    table.pass_time(ANSWER_SECONDS)
    assert job.epoch == 2
    table.pass_time(1)
    assert job.epoch == 3
    with pytest.raises(JobError, match=r"worker 2 \(w2\), which had 60 s to report and did not"):
        table.instruction(job.nonce, Role.WORKER, 2)


def test_job_continues_without_worker_lacking_results(table: Members) -> None:
    job = table.train()
    table.replan(job, "first")
    for place, levels in (("w0", (5, 5, 5, 5)), ("w2", (5, 4, 5, 5)), ("w1", ())):
        table.report(job, place, *levels)
    for place in ("s0", "s1"):
        table.report(job, place)
    assert job.epoch == 3
    with pytest.raises(JobError, match=r"without worker 1 \(w1\), which has 0 results of chunk 0"):
        table.instruction(job.nonce, Role.WORKER, 1)
    assert job.scheme.workers == (0, 2)


def test_workers_that_leave_one_after_the_other_need_no_new_plan(table: Members) -> None:
    job = table.train()
    for rank in range(3):
        assert job.epoch == 1
        table.pass_time(LEAVE_SECONDS - 1)
        table.leave(job.nonce, Role.WORKER, rank)
    assert job.state is State.GONE
    assert job.epoch == 1


def test_remaining_workers_get_leavers_results(table: Members) -> None:
    job = table.train(2)
    kept = [result(chunk, 5, PAYLOAD) for chunk in range(CHUNKS)]
    with pytest.raises(JobError, match="1023 B of payload"):
        table.leave(job.nonce, Role.WORKER, 0, "", [result(0, 5, 1023)], bits(5, 5, 5, 5))
    assert job.members[next(iter(job.members))].active
    table.leave(job.nonce, Role.WORKER, 0, "", kept, bits(5, 5, 5, 5))
    table.leave(job.nonce, Role.WORKER, 0)  # again is fine
    table.pass_time(LEAVE_SECONDS + 1)
    assert (job.state, job.epoch) == (State.LEAVING, 2)
    table.report(job, "s0")
    table.report(job, "s1")
    table.report(job, "w1", 5, 4, 4, 5)
    instruction = table.instruction(job.nonce, Role.WORKER, 1)
    assert instruction is not None
    assert list(instruction.take.results) == kept[1:3]
    table.say(job, "w1", taken=jobs_pb2.Taken(page=0))
    table.serve(job)
    assert table.worker_plan(job, "w1").world == 1
    table.pass_time(2 * LEAVE_SECONDS)
    assert job.epoch == 2
    table.leave(job.nonce, Role.WORKER, 1)
    assert job.state is State.GONE


def test_others_go_on_at_once_without_a_worker_that_leaves_before_them(table: Members) -> None:
    """They get the results that it had. The last one has nobody to leave."""
    job = table.train(2)
    kept = [result(chunk, 5, PAYLOAD) for chunk in range(CHUNKS)]
    for _ in range(2):  # again is fine
        table.leave(job.nonce, Role.WORKER, 0, "", kept, bits(5, 5, 5, 5), others_go_on=True)
    assert (job.state, job.epoch) == (State.RUNNING, 2)
    assert job.change is not None
    assert job.change.reason == "worker 0 (w0) left"
    table.report(job, "s0")
    table.report(job, "s1")
    table.report(job, "w1", 5, 4, 5, 5)
    instruction = table.instruction(job.nonce, Role.WORKER, 1)
    assert instruction is not None
    assert list(instruction.take.results) == kept[1:2]
    table.say(job, "w1", taken=jobs_pb2.Taken(page=0))
    table.serve(job)
    assert table.worker_plan(job, "w1").world == 1
    assert not job.kept.results, "all have them"
    table.leave(job.nonce, Role.WORKER, 1, others_go_on=True)
    assert job.state is State.GONE


def test_leaving_is_a_report(table: Members) -> None:
    job = table.train(2)
    table.replan(job, "first")
    table.report(job, "s0")
    table.report(job, "s1")
    table.report(job, "w1", 5, 5, 5, 4)
    table.leave(job.nonce, Role.WORKER, 0, "", [result(3, 5, PAYLOAD)], bits(5, 5, 5, 5))
    assert job.epoch == 2
    assert table.instruction_kind(job, "w1") == "take"
    table.say(job, "w1", taken=jobs_pb2.Taken(page=0))
    assert table.instruction_kind(job, "s0") == "plan"


def test_a_job_without_workers_or_epochs_ends(table: Members) -> None:
    job = table.train(1)
    table.pass_time(11, but="w0")
    assert job.state is State.FAILED
    assert job.reason == "worker 0 (w0) was not heard of for 11 s"
    with pytest.raises(JobError, match=r"job 1 \(digits\) is not running"):
        table.replan(job, "late")
    with pytest.raises(JobError, match="job 77 is not running"):
        table.replan(77, "unknown")
    job = table.train(2)
    job.epoch = LAST_EPOCH
    table.replan(job, "one more")
    assert job.state is State.FAILED
    assert job.reason == "its 65535 epochs are used up (one more)"
    # Its number is not used again: switches may remember any of its epochs.
    assert table.train(2).number != job.number


def test_invalid_answers_are_rejected(table: Members) -> None:
    job = table.train(2)
    table.replan(job, "first")
    for what, says in (
        ({}, "sent no answer"),
        ({"report": jobs_pb2.Report(levels=bytes(5))}, r"worker 1 \(w1\): 5 B of levels"),
    ):
        with pytest.raises(JobError, match=says) as caught:
            table.say(job, "w1", **what)
        assert caught.value.refusal is Refusal.INVALID_ARGUMENT
    with pytest.raises(JobError, match="window 3: a power of two"):
        table.replan(job, "x", window=3)
    assert job.epoch == 2
