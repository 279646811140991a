# SPDX-License-Identifier: GPL-2.0-only
"""One switch as a node of an aggregation tree, packet by packet, on every target."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.entries import (
    Entity,
    bare,
    clone_session,
    deletion,
    insertion,
    multicast_group,
)
from controller.fabric import of_2_32
from protocol.frames import ipv4_checksum
from protocol.header import PORT, Flag, Op, Phase
from protocol.outcomes import Impaired, Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.targets import Output, Target

pytestmark = pytest.mark.packet

LANES = 256
SERVER = "10.0.1.1"
SWITCH_MAC = "02:00:00:00:00:99"
OWN = "10.255.0.1"
PARENT_PORT = 5
SERVER_PORT = 4
JOBS = itertools.count(1)


def number(address: str) -> int:
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


def mac(value: int) -> str:
    return ":".join(f"{octet:02x}" for octet in value.to_bytes(6, "big"))


@dataclass
class Child:
    """A worker on port sender + 1, or a switch there with several workers below."""

    sender: int
    workers: int = 1
    is_switch: bool = False

    @property
    def port(self) -> int:
        return self.sender + 1

    @property
    def address(self) -> str:
        return f"10.255.1.{self.port}" if self.is_switch else f"10.0.0.{self.port}"

    @property
    def udp_port(self) -> int:
        return PORT if self.is_switch else 40000 + self.sender

    @property
    def mac(self) -> int:
        return 0x020000000100 + self.sender


@dataclass
class Node:
    """The switch under test as one node, and packets from its neighbours."""

    target: Target
    children: list[Child]
    is_root: bool
    window: int = 4
    job: int = field(default_factory=lambda: next(JOBS))
    epoch: int = 7
    stream: int = 3
    node: int = 11
    parent: int = 21
    sender: int = 2

    def __post_init__(self) -> None:
        entry = self.target.plane.p4info.table_entry
        base = {"job": self.job, "epoch": self.epoch, "stream": self.stream}
        entities = [multicast_group(self.job, [(c.port, c.sender + 1) for c in self.children])]
        for c in self.children:
            key = {**base, "node": self.node, "sender": c.sender, "ingress_port": c.port}
            values = {"source": number(c.address), "workers": c.workers}
            kind = "subtree" if c.is_switch else "worker"
            entities.append(entry("aggregation.children", key, kind, values))
            values = {"destination": number(c.address), "udp_port": c.udp_port, "mac": c.mac}
            values["node"] = 30 + c.sender if c.is_switch else 0
            key = {**base, "child": c.sender}
            entities.append(entry("receivers.children", key, "address", values))
        values = {
            "base": 2 * self.window * self.job,
            "mask": 2 * self.window - 1,
            "full": (1 << len(self.children)) - 1,
            "group": self.job,
        }
        if not self.is_root:
            values |= {"parent_port": PARENT_PORT, "parent_mac": 0x020000000555}
            values |= {"parent": self.parent, "sender": self.sender, "address": number(OWN)}
        key = {**base, "node": self.node}
        self.install(*entities)
        action = "root" if self.is_root else "inner"
        self.install(entry("aggregation.nodes", key, action, values))

    def install(self, *entities: Entity) -> None:
        self.target.connection.write([insertion(entity) for entity in entities])

    def packet(self, source: str, sport: int, destination: str, dport: int) -> Packet:
        ether = Ether(dst=SWITCH_MAC, src="02:00:00:00:00:01")
        ip = IP(src=source, dst=destination, ttl=64)
        return ether / ip / UDP(sport=sport, dport=dport, chksum=0)

    def contribution(self, child: Child, values: list[int] | None, **fields: object) -> Packet:
        fields = {
            "op": Op.CONTRIBUTE,
            "job": self.job,
            "epoch": self.epoch,
            "stream": self.stream,
            "sender": child.sender,
            "node": self.node,
            "workers": child.workers,
            "exponent": 3,
            "max_exponent": -5,
        } | fields
        if values is not None:
            fields["values"] = values
        else:
            fields.setdefault("lanes", 0)
        header = self.packet(child.address, child.udp_port, SERVER, PORT)
        return header / Aggregation(**fields)

    def query(self, child: Child, **fields: object) -> Packet:
        return self.contribution(child, None, **({"op": Op.QUERY, "lanes": LANES} | fields))

    def result(self, values: list[int] | None, **fields: object) -> Packet:
        """The parent's result for this node."""
        total = 2 * sum(c.workers for c in self.children)
        fields = {"op": Op.RESULT, "sender": self.sender, "workers": total} | fields
        packet = self.contribution(self.children[0], values, **fields)
        packet[IP].src, packet[IP].dst = SERVER, OWN
        packet[UDP].sport, packet[UDP].dport = PORT, PORT
        return packet

    def send(self, child: Child, *packets: Packet) -> Output:
        return self.send_to(child.port, *packets)

    def send_to(self, port: int, *packets: Packet) -> Output:
        return self.target.exchange(port, [bytes(packet) for packet in packets])


