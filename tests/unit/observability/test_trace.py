# SPDX-License-Identifier: Apache-2.0
"""Tests traces of a chunk from captures, and captures as both targets write them."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from cli.display.diagnostics import show_trace
from cli.main import main
from observability import record, series
from observability.pcap import CaptureError, Writer, packets
from observability.series import SeriesWriter
from observability.trace import TraceError, trace
from observability.trace_report import read, rows
from observability.transmissions import Transmissions, of_captures
from planner.link_loads import Direction
from protocol.frames import Interface, to_frames
from protocol.header import PORT, Batch, Flag, Op, Phase, blank, carries_payload, peer_array
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.spec import load

ADDRESSING = Addressing(load(ROOT / "topologies" / "two-racks.yaml"))
MICRO, NANO = 0xA1B2C3D4, 0xA1B23C4D
SECOND = 1_000_000_000


def capture(path: Path, records: list[tuple[int, bytes]], magic: int = NANO, cut: int = 0) -> Path:
    """A capture of (ns, frame), without its last bytes."""
    path.parent.mkdir(exist_ok=True, parents=True)
    data = struct.pack("=IHHIIII", magic, 2, 4, 0, 0, 1 << 18, 1)
    tick = 1 if magic == NANO else 1000
    for time, frame in records:
        data += struct.pack("=IIII", time // SECOND, time % SECOND // tick, len(frame), len(frame))
        data += frame
    path.write_bytes(data[: len(data) - cut])
    return path


@pytest.mark.parametrize("magic", [MICRO, NANO])
def test_both_resolutions_are_read(tmp_path: Path, magic: int) -> None:
    written = [(5 * SECOND + 7000, b"abc"), (6 * SECOND, b""), (6 * SECOND + 1000, b"xyz!")]
    path = capture(tmp_path / "a.pcap", written, magic)
    read = [(time, frame, len(frame)) for time, frame in written]
    assert list(packets(path)) == read
    assert list(packets(path, lambda frame: frame[:1] == b"x")) == read[2:]


def test_a_capture_that_ends_within_a_packet_is_read_up_to_it(tmp_path: Path) -> None:
    path = capture(tmp_path / "a.pcap", [(1, b"whole"), (2, b"broken")], cut=3)
    assert [frame for _, frame, _ in packets(path)] == [b"whole"]
    assert list(packets(capture(tmp_path / "b.pcap", [], cut=24))) == []


def test_capture_round_trip(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.pcap")
    frames = np.arange(12, dtype=np.uint8).reshape(3, 4)
    times, lengths = np.array([1, SECOND, 7 * SECOND + 9]), np.array([4, 4, 1098])
    writer.write(times[:2], frames[:2], lengths[:2])
    writer.write(times[2:], frames[2:], lengths[2:])  # of which no more is there
    writer.close()
    read = list(packets(tmp_path / "a.pcap"))
    written = [(int(t), f.tobytes()) for t, f in zip(times, frames, strict=True)]
    assert read == [(*one, int(n)) for one, n in zip(written, lengths, strict=True)]
    first = capture(tmp_path / "b.pcap", written[:2]).read_bytes()
    assert (tmp_path / "a.pcap").read_bytes()[: len(first)] == first


def test_invalid_capture_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(b"no capture, but long enough to be one")
    with pytest.raises(CaptureError, match=f"{path}: not a packet capture"):
        list(packets(path))


def frame(op: Op, source: str, destination: str, **fields: int) -> bytes:
    """A packet of job 1, chunk 5, from node to node, without values."""
    header = blank(1, op)
    known = {"job": 1, "epoch": 1, "chunk": 5, "seq": 9, "workers": 1, "lanes": 4, "node": 2}
    for name, value in {**known, **fields}.items():
        header[name] = value
    addresses = [int(ADDRESSING.address(name)) for name in (source, destination)]
    words = np.zeros((1, 4), ">i4")
    batch = Batch(header, words, carries_payload(header), peer_array([(addresses[1], PORT)]))
    return to_frames(batch, Interface(b"\2" * 6, b"\3" * 6, addresses[0]), PORT)[0]


class Captures:
    """Captures of what goes over links of two-racks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, list[tuple[int, bytes]]] = {}

    def send(self, ms: int, sender: str, receiver: str, packet: bytes, lost: bool = False) -> None:
        """A packet over a link; lost: the switch at its end does not get it."""
        for node, other, way in ((sender, receiver, "out"), (receiver, sender, "in")):
            if node in {n.name for n in ADDRESSING.topology.switches} and not (
                lost and way == "in"
            ):
                (port,) = ADDRESSING.ports_between(node, other)
                of = self.records.setdefault(f"{port.interface}_{way}.pcap", [])
                of.append((ms * 1_000_000, packet))

    def write(self) -> Path:
        for name, records in self.records.items():
            capture(self.folder / "pcap" / name, records)
        return self.folder / "pcap"


