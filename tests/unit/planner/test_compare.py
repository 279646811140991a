# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub compare` in virtual time: sums, closed-form bytes on every link, and
independence of the engine's order."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from baselines import innetwork, plot, tcp, virtual
from baselines.comparison import ComparisonError, Outcome, Work
from baselines.contenders import contenders
from baselines.emulated import settled
from baselines.gloo import missing
from baselines.members import IN_NETWORK
from cli.commands import compare
from cli.main import main
from controller.p4rt.dataplane import DataPlane
from controller.planning.admission import Resources
from observability.links import Carried
from planner.collectives import COLLECTIVES
from planner.link_loads import Direction
from protocol.ethernet import TCP_HEADERS
from protocol.frames import Interface
from simulation.kernel import progress
from simulation.kernel.engine import Engine
from simulation.links.trains import NEVER, Train, joined
from simulation.nodes.byte_streams import Content, StreamError, Streams, head
from specs import jobfile
from specs.p4program import SOURCES
from testbed import preflight
from tests.unit.planner.gather_broadcast import GatherBroadcast
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from topologies.model.units import size_text, time_text

BUILD = SOURCES / "build"
PLANE = DataPlane.load(BUILD / "aggregation.json", BUILD / "aggregation.p4info.txtpb")
# Six workers, no power of two; racks of different sizes; queues for a few segments of each stream.
SMALL = """\
name: small
defaults: {rate: 1 Gbit/s, delay: 3 us, queue_bytes: 64 KiB}
racks: [{workers: 3, servers: 1}, {workers: 2, servers: 1}, {workers: 1, servers: 1}]
cores: 2
uplinks: {rate: 400 Mbit/s}
"""
WORK = Work((10_000, 11), 2)
WIRE = Interface(bytes(6), bytes(6), 1)
THERE, BACK = 1 << 16 | 2, 2 << 16 | 1  # ports of frames each way


def played(
    names: Sequence[str],
    engine: Engine | None = None,
    tell: Callable[[dict[str, Any]], None] = lambda message: None,
    *,
    text: str = SMALL,
    work: Work = WORK,
) -> list[Outcome]:
    topology = parse(text)
    addressing = Addressing(topology)
    file = jobfile.parse(f"{{name: sums, iterations: 1, batch: {len(topology.workers)}}}")
    resources = Resources((node.name for node in topology.switches), PLANE.slots)
    plan = preflight.admit(file, file.place(topology), 0, addressing, resources, PLANE, None)
    return [
        virtual.play(one, addressing, plan, PLANE, work, engine=engine, tell=tell)
        for one in contenders(names, addressing, plan, PLANE, work)
    ]


@pytest.mark.parametrize("name", [IN_NETWORK, *COLLECTIVES])
def test_sums_and_bytes_of_every_link(name: str):
    """The closed form holds for each direction of each link, in bytes and in packets; and nobody is
    quicker than the busiest link."""
    (one,) = played([name])
    row = one.row(Addressing(parse(SMALL)), framing=False)
    assert row["right"]
    assert len(row["seconds_per_iteration"]) == WORK.iterations
    for link in row["links"]:
        assert link["bytes"] == link["expected_bytes"], link
        assert link["packets"] == link["expected_packets"], link
    assert row["bytes_as_closed_form"]
    assert row["total_bytes"] > 0
    assert row["seconds"] > row["closed_form_seconds"] > 0


@settings(max_examples=6, deadline=None)
@given(rates=st.lists(st.sampled_from([5, 10, 20, 50, 100]), min_size=12, max_size=12))
@example(rates=[50, 20, 100, 50, 5, 5, 100, 20, 10, 50, 20, 10])  # rounds overlap a lot
def test_no_rates_make_anyone_quicker_than_the_lower_bound(rates: list[int]) -> None:
    ends = [("w0", "tor0"), ("w1", "tor0"), ("tor0", "core0")]
    ends += [("w2", "tor1"), ("w3", "tor1"), ("tor1", "core0")]
    ways = [way for low, high in ends for way in ((low, high), (high, low))]
    text = "name: unlike\nracks: [{workers: 2, servers: 1, count: 2}]\ncores: 1\nlinks:\n"
    for (source, to), rate in zip(ways, rates, strict=True):
        text += f"  - {{from: {source}, to: {to}, rate: {rate} Mbit/s}}\n"
    for one in played([IN_NETWORK, *COLLECTIVES], text=text, work=Work((3_000,), 1)):
        row = one.row(Addressing(parse(text)), framing=False)
        assert row["seconds"] > row["closed_form_seconds"] > 0, row["name"]


