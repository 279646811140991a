# SPDX-License-Identifier: Apache-2.0
"""Persists the state that a restarted controller needs: jobs, members, slots and used epochs.

An SQLite file, written through to the disk (WAL, synchronous=FULL) before a change takes effect, so
the journal knows every entry that a switch may hold, and no plan epoch is used twice. Plans are not
stored: they follow from trees, members and slot ranges.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from controller.jobs.job import Job, Key, RestoredChunks, Scheme, State
from controller.jobs.members import Member, Membership, Role
from controller.jobs.moves import MOST_RECORDS, MoveRecord
from controller.jobs.resync import Pool
from controller.p4rt.install import SlotRange
from controller.planning.admission import Reservation
from protocol import jobs_pb2
from protocol.balance import Balance
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address
from protocol.propagation import Propagation
from protocol.server_pipelines import Pipeline
from protocol.trees import TreeKind

__all__ = ["Journal", "JournalError", "Known", "NoJournal"]

VERSION = 10
_SCHEME = TypeAdapter(Scheme)  # in JSON
SCHEMA = """
CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE used (job INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE gone (switch TEXT PRIMARY KEY);
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY, position INTEGER NOT NULL, epoch INTEGER NOT NULL,
  namespace TEXT NOT NULL, nonce TEXT NOT NULL, workers TEXT NOT NULL, servers TEXT NOT NULL,
  kind TEXT NOT NULL, "window" INTEGER NOT NULL, streams INTEGER NOT NULL, avoid TEXT NOT NULL,
  state TEXT NOT NULL, reason TEXT NOT NULL, keys TEXT NOT NULL, scheme TEXT NOT NULL,
  changing INTEGER NOT NULL, levels BLOB, lease REAL NOT NULL, optimizer BLOB,
  restored TEXT NOT NULL, slice_bytes INTEGER NOT NULL, pipeline BLOB NOT NULL,
  propagation BLOB NOT NULL, moved TEXT NOT NULL, balance BLOB NOT NULL,
  spares TEXT NOT NULL);
CREATE TABLE members (
  job INTEGER NOT NULL, role INTEGER NOT NULL, rank INTEGER NOT NULL, ipv4 INTEGER NOT NULL,
  port INTEGER NOT NULL, initialised INTEGER NOT NULL, "left" INTEGER NOT NULL, lost TEXT NOT NULL,
  process INTEGER NOT NULL, gives_state INTEGER NOT NULL, joining INTEGER NOT NULL,
  PRIMARY KEY (job, role, rank));
CREATE TABLE reservations (
  job INTEGER NOT NULL, part INTEGER NOT NULL, "window" INTEGER NOT NULL, PRIMARY KEY (job, part));
CREATE TABLE places (
  job INTEGER NOT NULL, part INTEGER NOT NULL, stream INTEGER NOT NULL, switch TEXT NOT NULL,
  base INTEGER NOT NULL, "group" INTEGER NOT NULL);
CREATE TABLE meetings (job INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, worker INTEGER NOT NULL);
CREATE TABLE moves (
  job INTEGER NOT NULL, version INTEGER NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (job, version));
CREATE TABLE kept (
  job INTEGER NOT NULL, chunk INTEGER NOT NULL, level INTEGER NOT NULL, header BLOB NOT NULL,
  payload BLOB NOT NULL, PRIMARY KEY (job, chunk, level));
