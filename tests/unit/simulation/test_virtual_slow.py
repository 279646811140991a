# SPDX-License-Identifier: Apache-2.0
"""Tests slow links and hosts in virtual time: by how much, and from when."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ethernet import HEADER
from simulation.faults.check import scheduled
from simulation.links.link import Link, LinkSpec
from simulation.links.timeline import Timeline, product
from simulation.links.trains import NEVER, SECOND
from simulation.nodes.costs import Core, ProcessingCost, UrgentFirstCore
from simulation.session import check
from specs.faultfile import FaultsError
from testbed.program import program_for
from tests.unit.simulation.test_virtual_links import numbers, sent, times, traffic
from tests.unit.simulation.virtual_session import one_by_one, run
from topologies.model.spec import read

SIZE = 1000
BIT = 8 * SECOND


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("factor", [Fraction(1), Fraction(7, 2), Fraction(1000)])
def test_packets_of_a_slow_link_take_k_times_as_long(factor: Fraction, priorities: bool) -> None:
    """From a time on, which no packet that is leaving heeds, and until another."""
    rate = 1_000_000_000
    took = BIT * SIZE // rate
    begins = 2 * took + took // 2  # in the middle of the third
    ends = begins + took // 2 + int(3.5 * took * factor)  # in the middle of the seventh
    link = Link(LinkSpec(rate, delay=7, priorities=priorities))
    link.slow(0, [(begins, factor), (ends, Fraction(1))])
    sent(link, [(0, SIZE)] * 9, [])
    link.settle(NEVER // 2)
    slow = int(took * factor)
    expected = [took] * 3 + [slow] * 4 + [took] * 2
    arrived = times(link.take(NEVER))
    assert np.diff([7, *arrived]).tolist() == expected


@settings(deadline=None, max_examples=100)
@given(
    traffic(),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1000, 9000)), max_size=4),
    st.booleans(),
)
def test_a_slow_links_trains_are_its_packets_one_by_one(flow, changes, priorities: bool) -> None:
    rate, packets, cuts = flow
    at, usual = packets[0][0], 800 * BIT // rate
    steps = [
        (at + n * usual, Fraction(factor, 1000)) for n, factor in sorted(dict(changes).items())
    ]
    mtu = max(size for _, size in packets) - HEADER
    spec = LinkSpec(rate, mtu=mtu, queue_bytes=100 * (mtu + HEADER), priorities=priorities)
    link, free, expected = Link(spec), Fraction(0), []
    link.slow(0, steps)
    sent(link, packets, cuts)
    link.settle(NEVER // 2)
    current, pending = Fraction(1), list(steps)
    for at, size in packets:
        free = max(free, Fraction(at))
        while pending and pending[0][0] <= free:
            if pending[0][1] != current:
                free = Fraction(int(free))
            current = pending.pop(0)[1]
        free += Fraction(BIT * max(size, 60), rate) * current
        expected.append(free)
    found = link.take(NEVER)
    assert numbers(found) == list(range(len(packets)))
    # Rates of many digits are rounded to a bit per second.
    for seen, exact in zip(times(found), expected, strict=True):
        assert abs(seen - exact) <= 1 + (exact - packets[0][0]) / 10**2 / min(rate, 10**7)


@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(60, 9014)), max_size=40),
    st.lists(st.integers(0, 40), max_size=8),
    st.dictionaries(st.integers(1, 500_000), st.integers(1000, 9000), max_size=5),
)
def test_a_slow_core_is_slow_from_packet_to_packet(
    gaps: list[tuple[int, int]], cuts: list[int], changes: dict[int, int]
) -> None:
    arrivals = np.cumsum([gap for gap, _ in gaps], dtype=np.int64)
    lengths = np.array([length for _, length in gaps], np.int64)
    timeline = Timeline((at, Fraction(factor, 1000)) for at, factor in sorted(changes.items()))
    expected, free = [], 0
    for at, length in zip(arrivals.tolist(), lengths.tolist(), strict=True):
        start = max(free, at)
        factor = Fraction(
            ([1000] + [f for t, f in sorted(changes.items()) if t <= start])[-1], 1000
        )
        free = start + int((700 + length * 3) * factor)
        expected.append(free)
    core = Core(ProcessingCost(700, 3), timeline)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(arrivals)), len(arrivals)})
    found = [
        end
        for first, last in pairwise(bounds)
        for end in core.ends(arrivals[first:last], lengths[first:last]).tolist()
    ]
    assert found == expected
    # One after the other, a processor that serves urgent packets first does the same.
    urgent: UrgentFirstCore[int] = UrgentFirstCore(ProcessingCost(700, 3), lambda _: 0, timeline)
    free, alike = 0, []
    for at, length in zip(arrivals.tolist(), lengths, strict=True):
        urgent.add(np.array([length]), [0])
        begun = urgent.begin(max(free, at))
        assert begun is not None
        free = max(free, at) + begun[0]
        alike.append(free)
        urgent.end()
    assert alike == expected


def test_slowdowns_at_a_time_multiply_and_work_adds_up() -> None:
    one = Timeline([(10, Fraction(2)), (30, Fraction(1))])
    other = Timeline([(20, Fraction(7, 2))])
    steps = product([one, other], 5)
    assert steps == [(5, 1), (10, 2), (20, 7), (30, Fraction(7, 2))]
    both = Timeline(steps)
    assert both.work(0, 30) == 10 + Fraction(10, 2) + Fraction(10, 7)
    assert both.finish(0, Fraction(15)) == 20
    assert both.finish(15, both.work(15, 44)) == 44
    both.replace(25, [(26, Fraction(1))])
    assert both.since(15) == [(15, 2), (20, 7), (26, 1)]
    assert both.slowest(21, 22) == 7
    assert both.slowest(26, NEVER) == 1


TOPOLOGY = """
name: slow
defaults: {rate: 1 Gbit/s, delay: 0.02 ms, queue_bytes: 64 KiB}
racks: [{workers: 2, servers: 2}]
costs: {host_per_packet: 1 us, server_rate: 4 Gbit/s}
"""
JOB = """
name: tiny
hidden: [400]
iterations: ITERATIONS
batch: 24
placement: ncs
compute: 2 ms
"""


def session_files(iterations: int, **changes: str) -> dict[str, str]:
    topology = TOPOLOGY
    for old, new in changes.items():
        topology = topology.replace(old, new)
    return {"topology.yaml": topology, "job.yaml": JOB.replace("ITERATIONS", str(iterations))}


def summary_of(folder: Path, monkeypatch: pytest.MonkeyPatch, faults: str, **options) -> dict:
    files = {**session_files(8), "faults.yaml": faults}
    session = run(folder, monkeypatch, files, **options)
    summary = json.loads(session.run.summary.read_text())
    del summary["machine"], summary["jobs"][0]["machine"], summary["virtual"]["trace"]
    return summary


EVERYTHING = """
faults:
  - {at: 5 ms, slow: {link: [s0, tor0], by: 3.5, way: down}, for: 20 ms}
  - {at: 0.4 ms, slow: {link: [w0, tor0], by: 2, pattern: {periodic: 7 ms}}, for: 30 ms}
  - {at: 11 ms, slow: {host: s1, by: 2.75, pattern: {walk: 3 ms, seed: 4}}, for: forever}
  - {at: 8 ms, slow: {host: w1, by: 4}, for: 9 ms}
  - {at: 600 chunks, slow: {link: all, by: 1.5}, for: 100 chunks}
  - {at: 12 ms, impair: {ends: [w1, tor0], loss: 2 %}, for: 10 ms}
  - {at: 1 ms, load: {from: s0, to: w1, rate: 300 Mbit/s, busy: 2 ms, idle: 1.5 ms}, for: forever}
  - {at: 900 chunks, load: {from: w0, to: s1, rate: 3 Gbit/s}, for: 100 chunks}