def outcomes(target: Target) -> dict[Outcome, int]:
    cells = target.connection.read([target.plane.p4info.counter_entry("outcomes")])
    return {
        Outcome(cell.counter_entry.index.index): cell.counter_entry.data.packet_count
        for cell in cells
        if cell.counter_entry.index.index in set(Outcome)
    }


@pytest.fixture
def counted(target: Target) -> Callable[[], dict[Outcome, int]]:
    """What was counted since the test began, but for forwarded markers; zeros left out."""
    before = outcomes(target)

    def since() -> dict[Outcome, int]:
        now = outcomes(target)
        return {
            outcome: now[outcome] - before[outcome]
            for outcome in Outcome
            if now[outcome] != before[outcome] and outcome != Outcome.FORWARDED
        }

    return since


def lanes(seed: int, largest: int = 2**20) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(-largest, largest) for _ in range(LANES)]


def added(*contributions: list[int]) -> list[int]:
    return [sum(column) for column in zip(*contributions, strict=True)]


def only(output: Output) -> tuple[int, Packet]:
    assert len(output) == 1, [port for port, _ in output]
    port, frame = output[0]
    return port, Ether(frame)


def checksum_holds(packet: Packet) -> bool:
    """The receiver's check: payload and hashes of all workers, recomputed by the scapy layer."""
    rebuilt = packet[Aggregation].copy()
    told, rebuilt.checksum = rebuilt.checksum, None
    return bool(Aggregation(bytes(rebuilt)).checksum == told)


def two_workers(target: Target, **options: int) -> Node:
    return Node(target, [Child(0), Child(1)], is_root=True, **options)


def test_root_sums_and_answers_every_worker(target, counted) -> None:
    node = two_workers(target)
    a, b = lanes(1), lanes(2)
    assert node.send(node.children[0], node.contribution(node.children[0], a, chunk=9)) == []
    output = node.send(
        node.children[1], node.contribution(node.children[1], b, chunk=9, max_exponent=4)
    )
    assert sorted(port for port, _ in output) == [1, 2]
    for port, frame in output:
        packet, child = Ether(frame), node.children[port - 1]
        result = packet[Aggregation]
        assert result.op == Op.RESULT
        assert result.values == added(a, b)
        assert (result.workers, result.children, result.chunk, result.seq) == (2, 0b11, 9, 0)
        assert (result.exponent, result.max_exponent, result.node) == (3, 4, 0)
        assert checksum_holds(packet)
        assert (packet[IP].src, packet[IP].dst) == (SERVER, child.address)
        assert (packet[UDP].sport, packet[UDP].dport) == (PORT, child.udp_port)
        assert packet.dst == mac(child.mac)
        assert ipv4_checksum(frame[14:34]) == 0
    assert counted() == {Outcome.CLAIMED: 1, Outcome.ADDED: 1, Outcome.COMPLETED: 1}


