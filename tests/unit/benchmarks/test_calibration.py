# SPDX-License-Identifier: Apache-2.0
"""Tests ``rackhub calibrate``: from measurements to a topology's costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibration import LARGE, SMALL, Calibration, frame, of_frames
from benchmarks.common import Schedule
from cli.main import main
from hosts.net.offload import available
from topologies.model.spec import parse

RACK = "name: rack\nracks: [{workers: 2, servers: 1}]\n"


@given(st.floats(0, 1e-3), st.floats(0, 1e-6))
def test_costs_of_frames_are_found_from_chunks_of_two_sizes(
    per_packet: float, per_byte: float
) -> None:
    """A chunk is two frames, one each way: 42 bytes of headers, 32 of the protocol's, 4 a lane."""
    assert frame(SMALL) == 42 + 32 + 1024
    chunks = [2 * (per_packet + per_byte * frame(lanes)) for lanes in (SMALL, LARGE)]
    found = of_frames(*chunks)
    assert found[0] == pytest.approx(per_packet, abs=1e-12 + 1e-9 * chunks[1])
    assert found[1] == pytest.approx(per_byte, abs=1e-16 + 1e-9 * chunks[1])


@pytest.mark.parametrize(("small", "large"), [(4e-6, 3e-6), (4e-6, 60e-6)])
def test_costs_are_not_negative(small: float, large: float) -> None:
    """Where noise has a large chunk cheaper than a small one, or dearer than by its bytes."""
    per_packet, per_byte = of_frames(small, large)
    assert min(per_packet, per_byte) == 0
    assert 2 * (per_packet + per_byte * frame(SMALL)) == pytest.approx(small)


def test_a_snippet_is_what_a_topology_takes() -> None:
    found = {"machine": {"cpu": "some: processor # 1"}}
    costs = parse(RACK + Calibration(1.25e-6, 0.5e-9, 12_345_000_000, found).snippet()).costs
    assert costs.host_per_packet == pytest.approx(1.25e-6)
    assert costs.host_per_byte == pytest.approx(0.5e-9)
    assert costs.server_rate == 12_345_000_000
    assert parse(RACK + Calibration(0, 0, None, found).snippet()).costs.server_rate is None


@pytest.mark.skipif(not available().segment, reason="UDP segmentation offload is needed")
def test_this_machine_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    options = ("--seconds", "0.1", "--rounds", "1", "--output", str(file), "--json")
    ran = CliRunner().invoke(main, ["calibrate", *options])
    assert ran.exit_code == 0, ran.output
    lines = [line for line in ran.stderr.splitlines() if "measuring" in line]
    assert [line.partition(":")[0] for line in lines] == [f"{n}/6" for n in range(1, 7)]
    assert "a worker's core, chunks of 1,024 bytes" in lines[0]
    assert all(line.endswith(" left") for line in lines[1:])
    report = json.loads(ran.stdout)
    costs = parse(RACK + file.read_text()).costs
    for name in ("host_per_packet", "host_per_byte"):
        assert getattr(costs, name) == pytest.approx(report["costs"][name], rel=1e-2, abs=1e-12)
    assert costs.server_rate == pytest.approx(report["costs"]["server_rate"], rel=1e-2)
    small = report["worker"][0]["seconds_per_chunk"]["median"]
    of_two = 2 * (
        report["costs"]["host_per_packet"] + frame(SMALL) * report["costs"]["host_per_byte"]
    )
    assert of_two == pytest.approx(small)
    chunks = report["server"]["chunks_per_second"]["median"]
    assert report["costs"]["server_rate"] == pytest.approx(8 * 1024 * chunks)


def test_unwritable_file_is_reported_before_measuring(tmp_path: Path) -> None:
    ran = CliRunner().invoke(main, ["calibrate", "--output", str(tmp_path / "none" / "costs.yaml")])
    assert ran.exit_code == 1
    assert "cannot be written: No such file" in ran.output
    assert "measuring" not in ran.output


def test_rounds_for_which_there_is_no_time_are_left_out() -> None:
    """At least one is made, however long it takes; then as many as should be over in time."""
    messages: list[str] = []
    none = Schedule(12, 0.0, messages.append)
    assert list(none.rounds(3, 2, 0.5)) == [0]
    assert list(none.rounds(3, 2, 1.0)) == [0]
    none.turn("nothing")
    assert messages[:2] == 2 * ["2 of 3 rounds left out: there is no time for more"]
    assert messages[2].startswith("1/4: ")
    assert list(Schedule(12, 3600.0, messages.append).rounds(3, 2, 0.5)) == [0, 1, 2]
