# SPDX-License-Identifier: GPL-2.0-only
"""Tests plain forwarding of packets for no node, on every target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.l2 import Ether

from controller.p4rt.entries import bare, deletion, insertion
from protocol.frames import ipv4_checksum
from protocol.header import Flag
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.node.node_rig import (
    LANES,
    SERVER,
    SERVER_PORT,
    SWITCH_MAC,
    lanes,
    number,
    only,
    two_workers,
)
from tests.packet.targets import Target


@pytest.fixture
def route_to_server(target: Target) -> Iterator[None]:
    entry = target.plane.p4info.table_entry(
        "forwarding.routes",
        {"destination": (number("10.0.1.0"), 24)},
        "forward",
        {"port": SERVER_PORT, "mac": 0x0200000004AA},
    )
    target.connection.write([insertion(entry)])
    yield
    target.connection.write([deletion(bare(entry))])


@pytest.mark.usefixtures("route_to_server")
class TestForwarding:
    """What no node here takes is routed like any packet."""

    @pytest.mark.parametrize(
        "fields",
        [
            {"node": 12},
            {"epoch": 6},
            {"stream": 2},
            {"job": 60000},
            {"flags": int(Flag.BYPASS)},
            {"version": 2},
        ],
        ids=str,
    )
    def test_packet_without_an_entry_passes_unchanged(self, target, fields) -> None:
        node = two_workers(target)
        sent = node.contribution(node.children[0], lanes(1), **fields)
        port, packet = only(node.send(node.children[0], sent))
        assert port == SERVER_PORT
        assert packet.dst == "02:00:00:00:04:aa"
        assert bytes(packet[UDP]) == bytes(sent[UDP])
        assert packet[IP].ttl == 63

    def test_direct_chunks_pass_untouched_both_ways(self, target) -> None:
        node = two_workers(target)
        floats = [1.5] * LANES
        sent = node.contribution(node.children[0], None, flags=int(Flag.DIRECT), lanes=LANES)
        sent[Aggregation].floats = floats
        port, packet = only(node.send(node.children[0], sent))
        assert (port, packet[Aggregation].floats) == (SERVER_PORT, floats)

    def test_checksum_is_kept_right(self, target) -> None:
        frame = Ether(dst=SWITCH_MAC) / IP(src="10.0.0.3", dst=SERVER, ttl=9) / UDP() / b"hello"
        port, packet = only(target.exchange(3, [bytes(frame)]))
        assert (port, packet[IP].ttl) == (SERVER_PORT, 8)
        assert ipv4_checksum(bytes(packet)[14:34]) == 0

    def test_options_pass_and_the_checksum_is_kept_right(self, target) -> None:
        """Checksums around each carry of the incremental update (RFC 1624)."""
        checksums = [0x0000, 0x0001, 0x00FF, 0x0100, 0x0101, 0x1234, 0xFEFE, 0xFEFF, 0xFF00, 0xFFFE]
        ip = IP(src="10.0.0.3", dst=SERVER, ttl=9, id=0, options=[IPOption_Router_Alert()])
        plain = IP(bytes(ip / UDP() / b"hello")).chksum
        frames = []
        for checksum in checksums:
            ip.id = (plain - checksum) % 0xFFFF
            ip.chksum = checksum
            frames.append(bytes(Ether(dst=SWITCH_MAC) / ip / UDP() / b"hello"))
            assert ipv4_checksum(frames[-1][14:38]) == 0
        output = target.exchange(3, frames)
        assert [port for port, _ in output] == [SERVER_PORT] * len(checksums)
        for sent, (_, got) in zip(frames, output, strict=True):
            assert ipv4_checksum(got[14:38]) == 0
            assert got[22] == 8
            assert (got[14:22], got[26:]) == (sent[14:22], sent[26:])

    def test_a_wrong_checksum_of_a_header_with_options_stays_wrong(self, target) -> None:
        ip = IP(src="10.0.0.3", dst=SERVER, ttl=9, options=[IPOption_Router_Alert()], chksum=0x1234)
        _, packet = only(target.exchange(3, [bytes(Ether(dst=SWITCH_MAC) / ip / UDP() / b"x")]))
        assert ipv4_checksum(bytes(packet)[14:38]) != 0

    @pytest.mark.parametrize(
        ("outcome", "changes"),
        [
            (Outcome.TTL_EXPIRED, {"ttl": 1}),
            (Outcome.NO_ROUTE, {"dst": "10.7.7.7"}),
            (Outcome.BAD_IPV4_CHECKSUM, {"chksum": 0x1234}),
            (Outcome.NOT_IPV4, {"version": 6}),
            (Outcome.NOT_IPV4, {"ihl": 4}),
        ],
    )
    def test_unroutable_packets_are_counted(self, target, counted, outcome, changes) -> None:
        ip = IP(**({"src": "10.0.0.3", "dst": SERVER} | changes))
        assert target.exchange(3, [bytes(Ether(dst=SWITCH_MAC) / ip / UDP() / b"x")]) == []
        assert counted() == {outcome: 1}

    def test_edge_port_takes_only_its_hosts_addresses(self, target, counted) -> None:
        entry = target.plane.p4info.table_entry
        allowed = {"ingress_port": 3, "source": (number("10.0.0.3"), 32)}
        others = {"ingress_port": 3, "source": (0, 0)}
        guard = [
            entry("source_guard.sources", allowed, "permit"),
            entry("source_guard.sources", others, "deny"),
        ]
        target.connection.write([insertion(entity) for entity in guard])
        own = Ether(dst=SWITCH_MAC) / IP(src="10.0.0.3", dst=SERVER) / UDP() / b"x"
        spoofed = Ether(dst=SWITCH_MAC) / IP(src="10.0.0.4", dst=SERVER) / UDP() / b"x"
        frames = [bytes(spoofed), bytes(own)]
        port, packet = only(target.exchange(3, frames, complete=lambda output: bool(output)))
        assert (port, packet[IP].src) == (SERVER_PORT, "10.0.0.3")
        assert counted() == {Outcome.SPOOFED_SOURCE: 1}
        target.connection.write([deletion(bare(entity)) for entity in guard])
