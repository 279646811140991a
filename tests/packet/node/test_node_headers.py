# SPDX-License-Identifier: GPL-2.0-only
"""Tests the header-only build: the same state machine over chunks it never reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.p4rt.entries import bare, clone_session, deletion, insertion
from controller.p4rt.fabric import of_2_32
from protocol.header import Flag, Op, Phase
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.conftest import TARGETS
from tests.packet.node.node_rig import PARENT_PORT, Child, Node, inner, number, only, two_workers
from tests.packet.targets import Output, Target, opened

BARE = 14 + 20 + 8 + 32


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    yield from opened(request.param, "aggregation_headers")


def chunk(node: Node, child: Child, payload: bytes, **fields: object) -> Packet:
    result = {"lanes": 256, "checksum": 1000 + child.sender} | fields
    return node.contribution(child, None, **result) / Raw(payload)


def payload_of(child: Child, size: int) -> bytes:
    return bytes([0xA0 + child.sender]) * size


def fill(node: Node, size: int) -> Output:
    output: Output = []
    for child in node.children:
        output += node.send(child, chunk(node, child, payload_of(child, size)))
    return output


@pytest.mark.parametrize("size", [0, 1024, 8192])
def test_result_has_the_sums_header_and_the_last_packets_payload(target, counted, size) -> None:
    node = two_workers(target)
    output = fill(node, size)
    assert sorted(port for port, _ in output) == [1, 2]
    for _, frame in output:
        result = Ether(frame)[Aggregation]
        assert (result.op, result.workers, result.children) == (Op.RESULT, 2, 0b11)
        assert (result.lanes, result.checksum, result.exponent) == (256, 2001, 3)
        assert frame[BARE:] == payload_of(node.children[1], size)
        assert frame[16:18] == (len(frame) - 14).to_bytes(2, "big")
        assert frame[38:40] == (len(frame) - 34).to_bytes(2, "big")
    assert counted() == {Outcome.CLAIMED: 1, Outcome.ADDED: 1, Outcome.COMPLETED: 1}


def test_replay_has_the_payload_of_the_packet_that_asks(target, counted) -> None:
    node = two_workers(target)
    fill(node, 1024)
    asking = chunk(node, node.children[0], payload_of(node.children[0], 1024))
    port, packet = only(node.send(node.children[0], asking))
    assert (port, packet[Aggregation].op, packet[Aggregation].checksum) == (1, Op.RESULT, 2001)
    assert bytes(packet)[BARE:] == payload_of(node.children[0], 1024)
    assert counted()[Outcome.REPLAYED] == 1


def test_up_and_down_through_an_inner_node(target, counted) -> None:
    node = inner(target)
    port, packet = only(fill(node, 1024))
    assert (port, packet[Aggregation].op, packet[Aggregation].workers) == (
        PARENT_PORT,
        Op.CONTRIBUTE,
        4,
    )
    assert bytes(packet)[BARE:] == payload_of(node.children[1], 1024)
    retransmitted = chunk(node, node.children[0], payload_of(node.children[0], 1024))
    assert only(node.send(node.children[0], retransmitted))[0] == PARENT_PORT
    result = node.result(None, lanes=256, checksum=77) / Raw(b"\x55" * 1024)
    output = node.send_to(PARENT_PORT, result)
    assert sorted(port for port, _ in output) == [1, 2]
    for _, frame in output:
        assert Ether(frame)[Aggregation].checksum == 77
        assert frame[BARE:] == b"\x55" * 1024
    assert counted() == {
        Outcome.CLAIMED: 1,
        Outcome.ADDED: 1,
        Outcome.PARTIAL_SENT: 1,
        Outcome.RESENT: 1,
        Outcome.RESULT_DOWN: 1,
    }


def test_flagged_sum_travels_without_the_payload_that_it_met(target) -> None:
    """However it is copied: to all children, to one again, and twice by a link that duplicates."""
    node = two_workers(target)
    flagged = chunk(node, node.children[0], b"", flags=int(Flag.OVERFLOW))
    twice = [
        target.plane.p4info.table_entry(
            "departure.impairments",
            {"egress_port": 1},
            "departure.impair",
            {"seed": 1, "loss": 0, "duplicate": of_2_32(1.0), "reorder": 0, "corrupt": 0},
        ),
        clone_session(1, [(1, 1)]),
    ]
    target.connection.write([insertion(entity) for entity in twice])

    node.send(node.children[0], flagged)
    full = bytes(chunk(node, node.children[1], payload_of(node.children[1], 1024)))
    output = target.exchange(2, [full], lambda output: len(output) == 3)
    again = target.exchange(2, [full], lambda output: len(output) == 1)
    target.connection.write([deletion(bare(entity)) for entity in twice])
    assert sorted(port for port, _ in output + again) == [1, 1, 2, 2]
    for _, frame in output + again:
        assert len(frame) == BARE
        result = Ether(frame)[Aggregation]
        assert (result.op, result.flags, result.workers) == (Op.RESULT, Flag.OVERFLOW, 2)


def test_reordered_flagged_sum_is_cut_as_well(target) -> None:
    node = two_workers(target)
    late = target.plane.p4info.table_entry(
        "departure.impairments",
        {"egress_port": 1},
        "departure.impair",
        {"seed": 1, "loss": 0, "duplicate": 0, "reorder": of_2_32(1.0), "corrupt": 0},
    )
    target.connection.write([insertion(late)])
    flagged = chunk(node, node.children[0], b"", flags=int(Flag.NONFINITE))
    node.send(node.children[0], flagged)
    full = bytes(chunk(node, node.children[1], payload_of(node.children[1], 1024)))
    output = target.exchange(2, [full], lambda output: len(output) == 2)
    target.connection.write([deletion(bare(late))])
    assert sorted((port, len(frame)) for port, frame in output) == [(1, BARE), (2, BARE)]


def test_query_is_answered_without_payload(target, counted) -> None:
    node = inner(target)
    route = target.plane.p4info.table_entry(
        "forwarding.routes",
        {"destination": (0x0A000001, 32)},
        "forward",
        {"port": 1, "mac": 0x020000000100},
    )
    target.connection.write([insertion(route)])
    child = node.children[0]
    node.send(child, chunk(node, child, payload_of(child, 1024)))
    port, packet = only(node.send(child, node.query(child)))
    target.connection.write([deletion(bare(route))])
    state = packet[Aggregation]
    assert (port, state.op, state.children) == (1, Op.STATE, 0b01)
    assert int(state.flags) >> 4 == Phase.AGGREGATING
    assert counted() == {Outcome.CLAIMED: 1, Outcome.QUERY_ANSWERED: 1}


def test_lengths_that_disagree_are_malformed(target, counted) -> None:
    node = two_workers(target)
    child = node.children[0]
    whole = bytes(chunk(node, child, payload_of(child, 1024)))
    exponent_round = bytes(node.contribution(child, None))
    wrong = [whole[:-1], whole[:BARE], whole + b"\0", exponent_round + b"\0" * 1024]
    for layer in (IP, UDP):
        packet = chunk(node, child, payload_of(child, 1024))
        packet[layer].len = 1000
        wrong.append(bytes(packet))
    # Lengths that agree, of a payload that the header says is not there.
    wrong.append(bytes(node.contribution(child, None) / Raw(b"\0" * 1024)))
    assert target.exchange(1, wrong) == []
    assert counted() == {Outcome.MALFORMED: len(wrong)}


def test_packets_of_others_pass_uncut(target) -> None:
    """Port 47110 is another program's, and bytes follow the UDP data (options, RFC 9868)."""
    key = {"destination": (number("10.0.1.0"), 24)}
    entry = target.plane.p4info.table_entry(
        "forwarding.routes", key, "forward", {"port": PARENT_PORT, "mac": 0x0200000004AA}
    )
    target.connection.write([insertion(entry)])
    options = b"\x01" * 20
    packet = Ether() / IP(src="10.0.0.1", dst="10.0.1.1", len=20 + 8 + 32 + len(options))
    packet = packet / UDP(sport=47110, dport=53, len=8 + 32) / Raw(bytes(32) + options)
    output = target.exchange(1, [bytes(packet)])
    target.connection.write([deletion(bare(entry))])
    assert [(port, len(frame)) for port, frame in output] == [(PARENT_PORT, BARE + len(options))]
