# SPDX-License-Identifier: GPL-2.0-only
"""Tests queues of rate-limited ports: long queues mark packets, full ones drop, other ports are
unaffected."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.l2 import Ether

from controller.p4rt.entries import insertion
from protocol.frames import ipv4_checksum
from protocol.header import PORT, Flag, Op
from protocol.scapy_layer import Aggregation
from tests.namespaces import needs_namespaces
from tests.packet.node.node_rig import SWITCH_MAC, lanes, number
from tests.packet.targets import OnInterfaces, Output

pytestmark = needs_namespaces

SLOW, FAST = 5, 4
RATE = 100_000
CHUNK_BYTES = 1098
QUEUE_BYTES = 20 * CHUNK_BYTES
THRESHOLD = 6


@pytest.fixture(params=["open", "for marks"])
def switch(request: pytest.FixtureRequest) -> Iterator[OnInterfaces]:
    """Port 5 sends 100 kbit/s, a chunk in 88 ms, and holds 20 of them; the gate as after the push
    of the program, or as the controller sets it."""
    options = ("--port-rate", f"{SLOW}={RATE}", "--port-queue", f"{SLOW}={QUEUE_BYTES}")
    opened = OnInterfaces("aggregation", "embedded", *options)
    entry = opened.plane.p4info.table_entry
    entities = [
        entry("congestion.thresholds", {"egress_port": SLOW}, "mark_above", {"depth": THRESHOLD})
    ]
    for port in (SLOW, FAST):
        route = {"destination": (number(f"10.0.2.{port}"), 32)}
        entities.append(entry("forwarding.routes", route, "forward", {"port": port, "mac": 1}))
    if request.param == "for marks":
        needs = opened.plane.program.needs
        entities.append(needs(impaired=False, guarded=False, marked_above=THRESHOLD))
    opened.connection.write([insertion(entity) for entity in entities])
    yield opened
    opened.close()


def contributions(port: int, count: int) -> list[bytes]:
    header = Ether(dst=SWITCH_MAC) / IP(src="10.0.0.1", dst=f"10.0.2.{port}", tos=2)
    header /= UDP(sport=40000, dport=PORT)
    return [
        bytes(header / Aggregation(op=Op.CONTRIBUTE, job=60002, seq=i, values=lanes(i)))
        for i in range(count)
    ]


def count(output: Output, port: int) -> int:
    return sum(left_by == port for left_by, _ in output)


def test_a_long_queue_marks_and_a_full_one_drops(switch: OnInterfaces) -> None:
    def fast_is_through(output: Output) -> bool:
        return count(output, FAST) == 40

    # A burst that the slow port needs seconds for, then as much for the fast one.
    burst = contributions(SLOW, 40) + contributions(FAST, 40)
    begin = time.monotonic()
    output = switch.exchange(1, burst, fast_is_through)
    # What the slow port has sent at most while the burst came: nothing, but on a busy machine.
    left = int((time.monotonic() - begin) * RATE / (8 * CHUNK_BYTES))
    assert count(output, SLOW) < 20, "the fast port waited for the slow one"
    output += switch.exchange(1, [], lambda more: count(output + more, SLOW) >= 20)
    output += switch.exchange(1, [])  # now there is room for a marker, the last to come
    slow = [Ether(frame) for port, frame in output if port == SLOW]
    assert 20 <= len(slow) <= 22 + left, "its queue holds 20, and one or two were on their way"
    numbers = [packet[Aggregation].seq for packet in slow]
    assert numbers == sorted(numbers), "order is kept"
    kept = len(slow) - left
    assert numbers[:kept] == list(range(kept)), "the tail is dropped"
    marked = [bool(int(p[Aggregation].flags) & Flag.ECN) for p in slow]
    assert [p[IP].tos & 3 == 3 for p in slow] == marked
    first = marked.index(True)
    assert THRESHOLD < first + 1 <= THRESHOLD + 3 + left
    assert all(marked[first:])
    fast = [Ether(frame) for port, frame in output if port == FAST]
    assert not any(int(p[Aggregation].flags) for p in fast)


def test_congestion_mark_ignores_unaggregated_packets(switch: OnInterfaces) -> None:
    """DIRECT and BYPASS chunks get the IP mark and nothing else; nor do options suffer."""
    sent = []
    for i in range(15):
        ip = IP(src="10.0.0.1", dst=f"10.0.2.{SLOW}", tos=2)
        if i % 3 == 2:
            ip.options = [IPOption_Router_Alert()]
        flags = (Flag.DIRECT, Flag.BYPASS, 0)[i % 3]
        chunk = Aggregation(op=Op.CONTRIBUTE, job=60002, seq=i, flags=int(flags))
        chunk.setfieldval("floats" if flags == Flag.DIRECT else "values", [7] * 256)
        sent.append(Ether(dst=SWITCH_MAC) / ip / UDP(sport=40000, dport=PORT) / chunk)
    frames = [bytes(packet) for packet in sent]
    output = switch.exchange(1, frames, lambda output: count(output, SLOW) == len(frames))
    marked = set()
    for before, (_, after) in zip(frames, output, strict=True):
        header = 4 * (after[14] & 0x0F)
        assert ipv4_checksum(after[14 : 14 + header]) == 0
        assert after[14 + header :] == before[14 + header :]
        if after[15] & 3 == 3:
            marked.add((header, int(Ether(before)[UDP].payload.flags)))
    assert marked == {(20, Flag.DIRECT), (20, Flag.BYPASS), (24, 0)}