def test_a_lost_partial_sum_is_traced_with_query_and_retransmission(tmp_path: Path) -> None:
    """Node 1 is core0, node 2 tor0; tor1's workers are not part of it."""
    net = Captures(tmp_path)
    contribute = frame(Op.CONTRIBUTE, "w0", "s0")
    partial = frame(Op.CONTRIBUTE, "tor0", "s0", node=1, sender=0, workers=1)
    query = frame(Op.QUERY, "w0", "s0")
    passed = frame(Op.QUERY, "w0", "s0", node=1)
    state = frame(Op.STATE, "s0", "w0", node=1, flags=Phase.AGGREGATING << 4, children=0)
    again = frame(Op.CONTRIBUTE, "w0", "s0", flags=Flag.RETRANSMIT)
    net.send(0, "w0", "tor0", contribute)
    net.send(1, "tor0", "core0", partial, lost=True)
    net.send(51, "w0", "tor0", query)
    net.send(52, "tor0", "core0", passed)
    net.send(53, "core0", "tor0", state)
    net.send(54, "tor0", "w0", state)
    net.send(55, "w0", "tor0", again)
    net.send(56, "tor0", "core0", partial)
    net.send(57, "core0", "tor0", frame(Op.RESULT, "s0", "tor0", node=2, flags=Flag.ECN))
    net.send(58, "tor0", "w0", frame(Op.RESULT, "s0", "w0", node=0))
    # Other chunks and jobs do not count.
    net.send(3, "w0", "tor0", frame(Op.CONTRIBUTE, "w0", "s0", chunk=6))
    net.send(4, "w0", "tor0", frame(Op.CONTRIBUTE, "w0", "s0", job=2))
    found = trace(net.write(), ADDRESSING, 1, 5)
    (one,) = found.rounds
    assert [(r["ms"], r["from"], r["to"], r["what"], r["note"]) for r in rows(found, one)] == [
        (0, "w0", "tor0", "CONTRIBUTE of w0 to tor0", ""),
        (1, "tor0", "core0", "partial sum of tor0 (1 worker) to core0", "did not arrive"),
        (51, "w0", "tor0", "QUERY of w0 to tor0", ""),
        (52, "tor0", "core0", "QUERY of w0 to core0", ""),
        (53, "core0", "tor0", "STATE for w0: core0 AGGREGATING, lacks tor0", ""),
        (54, "tor0", "w0", "STATE for w0: core0 AGGREGATING, lacks tor0", ""),
        (55, "w0", "tor0", "CONTRIBUTE of w0 to tor0", "again (2)"),
        (56, "tor0", "core0", "partial sum of tor0 (1 worker) to core0", "again (2)"),
        (57, "core0", "tor0", "RESULT for tor0", "ECN"),
        (58, "tor0", "w0", "RESULT for w0", ""),
    ]
    # Of another job and another chunk, too; the lost partial sum left its port all the same.
    links = of_captures(tmp_path / "pcap", ADDRESSING)
    (up,) = ADDRESSING.ports_between("tor0", "core0")
    host = ADDRESSING.host_interfaces("w0")[0].interface
    whole, head = len(contribute), len(query)
    assert links[Direction("w0", host)] == Transmissions(3, 3 * whole, 2, head + whole)
    assert links[Direction("tor0", up.interface)] == Transmissions(1, whole, 2, head + whole)
    (idle,) = ADDRESSING.ports_between("tor1", "core0")
    assert links[Direction("tor1", idle.interface)] == Transmissions()


