# SPDX-License-Identifier: GPL-2.0-only
"""Differential cases of the aggregation program: every kind of node, valid and invalid packets."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import clone_session, insertion
from controller.p4rt.fabric import of_2_32
from protocol.header import Flag
from protocol.priorities import stream_number
from protocol.scapy_layer import Aggregation
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.differential.case import Case
from tests.packet.node.node_rig import PARENT_PORT, SERVER, SERVER_PORT, Child, Node, number
from tests.packet.targets import build

PACKETS = 90
_QUEUES = 6


@dataclass
class _Collector:
    """In the place of a switch: keeps what would be written to it."""

    plane: DataPlane
    updates: list[p4rt.Update] = field(default_factory=list)

    @property
    def connection(self) -> _Collector:
        return self

    def write(self, updates: Sequence[p4rt.Update]) -> None:
        self.updates += updates


def _values(rng: random.Random, lanes: int) -> list[int]:
    """Lanes that a compressed file holds in little room; some sums of them overflow."""
    largest = 2**31 - 1 if rng.random() < 0.1 else 2**24
    pattern = [rng.randint(-largest, largest) for _ in range(8)]
    return [pattern[(i + i // 64) % 8] for i in range(lanes)]


def _frame(rng: random.Random, node: Node, lanes: int) -> tuple[int, bytes]:
    """A packet that a neighbour could send, or something near it."""
    child = rng.choice(node.children)
    seq = rng.randrange(2 * node.window + 3)
    chunk = seq + 100 if rng.random() < 0.95 else rng.randrange(3)
    fields: dict[str, object] = {"seq": seq, "chunk": chunk}
    kind = rng.random()
    port = child.port
    if kind < 0.62:
        empty = rng.random() < 0.1
        packet = node.contribution(child, None if empty else _values(rng, lanes), **fields)
    elif kind < 0.72:
        packet = node.query(child, **fields)
    elif kind < 0.85:
        flags = rng.choice([0, 0, 0, int(Flag.OVERFLOW), int(Flag.NONFINITE)])
        values = None if flags else _values(rng, lanes)
        packet = node.result(values, flags=flags, lanes=0 if values is None else lanes, **fields)
        port = PARENT_PORT
    elif kind < 0.9:
        packet = node.contribution(child, _values(rng, lanes), **fields)
        packet[Aggregation].flags = rng.choice([int(Flag.DIRECT), int(Flag.BYPASS)])
        packet[IP].dst = SERVER
    else:
        packet = node.packet(child.address, 5, rng.choice([SERVER, "10.9.9.9"]), 6) / Raw(b"plain")
        packet[IP].ttl = rng.choice([0, 1, 2, 64])
    if packet.haslayer(Aggregation) and rng.random() < 0.2:
        name, value = rng.choice([
            ("op", rng.randrange(6)), ("version", 2), ("flags", 1 << rng.randrange(8)),
            ("job", 0), ("epoch", 8), ("stream", 9), ("node", 12), ("sender", 7),
            ("workers", 77), ("lanes", lanes - 1), ("exponent", 9), ("children", 3),
        ])  # fmt: skip
        setattr(packet[Aggregation], name, value)
    if rng.random() < 0.08:
        layer, name, value = rng.choice([
            (IP, "src", "10.0.0.77"), (IP, "dst", "10.0.0.2"), (IP, "ttl", 255), (IP, "tos", 2),
            (IP, "frag", 1), (IP, "version", 6), (IP, "ihl", 6), (UDP, "dport", 47111),
            (UDP, "sport", 9), (UDP, "len", 50), (IP, "len", 60),
        ])  # fmt: skip
        if packet.haslayer(layer):
            setattr(packet[layer], name, value)
    if rng.random() < 0.05:
        port = rng.randrange(8)
    frame = bytes(packet)
    return port, frame[: rng.randrange(1, len(frame))] if rng.random() < 0.04 else frame


def _complete(rng: random.Random, node: Node, lanes: int, seq: int) -> Iterator[tuple[int, bytes]]:
    """All contributions to one number, in any order, and what the parent would answer."""
    for child in rng.sample(node.children, len(node.children)):
        packet = node.contribution(child, _values(rng, lanes), seq=seq, chunk=seq + 100)
        yield child.port, bytes(packet)
    result = node.result(_values(rng, lanes), seq=seq, chunk=seq + 100)
    if not node.is_root:
        yield PARENT_PORT, bytes(result)
    again = node.contribution(node.children[0], _values(rng, lanes), seq=seq, chunk=seq + 100)
    yield node.children[0].port, bytes(again)


def _case(
    name: str,
    seed: int,
    children: Sequence[Child],
    is_root: bool,
    program: str = "aggregation",
    impaired: bool = False,
    guarded: bool = False,
    empty: Collection[str] = (),
    packets: int = PACKETS,
    stream: int = 3,
) -> Case:
    plane, path, _ = build(program)
    rng = random.Random(seed)
    switch = _Collector(plane)
    lanes = plane.lanes or 256
    node = Node(switch, list(children), is_root, job=5, group=3, base=64, stream=stream)  # type: ignore[arg-type]
    entry = plane.p4info.table_entry
    routes = [(SERVER, 32, SERVER_PORT), ("10.0.0.0", 24, 6), ("10.255.0.0", 16, 7)]
    entities = [
        entry("forwarding.routes", {"destination": (number(to), bits)}, "forward",
              {"port": port, "mac": 0x020000000900 + port})
        for to, bits, port in routes
    ]  # fmt: skip
    if impaired:
        chances = dict.fromkeys(("loss", "duplicate", "reorder", "corrupt"), of_2_32(0.2))
        for way, key in (("arrival", "ingress_port"), ("departure", "egress_port")):
            entities += [
                entry(f"{way}.impairments", {key: port}, f"{way}.impair", {"seed": seed, **chances})
                for port in (1, 2, PARENT_PORT, SERVER_PORT)
            ]
        entities += [clone_session(port, [(port, 1)]) for port in range(1, 8)]
    if guarded:
        entities += [
            entry("source_guard.sources", {"ingress_port": 1, "source": (source, bits)}, action)
            for source, bits, action in (
                (number(children[0].address), 32, "permit"), (0, 0, "deny"),
            )
        ]  # fmt: skip
        entities.append(
            entry("congestion.thresholds", {"egress_port": 1}, "mark_above", {"depth": 3})
        )
    switch.write([insertion(one) for one in entities])
    ids = {plane.p4info.table(one).preamble.id for one in empty}
    updates = [one for one in switch.updates if one.entity.table_entry.table_id not in ids]
    arrivals: list[tuple[int, bytes]] = []
    for seq in range(3):
        arrivals += _complete(rng, node, lanes, seq)
    arrivals += [_frame(rng, node, lanes) for _ in range(packets)]
    return Case(
        *(name, path.read_bytes(), plane.p4info, updates, arrivals),
        races=impaired,
        queues=_QUEUES,
    )


TABLES = [
    "forwarding.routes", "source_guard.sources", "aggregation.nodes", "aggregation.children",
    "receivers.children", "arrival.impairments", "departure.impairments", "congestion.thresholds",
]  # fmt: skip


def trains() -> Case:
    """Runs of packets with consecutive IP identifications and right checksums, as GSO makes them of
    one frame and joining makes one frame of them: sums, results, replays, and what is forwarded."""
    plane, path, _ = build("aggregation")
    rng = random.Random(50)
    switch = _Collector(plane)
    node = Node(switch, [Child(0), Child(1)], True, job=5, group=3, base=64)  # type: ignore[arg-type]
    route = {"destination": (number(SERVER), 32)}
    values = {"port": SERVER_PORT, "mac": 0x020000000904}
    switch.write(
        [insertion(plane.p4info.table_entry("forwarding.routes", route, "forward", values))]
    )
    arrivals = []
    for run, child in enumerate([*node.children, node.children[0], None]):
        for seq in range(2 * node.window):
            packet = node.packet("10.0.0.1", 5, SERVER, 6) / Raw(rng.randbytes(4) * 125)
            if child is not None:
                lanes = _values(rng, plane.lanes)
                packet = node.contribution(child, lanes, seq=seq, chunk=seq + 100)
            packet[IP].id = 100 * run + seq
            del packet[UDP].chksum
            arrivals.append((1 if child is None else child.port, bytes(packet)))
    return Case("trains", path.read_bytes(), plane.p4info, switch.updates, arrivals)


def cases() -> Iterator[Case]:
    """Leaf: workers below, a parent above. Inner: switches below. Root: nothing above."""
    workers = [Child(0), Child(1), Child(2)]
    switches = [Child(0, 4, is_switch=True), Child(1, 3, is_switch=True)]
    mixed = [Child(0), Child(1, 3, is_switch=True)]
    yield _case("root-of-workers", 1, workers, is_root=True)
    yield _case("root-of-switches", 2, switches, is_root=True)
    yield _case("leaf", 3, workers, is_root=False)
    yield _case("inner", 4, switches, is_root=False)
    yield _case("impaired-root", 5, mixed, is_root=True, impaired=True)
    yield _case("impaired-leaf", 6, workers, is_root=False, impaired=True)
    yield _case("jumbo-root", 7, workers, is_root=True, program="aggregation_jumbo", packets=20)
    yield _case("jumbo-inner", 8, mixed, is_root=False, program="aggregation_jumbo", packets=20)
    yield _case("headers-leaf", 9, workers, is_root=False, program="aggregation_headers")
    # The highest priority that has a queue, and one without, whose packets only change slots.
    for name, number_, seed in (("urgent", _QUEUES - 1, 10), ("dropped", _QUEUES, 11)):
        yield _case(name, seed, mixed, is_root=False, stream=stream_number(number_, 4))
    for i, name in enumerate(TABLES):
        yield _case(
            f"without-{name.replace('.', '-')}", 20 + i, mixed, is_root=i % 2 == 0,
            impaired=True, guarded=True, empty=[name], packets=25,
        )  # fmt: skip
    yield _case("everything-empty", 30, mixed, is_root=True, empty=TABLES, packets=25)
    yield trains()
