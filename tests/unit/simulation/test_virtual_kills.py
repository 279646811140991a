# SPDX-License-Identifier: Apache-2.0
"""Tests killed, stopped and cut-off nodes in virtual time: jobs survive them as in emulation, and
the same files give the same run."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.jobs.registry import JobTable
from hosts.client import Client
from hosts.server.process import ServerProcess
from simulation.session import Session
from testbed.errors import JobError
from tests.unit.simulation.virtual_session import one_by_one, run
from workloads.trainer import digest

TOPOLOGY = """
name: breaking
defaults: {rate: 50 Mbit/s, delay: 0.1 ms, queue_bytes: 64 KiB}
racks: [{workers: 2, servers: 1}, {workers: 2, servers: 1}]
cores: 1
"""
JOB = """
name: tiny
hidden: [16]
iterations: ITERATIONS
batch: 24
optimizer: {name: momentum, rate: 0.05, momentum: 0.9}
"""
WORKERS = ["w0", "w1", "w2", "w3"]
CHUNKS = 7  # of an iteration


def broken(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    iterations: int = 60,
    *,
    at_servers: bool = False,
    matches: bool | None = True,
    change: Callable[[Session], None] = lambda session: None,
    heard: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], list[str], Session]:
    """A run's summary, what was said, and its session. Its weights are the reference's, unless
    `matches` is None."""
    said: list[str] = []

    def emit(message: dict[str, Any]) -> None:
        if message["event"] == "fault":
            said.append(message["text"])
            heard(message["text"])

    job = JOB.replace("ITERATIONS", str(iterations))
    files = {
        "topology.yaml": TOPOLOGY,
        "job.yaml": job.replace("0.9}", "0.9, at: servers}\ntree: tor") if at_servers else job,
        "faults.yaml": f"faults:\n{faults}",
    }
    session = run(folder, monkeypatch, files, change, emit)
    summary = json.loads(session.run.summary.read_text())
    assert summary["matches_reference"] is matches
    assert summary["workers_agree"] is True
    assert len(summary["seconds_per_iteration"]) == iterations
    return summary, said, session


EVERYTHING = """
  - {at: 35 chunks, kill: tor0}
  - {after: 35 chunks, kill: core0, gone: 300 ms}
  - {after: 35 chunks, kill: controller}
  - {after: 35 chunks, repush: tor1}
  - {after: 35 chunks, disconnect: core0, for: 70 chunks}
  - {after: 35 chunks, stop: w2, for: 400 ms}
  - {after: 35 chunks, kill: s1}
  - {after: 35 chunks, kill: w1, gone: 50 ms}
  - {after: 70 chunks, stop: controller, for: 200 ms}
  - {after: 35 chunks, impair: {ends: [w0, tor0], loss: 5 %}, for: 50 ms}
"""


def test_broken_runs_are_the_same_again_and_packet_by_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, change in (("once", None), ("singly", one_by_one)):
        options = {} if change is None else {"change": change}
        summary, said, _ = broken(tmp_path / name, monkeypatch, EVERYTHING, 120, **options)
        del summary["machine"], summary["jobs"][0]["machine"], summary["virtual"]["trace"]
        trace = (tmp_path / name / "trace.json").read_text()
        found.append((json.dumps(summary), said, trace))
    assert found[0] == found[1]
    rows = {(row["kind"], row["node"]): row for row in json.loads(found[0][0])["faults"]}
    assert len(rows) == 10
    for (kind, node), row in rows.items():
        assert row["seconds"] > 0, row
        if kind == "repush" or (kind == "kill" and node in ("tor0", "core0", "w1")):
            assert row["epoch_after"] > row["epoch_before"], row
    assert rows["kill", "core0"]["seconds"] > 0.3
    assert rows["stop", "w2"]["seconds"] > rows["stop", "w2"]["lasted"] == 0.4
    assert rows["kill", "w1"]["rejoined_after"] > 0.05
    assert "w1 was killed by SIGKILL; job tiny goes on with w0, w2, w3 for 0.05 s" in found[0][1]
    assert "w1 has joined job tiny again" in found[0][1]


def test_a_killed_worker_is_in_no_sum_until_it_has_joined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = "  - {at: 70 chunks, kill: w0, gone: 30 ms}\n"
    summary, said, _ = broken(tmp_path, monkeypatch, faults, 60)
    assert said[-1] == "w0 has joined job tiny again"
    assert (summary["lost_workers"], summary["rejoined_workers"]) == ({}, {"w0": 1})
    counts = summary["workers_per_iteration"]
    away = counts.index(3), len(counts) - counts[::-1].index(3)
    assert counts == [4] * away[0] + [3] * (away[1] - away[0]) + [4] * (60 - away[1])
    (row,) = summary["faults"]
    assert row["seconds"] > 0
    assert row["rejoined_after"] > 0.03


@pytest.mark.parametrize(
    ("node", "kind", "others"),
    [("w0", Client, 3), ("s0", ServerProcess, 1), ("controller", JobTable, 0)],
)
def test_nothing_stays_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str, kind: type[object], others: int
) -> None:
    """Neither memory nor tasks; and its sockets are free."""
    sessions: list[Session] = []
    # Those of earlier tests may be collected meanwhile.
    before, found = [weakref.ref(one) for one in living(kind)], []

    def heard(text: str) -> None:
        if "was killed" in text:
            network = sessions[0].network
            host = network.hosts.get(node, network.controller)
            sockets = getattr(host, "_endpoints", {})
            earlier = [one() for one in before]
            new = [one for one in living(kind) if not any(one is other for other in earlier)]
            found.append((len(new), host.tasks.waiting, dict(sockets)))

    faults = f"  - {{at: 70 chunks, kill: {node}, gone: 30 ms}}\n"
    broken(tmp_path, monkeypatch, faults, 30, change=sessions.append, heard=heard)
    assert found == [(others, set(), {})]


def living(kind: type[object]) -> list[object]:
    """Returns the objects of a class that there are."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, kind)]


