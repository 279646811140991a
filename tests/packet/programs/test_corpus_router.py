# SPDX-License-Identifier: Apache-2.0
"""IPv4 forwarding: longest prefix, TTL, checksums (RFC 791, RFC 1071), counters."""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address, ip_network

import pytest

from switch.pipeline import EntryExists, EntryNotFound, Pipeline
from tests.p4 import corpus

ROUTES, FORWARD, REFUSED = "Route.routes", "Route.forward", "Route.refused"
PARSER, CHECKSUM, TTL, NO_ROUTE = range(4)
HOP = 0x020000000100


@pytest.fixture
def router() -> Pipeline:
    return corpus("router")


def checksum(header: bytes) -> int:
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def packet(destination: str, ttl: int = 64, payload: bytes = b"data", first: int = 0x45) -> bytes:
    fields = [first, 3, 20 + len(payload), 0xBEEF, 0x4000, ttl, 17, 0,
              ip_address("10.9.8.7").packed, ip_address(destination).packed]  # fmt: skip
    header = struct.pack(">BBHHHBBH4s4s", *fields)
    header = header[:10] + struct.pack(">H", checksum(header)) + header[12:]
    return bytes.fromhex("0200000000aa0200000000bb0800") + header + payload


def add(router: Pipeline, network: str, port: int) -> int:
    net = ip_network(network)
    key = [(int(net.network_address), net.prefixlen)]
    return router.insert(ROUTES, key, FORWARD, [port, HOP + port])


def test_forwarded_packet(router: Pipeline) -> None:
    add(router, "192.168.0.0/16", 4)
    sent = packet("192.168.7.7")
    [(port, out)] = router.inject(1, sent)
    assert port == 4
    assert out[:12] == (HOP + 4).to_bytes(6, "big") + sent[:6]
    assert out[22] == 63
    assert checksum(out[14:34]) == 0
    assert out[14:22] + out[26:] == sent[14:22] + sent[26:]


def test_longest_prefix_wins_as_in_a_search_of_all(router: Pipeline) -> None:
    rng = random.Random(5)
    networks = {"0.0.0.0/0": 1}
    while len(networks) < 200:
        length = rng.choice([4, 8, 9, 12, 16, 17, 20, 24, 28, 31, 32])
        address = rng.getrandbits(32) >> (32 - length) << (32 - length)
        networks[f"{ip_address(address)}/{length}"] = 1 + len(networks) % 500
    for network, port in networks.items():
        add(router, network, port)
    nets = {ip_network(network): port for network, port in networks.items()}
    for _ in range(300):
        base = rng.choice(list(nets))
        low = rng.getrandbits(32 - base.prefixlen) if base.prefixlen < 32 else 0
        address = ip_address(int(base.network_address) | low)
        best = max((net for net in nets if address in net), key=lambda net: net.prefixlen)
        assert [port for port, _ in router.inject(1, packet(str(address)))] == [nets[best]]


def test_refusals_are_counted_and_dropped(router: Pipeline) -> None:
    add(router, "10.0.0.0/8", 2)
    damaged = bytearray(packet("10.0.0.1"))
    damaged[20] ^= 1
    for frame, cell in (
        (bytes(damaged), CHECKSUM),
        (packet("10.0.0.1", ttl=1), TTL),
        (packet("11.0.0.1"), NO_ROUTE),
        (packet("10.0.0.1", first=0x46), PARSER),
        (packet("10.0.0.1")[:33], PARSER),
        (packet("10.0.0.1")[:13], PARSER),
    ):
        before = router.counter(REFUSED, cell)[0]
        assert router.inject(1, frame) == []
        assert router.counter(REFUSED, cell)[0] == before + 1
    assert router.inject(1, packet("10.0.0.1")) != []


def test_direct_counters_count_what_hits(router: Pipeline) -> None:
    handle = add(router, "10.0.0.0/8", 2)
    other = add(router, "10.1.0.0/16", 3)
    sizes = [len(router.inject(1, packet("10.0.0.1", payload=bytes(n)))[0][1]) for n in (0, 9)]
    router.inject(1, packet("77.0.0.1"))
    assert router.direct_counter(ROUTES, handle) == (2, sum(sizes))
    assert router.direct_counter(ROUTES, other) == (0, 0)
    assert router.direct_counter(ROUTES, None) == (0, 0)
    router.set_direct_counter(ROUTES, handle, 100, 7)
    router.inject(1, packet("10.0.0.1", payload=b""))
    assert router.direct_counter(ROUTES, handle) == (101, 7 + sizes[0])


def test_entries_change_and_go(router: Pipeline) -> None:
    handle = add(router, "10.0.0.0/8", 2)
    with pytest.raises(EntryExists):
        add(router, "10.0.0.0/8", 3)
    router.modify(ROUTES, handle, FORWARD, [9, HOP])
    assert [port for port, _ in router.inject(1, packet("10.2.0.1"))] == [9]
    router.delete(ROUTES, handle)
    assert router.inject(1, packet("10.2.0.1")) == []
    with pytest.raises(EntryNotFound):
        router.delete(ROUTES, handle)
    replacement = add(router, "10.0.0.0/8", 3)
    assert replacement != handle
    with pytest.raises(EntryNotFound):
        router.modify(ROUTES, handle, FORWARD, [9, HOP])
    router.set_default(ROUTES, FORWARD, [8, HOP])
    assert [port for port, _ in router.inject(1, packet("99.0.0.1"))] == [8]
    router.set_default(ROUTES, None)
    assert router.inject(1, packet("99.0.0.1")) == []
