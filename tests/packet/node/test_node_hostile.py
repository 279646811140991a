# SPDX-License-Identifier: GPL-2.0-only
"""Tests packets that a node rejects, on every target."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from controller.p4rt.entries import bare, deletion
from protocol.outcomes import Outcome
from tests.packet.node.node_rig import fill, lanes, two_workers

HOSTILE = {
    "a sender that is another's": (Outcome.NOT_A_CHILD, {"sender": 1}, {}),
    "an unknown sender": (Outcome.NOT_A_CHILD, {"sender": 9}, {}),
    "another source address": (Outcome.WRONG_SOURCE, {}, {"src": "10.0.0.9"}),
    "another number of workers": (Outcome.WRONG_WORKERS, {"workers": 2}, {}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_contribution_that_is_not_the_childs_is_dropped(target, counted, what) -> None:
    outcome, fields, addresses = HOSTILE[what]
    node = two_workers(target)
    packet = node.contribution(node.children[0], lanes(1), **fields)
    for name, value in addresses.items():
        setattr(packet[IP], name, value)
    assert node.send_to(1, packet) == []
    assert counted() == {outcome: 1}


@pytest.mark.parametrize("cut", [1, 512, 1024])
def test_truncated_payload_is_malformed(target, counted, cut) -> None:
    node = two_workers(target)
    frame = bytes(node.contribution(node.children[0], lanes(1)))
    assert target.exchange(1, [frame[:-cut]]) == []
    assert counted() == {Outcome.MALFORMED: 1}


def test_surplus_bytes_are_malformed(target, counted) -> None:
    node = two_workers(target)
    frame = bytes(node.contribution(node.children[0], None) / Raw(b"\0" * 600))
    assert target.exchange(1, [frame]) == []
    assert counted() == {Outcome.MALFORMED: 1}


@pytest.mark.parametrize(("layer", "right"), [(IP, 1084), (UDP, 1064)], ids=["IPv4", "UDP"])
@pytest.mark.parametrize("off", [-1024, -1, 1])
def test_lengths_that_disagree_are_malformed(target, counted, layer, right, off) -> None:
    node = two_workers(target)
    packet = node.contribution(node.children[0], lanes(1))
    packet[layer].len = right + off
    assert node.send(node.children[0], packet) == []
    assert counted() == {Outcome.MALFORMED: 1}


def test_no_answer_is_larger_than_the_packet_it_is_made_from(target, counted) -> None:
    """BMv2 aborts when a packet grows by more than 512 B; a hostile child must not make it."""
    node = two_workers(target)
    fill(node, lanes(1), lanes(2))
    assert node.send(node.children[0], node.contribution(node.children[0], None)) == []
    assert counted()[Outcome.MALFORMED] == 1


def test_result_for_a_child_whose_entry_is_gone_is_dropped(target, counted) -> None:
    """A job's entries are deleted while its packets are queued: none may leave half addressed."""
    node = two_workers(target)
    gone, kept = node.children
    node.send(gone, node.contribution(gone, lanes(1)))
    target.connection.write([deletion(bare(node.receiver(gone)))])
    output = node.send(kept, node.contribution(kept, lanes(2)))
    assert [port for port, _ in output] == [kept.port]
    assert node.send(gone, node.contribution(gone, lanes(1))) == []
    assert counted()[Outcome.REPLAYED] == 1
