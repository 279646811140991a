# SPDX-License-Identifier: Apache-2.0
"""Tests the event trace of runs in virtual time: format and contents."""

from __future__ import annotations

import gzip
import json
import math
import random
import zlib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cli.main import main
from simulation.errors import TraceFileError
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import SECOND, train
from simulation.session import Session
from simulation.tracing import tracer
from simulation.tracing.events import TraceFile
from simulation.tracing.links import LinkTrace
from tests.unit.simulation.virtual_session import StoppedError, one_by_one, run

TOPOLOGY = """
name: small
defaults: {rate: 1 Gbit/s, delay: 0.02 ms, queue_bytes: 64 KiB}
racks: [{workers: 1, servers: 1}, {workers: 1}]
cores: 1
"""
JOB = """
name: tiny
workload: digits
hidden: [128, 16]
iterations: 3
batch: 24
window: 8
compute: {layers: layers.json}
"""
MILLISECONDS = {"layer1": (0.2, 0.6), "layer2": (0.3, 0.4), "layer3": (0.1, 0.05)}
LAYERS = {
    "layer_times": [
        {"name": name, "forward_seconds": forward / 1000, "backward_seconds": backward / 1000}
        for name, (forward, backward) in MILLISECONDS.items()
    ]
}
PACKET = 8 * (1024 + 32 + 42) / 1000  # us at 1 Gbit/s
DELAY = 20.0  # us
Event = dict[str, Any]


FILES = {"topology.yaml": TOPOLOGY, "job.yaml": JOB, "layers.json": json.dumps(LAYERS)}


def traced(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[str, Session]:
    """The trace of a run, and its session."""
    session = run(folder, monkeypatch, FILES, **options)
    return (folder / "trace.json").read_text(), session


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Session]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return traced(tmp_path_factory.mktemp("ran"), monkeypatch)


def check_format(text: str) -> list[Event]:
    """Events of a text that is what the Trace Event Format wants of a JSON array."""
    events: list[Event] = json.loads(text)
    named = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"].endswith("_name")
    }
    spans, counts, arrows = defaultdict(list), defaultdict(list), defaultdict(list)
    threads = [event["tid"] for event in events if event.get("name") == "thread_name"]
    assert len(threads) == len(set(threads))
    for event in events:
        assert isinstance(event["pid"], int)
        assert (event["pid"], None) in named
        if event["ph"] in "BE":
            assert (event["pid"], event["tid"]) in named
            spans[event["pid"], event["tid"]].append(event)
            if event["ph"] == "E":
                continue
            assert event["cat"] in ("compute", "send", "wait")
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "B":
            pass
        elif event["ph"] in "sf":
            arrows[event["id"]].append(event)
        elif event["ph"] == "C":
            ((_, value),) = event["args"].items()
            assert value >= 0
            counts[event["pid"], event["name"]].append((event["ts"], value))
        else:
            assert event["ph"] == "M"
            assert event["args"]
    for track in spans.values():  # a thread does one thing after the other, and ends them all
        assert [event["ph"] for event in track] == ["B", "E"] * (len(track) // 2)
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(track))
    for pair in arrows.values():  # each from one of the spans to another, which begin with it
        first, second = sorted(pair, key=lambda event: event["ts"])
        assert (first["ph"], second["ph"], second["bp"]) == ("s", "f", "e")
        for event in pair:
            began = (e["ts"] for e in spans[event["pid"], event["tid"]] if e["ph"] == "B")
            assert event["ts"] in began
    for track in counts.values():
        assert all(a[0] < b[0] and a[1] != b[1] for a, b in pairwise(track))
    return events


def of_worker(events: list[Event], name: str) -> dict[tuple[str, int], Event]:
    """A worker's spans by name and iteration; those of a layer's thread have it in their names."""
    pid = next(e["pid"] for e in events if e["ph"] == "M" and e["args"].get("name") == name)
    threads = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    found, begun = {}, {}
    for event in events:
        if event["ph"] == "B" and event["pid"] == pid:
            begun[event["tid"]] = event
        elif event["ph"] == "E" and event["pid"] == pid:
            began = begun[event["tid"]]
            thread = threads[event["tid"]]
            layer = "" if thread == "computing" else f" {thread}"
            key = began["name"] + layer, began["args"]["iteration"]
            assert key not in found
            found[key] = {"ts": began["ts"], "dur": event["ts"] - began["ts"]}
    return found


