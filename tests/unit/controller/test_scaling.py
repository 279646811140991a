# SPDX-License-Identifier: Apache-2.0
"""Tests that servers of a running job come and go by order, without a change of plan or weights."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from controller.jobs.epochs import ANSWER_SECONDS
from controller.jobs.job import Job, JobError, Membership, Refusal, Role
from controller.jobs.remapping import Remap
from controller.jobs.scaling import Scaled
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from protocol.plan import ServerPlan, WorkerPlan
from protocol.propagation import Propagation
from tests.unit.controller.test_jobs import SERVERS, WORKERS, Table
from tests.unit.controller.test_journal import Journaled, check_same
from tests.unit.simulation.virtual_session import run

TOPOLOGY = """\
name: star
defaults: {rate: 1 Gbit/s, delay: 5 us}
racks: [{workers: 3, servers: 4}]
"""
JOB = """\
name: digits
hidden: [32]
batch: 24
iterations: 28
compute: 5 ms
slice_bytes: 1 KiB
placement: {kind: ncs, servers: [s0, s1], spares: [s2, s3]}
"""
FAULTS = """\
faults:
- {at: 36 chunks, scale: {servers: [+s2, +s3]}}
- {at: 120 chunks, scale: {servers: [-s0]}}
- {at: 204 chunks, scale: {servers: [+s0, -s3]}}
- {at: 290 chunks, scale: {servers: [+s0]}}
"""


ALL = [(Role.SERVER, 0), (Role.SERVER, 1), (Role.WORKER, 0), (Role.WORKER, 1)]


def scale(table: Table, job: Job, *words: str) -> Scaled | None:
    added, removed = ([w[1:] for w in words if w[0] == sign] for sign in "+-")
    return table.scaling.scale(job.nonce, added, removed, lambda: True)


def spare(table: Table, namespace: str = "digits", *, kind: TreeKind = TreeKind.NONE) -> Job:
    """Starts a job with s1 as a spare server, whose members run its plan."""
    job = table.create(namespace, WORKERS[:2], SERVERS, kind, spares={"s1"}, slice_bytes=1024)
    for place in ("s0", "w0", "s1", "w1"):
        table.enter(job, place)
    for role in (Role.SERVER, Role.WORKER):
        for rank in range(2):
            table.heartbeat(job.nonce, role, rank, job.epoch)
    return job


def servers_used(table: Table, job: Job) -> set[int]:
    """Returns the servers with slices, by the plan of a server."""
    plan = table.instruction(job.nonce, Role.SERVER, 0)
    assert plan is not None
    return set(ServerPlan.from_message(plan.plan).shares.owners.tolist())


@pytest.fixture
def table(tmp_path: Path) -> Journaled:
    return Journaled(tmp_path / "journal")


def test_a_spare_server_has_no_slices_from_the_start(table: Journaled) -> None:
    job = spare(table)
    assert servers_used(table, job) == {0}
    again = table.again()
    check_same(table, again)
    assert servers_used(again, again.jobs()[0]) == {0}


def test_a_spare_server_takes_over_when_all_others_have_died(table: Journaled) -> None:
    job = spare(table)
    table.gone(job.nonce, Role.SERVER, 0, "was killed")
    for rank in (0, 1):
        report = jobs_pb2.Report(levels=bytes(4 * job.chunks(256)))
        table.resync(
            job.nonce, Role.WORKER, rank, jobs_pb2.ResyncRequest(epoch=job.epoch, report=report)
        )
    table.resync(
        job.nonce, Role.SERVER, 1, jobs_pb2.ResyncRequest(epoch=job.epoch, report=jobs_pb2.Report())
    )
    assert job.scheme.servers == (1,)
    assert job.instructions
    assert not job.spares


@pytest.mark.parametrize(
    ("words", "refusal", "text"),
    [
        ([], Refusal.INVALID_ARGUMENT, "no server is named"),
        (["+s9"], Refusal.INVALID_ARGUMENT, "has no server 's9'; allowed: s0, s1"),
        (["-w0"], Refusal.INVALID_ARGUMENT, "has no server 'w0'; allowed: s0, s1"),
        (["+s1", "+s1"], Refusal.INVALID_ARGUMENT, "s1 is named twice"),
        (["+s1", "-s1"], Refusal.INVALID_ARGUMENT, "s1 is both added and removed"),
        (["+s0"], Refusal.FAILED_PRECONDITION, "s0 has slices already"),
        (["-s1"], Refusal.FAILED_PRECONDITION, "s1 is a spare server already"),
        (["-s0"], Refusal.FAILED_PRECONDITION, "no server would have any slices"),
    ],
)
def test_impossible_orders_are_refused(
    table: Journaled, words: list[str], refusal: Refusal, text: str
) -> None:
    job = spare(table)
    with pytest.raises(JobError, match=text) as error:
        scale(table, job, *words)
    assert error.value.refusal is refusal
    assert job.remap is None


def test_orders_are_refused_at_the_wrong_time(table: Journaled) -> None:
    waiting = table.create("waiting", WORKERS[:2], SERVERS, TreeKind.NONE)
    with pytest.raises(JobError, match="is created, not running"):
        scale(table, waiting, "-s1")
    job = spare(table)
    table.remap(job, (), "a test")
    with pytest.raises(JobError, match="s0 has slices already"):
        scale(table, job, "+s0")  # nor is waited for what is impossible
    table.gone(job.nonce, Role.SERVER, 1, "was killed")
    with pytest.raises(JobError, match="s1 is not there now"):
        scale(table, job, "+s1")
    table.stop(job.number, "enough")
    with pytest.raises(JobError, match="failed: enough"):
        scale(table, job, "+s1")
    with pytest.raises(JobError, match="the nonce is no job's"):
        table.scaling.scale("0" * 32, ["s1"], [], lambda: True)


def test_trees_with_a_switch_as_root_have_nothing_to_scale(table: Journaled) -> None:
    job = spare(table)
    job.scheme = replace(job.scheme, kind=TreeKind.TWO_LEVEL)
    with pytest.raises(JobError, match="tree two-level has a switch sum, so servers have no"):
        scale(table, job, "-s1")
    for spares, kind, text in (
        ({"s1"}, TreeKind.TWO_LEVEL, "the root of tree two-level is a switch"),
        ({"s0", "s1"}, TreeKind.NONE, "all servers are spare"),
    ):
        with pytest.raises(JobError, match=text):
            table.create("other", WORKERS[:2], SERVERS, kind, spares=spares)


def test_a_caller_that_goes_away_leaves_the_change_as_it_is(table: Journaled) -> None:
    job = spare(table)
    gone = threading.Event()
    results: list[Scaled | None] = []

    def call() -> None:
        results.append(table.scaling.scale(job.nonce, ["s1"], [], lambda: not gone.is_set()))

    caller = threading.Thread(target=call)
    caller.start()
    with table.changed:
        assert table.changed.wait_for(lambda: job.remap is not None, 60)
        assert job.status == "changes its chunk map; waits for server 0 (s0), server 1 (s1)"
        gone.set()
        table.changed.notify_all()
    caller.join(60)
    assert results == [None]
    assert job.remap is not None


def test_an_order_waits_until_nothing_else_is_changing(table: Journaled) -> None:
    job = spare(table)
    table.remap(job, job.moved, "a test")
    other = job.remap
    assert other is not None
    order = Order(table, job)
    order.answer(other, 1, 1, 1)
    own = order.attempt(after=other)
    order.answer(own, 9, 9, 9)
    result = order.wait()
    assert isinstance(result, Scaled)
    assert result.servers == ["s0", "s1"]
    assert servers_used(table, job) == {0, 1}


class Order:
    """An order to give s1 slices that a thread waits for."""

    def __init__(self, table: Journaled, job: Job) -> None:
        self.table, self.job = table, job
        self.result: Scaled | JobError | None = None
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def _call(self) -> None:
        try:
            self.result = scale(self.table, self.job, "+s1")
        except JobError as error:
            self.result = error

    def attempt(self, after: object = None) -> Remap:
        """Waits for an attempt other than `after`."""
        changed, job = self.table.changed, self.job
        with changed:
            assert changed.wait_for(lambda: job.remap not in (None, after), 60)
        assert job.remap is not None
        return job.remap

    def answer(self, remap: Remap, *begun: int) -> None:
        """Servers take their chunks; then workers say three times how many rounds they began."""
        for rank in range(2):
            self._say(Role.SERVER, rank, jobs_pb2.Remapped(number=remap.number))
        for rounds in begun:
            decided = remap.holds is not None
            told = jobs_pb2.Remapped(
                number=remap.number, from_round=remap.from_round, decided=decided, begun=rounds
            )
            for rank in range(2):
                self._say(Role.WORKER, rank, told)

    def _say(self, role: Role, rank: int, told: jobs_pb2.Remapped) -> None:
        request = jobs_pb2.ResyncRequest(epoch=self.job.epoch, remapped=told)
        self.table.resync(self.job.nonce, role, rank, request)

    def wait(self) -> Scaled | JobError | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result


def test_an_order_is_tried_again_further_ahead_if_workers_are_too_fast(table: Journaled) -> None:
    job = spare(table)
    order = Order(table, job)
    first = order.attempt()
    order.answer(first, 3, 9, 9)
    assert (first.from_round, first.holds) == (5, False)
    second = order.attempt(first)
    assert job.spares == {1}
    order.answer(second, 10, 13, 13)
    done = order.wait()
    assert isinstance(done, Scaled)
    assert (done.from_round, done.servers, done.spares) == (14, ["s0", "s1"], [])
    assert not job.spares
    assert servers_used(table, job) == {0, 1}
    again = table.again()
    check_same(table, again)


def test_an_order_outlives_a_change_of_plan(table: Journaled) -> None:
    job = spare(table)
    order = Order(table, job)
    first = order.attempt()
    table.gone(job.nonce, Role.WORKER, 1, "was killed")
    assert (job.epoch, job.remap) == (2, None)
    report = jobs_pb2.Report(levels=bytes(4 * job.chunks(256)))
    for role, rank in ((Role.SERVER, 0), (Role.SERVER, 1), (Role.WORKER, 0)):
        given = report if role is Role.WORKER else jobs_pb2.Report()
        table.resync(job.nonce, role, rank, jobs_pb2.ResyncRequest(epoch=2, report=given))
    assert servers_used(table, job) == {0}
    for role, rank in ((Role.SERVER, 0), (Role.SERVER, 1)):
        table.heartbeat(job.nonce, role, rank, 2)
    assert job.change is None
    assert table.remaps.changing(job), "the order would begin before the worker runs the plan"
    table.heartbeat(job.nonce, Role.WORKER, 0, 2)
    second = order.attempt(first)
    assert second.epoch == 2
    table.stop(job.number, "enough")
    done = order.wait()
    assert isinstance(done, JobError)
    assert "failed: enough" in str(done)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_map_of_parts_of_keys_outlives_a_server(table: Journaled, dies: int) -> None:
    """Fewer servers cut whole keys into fewer parts than the map speaks of."""
    kind, parts = TreeKind.NONE, Propagation(parts=True)
    job = table.create(*("digits", WORKERS[:2], SERVERS, kind), slice_bytes=1024, propagation=parts)
    for place in ("s0", "w0", "s1", "w1"):
        table.enter(job, place)
    for role, rank in ALL:
        table.heartbeat(job.nonce, role, rank, 1)
    assert servers_used(table, job) == {0, 1}
    job.moved = ((2, 1 - dies),)  # the last of three slices, where one server has two
    table.gone(job.nonce, Role.SERVER, dies, "was killed")
    for role, rank in ((Role.SERVER, 1 - dies), (Role.WORKER, 0), (Role.WORKER, 1)):
        levels = bytes(4 * job.chunks(256)) if role is Role.WORKER else b""
        report = jobs_pb2.Report(levels=levels)
        table.resync(job.nonce, role, rank, jobs_pb2.ResyncRequest(epoch=2, report=report))
    table.heartbeat(job.nonce, Role.SERVER, 1 - dies, 2)
    told = table.instruction(job.nonce, Role.WORKER, 0)
    assert told is not None
    assert WorkerPlan.from_message(told.plan).shares.owners.tolist() == [0, 0]


def test_a_member_that_never_answers_does_not_leave_a_job_changing(table: Journaled) -> None:
    """It says that it is alive; others have answered. The plan epoch changes, and if it does not
    answer then, either, it is lost."""
    job = spare(table)
    table.remap(job, ((0, 1),), "a test")
    remap = job.remap
    assert remap is not None

    def later(seconds: int) -> None:
        """All say every second that they are alive."""
        for _ in range(seconds):
            table.time.now += 1
            for role, rank in ALL:
                if not job.members[Membership(role, rank)].lost:
                    table.heartbeat(job.nonce, role, rank, 1)
            table.expire()

    for server in range(2):
        later(int(ANSWER_SECONDS))
        assert job.remap is remap, "each answer gives more time"
        request = jobs_pb2.ResyncRequest(epoch=1, remapped=jobs_pb2.Remapped(number=remap.number))
        table.resync(job.nonce, Role.SERVER, server, request)
    later(int(ANSWER_SECONDS) + 1)
    assert (job.epoch, job.remap) == (2, None)
    assert job.change is not None
    who = "worker 0 (w0), worker 1 (w1)"
    assert job.change.reason == f"{who} had 60 s for a chunk map and did not answer"
    for role, rank in ALL[:3]:
        levels = bytes(4 * job.chunks(256)) if role is Role.WORKER else b""
        report = jobs_pb2.Report(levels=levels)
        table.resync(job.nonce, role, rank, jobs_pb2.ResyncRequest(epoch=2, report=report))
    later(int(ANSWER_SECONDS) + 1)
    lost = [place for place, member in job.members.items() if member.lost]
    assert (job.epoch, lost) == (3, [Membership(Role.WORKER, 1)])


@pytest.mark.parametrize("at", ["workers", "servers"])
def test_servers_come_and_go_while_a_job_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Packets are lost meanwhile. Weights are the reference's, and those of a run without all
    that."""
    loss = "{rate: 1 Gbit/s, delay: 5 us, loss: 2 %, duplicate: 2 %, reorder: 5 %}"
    topology = TOPOLOGY.replace("{rate: 1 Gbit/s, delay: 5 us}", loss)
    trained = f"{JOB}optimizer: {{name: adam, rate: 0.01, at: {at}}}\n"
    files = {"topology.yaml": topology, "job.yaml": trained, "faults.yaml": FAULTS}
    session = run(tmp_path / "scaled", monkeypatch, files)
    found = json.loads(session.run.summary.read_text())
    (job,) = found["jobs"]
    placed = trained.replace("servers: [s0, s1], spares: [s2, s3]", "servers: [s0]")
    files = {"topology.yaml": TOPOLOGY, "job.yaml": placed}
    plain = run(tmp_path / "plain", monkeypatch, files)
    (other,) = json.loads(plain.run.summary.read_text())["jobs"]
    assert job["matches_reference"] is True
    assert job["weights_sha256"] == other["weights_sha256"]
    assert len(job["plans"]) == 1
    rows = [(row["node"], row["what"]) for row in found["faults"]]
    assert [node for node, _ in rows] == [
        "servers +s2 +s3", "servers -s0", "servers +s0 -s3", "servers +s0",
    ]  # fmt: skip
    # 6 each at two servers; 3 at each of four; 4 at three; 4 at three again.
    for (_, what), moved in zip(rows, (6, 3, 4), strict=False):
        assert what.startswith(f"moved {moved} slices ({moved * 1.024:.3g} kB), which holds from")
    assert "s0 has slices already" in rows[3][1]
    moves = job["moves"]
    assert [one["reason"] for one in moves] == [node for node, _ in rows[:3]]
    assert [one["version"] for one in moves] == [1, 2, 3]
    assert [one["slices"] for one in moves] == [6, 3, 4]
    # A parameter and two moments of adam of each value; a slice is a chunk.
    values = 1024 * 3 if at == "servers" else 0
    assert [one["bytes"] for one in moves] == [values * one["slices"] for one in moves]
    for one in moves:
        assert f"from round {one['from_round']}" in rows[one["version"] - 1][1]
        assert 0 <= one["transfer_seconds"] < one["seconds"] < found["virtual"]["seconds"]
        assert bool(one["transfer_seconds"]) == (at == "servers")
    held = [one["blocked_seconds"] for one in moves]
    assert job["blocked_seconds"] == pytest.approx(sum(held))
    carried = {(row["from"], row["to"]): row["bytes"] for row in found["links"]}
    assert all(carried["tor0", f"s{number}"] > 0 for number in range(4))


