# SPDX-License-Identifier: Apache-2.0
"""Tests that a journal restores jobs in any state."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from controller.jobs.job import Job, Role, State
from controller.jobs.journal import VERSION, Journal, JournalError
from controller.planning.tree_planner import TreeKind
from protocol import jobs_pb2
from tests.unit.controller.test_jobs import SERVERS, WORKERS, Table
from tests.unit.controller.test_resync import result
from tests.unit.controller.test_resync_jobs import PAYLOAD, Members, bits


def fields(job: Job) -> dict[str, object]:
    """All of a job that outlives the controller."""
    names = "number epoch namespace nonce workers servers kind window streams scheme slice_bytes"
    names += " avoid state reason keys met spares moved moves"
    return {name: getattr(job, name) for name in names.split()}


def members(job: Job) -> dict[object, tuple[object, ...]]:
    return {place: (m.address, m.initialised, m.left, m.lost) for place, m in job.members.items()}


class Journaled(Members):
    """Members whose table writes to a journal, and can be restored from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(Journal(path))

    def again(self) -> Journaled:
        """The controller died and was started again."""
        self.journal.close()
        return Journaled(self.path)


@pytest.fixture
def table(tmp_path: Path) -> Journaled:
    return Journaled(tmp_path / "journal")


def check_same(before: Table, after: Table) -> None:
    assert [fields(job) for job in after.jobs()] == [fields(job) for job in before.jobs()]
    assert [members(job) for job in after.jobs()] == [members(job) for job in before.jobs()]
    for one, other in zip(before.jobs(), after.jobs(), strict=True):
        assert one.instructions == other.instructions
        assert one.slots == other.slots
        assert set(one.kept.results) == set(other.kept.results)


def test_jobs_in_every_state_are_restored(table: Journaled) -> None:
    table.create(
        "created", WORKERS, SERVERS, TreeKind.TWO_LEVEL, window=16, streams=2, slice_bytes=4096
    )
    waiting = table.create("waiting", WORKERS[:2], SERVERS, TreeKind.NONE)
    table.enter(waiting, "w1")
    running = table.train()
    running.met = 1, 2  # workers have joined, at a boundary where worker 2 was
    table.epochs.give_out(running)
    failed = table.new("failed")
    table.leave(failed.nonce, Role.WORKER, 0, "no reason")
    again = table.again()
    check_same(table, again)
    states = [job.state for job in again.jobs()]
    assert states == [State.CREATED, State.WAITING, State.RUNNING, State.FAILED]
    # Members go on as if nothing had been.
    again.enter(waiting, "w0")
    again.serve(running)
    assert again.instruction_kind(running, "w0") == "plan"
    used = {name: budget.used for name, budget in again.resources.budgets.items()}
    assert used == {"core0": 64, "tor0": 64, "tor1": 64}


def test_changing_job_resumes_in_new_epoch(table: Journaled) -> None:
    job = table.train()
    table.replan(job, "first", window=8)
    table.report(job, "w0", 1, 1, 1, 1)
    again = table.again()
    (job,) = again.jobs()
    assert (job.epoch, job.window) == (3, 8)
    assert {again.instruction_kind(job, place) for place in ("w0", "w1", "w2", "s0", "s1")} == {
        "halt"
    }


def test_lost_members_stay_lost_and_leavers_results_are_kept(table: Journaled) -> None:
    job = table.train()
    table.pass_time(11, but="w2")
    for place in ("w0", "w1", "s0", "s1"):
        table.say(job, place, report=jobs_pb2.Report())
    table.serve(job)
    kept = [result(1, 4, PAYLOAD)]
    table.leave(job.nonce, Role.WORKER, 0, "", kept, bits(4, 4, 4, 4))
    again = table.again()
    check_same(table, again)
    (job,) = again.jobs()
    again.replan(job, "x")
    again.report(job, "s0")
    again.report(job, "s1")
    again.report(job, "w1", 4, 3, 4, 4)
    instruction = again.instruction(job.nonce, Role.WORKER, 1)
    assert instruction is not None
    assert list(instruction.take.results) == kept


def test_results_of_a_worker_that_leaves_others_outlive_the_controller(table: Journaled) -> None:
    """Until all have them."""
    job, kept = table.train(), [result(1, 4, PAYLOAD)]
    table.leave(job.nonce, Role.WORKER, 0, "", kept, bits(4, 4, 4, 4), others_go_on=True)
    again = table.again()
    (job,) = again.jobs()
    assert job.epoch == 3
    for place, levels in (("w1", (4, 3, 4, 4)), ("w2", (4, 4, 4, 4)), ("s0", ()), ("s1", ())):
        again.report(job, place, *levels)
    instruction = again.instruction(job.nonce, Role.WORKER, 1)
    assert instruction is not None
    assert list(instruction.take.results) == kept
    again.say(job, "w1", taken=jobs_pb2.Taken(page=0))
    again.serve(job)
    later = again.again()
    check_same(again, later)
    assert not later.jobs()[0].kept.results


def test_numbers_and_epochs_continue_after_restart(table: Journaled) -> None:
    seen = set()
    for _ in range(3):
        for _ in range(2):
            job = table.new()
            seen.add((job.number, job.epoch))
            table.leave(job.nonce, Role.WORKER, 0)
        table = table.again()
    assert len(seen) == 6
    assert {number for number, _ in seen} == set(range(1, 7))
    table.roster._last_number = 0  # as after the last of all numbers
    job = table.new()
    assert (job.number, job.epoch) == (1, 2)


def test_full_disk_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    said: list[str] = []
    journal = Journal(path, said.append)
    journal.save_gone(["core0"])
    journal._database.execute("PRAGMA max_page_count = 1")  # as many as there are
    with pytest.raises(JournalError, match="disk is full"):
        journal.save_gone([f"tor{number:0100}" for number in range(1000)])
    assert said == [f"journal {path}: database or disk is full"]
    assert journal.gone() == {"core0"}
    journal.close()


def test_other_users_can_read_no_file_of_a_journal(tmp_path: Path) -> None:
    """Nonces are in it, and in the write-ahead log."""
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.save_gone(["core0"])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    journal.close()
    assert {"journal", "journal-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}
    with pytest.raises(JournalError, match="no-folder/journal: No such file or directory"):
        Journal(tmp_path / "no-folder" / "journal")


def test_a_journal_is_one_controllers(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    assert (journal.next_term(), journal.next_term()) == (1, 2)
    with pytest.raises(JournalError, match=f"journal {path}: database is locked"):
        Journal(path)
    journal.save_gone(["core0", "tor1"])
    journal.close()
    journal = Journal(path)
    assert journal.next_term() == 3
    assert journal.gone() == {"core0", "tor1"}
    journal.close()
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be taken for one" * 10)
    with pytest.raises(JournalError, match=f"journal {text}: file is not a database"):
        Journal(text)
    other = sqlite3.connect(tmp_path / "other")
    other.execute(f"PRAGMA user_version = {VERSION + 1}")
    other.close()
    text = f"has version {VERSION + 1}, this program writes {VERSION}; move it away"
    with pytest.raises(JournalError, match=text):
        Journal(tmp_path / "other")