def test_sums_wrap_no_lane_into_its_neighbour(target) -> None:
    node = two_workers(target)
    a = [-1, 1, 2**31 - 1, -(2**31)] * (LANES // 4)
    b = [1, -1, -(2**31), 2**31 - 1] * (LANES // 4)
    node.send(node.children[0], node.contribution(node.children[0], a))
    output = node.send(node.children[1], node.contribution(node.children[1], b))
    assert [Ether(frame)[Aggregation].values for _, frame in output] == [added(a, b)] * 2


def test_duplicate_of_an_unfinished_chunk_is_dropped(target, counted) -> None:
    node = two_workers(target)
    packet = node.contribution(node.children[0], lanes(1))
    assert node.send(node.children[0], packet, packet) == []
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    assert Ether(output[0][1])[Aggregation].values == added(lanes(1), lanes(2))
    assert counted()[Outcome.DUPLICATE] == 1


def test_result_is_replayed_to_the_asking_child_alone(target, counted) -> None:
    node = two_workers(target)
    first = node.contribution(node.children[0], lanes(1))
    node.send(node.children[0], first)
    node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    port, packet = only(node.send(node.children[0], first))
    assert port == 1
    assert packet[Aggregation].op == Op.RESULT
    assert packet[Aggregation].values == added(lanes(1), lanes(2))
    assert packet[IP].dst == node.children[0].address
    assert counted()[Outcome.REPLAYED] == 1


def test_window_reuses_slots_and_older_chunks_are_stale(target, counted) -> None:
    node = two_workers(target)
    later = 2 * node.window  # the same slot as seq 0
    old = node.contribution(node.children[0], lanes(1))
    node.send(node.children[0], old)
    new = node.contribution(node.children[0], lanes(3), seq=later, chunk=5)
    assert node.send(node.children[0], new, old) == []
    output = node.send(
        node.children[1], node.contribution(node.children[1], lanes(4), seq=later, chunk=5)
    )
    assert Ether(output[0][1])[Aggregation].values == added(lanes(3), lanes(4))
    assert counted() == {
        Outcome.CLAIMED: 2,
        Outcome.STALE: 1,
        Outcome.ADDED: 1,
        Outcome.COMPLETED: 1,
    }


def test_numbers_wrap_around(target, counted) -> None:
    node = two_workers(target)
    last = 2**32 - 1
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=last))
    again = (last + 2 * node.window) % 2**32
    node.send(node.children[0], node.contribution(node.children[0], lanes(2), seq=again))
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=last))
    assert counted() == {Outcome.CLAIMED: 2, Outcome.STALE: 1}


@pytest.mark.parametrize("change", ["chunk", "server"])
def test_another_chunk_or_server_under_the_same_number_is_dropped(target, counted, change) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), chunk=1))
    wrong = node.contribution(node.children[1], lanes(2), chunk=2 if change == "chunk" else 1)
    if change == "server":
        wrong[IP].dst = "10.0.1.2"
    assert node.send(node.children[1], wrong) == []
    assert counted()[Outcome.OTHER_CHUNK] == 1


def test_a_later_epoch_claims_the_slot(target, counted) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=6))
    next_epoch = Node(
        target, node.children, is_root=True, job=node.job + 5000, epoch=8
    )  # same registers would need the same base; another job there is as foreign
    foreign = next_epoch.contribution(node.children[0], lanes(2), seq=6)
    assert next_epoch.send(node.children[0], foreign) == []
    assert counted() == {Outcome.CLAIMED: 2}


def inner(target: Target) -> Node:
    return Node(target, [Child(0), Child(1, workers=3, is_switch=True)], is_root=False)


def fill(node: Node, *values: list[int], **fields: object) -> Output:
    output: Output = []
    for child, one in zip(node.children, values, strict=True):
        output += node.send(child, node.contribution(child, one, **fields))
    return output


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


def test_exponent_round_is_header_only_and_finds_the_signed_maximum(target) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], None, max_exponent=-128))
    output = node.send(node.children[1], node.contribution(node.children[1], None, max_exponent=-3))
    assert len(output) == 2
    for _, frame in output:
        packet = Ether(frame)
        assert len(frame) == 14 + 20 + 8 + 32
        assert (packet[Aggregation].lanes, packet[Aggregation].max_exponent) == (0, -3)
        assert checksum_holds(packet)


def test_lane_overflow_flags_the_sum_and_drops_its_payload(target, counted) -> None:
    node = two_workers(target)
    big = [0] * (LANES - 1) + [2**31 - 1]
    one = [0] * (LANES - 1) + [1]
    node.send(node.children[0], node.contribution(node.children[0], big))
    output = node.send(node.children[1], node.contribution(node.children[1], one))
    assert len(output) == 2
    for _, frame in output:
        packet = Ether(frame)
        assert packet[Aggregation].flags == Flag.OVERFLOW
        assert len(frame) == packet[IP].len + 14 == 74
        assert packet[Aggregation].lanes == LANES
    assert counted()[Outcome.OVERFLOWED] == 1


@pytest.mark.parametrize("flag", [Flag.OVERFLOW, Flag.NONFINITE])
def test_flagged_contribution_flags_the_sum(target, flag) -> None:
    node = two_workers(target)
    flagged = node.contribution(
        node.children[0], None, flags=int(flag), lanes=LANES, max_exponent=90
    )
    node.send(node.children[0], flagged)
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    assert len(output) == 2
    for _, frame in output:
        result = Ether(frame)[Aggregation]
        assert result.flags == flag
        assert (result.max_exponent, result.workers, len(frame)) == (90, 2, 74)
    port, packet = only(node.send(node.children[0], flagged))
    assert (port, packet[Aggregation].flags) == (1, flag)


