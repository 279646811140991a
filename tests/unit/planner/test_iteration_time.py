# SPDX-License-Identifier: Apache-2.0
"""Tests the analytic model against closed forms, the planner's links and windows, and a
packet-by-packet pipeline."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from cli.main import main
from controller.planning.tree_planner import TreeKind, plan_trees
from controller.planning.windows import choose_window
from planner.collectives import COLLECTIVES
from planner.collectives.halving_doubling import HalvingDoubling
from planner.iteration_time import Prediction, Setting, Work
from planner.losses import MIN_RTO, LossProfile, mean_loss_delay
from planner.network import SERVER, WORKER, Line, ModelError, Network, joined_levels, uplink
from planner.placement_table import needs
from planner.predictions import predictions
from planner.stations import full_rate_slots, pipeline_seconds
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.shape import Level
from topologies.model.spec import parse

HEAD = "name: t\ndefaults: {rate: 1 Gbit/s, delay: 2 us, queue_bytes: 256 KiB}\n"
FRAME = 14 + 20 + 8 + 32 + 1024
RACKS = [
    "racks: [{workers: 4, servers: 1}]",
    "racks: [{workers: 4, servers: 1}, {workers: 4}]\ncores: 1",
    "racks: [{workers: 2}, {workers: 2}, {workers: 0, servers: 4}]\ncores: 1",
    "racks: [{workers: 3, servers: 1, count: 6}]\ncores: 1",
    "racks: [{workers: 2, servers: 1}, {workers: 2, count: 7}]\ncores: [{racks: 2, cores: 1}, 1]",
    "racks: [{workers: 1, servers: 1}, {workers: 1, count: 39}]\n"
    "cores: [{racks: 20, cores: 1}, 1]\nuplinks: {rate: 300 Mbit/s}",
    "racks: [{workers: 4, count: 4}, {workers: 0, servers: 4}]\ncores: 2",
    "racks: [{workers: 2, servers: 2, count: 4}]\ncores: [{racks: 2, cores: 2}, 2]",
]


def network(workers: int, racks: int, host: float = 10e9, up: float = 10e9) -> Network:
    """Of so many workers in each of so many racks, and a server in the first."""
    lines = {WORKER: Line(host), SERVER: Line(host), uplink(0): Line(up)}
    servers = (1, *[0] * (racks - 1))
    return Network((workers,) * racks, servers, (Level(racks, 1),), lines)


def found(net: Network, work: Work, setting: Setting | None = None) -> dict[str, Prediction]:
    """Predictions by name."""
    return {one.name: one for one in predictions(net, work, setting or Setting(window=1 << 15))}


@pytest.mark.parametrize("racks", RACKS)
def test_links_and_windows_are_the_planners_where_it_can_plan(racks: str) -> None:
    topology = parse(HEAD + racks)
    addressing = Addressing(topology)
    workers = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    net = Network.of(topology, workers, servers)
    chunks = 3840  # whole slices of 32 for each of up to 40 colocated servers' shares
    model = found(net, Work(chunks, FRAME), Setting())
    plane = SimpleNamespace(lanes=256, chunks_per_slice=lambda _: 32)
    planned = 0
    for need in needs(addressing, [chunks * 256], plane, workers, None):  # type: ignore[arg-type]
        one = model[f"{need.placement} ({need.tree})"]
        if need.refused:
            assert one.refused, need
            continue
        planned += 1
        assert not one.refused, (one, need)
        assert one.bytes
        ups = [size for name, size in one.bytes.items() if name.startswith("uplink")]
        links = [need.worker, need.server] if need.placement not in ("cc", "cs") else []
        for link, name in zip(links, (WORKER, SERVER), strict=False):
            assert (link.bytes if link else 0) == pytest.approx(one.bytes.get(name, 0), rel=0.002)
        assert (need.uplink.bytes if need.uplink else 0) == pytest.approx(
            max(ups, default=0), rel=0.1 if need.placement == "cs" else 0.002
        )
        if need.placement in ("inc", "inc-server", "ncc"):
            units = [addressing.unit(name).address for name in need.servers]
            trees = plan_trees(topology, addressing, workers, units, TreeKind.of(need.tree))
            assert one.window == choose_window(addressing, trees, units, FRAME), need
    assert planned


def test_closed_forms_of_two_levels() -> None:
    """Design: switch root max(M/Bw, M/Bu); sharded flat max(2M(N-1)/(N Bw), 2nM(r-1)/(r Bu)); ring
    2(N-1)/N each way."""
    chunks, n, r = 100_000, 8, 4
    bits = 8.0 * chunks * FRAME
    for host, up in ((10e9, 10e9), (10e9, 4e9), (1e9, 10e9)):
        result = found(network(n, r, host, up), Work(chunks, FRAME))
        assert result["inc (two-level)"].seconds == pytest.approx(
            max(bits / host, bits / up), rel=1e-3
        )
        big = n * r
        flat = max(2 * bits * (big - 1) / (big * host), 2 * n * bits * (r - 1) / (r * up))
        assert result["cs (none)"].seconds == pytest.approx(flat, rel=1e-2)
        # Segments of 1,448 bytes with 66 of headers, and an acknowledgment for every second one.
        streamed = 8.0 * chunks * 1024 * (1448 + 66 + 33) / 1448
        ring = 2 * streamed * (big - 1) / big / min(host, up)
        assert result["ring"].seconds == pytest.approx(ring, rel=5e-3)
        assert result["cc (none)"].bytes[WORKER] == (big - 1) * chunks * FRAME


def test_halving_and_doubling_sends_what_a_ring_does_and_in_fewer_rounds() -> None:
    net = network(8, 4)
    one = HalvingDoubling()
    assert one.loads(net)[WORKER] == pytest.approx(2 * 31 / 32)
    assert one.loads(net)[WORKER] == pytest.approx(COLLECTIVES["ring"].loads(net)[WORKER])
    assert len(one.steps(net)) == 2 * 5  # a ring has 2 * 31
    # Across a rack of 8, 8 workers exchange U/16 and U/32, and back.
    assert one.loads(net)[uplink(0)] == pytest.approx(2 * 8 * (1 / 16 + 1 / 32))
    odd = network(3, 1)
    assert one.loads(odd)[WORKER] == pytest.approx(1 + 1)
    assert len(one.steps(odd)) == 2 * 2


def test_a_pipeline_takes_as_long_as_packet_by_packet() -> None:
    """Stations in a row, each first in, first out; a chunk enters when the one W before is out."""
    for sends, window, chunks in product(
        ([3.0, 5.0, 2.0, 5.0], [1.0, 1.0], [7.0]), (1, 2, 3, 8, 64), (1, 2, 7, 50)
    ):
        free = [0.0] * len(sends)
        out: list[float] = []
        for number in range(chunks):
            at = out[number - window] if number >= window else 0.0
            for station, send in enumerate(sends):
                at = free[station] = max(at, free[station]) + send
            out.append(at)
        assert pipeline_seconds(chunks, max(sends), sum(sends), window) == pytest.approx(out[-1])


def test_time_is_flat_in_the_number_of_workers_and_a_server_is_not() -> None:
    work = Work(4096, FRAME)
    small, large = found(network(8, 1), work), found(network(8, 32), work)
    assert large["inc (two-level)"].seconds == pytest.approx(
        small["inc (two-level)"].seconds, rel=0.01
    )
    assert large["ncc (none)"].seconds > 30 * small["ncc (none)"].seconds
    assert "256 children, 32 are possible" in large["ncc (none)"].refused


def test_a_hundred_thousand_workers_have_as_many_levels_as_children_need() -> None:
    levels = (Level(32, 1), Level(1024, 1), Level(6250, 1))
    lines = {name: Line(100e9, 1e-6) for name in (WORKER, SERVER, *map(uplink, range(3)))}
    net = Network((16,) * 6250, (1, *[0] * 6249), levels, lines)
    assert joined_levels(net) == 3
    best = predictions(net, Work(100_000, FRAME), Setting(window=256))[0]
    assert best.name == "inc (two-level)"
    # Four links each way, one sending time and 1 us each.
    send = 8 * FRAME / 100e9
    assert best.seconds == pytest.approx(99_999 * send + 8 * (send + 1e-6))
    narrow = replace(net, levels=(Level(32, 1), Level(6250, 1)))
    with pytest.raises(ModelError, match="196 children"):
        joined_levels(replace(narrow, lines=lines))


def test_limiting_window_and_slots_are_reported() -> None:
    net = network(4, 2)
    slow = replace(net, lines={name: replace(one, delay=1e-3) for name, one in net.lines.items()})
    result = found(slow, Work(1000, FRAME), Setting(window=8))["inc (two-level)"]
    round_trip = 4 * (1e-3 + 8 * FRAME / 10e9)
    assert result.limit == "window"
    # 124 whole windows before the last, which is 7 packets behind the first of its window.
    assert result.seconds == pytest.approx(125 * round_trip + 7 * 8 * FRAME / 10e9)
    assert result.slots_needed == 2 * math.ceil(10e9 * round_trip / (8 * FRAME))
    assert result.slots_taken == 16
    few = found(slow, Work(1000, FRAME), Setting(window=8, slots=8))["inc (two-level)"]
    assert "16 slots, a switch has 8" in few.refused
    assert full_rate_slots(1e9, 3e-6, 0.0, 1000) == 6


def test_losses_cost_queries_or_timeouts() -> None:
    # Ten links there and back, of which each packet has to pass all.
    lossy = LossProfile(((1e-4, 8), (1e-4, 2)), 2)
    assert lossy.chance == pytest.approx(1 - (1 - 1e-4) ** 20)
    step, fill = 5e-6, 30e-6
    # One chunk: nothing comes after it, so a timer rings; another one hardly ever.
    alone = mean_loss_delay(1, step, fill, 64, lossy)
    assert alone == pytest.approx(lossy.chance * (MIN_RTO + 2 * fill), rel=0.01)
    # Of very many with rare losses each costs three ways.
    rare = LossProfile(((1e-7, 10),), 2)
    each = (
        mean_loss_delay(20_000, step, fill, 64, rare)
        - mean_loss_delay(10_000, step, fill, 64, rare)
    ) / 10_000
    assert each == pytest.approx(rare.chance * 3 * fill, rel=0.05)
    assert mean_loss_delay(10_000, step, fill, 64, LossProfile(((0.0, 10),), 2)) == 0
    # A chance that rounds to 1 is still one: each of a window's chunks takes timeouts.
    hopeless = LossProfile(((0.5, 200),), 2)
    assert hopeless.chance == 1
    assert MIN_RTO < mean_loss_delay(64, step, fill, 64, hopeless) < math.inf
    net = network(4, 2)
    times = []
    for loss in (0.0, 1e-5, 1e-4, 1e-3, 1e-2):
        lines = {name: replace(one, loss=loss) for name, one in net.lines.items()}
        result = found(replace(net, lines=lines), Work(1000, FRAME), Setting(window=64))
        times.append(result["inc (two-level)"].seconds)
    assert times == sorted(times)
    assert times[0] < times[1]


@pytest.mark.parametrize("workers", [(1,), (1, 0), (1, 1)])
def test_the_smallest_networks(workers: tuple[int, ...]) -> None:
    net = replace(network(1, len(workers)), workers=workers, servers=(1, *[0] * (len(workers) - 1)))
    for one in predictions(net, Work(1, FRAME), Setting()):
        assert one.seconds >= 0
        assert math.isfinite(one.seconds)


@pytest.mark.parametrize("size", [4, 1000, 1_000_000])
def test_prediction_respects_busiest_link(size: int) -> None:
    net, work = network(8, 8), Work(-(-size // (FRAME - 74)), FRAME, data_bytes=size)
    for one in predictions(net, work, Setting()):
        for link, carried in one.bytes.items():
            assert one.seconds >= 8 * (carried - 1) / net.lines[link].rate, one.name


def test_invalid_networks_are_rejected() -> None:
    for line in ({"rate": 0}, {"rate": -1}, {"rate": 1, "delay": -1}, {"rate": 1, "loss": 1}):
        with pytest.raises(ModelError, match="allowed"):
            Line(**line)
    with pytest.raises(ModelError, match="chunks of 0"):
        Work(0, FRAME)
    with pytest.raises(ModelError, match="no workers"):
        Network((0,), (1,), (), {})
    with pytest.raises(ModelError, match="joins 2 racks"):
        Network((1, 1), (1, 0), (), {})


def test_the_command_says_which_placement_wins_and_why() -> None:
    file = str(ROOT / "topologies/two-racks.yaml")
    run = CliRunner().invoke(main, ["plan", file, "--size", "4 MB", "--window", "64"])
    assert run.exit_code == 0, run.output
    assert "inc (two-level) wins" in run.output
    result = CliRunner().invoke(main, ["plan", file, "--size", "4 MB", "--json"])
    rows = json.loads(result.output)["model"]["predictions"]
    assert {row["placement"] for row in rows} >= {"inc", "ncs", "ring", "halving-doubling"}
    alone = CliRunner().invoke(main, ["plan", "--window", "4"])
    assert alone.exit_code == 2
    assert "need a TOPOLOGY" in alone.output


def test_plan_fails_if_no_placement_is_possible(tmp_path: Path) -> None:
    file = tmp_path / "wide.yaml"
    file.write_text("name: wide\nracks: [{workers: 40, servers: 1}]\n")
    for options in ([], ["--json"]):
        run = CliRunner().invoke(main, ["plan", str(file), "--size", "1 MB", *options])
        assert run.exit_code == 1
        assert f"error: {file}: no placement can be had here: tor0 would have 40 ch" in run.stderr
        assert "None of the placements can be had here." in run.stdout
    report = json.loads(run.stdout)["model"]["predictions"]
    assert all(row["refused"] for row in report if row["tree"])
    # Servers alone need no slots of a switch, but may not have that many children either.
    file.write_text("name: wide\nracks: [{workers: 32, servers: 1}]\n")
    slots = ["plan", str(file), "--size", "1 MB", "--window", "32768"]
    assert CliRunner().invoke(main, slots).exit_code == 0


def test_costs_are_those_of_the_file_unless_options_say_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "costly.yaml"
    file.write_text(
        "name: t\ndefaults: {rate: 1 Gbit/s, delay: 2 us, mtu: 1500}\n"
        "racks: [{workers: 2, servers: 1}]\ncosts: {framing: true, switch_latency: 5 us,"
        " host_per_packet: 3 us, host_per_byte: 0.5 ns, server_rate: 100 Mbit/s}\n"
    )

    def predicted_seconds(*options: str) -> dict[str, float]:
        run = CliRunner().invoke(main, ["plan", str(file), "--size", "1024", "--json", *options])
        assert run.exit_code == 0, run.output
        rows = json.loads(run.output)["model"]["predictions"]
        return {f"{row['placement']} {row['tree']}": row["seconds"] for row in rows}

    # One chunk, up and down a link each, through a switch, and a host at each end.
    hosts = 2 * (3e-6 + FRAME * 0.5e-9)
    wire, delay = 8 * FRAME / 1e9, 2e-6
    assert predicted_seconds()["inc two-level"] == pytest.approx(
        hosts + 2 * (8 * (FRAME + 24) / 1e9 + delay) + 5e-6
    )
    given = predicted_seconds("--no-framing", "--switch-latency", "1 us")
    assert given["inc two-level"] == pytest.approx(hosts + 2 * (wire + delay) + 1e-6)
    # A server takes two payloads, one after the other, each for longer than its link does; results
    # leave one after the other, and so come the next two payloads: the second waits less.
    way = hosts + 4 * (wire + delay) + 2 * 1e-6
    assert given["ncc none"] == pytest.approx(way + 2 * 1024 * 8 / 1e8)


def test_quantities_are_printed_with_units() -> None:
    file = str(ROOT / "topologies/two-racks-10g.yaml")
    run = CliRunner().invoke(main, ["plan", file, "--size", "97 MB", "--seconds", "100 ms"])
    assert run.exit_code == 0, run.output
    assert not re.search(r"\de[+-]\d|0000 Mbit/s|0\.0\d", run.output)
    # The tensor in whole chunks with all headers, 104 MB, at 10 Gbit/s; the ring's 14/8 of 97 MB in
    # segments of 8,948 bytes; and 100 ms to compute.
    assert (
        "inc (two-level) wins with 183 ms an iteration: computing takes 100 ms of each; a worker's"
        " link (10 Gbit/s) has 104 MB to carry, which takes 83.2 ms."
    ) in run.output
    assert re.search(r"ring +237 ms +172 MB", run.output)


def test_both_tables_say_the_same_of_a_link_that_has_few_chunks_and_framing() -> None:
    """Four chunks: the last one's turn on the busiest link is part of what that takes."""
    file = str(ROOT / "topologies/two-racks-10g.yaml")
    arguments = ["plan", file, "--size", "4 KiB", "--framing"]
    report = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    frame = report["model"]["frame_bytes"]
    (link,) = [one for one in report["placements"] if one["tree"] == "two-level"]
    (model,) = [one for one in report["model"]["predictions"] if one["tree"] == "two-level"]
    wire = pytest.approx(4 * 8 * (frame + 24) / 10e9)
    assert link["seconds_on_links"] == model["seconds_of"]["bottleneck"] == wire
    assert link["bottleneck"]["bytes"] == 4 * frame
    assert sum(model["seconds_of"].values()) == pytest.approx(model["seconds"])