def test_results_do_not_depend_on_engine_order():
    (usual,) = played(["sharded-ps"])
    (other,) = played(["sharded-ps"], Engine(span=7_000_000, order=lambda nodes: nodes[::-1]))
    assert usual.iterations == other.iterations
    assert usual.carried == other.carried


@pytest.mark.parametrize("name", [IN_NETWORK, "ring"])
def test_contender_progress_is_reported_without_effect(name: str, monkeypatch: pytest.MonkeyPatch):
    (quiet,) = played([name])
    monkeypatch.setattr(progress, "PERIOD_SECONDS", 0.0)
    messages: list[dict[str, Any]] = []
    (loud,) = played([name], tell=messages.append)
    assert (loud.iterations, loud.carried) == (quiet.iterations, quiet.carried)
    assert {(one["job"], one["iterations"]) for one in messages} == {(name, 1 + WORK.iterations)}
    done = [one["iterations_done"] for one in messages]
    assert done == sorted(done)
    for number in range(1 + WORK.iterations):
        shares = {share - number for share in done if number <= share < number + 1}
        assert len(shares) > 4
        assert min(shares) < 0.2
        assert max(shares) > 0.8


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    window=st.integers(2, 9),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_segments_at_once_are_as_one_by_one(
    messages: list[int], window: int, cuts: list[int]
) -> None:
    """Trains of any length: the same segments, caused by the same acknowledgments, and bytes that
    arrive as they were sent. Never more are in flight than the window."""

    def carry(sizes: list[int]) -> tuple[Train, Train]:
        sender, receiver, content = Streams(1), Streams(1), Content()
        sender.connect(BACK, 0, head(WIRE, 2, (1, 2)), window, 8)
        receiver.connect(THERE, 0, head(WIRE, 1, (2, 1)), window, 8)
        sent = bytes(np.random.default_rng(len(messages)).bytes(sum(messages)))
        at = 0
        for size in messages:
            content.put(sent[at : at + size])
            sender.put(BACK, size, 0)
            at += size
        assert not receiver.want(THERE, len(sent))
        left = joined([train for _, train in sender.leave()])
        segments, acks = [left], []
        came = turn = 0
        while len(left):
            assert len(left) <= window
            count = min(sizes[turn % len(sizes)], len(left))
            turn += 1
            # The time of each is how many segments have arrived, and so what caused the others.
            times = np.arange(came, came + count)
            assert receiver.take(times, left.frames[:count]) == 0
            receiver.arrive(NEVER)
            came += count
            left = left.select(slice(count, None))
            for _, back in receiver.leave():
                acks.append(back)
                assert sender.take(back.times, back.frames) == 0
                sender.arrive(NEVER)
                for _, more in sender.leave():
                    segments.append(more)
                    left = joined([left, more])
        assert receiver.want(THERE, len(sent))
        taken = bytearray(len(sent))
        content.read(memoryview(taken))
        assert taken == sent
        return joined(segments), joined(acks)

    singly = carry([1])
    count = [-(-size // 8) for size in messages]
    assert [sum(one.lengths) for one in singly] == [
        sum(messages) + TCP_HEADERS * sum(count),
        TCP_HEADERS * sum(-(-one // 2) for one in count),
    ]
    for other in (carry(cuts), carry([10**6])):
        for one, same in zip(singly, other, strict=True):
            for field in ("times", "lengths", "frames"):
                assert np.array_equal(getattr(one, field), getattr(same, field))


def test_framing_and_foreign_frames():
    """What is of no stream is counted; what is missing in one is an error, not wrong data."""
    sender, receiver = Streams(1), Streams(1)
    sender.connect(BACK, 0, head(WIRE, 2, (1, 2)), 9, 8)
    receiver.connect(THERE, 0, head(WIRE, 1, (2, 1)), 9, 8)
    sender.put(BACK, 40, 0)
    ((_, train),) = sender.leave()
    # The IPv4 header is whole: its words add up to nothing (RFC 1071).
    words = train.frames[:, 14:34].copy().view(">u2").astype(np.int64).sum(axis=1)
    assert ((words & 0xFFFF) + (words >> 16) == 0xFFFF).all()
    other = train.frames[:1].copy()
    other[:, 35] += 1  # another sender's port
    assert receiver.take(train.times[:1], other) == 1
    assert receiver.take(train.times[:1], other[:, :60]) == 1
    assert receiver.next == NEVER
    receiver.take(train.times[[0, 2]], train.frames[[0, 2]])
    with pytest.raises(StreamError, match="missing"):
        receiver.arrive(NEVER)


def called(tmp_path: Path, topology: str, *options: str) -> Any:
    file = tmp_path / "network.yaml"
    file.write_text(topology)
    return CliRunner().invoke(main, ["compare", str(file), *options])


def test_the_command_prints_and_draws(tmp_path: Path):
    drawing = tmp_path / "sums.svg"
    options = ["--size", "20 kB", "--iterations", "1", "--only", "ring,in-network", "--framing"]
    result = called(tmp_path, SMALL, *options, "--plot", str(drawing), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output[result.output.index("{") :])
    assert [row["name"] for row in report["rows"]] == ["ring", "in-network"]
    assert all(row["right"] and row["bytes_as_closed_form"] for row in report["rows"])
    assert report["rows"][1]["seconds"] < report["rows"][0]["seconds"]
    panels = plot.draw(report, report["rows"]).axes
    assert [len(axes.patches) for axes in panels] == [2, 2, 2]
    assert [bar.get_width() for bar in panels[0].patches] == [r["seconds"] for r in report["rows"]]
    assert "in-network" in drawing.read_text()


def test_ctrl_c_ends_the_command_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """While workers wait for sums; nothing is said of tasks that are stopped where they wait."""
    values_of = innetwork.values_of

    def interrupted(rank: int, number: int, size: int) -> Any:
        if number == 1 and rank == 3:
            signal.raise_signal(signal.SIGINT)
        return values_of(rank, number, size)

    monkeypatch.setattr(innetwork, "values_of", interrupted)
    result = called(tmp_path, SMALL, "--size", "20 kB", "--only", "in-network")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "interrupted"
    assert not caplog.records


def test_a_registered_collective_is_compared_and_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One file and its registration: its sums, its bytes on every link, its name and its plan."""
    monkeypatch.setitem(COLLECTIVES, "gather-broadcast", GatherBroadcast())
    options = ["--size", "20 kB", "--only", "gather-broadcast", "--json"]
    result = called(tmp_path, SMALL, *options)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output[result.output.index("{") :])["rows"]
    assert row["right"]
    assert row["bytes_as_closed_form"]
    assert row["meaning"] == "gather-broadcast all-reduce"
    assert "gather-broadcast" in called(tmp_path, SMALL, "--only", "rings").output
    plan = CliRunner().invoke(
        main, ["plan", str(tmp_path / "network.yaml"), "--size", "20 kB", "--json"]
    )
    assert plan.exit_code == 0, plan.output
    names = [one["placement"] for one in json.loads(plan.output)["model"]["predictions"]]
    assert "gather-broadcast" in names


@pytest.mark.parametrize(
    ("topology", "options", "text"),
    [
        (SMALL.replace("3 us", "3 us, loss: 0.01"), [], "--clock emulated"),
        (SMALL.replace("64 KiB", "2 KiB"), ["--only", "ps"], "queue_bytes"),
        (SMALL.replace("64 KiB", "12 KiB"), ["--only", "ps"], "room for 1.3 segments of each"),
        (SMALL, ["--only", "gloo"], "--clock emulated"),
        pytest.param(
            SMALL,
            ["--only", "gloo", "--clock", "emulated"],
            "pip install 'rackhub[gloo]'",
            marks=pytest.mark.skipif(not missing(), reason="PyTorch is installed"),
        ),
        (SMALL, ["--only", "rings"], "halving-doubling"),
        (SMALL, ["--size", "0 B"], "0 B"),
    ],
)
def test_invalid_comparisons_are_rejected(
    tmp_path: Path, topology: str, options: list[str], text: str
):
    size = [] if "--size" in options else ["--size", "20 kB"]
    result = called(tmp_path, topology, *options, *size)
    assert result.exit_code != 0
    assert text in result.output
    assert "(" not in result.output.partition("error")[0]  # nothing was started


def counting(*numbers: int) -> Iterator[dict[Direction, Carried]]:
    for number in numbers:
        yield {
            Direction("w0", "w0-eth0"): Carried(number, 1),
            Direction("tor0", "tor0-eth1"): Carried(7, 1),
        }


def test_counters_are_read_until_they_settle():
    reads = counting(1, 2, 2, 3)
    assert settled(lambda: next(reads), 60.0)[Direction("w0", "w0-eth0")].bytes == 2
    reads = counting(*range(100))
    with pytest.raises(ComparisonError, match=r"after 0 s these still send: w0 \(w0-eth0\);"):
        settled(lambda: next(reads), 0.0)


def test_hosts_use_fixed_tcp_settings(tmp_path: Path):
    for name, value in (("tcp_congestion_control", "bbr\n"), ("tcp_ecn", "2\n")):
        (tmp_path / name).write_text(value)
    tcp.set_up(tmp_path)
    assert (tmp_path / "tcp_congestion_control").read_text() == "reno"
    assert (tmp_path / "tcp_ecn").read_text() == "1"


def test_dropped_frames_are_reported_with_link(capsys: pytest.CaptureFixture[str]):
    (one,) = played(["ring"])
    lossy = {way: replace(load, dropped=2 * n) for n, (way, load) in enumerate(one.carried.items())}
    row = replace(one, carried=lossy).row(Addressing(parse(SMALL)), framing=False)
    last = list(one.carried)[-1]
    each = [2 * n / WORK.iterations for n in range(len(lossy))]
    assert row["dropped_packets"] == sum(each)
    facts = {"topology": "small", "workers": 6, "bytes": 40_044, "tensors": 2, "iterations": 2}
    where = {"clock": "emulated", "target": "bmv2", "framing": False}
    compare.show_comparison(Console(width=300), {**facts, **where}, [row])
    output = capsys.readouterr().out
    assert f"{sum(each):,.4g}, most at {last.interface}" in output
    assert "6 workers sum 40 kB in 2 tensors, emulated on bmv2; medians of 2 iterations" in output


@pytest.mark.parametrize("width", [80, 120])
def test_table_is_one_with_the_values_of_the_json(tmp_path: Path, width: int):
    (tmp_path / "small.yaml").write_text(SMALL)
    arguments = ["compare", str(tmp_path / "small.yaml"), "--size", "20 kB", "--json"]
    run = CliRunner().invoke(main, arguments)
    assert run.exit_code == 0, run.stderr
    found = json.loads(run.stdout)
    terminal = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    compare.show_comparison(terminal, found, found["rows"])
    assert isinstance(terminal.file, io.StringIO)
    lines = terminal.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    (heading,) = (
        n for n, line in enumerate(lines) if line.split()[:3] == ["time", "lower", "bound"]
    )
    for row, line in zip(found["rows"], lines[heading + 1 :], strict=False):
        assert line.split()[0] == row["name"]
        for value in (row["seconds"], row["closed_form_seconds"]):
            assert f" {time_text(value, 4)} " in line
        for value in (row["host_bytes"], row["core_bytes"]):
            assert f" {size_text(value, 4)} " in line
        assert f" {row['ratio']:.3f} " in line
        assert row["bytes_as_closed_form"]
        assert row["right"]
    assert "Every link carried exactly the bytes of its closed form." in lines
    fastest = min(found["rows"], key=lambda row: row["seconds"])
    assert any(line.startswith(f"quickest: {fastest['name']}; ") for line in lines)