"""


def test_slow_runs_are_the_same_again_and_packet_by_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are the reference's (`run`), and every fault is in the summary."""
    found = [
        (
            json.dumps(summary_of(tmp_path / name, monkeypatch, EVERYTHING, change=change)),
            (tmp_path / name / "trace.json").read_text(),
        )
        for name, change in (
            ("once", lambda _: None),
            ("again", lambda _: None),
            ("singly", one_by_one),
        )
    ]
    assert found[0] == found[1]
    assert found[0] == found[2]
    rows = json.loads(found[0][0])["faults"]
    assert sorted(row["kind"] for row in rows) == ["impair", "load", "load", *["slow"] * 5]
    first = next(row for row in rows if row["node"] == "s0-tor0")
    assert first["at"] == 0.005
    assert first["lasted"] == 0.02
    assert first["what"] == "takes 3.5 times as long downward for 0.02 s"


def test_a_fault_follows_the_recovery_from_those_that_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lasts for ever is not waited for."""
    faults = """
faults:
  - {at: 1 ms, slow: {link: [s0, tor0], by: 3}, for: 4 ms}
  - {at: 2 ms, slow: {link: [w1, tor0], by: 2, pattern: {periodic: 5 ms}}, for: forever}
  - {at: 2 ms, load: {from: s0, to: w1, rate: 100 Mbit/s}, for: forever}
  - {after: 100 chunks, impair: {ends: all, loss: 1 %}, for: 1 ms}
