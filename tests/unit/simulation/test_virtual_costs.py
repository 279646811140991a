# SPDX-License-Identifier: Apache-2.0
"""Tests costs of hosts and servers in virtual time, independent of batching."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.nodes.costs import Core, ProcessingCost, of_hosts, of_servers
from tests.unit.simulation.virtual_session import one_by_one, run
from topologies.model.spec import TopologyError, parse
from topologies.model.topology import Costs

packets = st.lists(st.tuples(st.integers(0, 50_000), st.integers(60, 9014)), max_size=40)


@given(
    packets,
    st.lists(st.integers(0, 40), max_size=8),
    st.integers(0, 10**7),
    st.integers(0, 10**12),
    st.integers(1, 10**6),
)
def test_core_finishes_as_with_single_packets(
    gaps: list[tuple[int, int]], cuts: list[int], per_packet: int, parts: int, whole: int
) -> None:
    """Each begins when it is there and the one before it is done."""
    times = np.cumsum([gap for gap, _ in gaps], dtype=np.int64)
    lengths = np.array([length for _, length in gaps], np.int64)
    expected, free = [], 0
    for time, length in zip(times.tolist(), lengths.tolist(), strict=True):
        free = max(free, time) + per_packet + length * parts // whole
        expected.append(free)
    core = Core(ProcessingCost(per_packet, parts, whole))
    bounds = sorted({0, *(cut for cut in cuts if cut < len(times)), len(times)})
    found = [
        end
        for first, last in pairwise(bounds)
        for end in core.ends(times[first:last], lengths[first:last]).tolist()
    ]
    assert found == expected


def test_costs_are_those_of_the_topology() -> None:
    text = (
        "name: t\nracks: [{workers: 2, servers: 1}]\ncosts: {framing: true, switch_latency: 0.5 us,"
        " host_per_packet: 1.5 us, host_per_byte: 80 ps,"
        " interrupt_interval: 50 us, server_rate: 8 Gbit/s}"
    )
    costs = parse(text).costs
    assert costs == Costs(True, 0.5e-6, 1.5e-6, 80e-12, 50e-6, 8_000_000_000)
    host, server = of_hosts(costs), of_servers(costs)
    assert host is not None
    assert server is not None
    lengths = np.array([0, 1000])
    assert host.of(lengths).tolist() == [1_500_000, 1_580_000]
    assert server.of(lengths).tolist() == [0, 1_000_000]  # 1 GB/s
    assert of_hosts(Costs()) is None
    assert of_servers(Costs()) is None


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        ("framing: 24", "3: costs.framing: should be true or false, not 24"),
        ("switch_latency: -1 us", "3: costs.switch_latency: '-1 us' is negative"),
        ("switch_latency: 2 s", "3: costs.switch_latency: '2 s' is out of range"),
        ("host_per_packet: -2", "3: costs.host_per_packet: -2 is negative"),
        ("host_per_byte: 1 ms", "3: costs.host_per_byte: '1 ms' is out of range"),
        ("server_rate: 0", "3: costs.server_rate: 0 is out of range; allowed: 1 kbit/s to"),
        ("server: fast", "3: costs.server: unknown field; allowed here: framing, switch_latency"),
    ],
)
def test_invalid_costs_are_rejected_with_location(costs: str, why: str) -> None:
    text = f"name: t\nracks: [{{workers: 2, servers: 1}}]\ncosts: {{{costs}}}"
    with pytest.raises(TopologyError) as raised:
        parse(text, "t.yaml")
    assert f"t.yaml:{why}" in str(raised.value)


RATE = 100_000_000
COSTLY = f"""
name: costly
defaults: {{rate: 1 Gbit/s, delay: 0.02 ms, queue_bytes: 64 KiB}}
racks: [{{workers: 2, servers: 1, server_cores: 2}}]
costs: {{host_per_packet: 1 us, host_per_byte: 0.1 ns, server_rate: {RATE}}}
"""
JOB = """
name: tiny
hidden: [64]
iterations: 3
batch: 24
tree: none
slice_bytes: 1 KiB
"""


def test_a_servers_rate_is_what_a_job_takes_that_needs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes of one server, each with the chunks of two workers; all as if one by one."""
    files = {"topology.yaml": COSTLY, "job.yaml": JOB}
    messages = []
    for name, options in (("trains", {}), ("singly", {"change": one_by_one})):
        session = run(tmp_path / name, monkeypatch, files, **options)
        summary = json.loads(session.run.summary.read_text())
        del summary["machine"], summary["jobs"][0]["machine"], summary["virtual"]["trace"]
        messages.append((json.dumps(summary), (tmp_path / name / "trace.json").read_text()))
    assert messages[0] == messages[1]
    assert summary["virtual"]["server_rate"] == RATE
    assert summary["virtual"]["host_per_packet"] == 1e-6
    # 64 * 64 + 64, 64 * 10 + 10 values, in chunks of 256 lanes: 17 + 3, and each padded key.
    chunks = -(-64 * 64 // 256) + 1 + -(-640 // 256) + 1
    least = chunks / 2 * 2 * 1024 * 8 / RATE
    assert summary["seconds_per_iteration"][-1] == pytest.approx(least, rel=0.2)
    assert summary["seconds_per_iteration"][-1] > least


def test_hosts_hand_over_frames_at_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is two hops, so results come at the second interrupt after a push at the earliest;
    chunks of one interrupt are processed together, also where hosts read ahead."""
    interval = 0.01
    each = COSTLY.replace("host_per_packet: 1 us", f"interrupt_interval: {interval} s")
    files = {"topology.yaml": each, "job.yaml": JOB}
    found = []
    for name, options in (("trains", {}), ("singly", {"change": one_by_one})):
        session = run(tmp_path / name, monkeypatch, files, **options)
        summary = json.loads(session.run.summary.read_text())
        found.append(summary["seconds_per_iteration"])
    assert found[0] == found[1]
    assert min(found[0]) >= 2 * interval
