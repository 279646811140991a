# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub bench switch` with minimal durations."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.forwarding import (
    builds,
    contenders,
    inprocess,
    peers,
    plot,
    routing,
    sandbox,
    times,
    traffic,
)
from benchmarks.forwarding.results import report
from benchmarks.forwarding.sandbox import Turn
from cli.main import main
from controller.p4rt.connection import DeviceConnection
from controller.p4rt.entries import P4Info, insertion
from emulation.network.namespaces import command
from emulation.nodes.processes import environment, python
from specs import p4program
from switch.p4runtime.device import Device

needs_links = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="the load needs a core of its own"
)

_MEASURED = ("gso", "plain", "tcp", "router_64_10000")


@needs_links
def test_json_report_of_received_packets(tmp_path: Path) -> None:
    """That each sum is right is what the command itself sees to, or it fails."""
    picture = tmp_path / "switches.svg"
    small = ("--rounds", "1", "--seconds", "0.05", "--links-only", "--plot", str(picture))
    these = ("--contender", "null", "--contender", "embedded")
    these += tuple(word for mode in _MEASURED for word in ("--mode", mode))
    result = CliRunner().invoke(main, ["bench", "switch", *small, *these, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["valid"] else 1)
    for name in ("null", "embedded"):
        assert set(report[name]) == {"gso", "plain", "tcp_bytes", *routing.MODES}
        measured = {figure for figure, value in report[name].items() if value is not None}
        assert measured == {"gso", "plain", "tcp_bytes", "router_64_10000"}
        assert all(report[name][figure] > 0 for figure in measured)
    for turn in report["rounds"]:
        # Those of the turn before, still under way, come back in this one: a window of each port.
        assert 0 < turn["packets"] <= turn["sent"] + traffic.PORTS * 504
        assert turn["lost"] == 0
    ratios = {one["ratio"]: one["asked"] for one in report["ratios"]}
    assert ratios["embedded.gso / null.gso"] == ">= 0.7"
    assert ratios["embedded.router_64_10000 / null.router_64_10000"] is None
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert len(plot.figure(report).axes[0].patches) == 6


@needs_links
@pytest.mark.parametrize("name", ["linux", "ovs"])
def test_routers_that_run_no_p4_have_the_same_table(name: str) -> None:
    """The command fails if a packet is not as the table says it should be."""
    small = ("--rounds", "1", "--seconds", "0.1", "--links-only", "--contender", name)
    modes = ("--mode", "router_1400_1", "--mode", "router_64_10000")
    result = CliRunner().invoke(main, ["bench", "switch", *small, *modes, "--json"])
    if "for root to choose" in result.stderr or "openvswitch-switch" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    report = json.loads(result.stdout)[name]
    assert report["router_1400_1"] > 0
    assert report["router_64_10000"] > 0


def test_every_flow_is_for_a_route_of_its_own() -> None:
    routes = routing.table()
    assert len({(one.address, one.length) for one in routes}) == routing.PREFIXES
    assert len(peers.flows()) == routing.PREFIXES
    found = [routing.longest(to) for port in range(4) for to in routing.destinations(port)]
    assert len(found) == len(set(found)) == routing.PREFIXES
    for port in range(4):
        first = routing.longest(routing.destinations(port)[0])
        assert first is not None
        assert (first.port, first.length) == (port, 24)


def test_the_program_of_the_router_takes_the_whole_table() -> None:
    p4info, program = routing.program(contenders.ROUTER)
    device = Device(1)
    switch = DeviceConnection("router", device)
    switch.open()
    switch.push(p4info.message, program)
    switch.write([insertion(entity) for entity in routing.entries(p4info)])
    assert device.pipeline is not None
    for mode, flows in (("router_64_10000", 2500), ("router_1400_1", 1)):
        load = routing.load(mode, 64, routed=True)  # type: ignore[arg-type]
        assert len(load.varying[1]) == flows * load.varying_bytes
        frame = load.trains[1][: len(load.trains[1]) // load.messages]
        assert len(frame) == int(mode.split("_")[1])
        for first in range(0, len(load.varying[1]), load.varying_bytes):
            other = load.varying[1][first : first + load.varying_bytes]
            at = load.varying_at
            sent = frame[:at] + other + frame[at + len(other) :]
            [(port, routed)] = device.pipeline.inject(2, sent)
            assert port == 1
            assert routing.wrong_route(routed, 0) is None
            assert routed[load.sign[0]] == load.sign[1]
        assert "port 3" in str(routing.wrong_route(routed, 2))
        assert "Ethernet" in str(routing.wrong_route(sent, 0))
        assert "checksum" in str(routing.wrong_route(routed[:18] + b"ab" + routed[20:], 0))
    switch.close()


def test_a_contender_that_was_not_busy_makes_a_report_invalid() -> None:
    def turn(contender: str, computed: float) -> Turn:
        return Turn(
            contender, "plain", 0, 1000, 10**6, 1.0, computed, computed / 2, 1 - computed, 0.0,
            1000, 0,
        )  # fmt: skip

    busy = report([turn("embedded", 0.99), turn("null", 0.97)])
    idle = report([turn("embedded", 0.99), turn("null", 0.5)])
    assert (busy["valid"], idle["valid"]) == (True, False)
    assert idle["busy"] == {"embedded": {"plain": 0.99}, "null": {"plain": 0.5}}
    # By its own time the idle one did twice as much.
    assert idle["ratios"][0]["received"]["median"] == 1.0
    assert idle["ratios"][0]["of_core"]["median"] == pytest.approx(0.5 / 0.99)
    # One of its threads computed half of what the process did.
    assert idle["rows"][1]["per_second_of_thread"]["median"] == pytest.approx(1000 / 0.25)


def test_time_that_the_load_was_kept_from_its_core_is_the_others() -> None:
    turn = Turn("null", "gso", 0, 1000, 10**6, 1.0, 0.8, 0.8, 0.2, 0.0, 1000, 0, 0.6, 0.15)
    [row] = report([turn])["rows"]
    assert row["busy"] == pytest.approx(0.8)
    assert row["busy_but_for_others"] == pytest.approx(0.8 / 0.85)
    assert row["load_busy"] == pytest.approx(0.6)


def test_the_load_has_one_two_or_four_cores_apart_from_what_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(times, "siblings", lambda core: {core, core ^ 1})
    assert sandbox.load_cores({0, 1}, 1, 0) == [0]
    assert sandbox.load_cores({0, 1, 2, 3}, 3, 0) == [0, 1]
    assert sandbox.load_cores({0, 1, 2, 3, 4, 5}, 5, 0) == [0, 1, 2, 3]
    assert sandbox.load_cores({2, 5, 7, 9, 12}, 12, 2) == [2, 5, 7, 9]


@needs_links
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_of_the_load_share_the_ports(threads: int) -> None:
    """On one core, if need be: each waits for what others have sent."""
    core = str(min(os.sched_getaffinity(0)))
    options = ["--contender", "null", "--contender", "embedded", "--mode", "gso", "--mode", "tcp"]
    options += ["--rounds", "1", "--seconds", "0.2", *["--load-core", core] * threads]
    whole = command(python("benchmarks.forwarding.sandbox", *options), tied=True)
    result = subprocess.run(
        whole, capture_output=True, text=True, env=environment(), timeout=120, check=True
    )
    turns = [Turn(**json.loads(line)) for line in result.stdout.splitlines()]
    assert len(turns) == 4
    assert all(turn.packets > 0 and turn.lost == 0 for turn in turns)


def test_the_benchmarks_programs_match_their_sources() -> None:
    assert p4program.read_manifest(builds.DIRECTORY), "MANIFEST is empty: run make p4"
    assert p4program.out_of_date(builds.DIRECTORY, builds.BUILDS) == []


@pytest.mark.parametrize("name", ["aggregation", "aggregation_lanes"])
def test_both_whole_programs_sum_the_same(name: str) -> None:
    """What is compared does the same work: contributions of four workers become their sum."""
    one = contenders.EMBEDDED if name == "aggregation" else contenders.BMV2_CONTENDERS[1]
    assert one.program is not None
    p4info = P4Info.load(one.program.with_suffix(".p4info.txtpb"))
    device = Device(1)
    switch = DeviceConnection(name, device)
    switch.open()
    switch.push(p4info.message, one.program.with_suffix(".json").read_bytes())
    switch.write([insertion(entity) for entity in contenders.tree(p4info, 4)])
    assert device.pipeline is not None
    at, five = traffic.NUMBER_AT, (5).to_bytes(4, "big")
    frames = [traffic.packet(worker) for worker in range(traffic.PORTS)]
    numbered = [frame[:at] + five + five + frame[at + 8 :] for frame in frames]
    out = device.pipeline.inject_batch([1, 2, 3, 4], numbered)
    assert [port for port, _ in out] == [1, 2, 3, 4]
    for _, frame in out:
        assert traffic.wrong_sum(frame) is None
    broken = bytearray(out[0][1])
    broken[-1] ^= 1
    assert traffic.wrong_sum(bytes(broken)) is not None
    switch.close()


@pytest.mark.parametrize("name", ["bare", "bare_lanes"])
def test_both_bare_programs_add_lane_by_lane(name: str) -> None:
    program = builds.DIRECTORY / "build" / name
    p4info = P4Info.load(program.with_suffix(".p4info.txtpb"))
    device = Device(1)
    switch = DeviceConnection(name, device)
    switch.open()
    switch.push(p4info.message, program.with_suffix(".json").read_bytes())
    assert device.pipeline is not None
    added = np.zeros(traffic.LANES, np.int64)
    for worker in range(traffic.PORTS):
        [(port, frame)] = device.pipeline.inject(worker + 1, traffic.packet(worker))
        added += traffic.words(worker)
        assert port == worker + 1
        assert (np.frombuffer(frame[-4 * traffic.LANES :], ">i4") == added).all()
    switch.close()


def test_lookups_are_of_entries_that_are_there() -> None:
    """A packet without an entry would not come out, and that is an error."""
    result = inprocess.tables(1, 0.001)
    assert set(result) == {"exact", "lpm", "ternary"}
    assert all(one["many_seconds"] > 0 and one["few_seconds"] > 0 for one in result.values())
