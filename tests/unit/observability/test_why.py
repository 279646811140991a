# SPDX-License-Identifier: Apache-2.0
"""Tests explanations of why a job waits, from what its workers know."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli.display.diagnostics import show_why
from controller.planning.tree_planner import TreeKind
from emulation.jobs.diagnostics import Diagnostics
from emulation.nodes.processes import Processes
from hosts.worker.explanation import Outline, StreamOutline, Waiting
from observability.messages.waiting import Activity, Explanation
from observability.why import LATE, after, explain, sentences
from protocol.header import Phase
from specs.paths import ROOT
from tests.unit.observability.test_outcomes import trees

WORKERS = [f"w{rank}" for rank in range(8)]
TIMEOUT = 0.1
# Nodes of two-racks' tree: the core, tor0 over w0..w3, tor1 over w4..w7.
CORE, TOR0, TOR1 = (node.node for node in trees(TreeKind.TWO_LEVEL)[0].nodes)


def waiting(seq: int, age: float = 5.0, **more: Any) -> Waiting:
    known: dict[str, Any] = {
        "stream": 0, "seq": seq, "chunk": 40, "kind": "sum", "sent": 1, "sent_first": age,
        "sent_last": age, "asked_last": 0.2, "unanswered_queries": 0, "node": None, "phase": None,
        "children": None, "heard": None,
    }  # fmt: skip
    return Waiting(**{**known, **more})


def phase_report(node: int, phase: Phase, children: int, heard: float = 0.1) -> dict[str, Any]:
    """What a STATE says."""
    return {"node": node, "phase": phase.name, "children": children, "heard": heard}


def outline(
    rank: int, *oldest: Waiting, following: int = 100, epoch: int = 1, frozen: bool = False
) -> Outline:
    """What a worker of two-racks says that it knows."""
    stream = StreamOutline(
        0, TOR0 if rank < 4 else TOR1, rank % 4, following, len(oldest), TIMEOUT, list(oldest)
    )
    return Outline(epoch, 8, rank, frozen, [stream])


def worker(rank: int, doing: str, of: Outline | None = None) -> Activity:
    return Activity(WORKERS[rank], doing, 4.0, 9, of)


def changed(one: Activity, **outline: Any) -> Activity:
    """The same worker with another outline, if it has any."""
    if one.outline is None:
        return one
    return dataclasses.replace(one, outline=dataclasses.replace(one.outline, **outline))


def why(
    workers: list[Activity],
    kind: TreeKind = TreeKind.TWO_LEVEL,
    stuck: dict[str, str] | None = None,
) -> Explanation:
    return explain(workers, trees(kind), lambda chunk: f"s{chunk % 2}", stuck or {})


def nodes(found: Explanation) -> dict[str, tuple[str | None, list[str]]]:
    """Phase and missing children of each node, for the oldest chunk."""
    return {row["node"]: (row["phase"], row["missing"]) for row in found["chunks"][0]["nodes"]}


def stopped_worker(doing: str = "stopped", late: float = 5.0) -> list[Activity]:
    """w6 has not sent: tor0 is PARTIAL, so w0's query reached the core."""
    core = phase_report(CORE, Phase.AGGREGATING, 0b01)
    tor1 = phase_report(TOR1, Phase.AGGREGATING, 0b1011)
    there = [worker(r, "waits", outline(r, waiting(50, late, **core))) for r in range(4)]
    others = [worker(r, "waits", outline(r, waiting(50, late, **tor1))) for r in (4, 5, 7)]
    of = outline(6, following=50) if doing == "computes" else None
    return [*there, *others[:2], worker(6, doing, of), others[2]]


@pytest.mark.parametrize(
    ("doing", "text"),
    [
        ("stopped", "w6 is stopped (SIGSTOP, or a debugger)"),
        ("silent", "w6 does not answer"),
        ("ended", "w6 has ended"),
        ("computes", "w6 computes (4.0 s)"),
    ],
)
def test_a_missing_worker_is_named_with_the_nodes_that_wait_and_what_it_does(
    doing: str, text: str
) -> None:
    found = why(stopped_worker(doing))
    assert found["waits"]
    assert found["reason"] == f"core0 waits for tor1; tor1 waits for w6; {text}"
    assert nodes(found) == {
        "core0": ("AGGREGATING", ["tor1"]),
        "tor0": ("PARTIAL", []),
        "tor1": ("AGGREGATING", ["w6"]),
    }
    assert found["seconds"] == 5.0
    lines = sentences("digits", found)
    assert lines[0] == f"digits has waited for 5.0 s: {found['reason']}"
    assert (
        "  tor1: AGGREGATING, for 5.0 s; missing w6; in w4, w5, w7; reported to w4 0.1 s ago"
        in lines
    )


def test_job_waits_after_ten_timeouts() -> None:
    assert why(stopped_worker("computes", LATE * TIMEOUT))["waits"]
    found = why(stopped_worker("computes", LATE * TIMEOUT * 0.99))
    assert not found["waits"]
    assert sentences("digits", found) == [
        "digits does not wait: its oldest chunk has been in flight for 0.990 s (9.9 timeouts)"
    ]


def test_no_wait_without_chunks_in_flight() -> None:
    found = why([worker(rank, "computes", outline(rank, following=50)) for rank in range(8)])
    assert not found["waits"]
    assert sentences("digits", found) == ["digits does not wait: no chunk is in flight"]


def test_the_other_rack_reports_a_rack_without_answers() -> None:
    core = phase_report(CORE, Phase.AGGREGATING, 0b01)
    there = [worker(r, "waits", outline(r, waiting(50, **core))) for r in range(4)]
    found = why([*there, *(worker(r, "stopped") for r in range(4, 8))])
    assert nodes(found)["tor1"] == (None, ["w4", "w5", "w6", "w7"])
    assert found["reason"].startswith("core0 waits for tor1; tor1 waits for w4, w5, w6, w7; w4 is")


