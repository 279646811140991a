# SPDX-License-Identifier: Apache-2.0
"""Tests workers that rejoin a running job: instructions, admission, and members that have ended
or are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.jobs.epochs import ANSWER_SECONDS
from controller.jobs.job import Job, JobError, Membership, Refusal, Role, State
from controller.jobs.journal import Journal
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from protocol.call_status import REPLACED
from protocol.plan import Address
from protocol.state import Pages
from tests.unit.controller.test_jobs import KEYS, SERVERS, WORKERS
from tests.unit.controller.test_resync_jobs import Members, bits

STATE = Pages(b"everything that is to be known")
W1 = Membership(Role.WORKER, 1)


class Returning(Members):
    """Members that can come back. Those that joined are distinguished by their process."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self.process = {0: 0, 1: 0, 2: 0}

    def train(self, workers: int = 3, gives_state: bool = True, lease: float = 0.0) -> Job:
        job = self.create("digits", WORKERS[:workers], SERVERS, TreeKind.NONE, lease=lease)
        for place in ("s0", "s1"):
            self.enter(job, place)
        for rank in range(workers):
            self.come(job, rank, 0, gives_state)
        self.serve(job)
        self.run(job)
        return job

    def come(self, job: Job, rank: int, process: int, gives_state: bool = True) -> None:
        """A worker's process connects and names its keys."""
        address = int(self.fabric.addressing.address(job.workers[rank]))
        self.connect(
            job.nonce, Role.WORKER, rank, Address(address, 40000 + rank + process % 1000), process
        )
        self.init(job.nonce, rank, KEYS, process, gives_state)
        self.process[rank] = process

    def run(self, job: Job) -> None:
        """Workers say that they run the plan."""
        for rank in job.scheme.workers:
            result = self.now(job, rank)
            assert result is not None
            assert result.WhichOneof("what") == "plan"
            self.heartbeat(job.nonce, Role.WORKER, rank, job.epoch, process=self.process[rank])

    def now(self, job: Job, rank: int) -> jobs_pb2.Instruction | None:
        return self.instruction(job.nonce, Role.WORKER, rank, self.process[rank])

    def what(self, job: Job, *ranks: int) -> list[str | None]:
        values = [self.now(job, rank) for rank in ranks]
        return [None if one is None else one.WhichOneof("what") for one in values]

    def answers(self, job: Job, rank: int, **what: object) -> None:
        request = jobs_pb2.ResyncRequest(epoch=job.epoch, process=self.process[rank], **what)
        self.resync(job.nonce, Role.WORKER, rank, request)

    def change(self, job: Job, *levels: int) -> None:
        """All go through a change in which no member lacks anything."""
        for rank in job.active(Role.SERVER):
            self.say(job, f"s{rank}", report=jobs_pb2.Report())
        for rank in job.scheme.workers:
            self.answers(job, rank, report=jobs_pb2.Report(levels=bits(*levels)))
        self.serve(job)
        self.run(job)

    def bring_to_boundary(self, job: Job, **begun: int) -> int:
        """Up to where the first is asked for its state; returns the number of the attempt."""
        ranks = [int(name[1:]) for name in begun]
        assert self.what(job, *ranks) == ["boundary"] * len(ranks)
        result = self.now(job, ranks[0])
        assert result is not None
        assert not result.boundary.HasField("until")
        number = result.boundary.number
        for rank in ranks:
            calls = begun[f"w{rank}"]
            self.answers(job, rank, begun=jobs_pb2.Begun(number=number, calls=calls))
        for rank in ranks:
            result = self.now(job, rank)
            assert result is not None
            assert result.boundary.until == max(begun.values())
        for rank in ranks:
            self.answers(job, rank, reached=jobs_pb2.Reached(number=number))
        return number


@pytest.fixture
def table() -> Returning:
    return Returning()


