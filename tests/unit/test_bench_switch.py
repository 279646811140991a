# SPDX-License-Identifier: Apache-2.0
"""`rackhub bench switch`, with numbers too small to mean anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from controller.connection import DeviceConnection
from controller.entries import P4Info, insertion
from switch.p4runtime import Device
from testbed.bench.forwarding import builds, contenders, inprocess, traffic
from testbed.bench.forwarding.inside import Turn
from testbed.bench.forwarding.measuring import report
from testbed.cli.main import main
from testbed.nodes import dataplane

pytestmark = pytest.mark.unit

needs_links = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="the load needs a core of its own"
)


@needs_links
def test_what_is_received_is_told_in_the_form_that_scripts_read(tmp_path: Path) -> None:
    """That each sum is right is what the command itself sees to, or it fails."""
    picture = tmp_path / "switches.svg"
    small = ("--rounds", "1", "--seconds", "0.05", "--links-only", "--plot", str(picture))
    these = ("--contender", "null", "--contender", "embedded")
    result = CliRunner().invoke(main, ["bench", "switch", *small, *these, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    told = json.loads(result.stdout)
    assert result.exit_code == (0 if told["valid"] else 1)
    for name in ("null", "embedded"):
        assert set(told[name]) == {"gso", "plain", "tcp_bytes"}
        assert all(figure > 0 for figure in told[name].values())
    for turn in told["rounds"]:
        # Those of the turn before, still under way, come back in this one: a window of each port.
        assert 0 < turn["packets"] <= turn["sent"] + traffic.PORTS * 504
        assert turn["lost"] == 0
    ratios = {one["ratio"]: one["asked"] for one in told["ratios"]}
    assert ratios["embedded.gso / null.gso"] == ">= 0.5"
    bars = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(bars)) == 4


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


def test_the_benchmarks_programs_match_their_sources() -> None:
    assert dataplane.read_manifest(builds.DIRECTORY), "MANIFEST is empty: run make p4"
    assert dataplane.out_of_date(builds.DIRECTORY, builds.BUILDS) == []


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
    told = inprocess.tables(1, 0.001)
    assert set(told) == {"exact", "lpm", "ternary"}
    assert all(one["many_seconds"] > 0 and one["few_seconds"] > 0 for one in told.values())
