# SPDX-License-Identifier: Apache-2.0
"""Tests the plan's choice between one level of servers and two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from planner.collectives import COLLECTIVES
from planner.iteration_time import Setting, Work
from planner.link_loads import HEADER_FRAME_BYTES
from planner.network import SERVER, WORKER, Line, Network, uplink
from planner.placement_choice import RackChoice, choose_across_racks
from planner.predictions import predictions
from topologies.model.shape import Level

RATE = 10e9
WORKERS = 4


def network(racks: int, over: float, box: float) -> Network:
    lines = {
        WORKER: Line(RATE),
        SERVER: Line(box * RATE),
        uplink(0): Line(WORKERS * RATE / over),
    }
    levels = (Level(racks, 1),) if racks > 1 else ()
    return Network((WORKERS,) * racks, (1,) * racks, levels, lines, mtu=9000)


def choice(racks: int, over: float, box: float) -> RackChoice | None:
    net = network(racks, over, box)
    work = Work(16_384, HEADER_FRAME_BYTES + 8192)  # 128 MiB, which no latency matters for
    return choose_across_racks(predictions(net, work, Setting(window=4096)), net)


@pytest.mark.parametrize(
    ("racks", "over", "box"),
    [(2, 1, 10), (2, 4, 1), (4, 1, 2), (4, 2, 2), (4, 3, 1), (4, 4, 1), (8, 4, 4)],
)
def test_two_levels_where_their_links_need_less_time(racks: int, over: int, box: int) -> None:
    """With all pipelined, flat takes max(2 (N - 1) / N, 2 (r - 1) / r x oversubscription) of what a
    worker's link takes for the gradients; two levels one, or what a box's link, which has its
    rack's copies and the exchange, or the uplink takes."""
    count = WORKERS * racks
    exchanged = 2 * (racks - 1) / racks
    flat = max(2 * (count - 1) / count, exchanged * over)
    two = max(1, (WORKERS + exchanged) / box, exchanged * over / WORKERS)
    found = choice(racks, over, box)
    assert found is not None
    assert found.levels == (2 if two < flat else 1)
    assert found.flat.seconds / found.two_level.seconds == pytest.approx(flat / two, rel=0.07)


@pytest.mark.parametrize("name", ["box-ring", "box-halving-doubling"])
@pytest.mark.parametrize("racks", [2, 4, 8])
def test_one_copy_crosses_the_core_in_place_of_each_workers(name: str, racks: int) -> None:
    net = network(racks, 1, 4)
    boxes, flat = (COLLECTIVES[one].loads(net)[uplink(0)] for one in (name, "sharded-ps"))
    assert flat == WORKERS * boxes == pytest.approx(WORKERS * 2 * (racks - 1) / racks)


@pytest.mark.parametrize("racks", [2, 3, 4, 8])
def test_one_copy_from_each_rack_where_the_core_sums(racks: int) -> None:
    """In place of one of each worker where the core sums these; and 2 (r - 1) / r times less than
    between boxes in a ring."""
    net = network(racks, 1, 4)
    loads = COLLECTIVES["box-switch"].loads(net)
    assert loads == {WORKER: 1, SERVER: WORKERS + 1, uplink(0): 1}
    ring = COLLECTIVES["box-ring"].loads(net)[uplink(0)]
    assert ring == pytest.approx(2 * (racks - 1) / racks)
    work = Work(16_384, HEADER_FRAME_BYTES + 8192)
    found = {(one.placement, one.tree): one for one in predictions(net, work, Setting())}
    flat, boxes = found["inc", "core"], found["box-switch", ""]
    assert flat.bytes[uplink(0)] == WORKERS * boxes.bytes[uplink(0)]


def test_no_choice_in_one_rack_or_without_a_server_in_each() -> None:
    assert choice(1, 1, 4) is None
    net = network(2, 1, 4)
    lone = Network(net.workers, (1, 0), net.levels, net.lines)
    work = Work(64, HEADER_FRAME_BYTES + 8192)
    assert choose_across_racks(predictions(lone, work, Setting()), lone) is None


@pytest.mark.parametrize(("rate", "levels"), [("10 Gbit/s", 1), ("100 Gbit/s", 2)])
def test_the_command_says_which_and_why(tmp_path: Path, rate: str, levels: int) -> None:
    file = tmp_path / "racks.yaml"
    file.write_text(
        "name: racks\ndefaults: {rate: 10 Gbit/s, queue_bytes: 4 MiB, mtu: 9000}\n"
        "racks: [{workers: 4, servers: 1, count: 2}]\ncores: 1\nuplinks: {rate: 40 Gbit/s}\n"
        f"links: [{{ends: [s0, tor0], rate: {rate}}}, {{ends: [s1, tor1], rate: {rate}}}]\n"
    )
    options = ["plan", str(file), "--size", "64 MB", "--window", "256"]
    run = CliRunner().invoke(main, [*options, "--json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)["model"]["across_racks"]
    assert found["levels"] == levels
    assert (found["two_level_seconds"] < found["flat_seconds"]) == (levels == 2)
    assert found["flat"] == "cs (none)"
    assert found["core_switch"] == "box-switch"
    with_core = found["core_switch_seconds"]
    assert (with_core < found["flat_seconds"]) == (found["core_switch_levels"] == 2)
    text = " ".join(CliRunner().invoke(main, options).stdout.split())
    assert found["why"] in text
    slow = "a server's link (10 Gbit/s) has" if levels == 1 else "a worker's link (10 Gbit/s) has"
    assert slow in found["why"]


def test_boxes_need_a_server_in_each_rack(tmp_path: Path) -> None:
    file = tmp_path / "racks.yaml"
    file.write_text("name: racks\nracks: [{workers: 2, servers: 1}, {workers: 2}]\ncores: 1\n")
    options = ["compare", str(file), "--size", "20 kB"]
    for name in ("box-ring", "box-switch"):
        run = CliRunner().invoke(main, [*options, "--only", name])
        assert run.exit_code == 1
        assert f"{file}: {name}: the rack of tor1 has workers and no server" in run.stderr