"""
    first, *_, last = summary_of(tmp_path, monkeypatch, faults)["faults"]
    assert first["kind"] == "slow"
    assert last["kind"] == "impair"
    assert first["seconds"] > first["lasted"] == 0.004
    assert last["at"] > first["at"] + first["seconds"]


RATE = 1_000_000_000
COMPUTE = 0.002


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_an_iteration_grows_to_what_a_slow_servers_link_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """k times what the server's bytes take in that direction, as both are used at a time."""
    k, iterations = 8, 8
    summary = summary_of(
        tmp_path / way,
        monkeypatch,
        f"faults: [{{at: 0 s, slow: {{link: [tor0, s0], by: {k}, way: {way}}}, for: forever}}]",
    )
    ends = {"up": ("s0", "tor0"), "down": ("tor0", "s0")}
    slow = [ends[way]] if way != "both" else list(ends.values())
    loads = [row["bytes"] for row in summary["links"] if (row["from"], row["to"]) in slow]
    assert len(loads) == len(slow)
    bound = k * max(loads) / iterations * 8 / RATE + COMPUTE
    assert 0.95 * bound < summary["seconds_per_iteration"][-1] < 1.1 * bound


@pytest.mark.parametrize("turns", [False, True])
def test_background_traffic_is_as_much_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: bool
) -> None:
    """On each link of its way, and on no other."""
    gbit, seconds, size = 0.25, 0.02, 1514
    words = ", busy: 1.5 ms, idle: 2.5 ms" if turns else ""
    load = f"load: {{from: s0, to: s1, rate: {gbit} Gbit/s{words}}}"
    packets: list[dict[tuple[str, str], tuple[int, int]]] = []
    for name, faults in (
        ("without", "faults: [{at: 0 s, slow: {link: all, by: 1}, for: forever}]"),
        ("with", f"faults: [{{at: 1 ms, {load}, for: {seconds} s}}]"),
    ):
        summary = summary_of(tmp_path / name, monkeypatch, faults)
        found = {
            (one["from"], one["to"]): (one["packets"], one["bytes"]) for one in summary["links"]
        }
        packets.append(found)
    assert {one["expected_bytes"] for one in summary["links"]} == {None}
    gap = size * 8 / gbit / 1e9
    bursts = [0.0015] * 5 if turns else [seconds]
    more = sum(-(-length // gap) for length in bursts)
    for way, (count, length) in packets[0].items():
        added = more if way in (("s0", "tor0"), ("tor0", "s1")) else 0
        assert packets[1][way] == (count + added, length + added * size)


def test_a_job_gets_what_background_traffic_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the windows of two workers, which overtake some of it at the end."""
    share, iterations, windows = 0.8, 8, 2 * 16 * 1098
    loads = [
        f"  - {{at: 0 s, load: {{from: {one}, to: {other}, rate: {share} Gbit/s}}, for: forever}}"
        for one, other in (("s0", "s1"), ("s1", "s0"))
    ]
    plain = run(tmp_path / "plain", monkeypatch, session_files(iterations))
    summary = json.loads(plain.run.summary.read_text())
    load = max(row["bytes"] for row in summary["links"] if row["from"][0] == "s") / iterations
    busy = summary_of(tmp_path / "busy", monkeypatch, "\n".join(["faults:", *loads]))
    left = RATE * (1 - share) / 8
    took = busy["seconds_per_iteration"][-1] - COMPUTE
    assert (load - windows) / left < took < 1.05 * load / left
    assert took > 2 * (summary["seconds_per_iteration"][-1] - COMPUTE)


@pytest.mark.parametrize(
    ("fault", "changes", "why"),
    [
        (
            "{host: s1, by: 2}",
            {"server_rate: 4 Gbit/s": ""},
            "slow.host: s1 takes no time for what it does, so nothing can be slow there; give"
            " `costs: {server_rate: ...}` in the topology",
        ),
        (
            "{host: w0, by: 2}",
            {"{host_per_packet: 1 us, server_rate: 4 Gbit/s}": "{}", "compute: 2 ms": ""},
            "slow.host: w0 takes no time for what it does, so nothing can be slow there; give"
            " `costs: {host_per_packet: ..., host_per_byte: ...}` in the topology, or `compute` in"
            " the job",
        ),
        ("{host: w0, by: 2}", {"{host_per_packet: 1 us, server_rate: 4 Gbit/s}": "{}"}, ""),
        ("{link: [w0, tor0], by: 2}", {"compute: 2 ms": ""}, ""),
    ],
)
def test_a_slow_host_needs_something_that_takes_time(
    tmp_path: Path, fault: str, changes: dict[str, str], why: str
) -> None:
    texts = {"topology": TOPOLOGY, "job": JOB.replace("ITERATIONS", "1")}
    for name, text in texts.items():
        for old, new in changes.items():
            text = text.replace(old, new)
        (tmp_path / f"{name}.yaml").write_text(text)
    job, faults = tmp_path / "job.yaml", tmp_path / "faults.yaml"
    faults.write_text(f"faults:\n  - {{at: 1 s, slow: {fault}, for: 1 s}}\n")
    checked = check(read(tmp_path / "topology.yaml"), [job], program_for([job], None, None)[2])
    if not why:
        assert len(scheduled(faults, checked)) == 1
        return
    with pytest.raises(FaultsError) as caught:
        scheduled(faults, checked)
    assert str(caught.value) == f"{faults}:2: faults[0].{why}"