def test_restarted_worker_gets_state_from_another(table: Returning) -> None:
    job = table.train()
    table.gone(job.nonce, Role.WORKER, 1, "was killed by SIGKILL")
    assert job.epoch == 2
    assert job.status.startswith("changes to plan epoch 2 (worker 1 (w1) was killed by SIGKILL)")
    table.come(job, 1, process=77)
    assert table.what(job, 0, 1, 2) == ["halt", None, "halt"]  # first things first
    table.change(job, 5, 5, 5, 5)
    number = table.bring_to_boundary(job, w0=5, w2=4)
    assert job.status == "worker 1 (w1) is about to join; waits for worker 0 (w0) to give its state"
    assert table.what(job, 0, 1, 2) == ["donate", None, "boundary"]
    donated = jobs_pb2.Donated(number=number, page=STATE.page(0))
    table.answers(job, 0, donated=donated)
    result = table.now(job, 1)
    assert result is not None
    assert result.restore.page == STATE.page(0)
    assert (job.epoch, job.scheme.workers) == (2, (0, 2))
    table.answers(job, 1, restored=jobs_pb2.Restored(number=number, page=0))
    assert job.epoch == 3
    assert table.what(job, 0, 1, 2) == ["halt"] * 3
    table.change(job, 6, 6, 6, 6)
    result = table.now(job, 1)
    assert result is not None
    assert (result.plan.world, result.plan.rank) == (3, 1)
    assert list(result.plan.members) == []  # all are in it
    assert result.plan.epoch == 3
    assert job.status == ""


def test_new_process_replaces_previous_one(table: Returning) -> None:
    job = table.train()
    before = dict(table.process)
    table.come(job, 1, process=78)
    assert job.epoch == 2
    assert job.scheme.workers == (0, 2)
    for call in (
        lambda: table.instruction(job.nonce, Role.WORKER, 1, before[1]),
        lambda: table.heartbeat(job.nonce, Role.WORKER, 1, 1),
        lambda: table.resync(job.nonce, Role.WORKER, 1, jobs_pb2.ResyncRequest(epoch=2)),
        lambda: table.init(job.nonce, 1, KEYS),
    ):
        with pytest.raises(JobError, match=r"goes on without this worker 1 \(w1\)") as caught:
            call()
        assert caught.value.refusal is Refusal.ABORTED
        assert caught.value.left_behind == REPLACED
    table.leave(job.nonce, Role.WORKER, 1, "I am not dead")  # it is no longer asked
    assert job.state is State.RUNNING
    table.come(job, 1, process=78)  # again is fine
    assert job.epoch == 2


@pytest.mark.parametrize("where", ["asked", "going on", "giving", "taking"])
def test_join_is_retried_after_another_fault(table: Returning, where: str) -> None:
    job = table.train()
    table.gone(job.nonce, Role.WORKER, 1, "died")
    table.come(job, 1, process=5)
    table.change(job, 1, 1, 1, 1)
    number = 0
    if where in ("giving", "taking"):
        number = table.bring_to_boundary(job, w0=2, w2=2)
    elif where == "going on":
        result = table.now(job, 0)
        assert result is not None
        begun = jobs_pb2.Begun(number=result.boundary.number, calls=2)
        table.answers(job, 0, begun=begun)
    if where == "taking":
        donated = jobs_pb2.Donated(number=number, page=STATE.page(0))
        table.answers(job, 0, donated=donated)
        assert table.what(job, 1) == ["restore"]
    table.say(job, "w2", broken=jobs_pb2.Broken(chunk=3, reason="bad"))
    assert table.what(job, 0, 1, 2) == ["halt", None, "halt"]
    assert job.scheme.workers == (0, 2)
    table.change(job, 2, 2, 2, 2)
    again = table.bring_to_boundary(job, w0=3, w2=3)
    assert again != number
    table.answers(job, 0, donated=jobs_pb2.Donated(number=again, page=STATE.page(0)))
    table.answers(job, 1, restored=jobs_pb2.Restored(number=again, page=0))
    assert table.what(job, 0, 1, 2) == ["halt"] * 3