@pytest.mark.parametrize(("consistency", "ahead"), [("asynchronous", 28), ("{staleness: 1}", 1)])
def test_servers_come_and_go_while_workers_are_in_rounds_of_their_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    consistency: str,
    ahead: int,
) -> None:
    """Packets are lost meanwhile, and one worker is slow. Servers have taken a step with each
    gradient, once."""
    caplog.set_level("INFO")
    loss = "{rate: 1 Gbit/s, delay: 5 us, loss: 2 %, duplicate: 2 %, reorder: 5 %}"
    topology = TOPOLOGY.replace("{rate: 1 Gbit/s, delay: 5 us}", loss)
    job = f"{JOB}optimizer: {{name: adam, rate: 0.01, at: servers}}\nconsistency: {consistency}\n"
    faults = FAULTS + "- {at: 0, slow: {host: w0, by: 3}, for: forever}\n"
    files = {"topology.yaml": topology, "job.yaml": job, "faults.yaml": faults}
    session = run(tmp_path, monkeypatch, files)
    found = json.loads(session.run.summary.read_text())
    (summary,) = found["jobs"]
    assert len(summary["plans"]) == 1
    said = [row["what"] for row in found["faults"] if row["kind"] == "scale"]
    for what, moved in zip(said, (6, 3, 4), strict=False):
        assert what == f"moved {moved} slices ({moved * 1.024:.3g} kB), which holds from now on"
    assert [one["slices"] for one in summary["moves"]] == [6, 3, 4]
    # A parameter and two moments of each of a chunk's values.
    assert [one["bytes"] for one in summary["moves"]] == [3 * 1024 * n for n in (6, 3, 4)]
    assert {one["from_round"] for one in summary["moves"]} == {None}
    assert 0 < summary["staleness_seen"]["max"] <= ahead
    # 12 chunks, 28 gradients of each of three workers.
    stepped = [int(n) for n in re.findall(r"'stepped': (\d+)", caplog.text)]
    assert sum(stepped) == 12 * 28 * 3


