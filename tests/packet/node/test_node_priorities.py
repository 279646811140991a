# SPDX-License-Identifier: GPL-2.0-only
"""Tests that ports serve packets by the priority that their stream's number says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.p4rt.entries import insertion
from protocol.header import Flag
from protocol.priorities import CLASSED, stream_number
from protocol.scapy_layer import Aggregation
from tests.namespaces import needs_namespaces
from tests.packet.conftest import TARGETS
from tests.packet.node.node_rig import (
    PARENT_PORT,
    SERVER_PORT,
    Node,
    fill,
    inner,
    lanes,
    number,
    two_workers,
)
from tests.packet.targets import THRIFT_PORT, OnInterfaces, Output, Target, opened
from tests.packet.thrift import set_queue_rates

QUEUES = 6  # packets of priority 6 and 7 are dropped
HELD, BEYOND = stream_number(QUEUES - 1, 3), stream_number(QUEUES, 3)


@pytest.fixture(scope="module", params=TARGETS)
def switch(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A switch with six queues for each port, so that dropping tells a packet's priority."""
    for target in opened(request.param, queues=QUEUES):
        entry = target.plane.p4info.table_entry
        routes = [("10.0.0.1", 1), ("10.0.1.1", SERVER_PORT)]
        target.connection.write([
            insertion(
                entry(
                    "forwarding.routes", {"destination": (number(to), 32)}, "forward",
                    {"port": port, "mac": 0x020000000100},
                )
            )
            for to, port in routes
        ])  # fmt: skip
        yield target


def of_a_root(switch: Target, stream: int) -> dict[str, Output]:
    """What leaves a node without a parent, by what it is."""
    node = two_workers(switch, stream=stream)
    first = node.children[0]
    return {
        "a state": node.send(first, node.query(first)),
        "results": fill(node, lanes(1), lanes(2)),
        "a replay": node.send(first, node.contribution(first, lanes(1))),
        "results without payload": fill(node, None, None, seq=1),
    }


def of_an_inner_node(switch: Target, stream: int) -> dict[str, Output]:
    node = inner(switch, stream=stream)
    first = node.children[0]
    return {
        "a partial sum": fill(node, lanes(1), lanes(2)),
        "a partial sum again": node.send(first, node.contribution(first, lanes(1))),
        "a query passed up": node.send(first, node.query(first)),
        "results": node.send_to(PARENT_PORT, node.result(lanes(3))),
    }


def of_no_node(switch: Target, stream: int) -> dict[str, Output]:
    """Of a job that has no node here."""
    node = Node(switch, [], is_root=True, stream=stream)
    worker = two_workers(switch).children[0]
    node.job = 60001

    def routed(**fields: object) -> Output:
        return node.send(worker, node.contribution(worker, lanes(1), **fields))

    return {
        "a contribution": routed(),
        "a DIRECT one": routed(flags=int(Flag.DIRECT)),
        "a BYPASS one": routed(flags=int(Flag.BYPASS)),
        "a query": node.send(worker, node.query(worker)),
        "an unknown operation": routed(op=9),
    }


KINDS = [of_a_root, of_an_inner_node, of_no_node]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_stream_makes_leave_has_its_priority(
    switch: Target, kind: Callable[[Target, int], dict[str, Output]]
) -> None:
    usual, last, held, beyond = (
        {what: len(output) for what, output in kind(switch, stream).items()}
        for stream in (0, CLASSED - 1, HELD, BEYOND)
    )
    assert min(usual.values()) > 0
    assert last == held == usual
    assert beyond == dict.fromkeys(usual, 0)


def test_other_packets_have_no_priority(switch: Target) -> None:
    """Bytes where a stream's number would be, of another version or of another port."""
    node = two_workers(switch)
    child = node.children[0]
    other_version = node.contribution(child, lanes(1), stream=255)
    other_version[Aggregation].version = 2
    others = [other_version, plain(node, bytes([255] * 64)), plain(node, b"")]
    for packet in others:
        output = node.send(child, packet)
        assert [port for port, _ in output] == [SERVER_PORT]


def plain(node: Node, data: bytes) -> Packet:
    return node.packet("10.0.0.1", 9, "10.0.1.1", 9) / Raw(data)


SECONDS_PER_PACKET = 0.05
LAZY = 16


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=needs_namespaces),
        pytest.param("bmv2", marks=[needs_namespaces, pytest.mark.bmv2]),
    ]
)
def slow(request: pytest.FixtureRequest) -> Iterator[OnInterfaces]:
    """A switch that sends 20 chunks a second up."""
    rate = round(8 * 1098 / SECONDS_PER_PACKET)
    options = ["--port-rate", f"{PARENT_PORT}={rate}"] if request.param == "embedded" else []
    target = OnInterfaces("aggregation", request.param, *options)
    if request.param == "bmv2":
        with target.inside():
            set_queue_rates(THRIFT_PORT, round(1 / SECONDS_PER_PACKET))
    yield target
    target.close()


def test_an_urgent_sum_overtakes_lazy_ones_that_wait_for_a_port(slow: OnInterfaces) -> None:
    lazy, urgent = (
        inner(slow, stream=stream_number(priority, 0), window=LAZY) for priority in (0, 7)
    )
    numbers = [(lazy, seq) for seq in range(LAZY)] + [(urgent, 0)]

    def sent_by(child: int) -> tuple[int, list[bytes]]:
        port = lazy.children[child].port
        return port, [
            bytes(node.contribution(node.children[child], lanes(seq), seq=seq))
            for node, seq in numbers
        ]

    assert slow.exchange(*sent_by(0)) == []
    # These complete the sums, the urgent one as the last, when few of them can have left.
    up = slow.exchange(*sent_by(1), lambda output: len(output) == len(numbers))
    packets = [Ether(frame)[Aggregation] for _, frame in up]
    assert {port for port, _ in up} == {PARENT_PORT}
    assert [packet.job for packet in packets].index(urgent.job) < LAZY / 2
    assert [packet.seq for packet in packets if packet.job == lazy.job] == list(range(LAZY))
