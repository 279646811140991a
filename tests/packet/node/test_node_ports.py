# SPDX-License-Identifier: GPL-2.0-only
"""Tests that server processes sharing an address are distinguished by port, on every target."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from protocol.header import PORT, SERVER_PORTS, Op
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.node.node_rig import (
    OWN,
    PARENT_PORT,
    SERVER,
    Node,
    added,
    fill,
    inner,
    lanes,
    only,
    two_workers,
)


@pytest.mark.parametrize("port", [SERVER_PORTS[0], PORT + 1, SERVER_PORTS[-1]])
def test_results_come_from_the_process_that_chunks_went_to(target, port) -> None:
    node = two_workers(target, server_port=port)
    worker = node.children[0]
    results = fill(node, lanes(1), lanes(2))
    results += node.send(worker, node.contribution(worker, lanes(1)))  # replayed
    assert [Ether(frame)[Aggregation].op for _, frame in results] == [Op.RESULT] * 3
    for _, frame in results:
        packet = Ether(frame)
        assert (packet[IP].src, packet[UDP].sport) == (SERVER, port)


def send(node: Node, child: int, port: int, values: list[int], **fields: object):
    node.server_port = port
    return node.send(
        node.children[child], node.contribution(node.children[child], values, **fields)
    )


def test_chunks_of_two_processes_in_one_tree_are_not_confused(target, counted) -> None:
    node = two_workers(target)
    ports = (PORT, PORT + 1)
    for seq, port in enumerate(ports):
        assert send(node, 0, port, lanes(seq), seq=seq, chunk=seq) == []
    # The other worker's copies, each to the process that has not that chunk, and then to the right.
    for seq, port in enumerate(reversed(ports)):
        assert send(node, 1, port, lanes(9), seq=seq, chunk=seq) == []
    assert counted()[Outcome.OTHER_CHUNK] == 2
    for seq, port in enumerate(ports):
        results = [Ether(f) for _, f in send(node, 1, port, lanes(5), seq=seq, chunk=seq)]
        assert [packet[UDP].sport for packet in results] == [port, port]
        assert [packet[Aggregation].values for packet in results] == [
            added(lanes(seq), lanes(5))
        ] * 2


def test_a_sum_goes_up_to_its_process_whose_result_alone_is_taken(target, counted) -> None:
    node = inner(target, server_port=PORT + 3)
    up, packet = only(fill(node, lanes(1), lanes(2)))
    again = node.send(node.children[0], node.contribution(node.children[0], lanes(1)))
    for port, frame in [(up, packet), (again[0][0], Ether(again[0][1]))]:
        assert port == PARENT_PORT
        assert (frame[IP].src, frame[UDP].sport) == (OWN, PORT)
        assert (frame[IP].dst, frame[UDP].dport) == (SERVER, PORT + 3)
    node.server_port = PORT
    assert node.send_to(PARENT_PORT, node.result(lanes(3))) == []
    assert counted()[Outcome.RESULT_REJECTED] == 1
    node.server_port = PORT + 3
    output = node.send_to(PARENT_PORT, node.result(lanes(4)))
    assert sorted(port for port, _ in output) == [1, 2]
    for _, frame in output:
        assert Ether(frame)[UDP].sport == PORT + 3
        assert Ether(frame)[Aggregation].values == lanes(4)


def test_partial_node_forwards_query_to_process(target) -> None:
    node = inner(target, server_port=PORT + 3)
    fill(node, lanes(1), lanes(2))
    port, packet = only(node.send(node.children[0], node.query(node.children[0])))
    assert (port, packet[UDP].sport) == (PARENT_PORT, node.children[0].udp_port)
    assert (packet[IP].dst, packet[UDP].dport) == (SERVER, PORT + 3)


@pytest.mark.parametrize("port", [SERVER_PORTS[0] - 1, SERVER_PORTS[-1] + 1])
def test_packets_for_other_ports_are_not_summed(target, counted, port) -> None:
    node = two_workers(target)
    asked = node.contribution(node.children[0], lanes(1))
    # Whoever has a port of a server's range is parsed; the port that it sends to is no server's.
    asked[UDP].sport, asked[UDP].dport = PORT, port
    assert node.send(node.children[0], asked) == []
    assert counted() == {Outcome.MALFORMED: 1}
