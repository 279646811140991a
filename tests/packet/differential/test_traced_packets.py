# SPDX-License-Identifier: GPL-2.0-only
"""Tests packet traces of a program, and that tracing does not change its behaviour."""

from __future__ import annotations

import json
import queue
import re
from collections import defaultdict
from functools import partial
from pathlib import Path

import grpc
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from switch.loader import load_program, parse_program
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.p4runtime.stubs import p4runtime_pb2_grpc
from switch.pipeline import Pipeline, PipelineError
from switch.pipeline.action_profiles import ProfileState
from switch.pipeline.keys import Reference
from tests.p4 import HERE
from tests.packet.differential import recordings
from tests.packet.differential.case import differences, embedded
from tests.packet.differential.cases import cases
from tests.packet.p4runtime.p4rt_support import (
    CPU_PORT,
    arbitration,
    config,
    config_request,
    ethernet,
    packet_out,
)
from tests.packet.p4runtime.p4rt_targets import running

# Cases between them with every kind of statement, match and replication.
SAME = [
    "blocks", "jumbo-root", "matches", "metered", "parsing", "profiles", "replication", "stacks",
    "unions", "valuesets",
]  # fmt: skip
# Told last of a packet.
LAST = re.compile(r"leaves port|is dropped|ends here|is recirculated")


@pytest.mark.parametrize("name", SAME)
def test_a_traced_program_does_what_bmv2_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, lines = cases()[name], list[str]()
    traced = partial(Device, traced=True, on_commit=lambda made: made.set_trace(lines.append))
    monkeypatch.setattr("tests.packet.differential.case.Device", traced)
    assert not differences(case, embedded(case), recordings.read(case))
    arrived = [one for one in lines if " arrives on port " in one]
    assert len(arrived) == len(case.arrivals)


def test_packet_is_traced_from_arrival_to_end() -> None:
    lines: list[str] = []
    to, udp = "02:00:00:00:00:99", UDP(sport=1, dport=2)
    frames = [
        bytes(Ether(dst=to) / IP(src="1.2.3.4", dst="10.7.0.9", ttl=9) / udp / b"hello"),
        bytes(Ether(dst=to) / IP(src="1.2.3.4", dst="11.0.0.9", ttl=9) / udp / b"hello"),
        bytes(Ether(dst=to))[:9],
    ]
    with Pipeline(load_program(HERE / "router.json"), traced=True) as pipeline:
        pipeline.set_trace(lines.append)
        route = pipeline.insert("Route.routes", [(0x0A000000, 8)], "Route.forward", [3, 0x20003])
        [(port, sent)] = pipeline.inject(1, frames[0])
        result, lines[:] = list(lines), []
        assert pipeline.inject_batch([2, 2], frames[1:]) == []
        pipeline.set_trace(None)
        pipeline.inject(1, frames[0])
    assert (port, len(sent)) == (3, len(frames[0]))
    assert result == [
        f"packet 1.0: {line}"
        for line in [
            "arrives on port 1, 47 bytes",
            "parser: start, ipv4; 34 bytes",
            "router.p4(50): mark_to_drop(standard)",
            "router.p4(67): standard.parser_error != error.NoError: false",
            "router.p4(68): hdr.ipv4.isValid(): true",
            "router.p4(69): standard.checksum_error == 1: false",
            "router.p4(70): hdr.ipv4.ttl <= 1: false",
            f"table Route.routes [hdr.ipv4.destination = 0xa070009]: hits handle {route} "
            "[0xa000000/8]: Route.forward(port = 0x3, next_hop = 0x20003)",
            "router.p4(52): standard.egress_spec = port -> 0x3",
            "router.p4(53): hdr.ethernet.source = hdr.ethernet.destination -> 0x20000000099",
            "router.p4(54): hdr.ethernet.destination = next_hop -> 0x20003",
            "router.p4(55): hdr.ipv4.ttl = hdr.ipv4.ttl - 1 -> 0x8",
            "goes to port 3, priority 0, 47 bytes",
            "egress on port 3",
            "leaves port 3, 47 bytes",
        ]
    ]
    assert (
        "packet 2.0: table Route.routes [hdr.ipv4.destination = 0xb000009]: misses: "
        "Route.no_route()" in lines
    )
    assert "packet 3.0: parser: start; 0 bytes; error PacketTooShort" in lines
    assert lines[-1] == "packet 3.0: is dropped"


def test_c_writes_the_same_lines_with_the_time_and_goes_on_where_it_cannot(tmp_path: Path) -> None:
    lines: list[str] = []
    frame = bytes(Ether() / IP(dst="10.7.0.9") / UDP() / b"hello")
    log = tmp_path / "log"
    with Pipeline(load_program(HERE / "router.json"), traced=True) as pipeline:
        with log.open("w") as file:
            pipeline.trace_to(file.fileno())
            pipeline.inject(1, frame)
        with log.open() as unwritable:
            pipeline.trace_to(unwritable.fileno())
            pipeline.inject(1, frame)
        pipeline.set_trace(lines.append)
        pipeline.inject(1, frame)
    pattern = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} DEBUG switch\.trace: packet 1(.*)")
    written = [pattern.fullmatch(line) for line in log.read_text().splitlines()]
    assert [one and one[1] for one in written] == [line.removeprefix("packet 3") for line in lines]