def test_a_trace_has_the_format_and_all_nodes(ran: tuple[str, Session]) -> None:
    events = check_format(ran[0])
    names = {e["args"]["name"] for e in events if e.get("name") == "process_name"}
    assert names == {"w0", "w1", "s0", "tor0", "tor1", "core0"}
    counters = {e["name"] for e in events if e["ph"] == "C"}
    links = {"eth0 to tor0", "eth1 to w0", "eth2 to tor1"}
    assert {"slots", *(f"{link}, busy" for link in links)} <= counters
    assert {f"{link}, queued" for link in links} & counters


def test_layers_take_the_times_of_their_file_and_wait_for_their_sums(
    ran: tuple[str, Session],
) -> None:
    spans = of_worker(check_format(ran[0]), "w1")

    def end(name: str, iteration: int) -> float:
        return float(spans[name, iteration]["ts"] + spans[name, iteration]["dur"])

    for name, (forward, backward) in MILLISECONDS.items():
        for iteration in (1, 2, 3):
            assert spans[f"forward {name}", iteration]["dur"] == pytest.approx(1000 * forward)
            assert spans[f"backward {name}", iteration]["dur"] == pytest.approx(1000 * backward)
    for iteration in (1, 2, 3):
        # Each layer goes out when its gradients are there, and before those of the one below it.
        for name in MILLISECONDS:
            begins = spans[f"send {name}", iteration]["ts"]
            assert begins == pytest.approx(end(f"backward {name}", iteration))
            assert end(f"send {name}", iteration) <= spans[f"wait {name}", iteration]["ts"] + 1e-6
    for iteration in (1, 2):
        # Its parameters are there before it is used again; the first is what is waited for.
        for name in MILLISECONDS:
            used = spans[f"forward {name}", iteration + 1]["ts"]
            assert end(f"wait {name}", iteration) <= used + 1e-6
        first = spans["forward layer1", iteration + 1]["ts"]
        assert first == pytest.approx(end("wait layer1", iteration))
    # The last chunk's way there and back: four links, and its bits on all but the first.
    assert spans["wait layer1", 2]["dur"] == pytest.approx(4 * DELAY + 3 * PACKET)