"""


class JournalError(Exception):
    """The journal cannot be used; the text says why and names the file."""


@dataclass
class Known:
    """A job as loaded from the journal.

    changing: its plan was not published yet.
    current: the reservation of its scheme.
    old: reservations for which switches may still have entries.
    """

    job: Job
    changing: bool
    current: Reservation | None
    old: list[Reservation]


class Journal:
    """The journal in a file, created if missing; ":memory:" lasts as long as the process.

    failed: called with the reason if a write fails. Memory is then ahead of the file, so the
        process must not continue.

    Callers serialize all calls. Raises JournalError.
    """

    def __init__(
        self, path: str | Path = ":memory:", failed: Callable[[str], None] = lambda why: None
    ) -> None:
        self.path = str(path)
        self._failed = failed
        try:
            if self.path != ":memory:":  # jobs' nonces are secrets; SQLite's other files follow
                os.close(os.open(self.path, os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=2.0
            )
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._prepare()
        except OSError as error:
            raise JournalError(f"journal {self.path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise JournalError(f"journal {self.path}: {error}") from error

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def next_term(self) -> int:
        """Returns the number of this start, from 1, which P4Runtime election ids contain."""
        term = self._number("term") + 1
        self._write([("INSERT OR REPLACE INTO numbers VALUES ('term', ?)", [(term,)])])
        return term

    @property
    def last_number(self) -> int:
        """Number of the job created last; 0 if there is none."""
        found = self._rows("SELECT number FROM jobs ORDER BY position DESC LIMIT 1")
        return int(found[0][0]) if found else 0

    def used(self) -> dict[int, int]:
        """Returns the last plan epoch of jobs that are over, by number."""
        return {row[0]: row[1] for row in self._rows("SELECT job, epoch FROM used")}

    def gone(self) -> set[str]:
        """Returns the switches that routes avoid."""
        return {str(row[0]) for row in self._rows("SELECT switch FROM gone")}

    def save_gone(self, switches: Iterable[str]) -> None:
        """Saves the switches that routes avoid."""
        self._write(
            [
                ("DELETE FROM gone", [()]),
                ("INSERT INTO gone VALUES (?)", [(switch,) for switch in switches]),
            ]
        )

    def save(self, job: Job) -> None:
        """Saves a job, except for its kept results (``keep``) and moves (``save_move``)."""
        number = job.number
        changing = job.started and not job.instructions
        position = self._rows(
            "SELECT coalesce((SELECT position FROM jobs WHERE number = ?),"
            " (SELECT max(position) + 1 FROM jobs), 0)",
            number,
        )[0][0]
        row = (
            number, position, job.epoch, job.namespace, job.nonce, json.dumps(job.workers),
            json.dumps(job.servers), job.kind.name, job.window, job.streams,
            json.dumps(sorted(job.avoid)), job.state.name, job.reason, json.dumps(job.keys),
            _SCHEME.dump_json(job.scheme).decode(), changing,
            _levels(job), job.lease, _plan(job), json.dumps(job.restored), job.slice_bytes,
            job.pipeline.to_message().SerializeToString(),
            job.propagation.to_message().SerializeToString(), json.dumps(job.moved),
            job.balance.to_message().SerializeToString(), json.dumps(sorted(job.spares)),
        )  # fmt: skip
        members = [_row(job, place) for place in job.members]
        parts = [job.reservation, *(leftover.reservation for leftover in job.leftovers)]
        held = [(part, one) for part, one in enumerate(parts) if one is not None]
        reservations = [(number, part, one.window) for part, one in held]
        places = [
            (number, part, stream, switch, place.base, place.group)
            for part, one in held
            for (stream, switch), place in one.places.items()
        ]
        self._write(
            [
                (f"INSERT OR REPLACE INTO jobs VALUES ({_marks(row)})", [row]),
                ("DELETE FROM members WHERE job = ?", [(number,)]),
                (f"INSERT INTO members VALUES ({', '.join('?' * 11)})", members),
                ("DELETE FROM places WHERE job = ?", [(number,)]),
                ("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?)", places),
                ("DELETE FROM reservations WHERE job = ?", [(number,)]),
                ("INSERT INTO reservations VALUES (?, ?, ?)", reservations),
                ("INSERT OR REPLACE INTO meetings VALUES (?, ?, ?)", [(number, *job.met)]),
            ]
        )

    def save_member(self, job: Job, place: Membership) -> None:
        """Saves one member, and the job's state, keys, optimizer and `kept.left`.

        The job was saved before, and nothing else has changed since.
        """
        told = (job.state.name, json.dumps(job.keys), _plan(job), _levels(job), job.number)
        self._write(
            [
                (
                    "UPDATE jobs SET state = ?, keys = ?, optimizer = ?, levels = ?"
                    " WHERE number = ?",
                    [told],
                ),
                (
                    f"INSERT OR REPLACE INTO members VALUES ({', '.join('?' * 11)})",
                    [_row(job, place)],
                ),
            ]
        )

    def keep(self, job: Job, results: Iterable[jobs_pb2.Result]) -> None:
        """Saves results that a leaving worker handed over."""
        rows = [(job.number, r.chunk, r.level, r.header, r.payload) for r in results]
        self._write([("INSERT OR IGNORE INTO kept VALUES (?, ?, ?, ?, ?)", rows)])

    def forget(self, job: Job) -> None:
        """Deletes the results of ``keep``."""
        self._write([("DELETE FROM kept WHERE job = ?", [(job.number,)])])

    def save_move(self, job: Job, record: MoveRecord) -> None:
        """Saves a change of a job's chunk map, in place of the record with its version."""
        row = job.number, record.version, record.to_json()
        old = job.number, record.version - MOST_RECORDS
        self._write(
            [
                ("INSERT OR REPLACE INTO moves VALUES (?, ?, ?)", [row]),
                ("DELETE FROM moves WHERE job = ? AND version <= ?", [old]),
            ]
        )

    def drop(self, job: Job, forget: bool) -> None:
        """Deletes the results of a job that is over, and with ``forget`` the job itself."""
        gone = [(job.number,)]
        statements: list[tuple[str, Sequence[Sequence[Any]]]] = [
            ("DELETE FROM kept WHERE job = ?", gone),
            ("INSERT OR REPLACE INTO used VALUES (?, ?)", [(job.number, job.epoch)]),
        ]
        if forget:
            tables = {"jobs": "number", "members": "job", "reservations": "job", "places": "job"}
            tables |= {"meetings": "job", "moves": "job"}
            statements += [(f"DELETE FROM {t} WHERE {key} = ?", gone) for t, key in tables.items()]
        self._write(statements)

    def load(self, now: float) -> list[Known]:
        """Loads all jobs, oldest first; their members count as heard ``now``."""
        known = [_job(row, now) for row in self._rows("SELECT * FROM jobs ORDER BY position")]
        by_number = {one.job.number: one for one in known}
        for number, role, rank, *told in self._rows("SELECT * FROM members"):
            by_number[number].job.members[Membership(Role(role), rank)] = _member(told, now)
        for number, epoch, worker in self._rows("SELECT * FROM meetings"):
            by_number[number].job.met = epoch, worker
        for number, record in self._rows("SELECT job, record FROM moves ORDER BY job, version"):
            by_number[number].job.moves.append(MoveRecord.from_json(record))
        parts = {
            (number, part): Reservation(window, {})
            for number, part, window in self._rows("SELECT * FROM reservations ORDER BY job, part")
        }
        for number, part, stream, switch, base, group in self._rows("SELECT * FROM places"):
            parts[number, part].places[stream, switch] = SlotRange(base, group)
        for (number, part), held in parts.items():
            if part:
                by_number[number].old.append(held)
            else:
                by_number[number].current = held
        for number, chunk, level, header, payload in self._rows("SELECT * FROM kept"):
            result = jobs_pb2.Result(chunk=chunk, level=level, header=header, payload=payload)
            by_number[number].job.kept.add([result])
        return known

    # --- inside ---

    def _prepare(self) -> None:
        (version,) = self._rows("PRAGMA user_version")[0]
        if version == 0 and not self._rows("SELECT name FROM sqlite_master"):
            self._database.executescript(
                f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;"
            )
        elif version != VERSION:
            raise JournalError(
                f"journal {self.path} has version {version}, this program writes {VERSION}; move it"
                " away to start without any job"
            )

    def _number(self, name: str) -> int:
        found = self._rows("SELECT value FROM numbers WHERE name = ?", name)
        return int(found[0][0]) if found else 0

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()

    def _write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    self._database.executemany(statement, rows)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk ends it as well
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            text = f"journal {self.path}: {error}"
            self._failed(text)
            raise JournalError(text) from error