def test_another_exponent_than_the_slots_overflows(target) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1)))
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(1), exponent=4))
    assert [Ether(frame)[Aggregation].flags for _, frame in output] == [Flag.OVERFLOW] * 2


def test_congestion_met_by_a_contribution_is_told_in_the_result(target) -> None:
    node = two_workers(target)
    packet = node.contribution(node.children[0], lanes(1))
    packet[IP].tos = 3
    node.send(node.children[0], packet)
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    assert [Ether(frame)[Aggregation].flags for _, frame in output] == [Flag.ECN] * 2


class TestQueries:
    """QUERY and STATE."""

    @pytest.fixture(autouse=True)
    def route(self, target: Target) -> Iterator[None]:
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

    def test_unknown_chunk(self, target, counted) -> None:
        node = two_workers(target)
        port, packet = only(node.send(node.children[0], node.query(node.children[0], seq=3)))
        state = packet[Aggregation]
        assert (port, state.op, state.children) == (1, Op.STATE, 0)
        assert int(state.flags) >> 4 == Phase.AGGREGATING
        assert (packet[IP].src, packet[IP].dst) == (SERVER, "10.0.0.1")
        assert (packet[UDP].sport, packet[UDP].dport) == (PORT, 40000)
        assert (state.node, state.sender, state.seq) == (node.node, 0, 3)
        assert counted() == {Outcome.QUERY_ANSWERED: 1}

    def test_children_so_far(self, target) -> None:
        node = two_workers(target)
        node.send(node.children[1], node.contribution(node.children[1], lanes(1)))
        _, packet = only(node.send(node.children[0], node.query(node.children[0])))
        assert packet[Aggregation].children == 0b10

    def test_final(self, target) -> None:
        node = two_workers(target)
        fill(node, lanes(1), lanes(2))
        _, packet = only(node.send(node.children[0], node.query(node.children[0])))
        assert int(packet[Aggregation].flags) >> 4 == Phase.FINAL
        assert packet[IP].len == 60

    def test_partial_asks_the_parent_for_the_worker(self, target, counted) -> None:
        node = inner(target)
        fill(node, lanes(1), lanes(2))
        port, packet = only(node.send(node.children[0], node.query(node.children[0])))
        asked = packet[Aggregation]
        assert (port, asked.op) == (PARENT_PORT, Op.QUERY)
        assert (asked.node, asked.sender, asked.workers) == (node.parent, node.sender, 4)
        assert (packet[IP].src, packet[UDP].sport) == ("10.0.0.1", 40000)
        assert counted()[Outcome.QUERY_PASSED_UP] == 1

    def test_passed_up_query_keeps_the_workers_source(self, target) -> None:
        node = inner(target)
        query = node.query(node.children[1])
        query[IP].src, query[UDP].sport = "10.0.0.1", 40000
        port, packet = only(node.send(node.children[1], query))
        assert (port, packet[Aggregation].op) == (1, Op.STATE)

    def test_stale(self, target, counted) -> None:
        node = two_workers(target)
        node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=8))
        assert node.send(node.children[0], node.query(node.children[0], seq=0)) == []
        assert counted()[Outcome.QUERY_STALE] == 1


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


def test_no_answer_is_larger_than_the_packet_it_is_made_from(target, counted) -> None:
    """BMv2 aborts when a packet grows by more than 512 B; a hostile child must not make it."""
    node = two_workers(target)
    fill(node, lanes(1), lanes(2))
    assert node.send(node.children[0], node.contribution(node.children[0], None)) == []
    assert counted()[Outcome.MALFORMED] == 1


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

    @pytest.mark.parametrize(
        ("outcome", "changes"),
        [
            (Outcome.TTL_EXPIRED, {"ttl": 1}),
            (Outcome.NO_ROUTE, {"dst": "10.7.7.7"}),
            (Outcome.BAD_IPV4_CHECKSUM, {"chksum": 0x1234}),
        ],
    )
    def test_what_cannot_be_routed_is_counted(self, target, counted, outcome, changes) -> None:
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