def test_a_lost_partial_sum_is_reported() -> None:
    core = phase_report(CORE, Phase.AGGREGATING, 0b01)
    found = why([worker(r, "waits", outline(r, waiting(50, **core))) for r in range(8)])
    assert found["reason"] == "core0 waits for tor1; what tor1 sent is not at core0"
    assert nodes(found)["tor1"] == ("PARTIAL", [])


def test_a_lost_contribution_is_reported() -> None:
    workers = stopped_worker()
    workers[6] = worker(6, "waits", outline(6, waiting(50, sent=3, sent_last=0.3)))
    assert why(workers)["reason"].endswith(
        "tor1 waits for w6; w6 has sent it 3 times, last 0.3 s ago: it is not at tor1"
    )


def test_a_lost_result_is_reported() -> None:
    others = [worker(r, "computes", outline(r, following=60)) for r in range(7)]
    core = phase_report(CORE, Phase.FINAL, 0b11)
    found = why([*others, worker(7, "waits", outline(7, waiting(50, **core)))])
    assert found["reason"] == "core0 has the sum, which is not at w7"


def test_a_switch_that_is_stopped_is_the_reason() -> None:
    asked = [worker(r, "waits", outline(r, waiting(50, unanswered_queries=7))) for r in range(8)]
    found = why(asked, stuck={"core0": "is not running"})
    assert found["reason"] == "core0 is not running"
    found = why(asked)
    assert "nothing is known of core0: 56 queries are unanswered" in found["reason"]


def test_a_tree_under_a_server_names_the_server_of_the_chunk() -> None:
    workers = stopped_worker()
    found = why(workers, TreeKind.TOR)
    assert found["reason"].startswith("s0 waits for tor1; tor1 waits for w6; ")


def test_a_chunk_in_float32_names_the_workers_that_its_server_lacks() -> None:
    server = phase_report(0, Phase.AGGREGATING, 0b1111_1101)
    direct = [
        worker(r, "waits", outline(r, waiting(50, kind="direct sum", **server)))
        for r in range(8)
        if r != 1
    ]
    found = why([direct[0], worker(1, "stopped"), *direct[1:]])
    assert nodes(found) == {"s0": ("AGGREGATING", ["w1"])}
    assert found["reason"].startswith("s0 waits for w1; w1 is stopped")


def test_workers_that_are_held_for_a_change_of_plan_are_named_first() -> None:
    workers = stopped_worker()
    for rank in (0, 3):
        workers[rank] = changed(workers[rank], frozen=True)
    found = why(workers)
    assert found["reason"].startswith("held for a change of plan: w0, w3; core0 waits for tor1; ")


def test_a_waiting_change_of_plan_is_reported_with_nothing_in_flight() -> None:
    change = "worker 2 (w2) is about to join; waits for worker 0 (w0) to complete round 7"
    workers = [worker(rank, "waits", outline(rank)) for rank in range(8)]
    found = explain(workers, trees(TreeKind.TWO_LEVEL), str, {}, change)
    assert found["waits"] is True
    assert sentences("digits", found)[0] == f"digits waits: {change}"


def test_worker_of_older_epoch_is_behind() -> None:
    """It has not received the plan that the others follow."""
    workers = [changed(one, epoch=2) for one in stopped_worker()]
    old = outline(6, waiting(700, 9.0), following=800, frozen=True)
    workers[6] = worker(6, "waits", old)
    found = why(workers)
    assert (found["epoch"], found["chunks"][0]["seq"]) == (2, 50)
    assert found["reason"].endswith("tor1 waits for w6; w6 is held for a change of plan (4.0 s)")


def test_the_oldest_number_is_found_where_numbers_wrap() -> None:
    assert after(2, 0xFFFFFFFE) == 4
    assert after(0xFFFFFFFE, 2) == -4
    state = phase_report(CORE, Phase.AGGREGATING, 0b01)
    workers = [worker(r, "waits", outline(r, waiting(1), following=3)) for r in range(8)]
    workers[5] = worker(5, "waits", outline(5, waiting(0xFFFFFFFF, **state), following=1))
    assert why(workers)["chunks"][0]["seq"] == 0xFFFFFFFF


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_a_terminal(width: int) -> None:
    terminal = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False
    )
    show_why(terminal, {"job": "digits", "state": "running", **why(stopped_worker())})
    assert isinstance(terminal.file, io.StringIO)
    text = terminal.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "stopped" in text
    assert "QUERY 0.2 s ago" in text


def test_silent_worker_is_queried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes: one answers each line, one reads nothing at all."""
    monkeypatch.setattr("emulation.jobs.diagnostics._ANSWER_SECONDS", 3.0)
    answer = json.dumps({"doing": "computes", "seconds": 1.0, "iteration": 2, "outline": None})
    script = f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)"

    async def run() -> list[list[str]]:
        processes = Processes(tmp_path, ROOT)
        diagnostics: Diagnostics
        good = processes.start(
            "good", [sys.executable, "-c", script], wants_input=True,
            on_line=lambda line: diagnostics.answer(good, json.loads(line)),
        )  # fmt: skip
        deaf = processes.start("deaf", ["sleep", "60"], wants_input=True)
        job = SimpleNamespace(name="digits", state="running", number=1)
        workers = SimpleNamespace(members={"w0": good, "w1": deaf})
        diagnostics = Diagnostics(job, workers, None)  # type: ignore[arg-type]
        values = [[one.doing for one in await diagnostics._workers()] for _ in range(2)]
        assert deaf.popen.stdin is not None
        await processes.stop()
        return values

    assert asyncio.run(run()) == [["computes", "silent"]] * 2
