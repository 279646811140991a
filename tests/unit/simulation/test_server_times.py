# SPDX-License-Identifier: Apache-2.0
"""Tests that runs in virtual time tell a server that is slow from a slow path to it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from protocol import jobs_pb2
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


def measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> tuple[list[jobs_pb2.ServerTimes], int]:
    """Returns what is known of servers, and the bytes of a payload."""
    faults = f"name: slow\nfaults: [{{at: 0, slow: {{{slow}, by: {SLOWER}}}, for: forever}}]\n"
    files = {"topology.yaml": TOPOLOGY, "job.yaml": JOB, "faults.yaml": faults}
    session = run(folder, monkeypatch, files)
    table = session.network.controller.table
    assert table is not None
    (job,) = table.jobs()
    times = job.rounds.times(job.scheme.servers, job.servers)
    return times, 4 * session.jobs[0].dataplane.lanes


@pytest.mark.parametrize(
    ("slow", "server_is_slow"), [("host: s0", True), ("link: [s0, tor0]", False)]
)
def test_a_slow_server_has_sums_for_longer_and_a_slow_path_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str, *, server_is_slow: bool
) -> None:
    (late, *others), payload = measured(tmp_path, monkeypatch, slow)
    # What a processor takes for the last contribution; in the first round some are read together
    # with exponents, which take it no time.
    least = 0.9 * 8 * payload / SERVER_RATE
    # Of the last, a worker may have left before it has reported it.
    assert all(one.rounds in (5, 6) for one in (late, *others))
    for one in others:
        assert least <= one.handled < one.waited
        assert not one.straggles
    assert late.straggles
    usual = max(one.waited - one.handled for one in others)
    if server_is_slow:
        assert late.handled > SLOWER * max(one.handled for one in others)
        assert late.waited - late.handled < 2 * usual
    else:
        assert late.handled < 2 * min(one.handled for one in others)
        assert late.waited - late.handled > SLOWER * usual
    assert late.blamed > sum(one.blamed for one in others)
    assert late.optimized == 0
    assert math.isclose(late.handled, late.queued)


def test_nothing_is_measured_unless_a_job_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOB.replace("balance: {measure: true}\n", "")
    session = run(tmp_path, monkeypatch, {"topology.yaml": TOPOLOGY, "job.yaml": job})
    table = session.network.controller.table
    assert table is not None
    (found,) = table.jobs()
    assert not found.rounds.times(found.scheme.servers, found.servers)
    assert not any(server.state.measures for server in session.network.servers.values())
