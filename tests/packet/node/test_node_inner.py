# SPDX-License-Identifier: GPL-2.0-only
"""Tests an inner switch: sums up, results down, on every target."""

from __future__ import annotations

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from protocol.header import PORT, Flag, Op
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.node.node_rig import (
    OWN,
    PARENT_PORT,
    SERVER,
    added,
    fill,
    inner,
    lanes,
    mac,
    only,
)


def test_inner_node_sends_its_sum_up_as_one_child(target, counted) -> None:
    node = inner(target)
    port, packet = only(fill(node, lanes(1), lanes(2), chunk=4, seq=1))
    sum_up = packet[Aggregation]
    assert port == PARENT_PORT
    assert sum_up.op == Op.CONTRIBUTE
    assert sum_up.values == added(lanes(1), lanes(2))
    assert (sum_up.node, sum_up.sender, sum_up.workers) == (node.parent, node.sender, 4)
    assert (packet[IP].src, packet[IP].dst, packet[UDP].dport) == (OWN, SERVER, PORT)
    assert packet.dst == mac(0x020000000555)
    assert counted()[Outcome.PARTIAL_SENT] == 1


def test_contribution_to_a_partial_sum_sends_it_up_again(target, counted) -> None:
    node = inner(target)
    fill(node, lanes(1), lanes(2))
    port, packet = only(node.send(node.children[0], node.contribution(node.children[0], lanes(1))))
    assert port == PARENT_PORT
    assert packet[Aggregation].values == added(lanes(1), lanes(2))
    assert counted()[Outcome.RESENT] == 1


def test_parents_result_goes_to_all_children_and_is_kept(target, counted) -> None:
    node = inner(target)
    fill(node, lanes(1), lanes(2))
    output = node.send_to(PARENT_PORT, node.result(lanes(3)))
    assert sorted(port for port, _ in output) == [1, 2]
    by_port = {port: Ether(frame) for port, frame in output}
    assert by_port[1][Aggregation].values == lanes(3)
    assert by_port[1][Aggregation].workers == 8
    assert by_port[2][IP].dst == "10.255.1.2"
    assert by_port[2][Aggregation].node == 31
    assert by_port[2][UDP].dport == PORT
    _, packet = only(node.send(node.children[0], node.contribution(node.children[0], lanes(1))))
    assert packet[Aggregation].values == lanes(3)
    assert node.send_to(PARENT_PORT, node.result(lanes(4))) == []
    assert counted()[Outcome.RESULT_UNEXPECTED] == 1


def test_children_get_what_the_parents_result_says_and_get_it_again(target) -> None:
    node = inner(target)
    fill(node, lanes(1), lanes(2))
    result = {
        "flags": int(Flag.ECN),
        "workers": 8,
        "exponent": 9,
        "max_exponent": 33,
        "lanes": 200,
        "checksum": 0x12345678,
    }
    passed_on = node.send_to(PARENT_PORT, node.result(lanes(3), **result))
    replayed = node.send(node.children[0], node.contribution(node.children[0], lanes(1)))
    assert [port for port, _ in passed_on + replayed] in ([1, 2, 1], [2, 1, 1])
    for _, frame in passed_on + replayed:
        got = Ether(frame)[Aggregation]
        assert {name: getattr(got, name) for name in result} == result
        assert got.values == lanes(3)


def test_result_of_another_epoch_is_not_the_slots(target, counted) -> None:
    node = inner(target)
    fill(node, lanes(1), lanes(2))
    later = inner(target, base=node.base, job=node.job, epoch=node.epoch + 1)
    assert later.send_to(PARENT_PORT, later.result(lanes(3))) == []
    assert counted()[Outcome.RESULT_UNEXPECTED] == 1


def test_results_from_elsewhere_are_refused(target, counted) -> None:
    node = inner(target)
    fill(node, lanes(1), lanes(2))
    assert node.send_to(3, node.result(lanes(3))) == []
    forged = node.result(lanes(3))
    forged[IP].src = "10.0.0.1"
    assert node.send_to(PARENT_PORT, forged) == []
    early = node.result(lanes(3), seq=1)
    assert node.send_to(PARENT_PORT, early) == []
    refused = counted()
    assert refused[Outcome.RESULT_REJECTED] >= 2
    assert refused[Outcome.RESULT_REJECTED] + refused.get(Outcome.RESULT_UNEXPECTED, 0) == 3