@pytest.mark.parametrize("how", ["dies", "is silent", "gives up", "cannot", "is stuck"])
def test_failed_join_is_harmless(table: Returning, how: str) -> None:
    job = table.train(lease=100.0 if how == "is stuck" else 0.0)
    table.gone(job.nonce, Role.WORKER, 1, "died")
    table.come(job, 1, process=5)
    table.change(job, 1, 1, 1, 1)
    number = table.bring_to_boundary(job, w0=2, w2=2)
    table.answers(job, 0, donated=jobs_pb2.Donated(number=number, page=STATE.page(0)))
    if how == "dies":
        table.gone(job.nonce, Role.WORKER, 1, "was killed by SIGKILL")
    elif how == "is silent":
        table.pass_time(11, but="w1")
    elif how == "is stuck":
        for _ in range(int(ANSWER_SECONDS) + 1):
            table.time.now += 1
            for place in job.members:
                process = table.process[1] if place == W1 else 0
                epoch = 0 if place == W1 else job.epoch
                table.heartbeat(job.nonce, place.role, place.rank, epoch, process=process)
            table.expire()
    elif how == "gives up":
        table.leave(job.nonce, Role.WORKER, 1, "no memory", process=5)
    else:
        unable = jobs_pb2.Restored(number=number, page=0, unable="an unknown exponent")
        table.answers(job, 1, restored=unable)
    assert (job.state, job.epoch) == (State.RUNNING, 2)
    # The plan at hand, once more, lets them begin their next calls.
    assert table.what(job, 0, 2) == ["plan", "plan"]
    with pytest.raises(JobError, match=r"goes on without worker 1 \(w1\), which"):
        table.now(job, 1)
    table.come(job, 1, process=6)  # the next one may try
    table.bring_to_boundary(job, w0=9, w2=9)


def test_missing_state_donor_is_reported_to_joiner(table: Returning) -> None:
    job = table.train()
    table.gone(job.nonce, Role.WORKER, 1, "died")
    table.come(job, 1, process=5)
    table.change(job, 1, 1, 1, 1)
    number = table.bring_to_boundary(job, w0=2, w2=2)
    for rank, donation in ((0, number), (2, number + 1)):
        assert table.what(job, rank) == ["donate"]
        unable = jobs_pb2.Donated(number=donation, unable="MemoryError: ")
        table.answers(job, rank, donated=unable)
    with pytest.raises(
        JobError, match="no member supplies the state of the job: worker 0: MemoryError"
    ):
        table.now(job, 1)
    assert table.what(job, 0, 2) == ["plan", "plan"]


def test_rejected_joiner_gets_reason(table: Returning) -> None:
    job = table.train(gives_state=False)
    with pytest.raises(JobError, match=r"is connected already, .*no other worker gives the state"):
        table.come(job, 1, process=5)
    table.gone(job.nonce, Role.WORKER, 1, "died")
    with pytest.raises(JobError, match=r"which died; a new one cannot join"):
        table.come(job, 1, process=5)
    table.change(job, 1, 1, 1, 1)
    table.leave(job.nonce, Role.WORKER, 2)
    with pytest.raises(JobError, match=r"worker 2 \(w2\) has left, it was done"):
        table.come(job, 2, process=5)


def test_keys_of_one_that_joins_must_be_the_jobs(table: Returning) -> None:
    job = table.train()
    address = int(table.fabric.addressing.address("w1"))
    table.connect(job.nonce, Role.WORKER, 1, Address(address, 5), 5)
    with pytest.raises(JobError, match=r"worker 1 \(w1\) has 1 key, workers before it have 2"):
        table.init(job.nonce, 1, KEYS[:1], 5)
    table.process[1] = 5
    table.change(job, 1, 1, 1, 1)
    assert table.what(job, 0, 1, 2) == ["plan", None, "plan"]


def test_a_job_that_ends_meanwhile_ends_for_one_that_would_join(table: Returning) -> None:
    job = table.train()
    table.gone(job.nonce, Role.WORKER, 1, "died")
    table.come(job, 1, process=5)
    table.change(job, 1, 1, 1, 1)
    table.bring_to_boundary(job, w0=2, w2=2)
    table.leave(job.nonce, Role.WORKER, 0)
    assert table.what(job, 2) == ["donate"]
    table.leave(job.nonce, Role.WORKER, 2)
    assert job.state is State.GONE
    assert table.now(job, 1) is None  # and its Watch ends, as everybody's