def test_every_match_kind_says_what_the_entry_wanted() -> None:
    lines: list[str] = []
    wide = 1 << 100
    with Pipeline(load_program(HERE / "matches.json"), traced=True) as pipeline:
        pipeline.set_trace(lines.append)
        masked = [(5, 7), (wide, 3 * wide)]
        pipeline.insert("Enter.ternary_table", masked, "Enter.masked", [3], 5)
        pipeline.insert("Enter.range_table", [(5, 7), 3, (0, 1000)], "Enter.within", [4], 6)
        pipeline.insert("Enter.lpm_table", [3, (wide, 28)], "Enter.longest", [5])
        query = (5).to_bytes(4, "big") + b"\0\x63" + wide.to_bytes(16, "big") + b"\0"
        pipeline.inject(1, query)
    tables = {line.split()[3]: line for line in lines if ": table " in line}
    hexed = f"{wide:#x}"
    assert tables["Enter.ternary_table"].endswith(
        f"[0x5 &&& 0x7, {hexed} &&& {3 * wide:#x}], priority 5: Enter.masked(v = 0x3)"
    )
    assert tables["Enter.range_table"].endswith(
        "[hdr.query.b = 0x6, hdr.query.c = 0x3, hdr.query.a = 0x5]: hits handle 0 "
        "[0x5..0x7, 0x3, 0x0..0x3e8], priority 6: Enter.within(v = 0x4)"
    )
    assert tables["Enter.lpm_table"].endswith(f"[0x3, {hexed}/28]: Enter.longest(v = 0x5)")
    assert tables["Enter.exact_table"].endswith("misses: Enter.exactly(v = 0xee)")


def test_every_copy_has_a_name_and_an_end() -> None:
    """Cloned, replicated, recirculated: each is traced until it has left or is dropped."""
    lines: list[str] = []
    with Pipeline(load_program(HERE / "blocks.json"), traced=True) as pipeline:
        pipeline.set_trace(lines.append)
        spread = ProfileState(pipeline, "Enter.spread")
        spread.set_member(0, "Enter.mark", [7])
        spread.set_group(1, [0])
        pipeline.insert("Enter.keys", [0], Reference(1, group=True))
        pipeline.set_multicast_group(1, [(port, port) for port in range(1, 4)])
        pipeline.set_clone_session(1, [(2, 1), (4, 2)])
        sent = pipeline.inject(5, bytes([1 | 2, 4, 2, 1, 1, 1, 0, 0]) + bytes(8) + bytes(200))
        pipeline.inject(5, bytes([1, 0, 2, 9, 1, 0, 0, 0]) + bytes(8))
    result = defaultdict(list)
    for line in lines:
        name, text = line.removeprefix("packet ").split(": ", 1)
        result[name].append(text)
    assert all(LAST.match(texts[-1]) for texts in result.values())
    assert all(not LAST.match(one) for texts in result.values() for one in texts[:-1])
    left = [texts[-1] for texts in result.values() if texts[-1].startswith("leaves")]
    assert len(left) == len(sent) > 6
    again = [one for texts in result.values() for one in texts if one.startswith("comes again")]
    assert again == ["comes again on port 5, 216 bytes"] * 2
    assert any("of its group: Enter.mark(member = 0x7)" in one for one in result["1.0"])
    assert result["2.0"][-1] == "is dropped: there is no group 9"


def test_a_table_may_have_any_name() -> None:
    """As P4's annotation @name gives: nothing of it becomes code."""
    name, lines = 'Route.r"};\\n#error %s%n \\ ??/ */\né', list[str]()
    text = (HERE / "router.json").read_text().replace('"Route.routes"', json.dumps(name))
    with Pipeline(parse_program(text.encode()), traced=True) as pipeline:
        pipeline.set_trace(lines.append)
        pipeline.insert(name, [(0x0A000000, 8)], "Route.forward", [3, 0x20003])
        frame = Ether() / IP(src="1.2.3.4", dst="10.7.0.9", ttl=9) / UDP(sport=1, dport=2)
        [(port, _)] = pipeline.inject(1, bytes(frame))
    assert port == 3
    assert any(line.startswith(f"packet 1.0: table {name} [hdr.ipv4") for line in lines)


def test_untraced_program_logs_nothing() -> None:
    with Pipeline(load_program(HERE / "router.json")) as pipeline:
        with pytest.raises(PipelineError, match="not compiled for tracing"):
            pipeline.set_trace(print)
        with pytest.raises(PipelineError, match="not compiled for tracing"):
            pipeline.trace_to(1)
        pipeline.set_trace(None)


def test_switch_log_has_packet_events() -> None:
    """-L trace, a program that is pushed, a packet-out to a port that there is not."""
    with running("embedded", "-L", "trace") as (process, address, log):
        with grpc.insecure_channel(address) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            asked: queue.Queue[p4rt.StreamMessageRequest] = queue.Queue()
            answers = stub.StreamChannel(iter(asked.get, None))
            asked.put(arbitration())
            next(answers)
            stub.SetForwardingPipelineConfig(config_request(pushed=config()))
            asked.put(
                p4rt.StreamMessageRequest(packet=packet_out(ethernet(9), egress_port=3, group=0))
            )
            asked.put(
                p4rt.StreamMessageRequest(
                    packet=packet_out(ethernet(9), egress_port=CPU_PORT, group=0)
                )
            )
            answer = next(answers)  # the second packet: the first is over
            assert answer.HasField("packet")
            answers.cancel()
        process.terminate()
        assert process.wait(60) == 0
        values = [line.split("switch.trace: ")[1] for line in log.read_text().splitlines()
                if " DEBUG switch.trace: " in line]  # fmt: skip
    first = [line for line in values if line.startswith("packet 1.0: ")]
    assert first[0].startswith(f"packet 1.0: arrives on port {CPU_PORT}, ")
    assert first[-1] == "packet 1.0: is dropped: port 3 does not exist, or its queue is full"
    assert re.fullmatch(rf"packet 2\.0: leaves port {CPU_PORT}, \d+ bytes", values[-1])