def test_a_trace_depends_neither_on_batches_nor_on_the_order_of_nodes(
    ran: tuple[str, Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, session = traced(tmp_path, monkeypatch, change=one_by_one)
    assert session.network.engine.rounds > ran[1].network.engine.rounds
    assert text == ran[0]


def test_a_trace_is_the_same_if_switches_run_apart(
    ran: tuple[str, Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(session: Session) -> None:
        session.network.together = False

    text, session = traced(tmp_path, monkeypatch, change=apart)
    assert session.network.engine.rounds > ran[1].network.engine.rounds
    assert text == ran[0]


def test_a_trace_of_queues_by_priority_does_not_depend_on_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though packets that wait for long are known when they leave, and it is written often."""
    for name, value in {"_ROUNDS": 1, "_FEW": 0, "_PACKETS": 0}.items():
        monkeypatch.setattr(tracer, name, value)
    job = f"{JOB}schedule: {{order: priority}}\nplacement: cs\n"
    texts = []
    for change in (one_by_one, lambda session: None):
        folder = tmp_path / str(len(texts))
        session = run(folder, monkeypatch, {**FILES, "job.yaml": job}, change)
        assert any(link.spec.priorities for link in session.network.links().values())
        texts.append((folder / "trace.json").read_text())
    assert texts[0] == texts[1]


def lengths_of_a_queue(often: bool) -> list[tuple[int, int, int]]:
    """The lengths of a queue by priority in a trace that is settled often, or once."""
    draw, found = random.Random(1), list[tuple[int, int, int]]()
    link = Link(LinkSpec(10**9, priorities=True, queue_bytes=10**6))
    trace = LinkTrace(link, lambda *_: None, lambda *one: found.append(one), lambda *_: None)
    now = 0
    for _ in range(300):
        now += draw.randrange(24_000_000)
        rows, classes = np.zeros((2, 1500), np.uint8), [draw.randrange(8), draw.randrange(8)]
        link.send(train(now, rows, priorities=classes))
        if often:
            trace.settle(min(now, link.pending))
    link.settle(SECOND)
    trace.settle(SECOND)
    return found


def test_lengths_of_queues_by_priority_do_not_depend_on_when_they_are_settled() -> None:
    lengths = lengths_of_a_queue(often=False)
    assert len(lengths) > 10
    assert lengths_of_a_queue(often=True) == lengths


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_what_a_killed_run_has_written_ends_with_a_whole_event(tmp_path: Path, name: str) -> None:
    """As viewers need it: they add the missing bracket, and take a compressed file's beginning."""
    with TraceFile(tmp_path / name) as file:
        seen = set()
        for time in range(20_000):
            file.counter(time, 1, "eth0, queued", time, "bytes", time * 17 % 1000)
            file.flush(time)  # all of before
            if time % 500 == 0:
                data = (tmp_path / name).read_bytes()
                text = data if name.endswith(".json") else zlib.decompressobj(31).decompress(data)
                if text:
                    seen.add(len(json.loads(text + b"]")))
    assert len(seen) > 10  # it is written now and then, not only at the end
    assert max(seen) > 15_000


def test_a_file_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    for name in ("trace.json", "trace.json.gz"):
        with TraceFile(tmp_path / name) as file:
            file.process(1, "w0", "worker")
            file.counter(0, 1, "slots", 7, "in use", 3)
    packed = (tmp_path / "trace.json.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "trace.json").read_bytes()
    assert packed[3:8] == bytes(5)  # neither a name nor a time: RFC 1952, 2.3


def test_counters_are_of_what_the_links_carried_and_the_slots_held(
    ran: tuple[str, Session],
) -> None:
    text, session = ran
    events = check_format(text)
    network = session.network
    processes = {
        e["args"]["name"]: e["pid"]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    for way, receiver in network.receivers().items():
        link = network.links()[way]
        name, pid = f"{way.interface[len(way.node) + 1 :]} to {receiver}", processes[way.node]
        counts = [
            (e["ts"], e["args"]["%"])
            for e in events
            if e["ph"] == "C" and e["name"] == f"{name}, busy" and e["pid"] == pid
        ]
        if not link.counters.sent:
            assert counts == []
            continue
        assert counts[0][1] > 0
        assert counts[-1][1] == 0
        queued = [
            e["args"]["bytes"]
            for e in events
            if e.get("name") == f"{name}, queued" and e["pid"] == pid
        ]
        # The queue counts what waits as it comes, what goes on the line at once included.
        most = link.counters.queue_most
        assert max(queued, default=0) <= most <= max(queued, default=0) + 1514
        assert queued == [] or queued[-1] == 0
        assert all(percent <= 100 for _, percent in counts)
        microseconds = sum(
            percent / 100 * (later - time) for (time, percent), (later, _) in pairwise(counts)
        )
        bits = 8 * link.counters.wire_bytes
        spans = 16 * 8 * 1514 / 1000 * len(counts)  # what a tenth of a percent is of
        assert microseconds == pytest.approx(bits / 1000, abs=spans / 1000 + 1e-6)
    for switch in network.switches:
        slots = [
            e["args"]["in use"]
            for e in events
            if e.get("name") == "slots" and e["pid"] == processes[switch]
        ]
        assert slots[-1] == 0
        # At a ToR one is held for the way to the core and back, and claimed with each packet. At
        # the core contributions of both racks come at once, perhaps as the last result leaves.
        if switch == "core0":
            assert 1 <= max(slots) <= 2
        else:
            assert max(slots) == math.ceil(2 * (DELAY + PACKET) / PACKET)


def test_a_run_that_is_ended_leaves_a_whole_trace(
    ran: tuple[str, Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emit(message: dict[str, Any]) -> None:
        if message["event"] == "progress":
            raise StoppedError

    text, _ = traced(tmp_path, monkeypatch, emit=emit)
    events = check_format(text)
    assert ("send layer1", 1) in of_worker(events, "w0")
    assert len(events) < len(json.loads(ran[0]))


def test_a_trace_is_of_virtual_time_and_somewhere(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    found = CliRunner().invoke(main, ["run", str(tmp_path / "topology.yaml"), "--trace", "t.json"])
    assert found.exit_code == 1
    assert "--trace t.json: only simulated time can be traced; use --clock virtual" in found.output
    with pytest.raises(TraceFileError, match=r"--trace .*none/t.json: cannot be written: No such"):
        TraceFile(tmp_path / "none" / "t.json")
