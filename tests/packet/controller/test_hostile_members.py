# SPDX-License-Identifier: Apache-2.0
"""Tests invalid reports of job members (optimizer, holdings, join state): rejected with a
reason, without effect."""

from __future__ import annotations

from typing import Any

import pytest

from controller.jobs.departures import LONGEST_REASON
from controller.jobs.job import State
from protocol import jobs_pb2
from tests.packet.controller.hostile_service import (
    BAD_OPTIMIZERS,
    LEVELS,
    OPTIMIZER,
    OWN_CHUNKS,
    OWN_HOSTS,
    SERVER,
    WORKER,
    keys,
    other_processes,
    scene,
)

LONGEST_TEXT = 4096


def test_other_process_cannot_remove_members() -> None:
    with scene() as s:
        who = {"nonce": s.own.nonce, "role": WORKER, "rank": 0}
        for process in other_processes(s):
            s.call("Leave", process=process, levels=LEVELS, reason="enough", **who)
            assert (s.own.state, s.own.epoch) == (State.RUNNING, 1)
        s.call("Heartbeat", **who)
        s.finish()


def test_unsupported_optimizer_is_rejected() -> None:
    with scene() as s:
        job = s.create(jobs_pb2.NONE)
        for role, rank in OWN_HOSTS:
            who = {"nonce": job.nonce, "role": role, "rank": rank}
            s.call("ConnectService", address=s.address(role, rank), **who)
        fields = {"nonce": job.nonce, "keys": keys(256 * OWN_CHUNKS)}
        for bad in BAD_OPTIMIZERS:
            request = jobs_pb2.InitServiceRequest(optimizer={**OPTIMIZER, **bad}, **fields)
            code, text = s.attempt("InitService", request)
            assert (code, job.optimizer) == ("INVALID_ARGUMENT", None), bad
            assert text.startswith("optimizer "), bad
            assert "\x1b" not in text
            assert len(text) <= LONGEST_TEXT
        s.call("InitService", optimizer=OPTIMIZER, **fields)
        for other in (None, {**OPTIMIZER, "rate": 0.2}):
            request = jobs_pb2.InitServiceRequest(rank=1, optimizer=other, **fields)
            code, text = s.attempt("InitService", request)
            assert code == "INVALID_ARGUMENT"
            assert "workers before it have momentum (rate 0.1, momentum 0.9)" in text
        s.call("InitService", rank=1, optimizer=OPTIMIZER, **fields)
        assert job.state is State.RUNNING
        s.finish()


@pytest.mark.parametrize("optimizer", [None, OPTIMIZER], ids=["sums", "parameters"])
def test_server_levels_are_validated(optimizer: dict[str, Any] | None) -> None:
    with scene() as s:
        job = s.running(jobs_pb2.NONE, optimizer)
        server = {"nonce": job.nonce, "role": SERVER, "rank": 0, "epoch": 2}
        s.call("Resync", nonce=job.nonce, role=WORKER, epoch=1, broken={"chunk": 0})
        assert job.change is not None
        for size in (1, 4 * OWN_CHUNKS - 1, 4 * OWN_CHUNKS + 4, 10**6):
            request = jobs_pb2.ResyncRequest(report={"levels": bytes(size)}, **server)
            code, text = s.attempt("Resync", request)
            assert code == "INVALID_ARGUMENT"
            assert f"{size} B of levels" in text
        assert len(job.change.owing) == len(OWN_HOSTS)
        s.call("Resync", report={"levels": b"" if optimizer is None else LEVELS}, **server)
        assert len(job.change.owing) == len(OWN_HOSTS) - 1
        s.finish()


@pytest.mark.parametrize(
    "donated",
    [
        {"page": {"size": 1 << 63, "sha256": bytes(32)}},
        {"page": {"size": (1 << 64) - 1, "sha256": bytes(32), "data": b"x"}},
        {"page": {"size": 1, "sha256": bytes(31), "data": b"x"}},
        {"page": {"size": 5, "sha256": bytes(32), "data": b"x" * 10**6}},
        {},
        {"unable": "bad\n\x1b[2J\x07 news " + "x" * 10**6},
    ],
    ids=["2^63 B", "2^64-1 B", "hash", "data", "nothing", "words"],
)
def test_invalid_state_is_not_forwarded(donated: dict[str, Any]) -> None:
    """A member that wanted to join with it learns why not, and the job goes on."""
    with scene() as s:
        job = s.running(gives_state=True)
        who = {"nonce": job.nonce, "role": WORKER}
        s.call("Gone", rank=1, reason="was killed", **who)
        for rank, role, levels in ((0, WORKER, LEVELS), (0, SERVER, b"")):
            report = {"levels": levels}
            s.call("Resync", nonce=job.nonce, role=role, rank=rank, epoch=2, report=report)
        new = who | {"rank": 1, "process": 5}
        s.call("ConnectService", address=s.address(WORKER, 1), **new)
        fields = {"nonce": job.nonce, "rank": 1, "process": 5}
        s.call("InitService", keys=keys(256 * OWN_CHUNKS), gives_state=True, **fields)
        s.beat(job)
        s.call("Heartbeat", epoch=2, **who)
        assert job.join is not None
        number = job.join.number
        s.call("Resync", epoch=2, begun={"number": number, "calls": 2}, **who)
        s.call("Resync", epoch=2, reached={"number": number}, **who)
        assert s.call("Watch", **who).donate.number == number
        s.call("Resync", epoch=2, donated={"number": number, **donated}, **who)
        assert (job.join, job.state, job.epoch) == (None, State.RUNNING, 2)
        code, text = s.attempt("Watch", jobs_pb2.WatchRequest(**new))
        assert code == "ABORTED"
        assert "could not join: no member supplies the state of the job: worker 0: " in text
        assert text.isprintable()
        assert len(text) < LONGEST_REASON + 100
        assert s.call("Watch", **who).plan.world == 1
        s.finish()