def test_a_killed_run_is_traced_as_incomplete(
    runs: Path,
) -> None:
    facts = {"topology": str(ROOT / "topologies" / "two-racks.yaml"), "pcap": True}
    facts["clock"] = "virtual"
    with record.create("bed", chosen=False, facts=facts) as run:
        net = Captures(run.path)
        net.send(0, "w0", "tor0", frame(Op.CONTRIBUTE, "w0", "s0", job=2))
        (port,) = ADDRESSING.ports_between("tor0", "w0")
        capture(net.write() / f"{port.interface}_out.pcap", [(1, b"a packet")], cut=3)
        with pytest.raises(TraceError, match=r"no job .second. with a number in .*: none"):
            read(run, "second", 5, None)
        for number, job in enumerate(("first", "second"), start=1):
            SeriesWriter(run.path / series.FILE).state(job, "running", number)
    result = read(run, "second", 5, None)
    assert [hop["what"] for hop in result["rounds"][0]["hops"]] == ["CONTRIBUTE of w0 to tor0"]
    assert result["whole"] is False
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    show_trace(terminal, "second", 5, result)
    assert isinstance(terminal.file, io.StringIO)
    assert terminal.file.getvalue().startswith("The run is still going, or was killed: ")


def test_trace_names_server_process(tmp_path: Path) -> None:
    """Sums leave by the link and to the port of the chunk's process, results come from there."""
    plan = Addressing(load(ROOT / "topologies" / "pbox.yaml"))
    unit, tor = plan.unit("s0.3"), int(plan.address("tor0"))
    words = np.zeros((1, 4), ">i4")
    header = blank(1, Op.CONTRIBUTE)
    for name, value in {"job": 1, "epoch": 1, "chunk": 5, "workers": 2, "lanes": 4}.items():
        header[name] = value
    process = (int(unit.address), unit.port)
    up = Batch(header, words, carries_payload(header), peer_array([process]))
    result = header.copy()
    result["version_op"] = blank(1, Op.RESULT)["version_op"]
    down = Batch(result, words, up.full, peer_array([(tor, PORT)]))
    sender = Interface(b"\2" * 6, b"\3" * 6, tor), Interface(b"\2" * 6, b"\3" * 6, process[0])
    port = plan.port("tor0", unit.interface.switch_port).interface
    for time, way, frames in (
        (1, "out", to_frames(up, sender[0], PORT)),
        (2, "in", to_frames(down, sender[1], unit.port)),
    ):
        capture(tmp_path / "pcap" / f"{port}_{way}.pcap", [(time, frames[0])])
    found = trace(tmp_path / "pcap", plan, 1, 5)
    (one,) = found.rounds
    assert [(row["from"], row["to"], row["what"]) for row in rows(found, one)] == [
        ("tor0", "s0.3", "partial sum of tor0 (2 workers) to s0.3"),
        ("s0.3", "tor0", "RESULT for tor0"),
    ]


def test_the_traced_run_is_named_and_can_be_chosen(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: t\nracks: [{workers: 2, servers: 1}]\ncores: 0\n")
    (tmp_path / "j.yaml").write_text("name: j\nworkload: layers\nlayers: [4 kB]\niterations: 1\n")
    files = [str(tmp_path / "t.yaml"), "--job", str(tmp_path / "j.yaml"), "--clock", "virtual"]

    def rackhub(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments))

    assert rackhub("run", *files, "--name", "first", "--pcap").exit_code == 0
    chunk = ("trace", "j", "--chunk", "1")
    newest = "(the newest run; --run takes another)"
    assert rackhub(*chunk).stdout.splitlines()[0] == f"{record.newest().path} {newest}"
    assert rackhub("run", *files, "--name", "second").exit_code == 0
    refused = rackhub(*chunk).stderr
    assert f"{record.newest().path} has no captures" in refused
    assert refused.endswith(f"{newest}\n")
    first = record.all_runs()[0].path
    for name in ("first", first.name, str(first)):
        result = rackhub(*chunk, "--run", name)
        assert result.stdout.splitlines()[0] == str(first)
        assert "chunk 1 of j, iteration 1 of 1 captured" in result.stdout
    assert json.loads(rackhub(*chunk, "--run", "first", "--json").stdout)["run"] == str(first)
    assert "no run 'third'" in rackhub(*chunk, "--run", "third").stderr