def test_a_process_that_dies_before_the_start_is_replaced(table: Returning) -> None:
    job = table.create("digits", WORKERS[:2], SERVERS, TreeKind.NONE)
    for place in ("s0", "s1", "w0"):
        table.enter(job, place)
    address = int(table.fabric.addressing.address("w1"))
    table.connect(job.nonce, Role.WORKER, 1, Address(address, 40001), 3)
    table.come(job, 1, process=4)
    assert job.state is State.RUNNING
    assert job.scheme.workers == (0, 1)


def test_the_limit_for_silent_members_is_the_jobs(table: Returning) -> None:
    patient = table.train(lease=40.0)
    table.pass_time(39, but="w1")
    assert patient.epoch == 1  # a straggler
    table.pass_time(2, but="w1")
    assert patient.epoch == 2
    for lease, says in ((4.9, "lease 4.9 s"), (1e9, "lease 1e"), (-1, "lease -1 s")):
        with pytest.raises(JobError, match=rf"{says}.*: allowed are 5 to 86400 s, or 0") as caught:
            table.create("other", WORKERS[:2], SERVERS, TreeKind.NONE, lease=lease)
        assert caught.value.refusal is Refusal.INVALID_ARGUMENT


def test_controller_pause_expires_no_lease(table: Returning) -> None:
    """It would be the end of a job: all its members were not heard of for longer than its lease."""
    job = table.train(lease=5)
    table.expire(1.0)
    table.time.now += 60
    table.expire(1.0)
    assert (job.state, job.epoch) == (State.RUNNING, 1)
    table.pass_time(4, but="w1")
    assert job.epoch == 1
    table.pass_time(3, but="w1")
    assert (job.epoch, job.scheme.workers) == (2, (0, 2))


def test_reported_end_needs_no_lease(table: Returning) -> None:
    job = table.train()
    table.gone(job.nonce, Role.SERVER, 0, "was killed by\nSIGKILL")
    assert job.epoch == 2
    assert job.scheme.servers == (1,)
    table.gone(job.nonce, Role.SERVER, 0, "again")
    assert job.epoch == 2
    with pytest.raises(JobError) as caught:
        table.gone("guess", Role.WORKER, 0, "died")
    assert caught.value.refusal is Refusal.PERMISSION_DENIED
    waiting = table.new("waiting")
    table.enter(waiting, "w0")
    table.gone(waiting.nonce, Role.WORKER, 1, "never came")
    assert waiting.state is State.WAITING
    table.gone(waiting.nonce, Role.WORKER, 0, "was killed by SIGKILL")
    assert waiting.reason == "worker 0 (w0) was killed by SIGKILL"


def test_a_server_that_dies_before_the_job_starts_is_waited_for(table: Returning) -> None:
    job = table.create("digits", WORKERS[:2], SERVERS, TreeKind.NONE)
    table.enter(job, "s0")
    address = job.members[Membership(Role.SERVER, 0)].address
    table.enter(job, "s1")
    table.come(job, 0, 0)
    table.gone(job.nonce, Role.SERVER, 0, "was killed by SIGKILL")
    table.come(job, 1, 0)
    assert job.state is State.WAITING
    table.connect(job.nonce, Role.SERVER, 0, address, 7)
    assert job.state is State.RUNNING
    assert (job.epoch, job.scheme.servers) == (1, (0, 1))
    result = table.instruction(job.nonce, Role.SERVER, 0, 7)
    assert result is not None
    assert result.WhichOneof("what") == "plan"


def test_a_server_that_is_started_again_is_in_with_the_next_epoch(table: Returning) -> None:
    """True if its end was reported, or it was not missed; the process before is not heard again."""
    job = table.train()
    place = Membership(Role.SERVER, 0)
    address = job.members[place].address
    table.time.now += 5
    for epoch, process in ((2, 5), (3, 6)):
        table.connect(job.nonce, Role.SERVER, 0, address, process)
        assert (job.epoch, job.scheme.servers) == (epoch, (0, 1))
        assert job.members[place].since == table.time.now
    with pytest.raises(JobError, match="another process is in its place"):
        table.heartbeat(job.nonce, Role.SERVER, 0, 1, process=5)
    table.gone(job.nonce, Role.SERVER, 0, "was killed by SIGKILL")
    assert job.scheme.servers == (1,)
    table.connect(job.nonce, Role.SERVER, 0, address, 7)
    assert (job.epoch, job.scheme.servers) == (5, (0, 1))