def test_a_job_ends_without_a_worker_that_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, whose reports are the run's progress."""
    faults = "  - {at: 70 chunks, kill: w0, gone: forever}\n"
    summary, said, session = broken(tmp_path, monkeypatch, faults, 30)
    rest = WORKERS[1:]
    assert said == ["w0 was killed by SIGKILL; job tiny goes on with w1, w2, w3; it stays away"]
    assert summary["lost_workers"] == {"w0": "was killed by SIGKILL"}
    assert summary["finished_workers"] == rest
    assert summary["attendance"][-1]["sums"] == [{"workers": rest, "chunks": None}]
    weights = np.load(session.run.path / "weights-tiny.npz")
    assert digest(dict(weights)) == summary["weights_sha256"]


def test_a_job_fails_without_any_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = "".join(f"  - {{at: 70 chunks, kill: {one}, gone: forever}}\n" for one in WORKERS)
    with pytest.raises(JobError, match=r"job tiny: w[0-3]: was killed by SIGKILL"):
        broken(tmp_path, monkeypatch, faults, 30)


@pytest.mark.parametrize(("killed", "source"), [(["s0"], "s1"), (["s0", "s1"], "w")])
def test_what_a_killed_server_had_comes_from_its_replica_or_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: list[str], source: str
) -> None:
    """The optimizer's state is in the replica alone, so without it there is no reference."""
    faults = "".join(f"  - {{at: 70 chunks, kill: {name}}}\n" for name in killed)
    matches = None if source == "w" else True
    summary, said, _ = broken(tmp_path, monkeypatch, faults, 30, at_servers=True, matches=matches)
    assert {f"{name} was killed by SIGKILL; started again" for name in killed} == set(said)
    sources = {row["from"] for row in summary["restored"] if row["from"] != row["server"]}
    assert {one[: len(source)] for one in sources} == {source}


def test_faults_of_what_does_not_run_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = """
  - {at: 70 chunks, kill: w3, gone: forever}
  - {at: 3 ms, kill: core0, gone: 100 ms}
  - {at: 30 ms, kill: core0}
  - {at: 30 ms, repush: core0}
  - {after: 35 chunks, stop: w3, for: 1 ms}
"""
    summary, said, _ = broken(tmp_path, monkeypatch, faults, 60)
    first, second = summary["faults"]
    assert (first["node"], first["at"], first["epoch_before"]) == ("core0", 0.003, 1)
    assert (second["kind"], second["node"]) == ("kill", "w3")
    for what in ("core0 is not running: kill", "core0 is not running: repush"):
        assert f"{what} has no effect" in said
    assert "w3 is not running: stop has no effect" in said


@pytest.mark.soak
def test_a_worker_stopped_for_longer_than_its_lease_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = "  - {at: 70 chunks, stop: w2, for: 6 s}\n"
    monkeypatch.setitem(globals(), "JOB", JOB + "lease: 5\n")
    summary, said, _ = broken(tmp_path, monkeypatch, faults, 300)
    text = "w2 was too long without a sign of life; job tiny goes on with w0, w1, w3"
    assert any(one.startswith(text) for one in said)
    assert summary["rejoined_workers"] == {"w2": 1}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_faults_of_all_nodes_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    nodes = "[switches, controller, servers, workers]"
    faults = f"  []\nrandom: {{seed: {seed}, every: 60 ms, count: 20, nodes: {nodes}}}\n"
    summary, _, _ = broken(tmp_path, monkeypatch, faults, 100)
    kinds = [row["kind"] for row in summary["faults"]]
    assert len(kinds) > 10
    assert len(set(kinds)) >= 4