class NoJournal(Journal):
    """The journal of a controller that nothing starts again: it keeps nothing.

    With thousands of workers, rows that nobody reads would take a tenth of the start and end of a
    run in virtual time.
    """

    def save(self, job: Job) -> None:
        """Overrides Journal."""

    def save_member(self, job: Job, place: Membership) -> None:
        """Overrides Journal."""

    def keep(self, job: Job, results: Iterable[jobs_pb2.Result]) -> None:
        """Overrides Journal."""

    def save_move(self, job: Job, record: MoveRecord) -> None:
        """Overrides Journal."""


def _marks(row: Sequence[Any]) -> str:
    return ", ".join("?" * len(row))


def _levels(job: Job) -> bytes | None:
    return None if job.kept.left is None else job.kept.left.astype("<u4").tobytes()


def _plan(job: Job) -> bytes | None:
    if job.optimizer is None:
        return None
    data: bytes = job.optimizer.to_message().SerializeToString()
    return data


def _row(job: Job, place: Membership) -> tuple[Any, ...]:
    """Returns the row of a member."""
    member = job.members[place]
    return (
        job.number, place.role.value, place.rank, member.address.ipv4, member.address.port,
        member.initialised, member.left, member.lost, member.process, member.gives_state,
        member.joining,
    )  # fmt: skip