def test_the_last_server_has_its_lease_to_be_started_again(table: Returning) -> None:
    job = table.train()
    address = job.members[Membership(Role.SERVER, 0)].address
    for rank in (0, 1):
        table.gone(job.nonce, Role.SERVER, rank, "was killed by SIGKILL")
    assert (job.state, job.epoch, job.scheme.servers) == (State.RUNNING, 2, (1,))
    # With another one there again, no member waits for it.
    table.connect(job.nonce, Role.SERVER, 0, address, 5)
    assert (job.epoch, job.scheme.servers) == (3, (0,))
    table.outages.died("s0", "was killed by SIGSEGV", table.time.now)
    table.pass_time(9, but="s0")
    assert job.state is State.RUNNING
    table.pass_time(2, but="s0")
    assert job.state is State.FAILED
    assert job.reason == "server 0 (s0) was killed by SIGSEGV; no other server is left"


def test_a_controller_that_is_restarted_knows_who_waits_to_join(tmp_path: Path) -> None:
    table = Returning(Journal(tmp_path / "journal"))
    job = table.train()
    table.gone(job.nonce, Role.WORKER, 1, "died")
    table.come(job, 1, process=1 << 62)
    table.change(job, 1, 1, 1, 1)
    table.bring_to_boundary(job, w0=2, w2=2)
    process = table.process
    table.journal.close()
    table = Returning(Journal(tmp_path / "journal"))
    table.process = process
    (job,) = table.jobs()
    assert (job.lease, job.members[W1].waiting) == (10.0, True)
    assert table.what(job, 0, 1, 2) == [None] * 3  # until servers say what they run
    for rank in (0, 1):
        table.heartbeat(job.nonce, Role.SERVER, rank, job.epoch)
    table.run(job)
    table.bring_to_boundary(job, w0=3, w2=2)


def test_a_further_worker_joins_between_two_rounds(table: Returning) -> None:
    job = table.train()
    assert table.enrol(job.nonce, "w5") == 3
    assert table.what(job, 0, 1, 2) == ["plan"] * 3
    table.come(job, 3, process=5)
    number = table.bring_to_boundary(job, w0=5, w1=4, w2=5)
    table.answers(job, 0, donated=jobs_pb2.Donated(number=number, page=STATE.page(0)))
    table.answers(job, 3, restored=jobs_pb2.Restored(number=number, page=0))
    assert job.epoch == 2
    table.change(job, 5, 5, 5, 5)
    assert job.scheme.workers == (0, 1, 2, 3)
    result = table.now(job, 3)
    assert result is not None
    assert (result.plan.world, result.plan.rank) == (4, 3)
    with pytest.raises(JobError, match=r"has worker 3 at w5, whose process can be restarted"):
        table.enrol(job.nonce, "w5")


def test_places_of_further_workers_outlive_the_controller(tmp_path: Path) -> None:
    table = Returning(Journal(tmp_path / "journal"))
    job = table.train()
    table.enrol(job.nonce, "w5")
    table.journal.close()
    again = Returning(Journal(tmp_path / "journal"))
    (known,) = again.jobs()
    assert known.workers == (*WORKERS[:3], "w5")
    again.come(known, 3, process=5)
    assert [known.name(place) for place in known.joiners] == ["worker 3 (w5)"]


@pytest.mark.parametrize("gives_state", [True, False])
def test_workers_that_cannot_join_get_no_place(table: Returning, gives_state: bool) -> None:
    waiting = table.create("waiting", WORKERS[:2], SERVERS, TreeKind.NONE)
    with pytest.raises(JobError, match="is created, not running"):
        table.enrol(waiting.nonce, "w5")
    table.stop(waiting.number, "enough")
    job = table.train(gives_state=gives_state)
    refusals = [("w99", "'w99' is no host of two-racks"), ("w1", "has worker 1 at w1")]
    if not gives_state:
        refusals.append(("w5", "no worker gives the state of the job to one that joins"))
    for host, text in refusals:
        with pytest.raises(JobError, match=text):
            table.enrol(job.nonce, host)
    assert len(job.workers) == 3
