# SPDX-License-Identifier: Apache-2.0
"""Tests when a job counts as recovered from a fault, and its retransmitted packets."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.faults.chaos import Chaos
from emulation.jobs.recovery import FaultLog
from emulation.nodes.switchprocess import SwitchProcess
from observability import outcomes
from protocol.outcomes import Outcome
from specs.faultfile import Fault


async def nothing(_: Iterable[SwitchProcess]) -> outcomes.Counts:
    return {}


def report(began: float, ended: float, *, sent: int, completed: int, plan: int) -> dict[str, Any]:
    statistics = {
        "sent": sent, "completed": completed, "completed_direct": 0,
        "exponent_rounds": 10, "initial": 0,
    }  # fmt: skip
    return {"spans": [(began, ended)], "plan": plan, "statistics": statistics}


def test_job_recovers_when_all_complete_an_iteration_after_fault() -> None:
    async def play() -> list[dict[str, Any]]:
        log = FaultLog({}, nothing, 1000)
        log.runs("job", range(2), plan=1)
        for rank in (0, 1):
            log.progress("job", rank, report(0.0, 1.0, sent=21, completed=10, plan=1))
        fault = log.begin("kill", "tor0", "was killed", await log.snapshot())
        assert log.rows()[0]["seconds"] is None
        at = fault.began
        # An iteration that had begun before may have had its results already.
        for rank in (0, 1):
            log.progress("job", rank, report(at - 1, at + 1, sent=31, completed=20, plan=1))
        assert log.rows()[0]["seconds"] is None
        log.progress("job", 0, report(at + 1, at + 2.5, sent=45, completed=30, plan=2))
        log.progress("job", 1, report(at + 1, at + 2.0, sent=41, completed=30, plan=2))
        log.progress("job", 1, report(at + 9, at + 10, sent=80, completed=40, plan=2))
        log.died("tor0", "was killed by SIGKILL")
        await log.settled()
        return log.rows()

    (row,) = asyncio.run(play())
    assert row["what"] == "was killed by SIGKILL"
    assert round(row["seconds"], 6) == 2.5
    assert (row["epoch_before"], row["epoch_after"]) == (1, 2)
    # 45 sent for 40 results, of which 1 was one too many before the fault; 41 for 40.
    assert (row["resent_packets"], row["resent_bytes"]) == (4, 4000)


def test_a_fault_that_lasts_is_over_before_a_job_has_recovered() -> None:
    async def play() -> list[dict[str, Any]]:
        log = FaultLog({}, nothing, 1000)
        log.runs("job", range(1), plan=1)
        fault = log.begin("impair", "tor0-core0", "lost", await log.snapshot(), lasting=True)
        log.progress(
            "job", 0, report(fault.began + 1, fault.began + 2, sent=20, completed=10, plan=1)
        )
        assert log.rows()[0]["seconds"] is None
        fault.over = fault.began + 5
        log.progress(
            "job", 0, report(fault.began + 6, fault.began + 7, sent=33, completed=20, plan=1)
        )
        await log.settled()
        return log.rows()

    (row,) = asyncio.run(play())
    assert round(row["seconds"], 6) == 7
    assert row["resent_packets"] == 3


def test_recovery_does_not_wait_for_a_lost_worker() -> None:
    async def play() -> list[dict[str, Any]]:
        log = FaultLog({}, nothing, 1000)
        log.runs("job", range(2), plan=1)
        log.died("w1", "was killed by SIGKILL")
        log.lost("job", 1)
        began = time.monotonic()
        log.progress("job", 0, report(began + 1, began + 2, sent=20, completed=10, plan=2))
        await log.settled()
        log.over("job")
        log.died("s0", "was killed by SIGKILL")  # when no job runs
        await log.settled()
        return log.rows()

    first, second = asyncio.run(play())
    assert first["seconds"] >= 2
    assert (second["node"], second["job"], second["seconds"]) == ("s0", None, None)


def test_slots_that_wait_are_those_claimed_or_sent_up_and_not_left() -> None:
    counts = Counter({
        Outcome.CLAIMED: 100, Outcome.ADDED: 200, Outcome.PARTIAL_SENT: 70,
        Outcome.COMPLETED: 20, Outcome.RESULT_DOWN: 65,
    })  # fmt: skip
    assert outcomes.OpenSlots().look("tor0", counts) == (10, 5)


def test_fault_is_over_when_its_job_ends_during_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.faults.injection._AIM_SECONDS", (0.0, 0.0))

    async def play() -> tuple[list[dict[str, Any]], list[int]]:
        log, stopped, signals = FaultLog({}, nothing, 1000), asyncio.Event(), []

        def send(number: int) -> None:
            signals.append(number)
            stopped.set()

        process = SimpleNamespace(name="tor0", running=True, signal=send)
        nodes = SimpleNamespace(all_at=lambda _: [process])
        context: Any = SimpleNamespace(faults=log, nodes=nodes, network=None, tell=lambda _: None)
        job: Any = SimpleNamespace(
            state="running",
            forecast=SimpleNamespace(workload=SimpleNamespace(chunks=1)),
            workers=SimpleNamespace(members={}),
        )
        chaos = Chaos(context, [Fault("stop", node="tor0", seconds=3600.0)], lambda _: None)
        async with chaos.around(job):
            chaos.forward({"event": "running"})
            await stopped.wait()
            assert log.rows()[0]["lasted"] is None
        return log.rows(), signals

    (row,), signals = asyncio.run(play())
    assert 0 <= row["lasted"] < 3600
    assert signals == [signal.SIGSTOP, signal.SIGCONT]
