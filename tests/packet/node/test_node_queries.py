# SPDX-License-Identifier: GPL-2.0-only
"""Tests QUERY and STATE at a switch, on every target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet

from controller.p4rt.entries import bare, deletion, insertion
from protocol.header import PORT, Op, Phase
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.node.node_rig import (
    PARENT_PORT,
    SERVER,
    Node,
    fill,
    inner,
    lanes,
    number,
    only,
    two_workers,
)
from tests.packet.targets import Target


@pytest.fixture(autouse=True)
def route(target: Target) -> Iterator[None]:
    entry = target.plane.p4info.table_entry
    to_worker = entry(
        "forwarding.routes",
        {"destination": (number("10.0.0.1"), 32)},
        "forward",
        {"port": 1, "mac": 0x020000000100},
    )
    target.connection.write([insertion(to_worker)])
    yield
    target.connection.write([deletion(bare(to_worker))])


def test_unknown_chunk(target, counted) -> None:
    node = two_workers(target)
    port, packet = only(node.send(node.children[0], node.query(node.children[0], seq=3)))
    state = packet[Aggregation]
    assert (port, state.op, state.children) == (1, Op.STATE, 0)
    assert int(state.flags) >> 4 == Phase.AGGREGATING
    assert (packet[IP].src, packet[IP].dst) == (SERVER, "10.0.0.1")
    assert (packet[UDP].sport, packet[UDP].dport) == (PORT, 40000)
    assert (state.node, state.sender, state.seq) == (node.node, 0, 3)
    assert counted() == {Outcome.QUERY_ANSWERED: 1}


def test_the_answer_comes_from_the_process_that_was_asked(target) -> None:
    node = two_workers(target, server_port=PORT + 9)
    _, packet = only(node.send(node.children[0], node.query(node.children[0])))
    assert (packet[IP].src, packet[UDP].sport) == (SERVER, PORT + 9)


def test_children_so_far(target) -> None:
    node = two_workers(target)
    node.send(node.children[1], node.contribution(node.children[1], lanes(1)))
    _, packet = only(node.send(node.children[0], node.query(node.children[0])))
    assert packet[Aggregation].children == 0b10


def test_final(target) -> None:
    node = two_workers(target)
    fill(node, lanes(1), lanes(2))
    _, packet = only(node.send(node.children[0], node.query(node.children[0])))
    assert int(packet[Aggregation].flags) >> 4 == Phase.FINAL
    assert packet[IP].len == 60


def test_partial_asks_the_parent_for_the_worker(target, counted) -> None:
    node = inner(target)
    fill(node, lanes(1), lanes(2))
    port, packet = only(node.send(node.children[0], node.query(node.children[0])))
    asked = packet[Aggregation]
    assert (port, asked.op) == (PARENT_PORT, Op.QUERY)
    assert (asked.node, asked.sender, asked.workers) == (node.parent, node.sender, 4)
    assert (packet[IP].src, packet[UDP].sport) == ("10.0.0.1", 40000)
    assert packet[IP].ttl == 255
    assert counted()[Outcome.QUERY_PASSED_UP] == 1


def passed_up(node: Node, ttl: int) -> Packet:
    """A QUERY from a switch below, in the name of a worker."""
    query = node.query(node.children[1])
    query[IP].src, query[IP].ttl, query[UDP].sport = "10.0.0.1", ttl, 40000
    return query


def test_passed_up_query_keeps_the_workers_source(target) -> None:
    node = inner(target)
    port, packet = only(node.send(node.children[1], passed_up(node, ttl=255)))
    assert (port, packet[Aggregation].op) == (1, Op.STATE)


def test_query_that_the_switch_below_only_forwarded_is_refused(target, counted) -> None:
    """A host beyond it wrote that, with a TTL of 255 at the most, and it has lost one since."""
    node = inner(target)
    assert node.send(node.children[1], passed_up(node, ttl=254)) == []
    assert counted() == {Outcome.WRONG_SOURCE: 1}


@pytest.mark.parametrize("ttl", [64, 255])
def test_query_in_a_workers_name_comes_from_its_address_only(target, counted, ttl) -> None:
    node = two_workers(target)
    query = node.query(node.children[1])
    query[IP].src, query[IP].ttl = "10.0.0.1", ttl
    assert node.send(node.children[1], query) == []
    assert counted() == {Outcome.WRONG_SOURCE: 1}


def test_stale(target, counted) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=8))
    assert node.send(node.children[0], node.query(node.children[0], seq=0)) == []
    assert counted()[Outcome.QUERY_STALE] == 1


def test_another_chunk_under_the_same_number_is_stale(target, counted) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), chunk=1))
    assert node.send(node.children[0], node.query(node.children[0], chunk=2)) == []
    assert counted()[Outcome.QUERY_STALE] == 1


def test_query_ignores_slot_of_other_epoch(target) -> None:
    old = two_workers(target)
    fill(old, lanes(1), lanes(2))
    new = two_workers(target, base=old.base, job=old.job, epoch=old.epoch + 1)
    _, packet = only(new.send(new.children[0], new.query(new.children[0])))
    state = packet[Aggregation]
    assert (int(state.flags) >> 4, state.children) == (Phase.AGGREGATING, 0)