@pytest.mark.parametrize("at", ["workers", "servers"])
def test_spare_servers_stay_spare_when_others_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Parameters and optimizer state are where the plans of all epochs say, or weights differ."""
    faults = (
        "faults:\n- {at: 60 chunks, kill: s1, gone: 30 ms}\n"
        "- {at: 180 chunks, scale: {servers: [+s2, -s1]}}\n"
        "- {at: 252 chunks, kill: s0, gone: 30 ms}\n"
    )
    job = f"{JOB}optimizer: {{name: adam, rate: 0.01, at: {at}}}\n"
    files = {"topology.yaml": TOPOLOGY, "job.yaml": job, "faults.yaml": faults}
    session = run(tmp_path, monkeypatch, files)
    found = json.loads(session.run.summary.read_text())
    (summary,) = found["jobs"]
    assert summary["matches_reference"] is True
    assert len(summary["plans"]) == 5
    assert found["faults"][1]["what"].startswith("moved 6 slices")
    carried = {(row["from"], row["to"]): row["bytes"] for row in found["links"]}
    # It sends no results, and where it is the backup of others, acknowledges their replicas.
    acknowledged = 0 if at == "workers" else carried["s2", "tor0"] // 10
    assert carried["s3", "tor0"] <= acknowledged < carried["s2", "tor0"]


@pytest.mark.parametrize("tree", ["two-level", "none"])
def test_workers_join_while_a_job_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: str
) -> None:
    """Means are those of the workers present: the reference has the same weights. The last comes
    too late, and the job does not mind."""
    topology = "name: pair\nracks: [{workers: 2, servers: 1, count: 2}]\ncores: 1\n"
    job = (
        "name: digits\nhidden: [32]\nbatch: 32\niterations: 20\ncompute: 5 ms\n"
        f"tree: {tree}\nplacement: {{workers: [w0, w1]}}\n"
    )
    faults = (
        "faults:\n- {at: 36 chunks, scale: {workers: [+w3]}}\n"
        "- {at: 60 chunks, scale: {workers: [+w1]}}\n- {at: 228 chunks, scale: {workers: [+w2]}}\n"
    )
    files = {"topology.yaml": topology, "job.yaml": job, "faults.yaml": faults}
    session = run(tmp_path, monkeypatch, files)
    found = json.loads(session.run.summary.read_text())
    (summary,) = found["jobs"]
    assert summary["matches_reference"] is True
    counts = summary["workers_per_iteration"]
    assert counts == sorted(counts)
    assert (counts[2], counts[-1]) == (2, 3)
    assert len(summary["plans"]) == 2
    assert [row["what"] for row in found["faults"]] == [
        "changed: 3 workers",
        "were refused: job digits: w1 is in the job, or on its way",
        "were refused: job digits was over before w2 had joined",
    ]