def drawn(seed: int, count: int, port: int, kind: Impaired | int) -> int:
    """The draw of docs/protocol.md, "Impairments": two CRC-32 around x + (x*x | 5)."""
    x = zlib.crc32(struct.pack(">IIHB", seed, count, port, kind))
    x = (x + (x * x | 5)) % 2**32
    return zlib.crc32(struct.pack(">II", x, seed))


class TestImpairments:
    """Bad links made by the data plane: the same draws on every target. Ports 1 to 4 send to 5."""

    PACKETS = 300
    BURST = 25  # BMv2's queues hold 64
    SEED = 77
    DRAWS = {"loss": 0, "duplicate": 1, "reorder": 2, "corrupt": 3}  # noqa: RUF012
    COUNTED = {  # noqa: RUF012
        "loss": Impaired.LOST,
        "duplicate": Impaired.DUPLICATED,
        "reorder": Impaired.REORDERED,
        "corrupt": Impaired.CORRUPTED,
    }

    def impaired(self, target: Target, way: str) -> list[int]:
        cells = target.connection.read([target.plane.p4info.counter_entry(f"{way}.impaired")])
        values = {c.counter_entry.index.index: c.counter_entry.data.packet_count for c in cells}
        return [values[kind] for kind in Impaired]

    @pytest.mark.parametrize(
        ("way", "kind", "port"),
        [
            ("arrival", "loss", 1),
            ("arrival", "duplicate", 2),
            ("arrival", "reorder", 3),
            ("arrival", "corrupt", 4),
            ("departure", "loss", 1),
            ("departure", "duplicate", 2),
            ("departure", "reorder", 3),
            ("departure", "corrupt", 4),
        ],
    )
    def test_draws(self, target: Target, way: str, kind: str, port: int) -> None:
        other = 5
        arrives, leaves = (port, other) if way == "arrival" else (other, port)
        entry = target.plane.p4info.table_entry
        quality = dict.fromkeys(self.DRAWS, 0) | {kind: of_2_32(0.2)}
        key = "ingress_port" if way == "arrival" else "egress_port"
        route = {"destination": (number("10.0.2.1"), 32)}
        entities = [
            entry(
                f"{way}.impairments", {key: port}, f"{way}.impair", {"seed": self.SEED, **quality}
            ),
            clone_session(port, [(port, 1)]),
            entry("forwarding.routes", route, "forward", {"port": leaves, "mac": 1}),
        ]
        target.connection.write([insertion(entity) for entity in entities])
        sent = [
            bytes(
                Ether(dst=SWITCH_MAC)
                / IP(src="10.0.0.1", dst="10.0.2.1")
                / UDP(sport=40000, dport=PORT, chksum=0)
                / Aggregation(op=Op.CONTRIBUTE, job=60001, seq=i, values=lanes(i))
            )
            for i in range(self.PACKETS)
        ]
        before = self.impaired(target, way)

        def since() -> dict[Impaired, int]:
            now = self.impaired(target, way)
            return {k: now[k] - before[k] for k in Impaired if now[k] != before[k]}

        output: Output = []
        for start in range(0, self.PACKETS, self.BURST):

            def complete(more: Output, due: int = start + self.BURST - len(output)) -> bool:
                counts = since()
                lost, copied = counts.get(Impaired.LOST, 0), counts.get(Impaired.DUPLICATED, 0)
                return len(more) == due - lost + copied

            output += target.exchange(arrives, sent[start : start + self.BURST], complete)
        target.connection.write([deletion(bare(entity)) for entity in entities])
        hit = [
            i
            for i in range(self.PACKETS)
            if drawn(self.SEED, i, port, self.DRAWS[kind]) < of_2_32(0.2)
        ]
        assert self.PACKETS * 0.1 < len(hit) < self.PACKETS * 0.3
        assert since() == {self.COUNTED[kind]: len(hit)}
        assert {p for p, _ in output} == {leaves}
        received = [Ether(frame)[Aggregation] for _, frame in output]
        numbers = [packet.seq for packet in received]
        everything = list(range(self.PACKETS))
        if kind == "loss":
            assert numbers == [i for i in everything if i not in hit]
        elif kind == "duplicate":
            assert sorted(numbers) == sorted(everything + hit)
        elif kind == "reorder":
            assert sorted(numbers) == everything
            assert [i for i in numbers if i not in hit] == [i for i in everything if i not in hit]
        else:
            assert numbers == everything
            differing = [p.seq for p in received if p.values != lanes(p.seq)]
            assert differing == hit
            assert not any(checksum_holds(p) for p in received if p.seq in hit)