def _member(row: Sequence[Any], now: float) -> Member:
    ipv4, port, initialised, left, lost, process, gives_state, joining = row
    return Member(
        Address(ipv4, port),
        now,
        bool(initialised),
        left=bool(left),
        lost=lost,
        process=process,
        gives_state=bool(gives_state),
        joining=bool(joining),
    )


def _optimizer(data: bytes) -> OptimizerPlan:
    return OptimizerPlan.from_message(jobs_pb2.Optimizer.FromString(data))


def _job(row: Sequence[Any], now: float) -> Known:
    (
        number, _, epoch, namespace, nonce, workers, servers, kind, window, streams, avoid, state,
        reason, keys, scheme, changing, levels, lease, optimizer, restored, slice_bytes,
        pipeline, propagation, moved, balance, spares,
    ) = row  # fmt: skip
    job = Job(
        number=number,
        epoch=epoch,
        namespace=namespace,
        nonce=nonce,
        workers=tuple(json.loads(workers)),
        servers=tuple(json.loads(servers)),
        kind=TreeKind[kind],
        window=window,
        streams=streams,
        lease=lease,
        slice_bytes=slice_bytes,
        created=now,
        scheme=_SCHEME.validate_json(scheme),
        reservation=None,
        avoid=frozenset(json.loads(avoid)),
        state=State[state],
        reason=reason,
        keys=tuple(Key(*key) for key in json.loads(keys)),
        restored=[RestoredChunks(*one) for one in json.loads(restored)],
        optimizer=None if optimizer is None else _optimizer(optimizer),
        pipeline=Pipeline.from_message(jobs_pb2.Pipeline.FromString(pipeline)),
        propagation=Propagation.from_message(jobs_pb2.Propagation.FromString(propagation)),
        balance=Balance.from_message(jobs_pb2.Balance.FromString(balance)),
        moved=tuple((slice_, server) for slice_, server in json.loads(moved)),
        spares=frozenset(json.loads(spares)),
        kept=Pool({}, None if levels is None else np.frombuffer(levels, "<u4").astype(np.uint32)),
        left_at=now,
    )
    return Known(job, bool(changing), None, [])
