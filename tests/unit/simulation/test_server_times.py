# SPDX-License-Identifier: Apache-2.0
"""Tests that runs in virtual time tell a server that is slow from a slow path to it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from observability.messages.servers import ServerTimes
from protocol import jobs_pb2
from simulation.session import Session
from tests.unit.simulation.virtual_session import run

pytestmark = pytest.mark.unit

TOPOLOGY = """\
name: rack
defaults: {rate: 1 Gbit/s, delay: 5 us, mtu: 9000}
racks: [{workers: 2, servers: 3}]
costs: {server_rate: 2 Gbit/s}
"""
JOB = """\
name: layers
workload: layers
layers: [160 kB, 40 kB, 160 kB]
payload: none
iterations: 6
chunk_bytes: 4000
placement: ncs
window: 32
schedule: {slice: 2000}
balance: {measure: true}
"""
SLOWER, SERVER_RATE = 5, 2e9


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> Session:
    faults = f"name: slow\nfaults: [{{at: 0, slow: {{{slow}, by: {SLOWER}}}, for: forever}}]\n"
    files = {"topology.yaml": TOPOLOGY, "job.yaml": JOB, "faults.yaml": faults}
    return run(folder, monkeypatch, files)


def servers(session: Session) -> list[ServerTimes]:
    """Returns what `rackhub why --servers` says of the run."""
    arguments = ["why", "layers", "--servers", "--run", str(session.run.path)]
    text = CliRunner().invoke(main, arguments)
    assert text.exit_code == 0, text.output
    assert "s0 straggles" in text.output
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert {one["key"] for one in found["key_times"]} == {"layer1", "layer2", "layer3"}
    blamed = sum(one["blamed"] for one in found["server_times"])
    assert math.isclose(sum(one["blamed"] for one in found["key_times"]), blamed)
    assert math.isclose(sum(one["blame"] for one in found["server_times"]), 1)
    rows: list[ServerTimes] = found["server_times"]
    return rows


@pytest.mark.parametrize(
    ("slow", "server_is_slow"), [("host: s0", True), ("link: [s0, tor0]", False)]
)
def test_a_slow_server_has_sums_for_longer_and_a_slow_path_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str, *, server_is_slow: bool
) -> None:
    session = measured(tmp_path, monkeypatch, slow)
    late, *others = servers(session)
    # What a processor takes for the last contribution; in the first round some are read together
    # with exponents, which take it no time.
    least = 0.9 * 32 * session.jobs[0].dataplane.lanes / SERVER_RATE
    # Of the last, a worker may have left before it has reported it.
    assert all(one["rounds"] in (5, 6) for one in (late, *others))
    for one in others:
        assert least <= at_server(one) < waiting(one)
        assert not one["straggles"]
    assert late["straggles"]
    usual = max(waiting(one) - at_server(one) for one in others)
    if server_is_slow:
        assert at_server(late) > SLOWER * max(at_server(one) for one in others)
        assert waiting(late) - at_server(late) < 2 * usual
    else:
        assert at_server(late) < 2 * min(at_server(one) for one in others)
        assert waiting(late) - at_server(late) > SLOWER * usual
    assert (late["blame"] or 0) > 0.5
    assert late["optimizer"] == 0


def at_server(one: ServerTimes) -> float:
    assert one["handling"] is not None
    return one["handling"]


def waiting(one: ServerTimes) -> float:
    assert one["waiting"] is not None
    return one["waiting"]


def test_nothing_is_measured_unless_a_job_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOB.replace("balance: {measure: true}\n", "")
    session = run(tmp_path, monkeypatch, {"topology.yaml": TOPOLOGY, "job.yaml": job})
    assert not any(server.state.measures for server in session.network.servers.values())
    asked = ["why", "layers", "--servers", "--run", str(session.run.path)]
    answer = CliRunner().invoke(main, asked)
    assert answer.exit_code == 1
    assert "job layers does not measure its servers: `balance: {measure: true}`" in answer.stderr
    # `rackhub why` takes a chunk's server from the service's status, whose map may have moved it.
    one, names = session.jobs[0], ["s0", "s1", "s2"]
    assert one.assignment(None).server_of(0) == 0
    moved = jobs_pb2.Job(servers=names, moved={"slices": [0], "servers": [2]})
    assert one.assignment(moved).server_of(0) == 2
    moved.times.extend(jobs_pb2.ServerTimes(server=name, blamed=1.0) for name in names)
    first, *_ = one.measured(moved)["key_times"]
    before, *_ = one.measured(jobs_pb2.Job(servers=names, times=moved.times))["key_times"]
    assert first["servers"]["s2"] > before["servers"]["s2"]
    assert sum(first["servers"].values()) == first["chunks"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["layers", "--servers", "--run", "none"], "no run 'none' in "),
        (["layers", "--run", "latest"], "--run goes with --servers"),
        (["layers", "--servers", "--run", "latest", "--on", "x"], "choose one"),
    ],
)
def test_impossible_questions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.setenv("RACKHUB_RUNS", str(tmp_path))
    answer = CliRunner().invoke(main, ["why", *arguments])
    assert answer.exit_code != 0
    assert text in answer.stderr