def test_queues_that_cannot_hold_what_meets_there_make_a_time_a_rough_one(tmp_path: Path) -> None:
    """Eight workers send to a server at once: with 20 KiB the queue of its link has room for two
    frames of 8 KiB beside the one on the line, with 128 KiB for all."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "{name: x, iterations: 1, workload: layers, layers: [512 kB], payload: none,"
        " chunk_bytes: 8 KiB}"
    )

    def rough(queue: str) -> dict[str, str]:
        file = tmp_path / "net.yaml"
        file.write_text(
            f"{{name: x, defaults: {{rate: 10 Gbit/s, mtu: 9000, queue_bytes: {queue}}}, cores: 1,"
            " racks: [{workers: 4, servers: 1}, {workers: 4, servers: 1}]}"
        )
        run = CliRunner().invoke(main, ["plan", str(file), "--job", str(job), "--json"])
        found = json.loads(run.stdout)["model"]["predictions"]
        return {f"{one['placement']} {one['tree']}": one["rough"] for one in found}

    small, large = rough("20 KiB"), rough("128 KiB")
    assert "has room for 3 of the 8 frames" in small["ncs none"]
    assert "room" not in large["ncs none"]
    assert (small["inc two-level"], large["inc two-level"]) == ("", "")


def test_a_balancer_levels_servers_by_the_rates_of_their_links() -> None:
    """One of four servers has a link that is k times slower: with loads in proportion, rounds are
    (k (P - 1) + 1) / P times shorter. One server alone has no other to give load to."""
    k = 3.5
    slow = f"links: [{{ends: [s0, tor0], rate: {1000 / k:.0f} Mbit/s}}]"
    topology = parse(
        f"name: x\ndefaults: {{rate: 1 Gbit/s}}\nracks: [{{workers: 8, servers: 4}}]\n{slow}"
    )
    workers = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    work = Work(20_000, FRAME, 0.0, 32)
    static, level = (
        found(Network.of(topology, workers, servers, by_speed=by_speed), work)
        for by_speed in (False, True)
    )
    ratio = static["ncs (none)"].seconds / level["ncs (none)"].seconds
    assert ratio == pytest.approx((k * 3 + 1) / 4, rel=0.01)
    for same in ("ncc (none)", "inc (two-level)", "sharded-ps"):
        assert static[same].seconds == level[same].seconds
