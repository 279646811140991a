# SPDX-License-Identifier: GPL-2.0-only
"""The switch under test as a node of an aggregation tree, and the packets of its neighbours."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from controller.p4rt.entries import Entity, insertion, multicast_group
from controller.p4rt.program import NodeKey, Uplink
from protocol.header import PORT, Op
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.targets import Output, Target

LANES = 256
SERVER = "10.0.1.1"
SWITCH_MAC = "02:00:00:00:00:99"
OWN = "10.255.0.1"
PARENT_PORT = 5
SERVER_PORT = 4
JOBS = itertools.count(1)
GROUPS = itertools.count(1)


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
    """The switch under test as one node, and packets from its neighbours.

    `base` is the first of its 2 x `window` slots; nodes of the same job have the same by default.
    Packets go to the server process at `server_port`, and the parent's results come from there.
    """

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
    base: int = -1
    group: int = field(default_factory=lambda: next(GROUPS))
    server_port: int = PORT

    def __post_init__(self) -> None:
        program = self.target.plane.program
        if self.base < 0:
            self.base = 2 * self.window * self.job
        entities = [multicast_group(self.group, [(c.port, c.sender + 1) for c in self.children])]
        for c in self.children:
            address = number(c.address)
            entities.append(
                program.child(self.key, c.sender, c.port, address, c.workers, c.is_switch)
            )
            entities.append(self.receiver(c))
        self.install(*entities)
        up = None
        if not self.is_root:
            up = Uplink(PARENT_PORT, 0x020000000555, self.parent, self.sender, number(OWN))
        count = len(self.children)
        self.install(program.node(self.key, self.base, self.window, count, self.group, up))

    @property
    def key(self) -> NodeKey:
        return NodeKey(self.job, self.epoch, self.stream, self.node)

    def receiver(self, child: Child) -> Entity:
        """The entry that addresses results to a child."""
        node = 30 + child.sender if child.is_switch else 0
        return self.target.plane.program.receiver(
            self.key, child.sender, number(child.address), child.udp_port, child.mac, node
        )

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
        header = self.packet(child.address, child.udp_port, SERVER, self.server_port)
        return header / Aggregation(**fields)

    def query(self, child: Child, **fields: object) -> Packet:
        return self.contribution(child, None, **({"op": Op.QUERY, "lanes": LANES} | fields))

    def result(self, values: list[int] | None, **fields: object) -> Packet:
        """The parent's result for this node."""
        total = 2 * sum(c.workers for c in self.children)
        fields = {"op": Op.RESULT, "sender": self.sender, "workers": total} | fields
        packet = self.contribution(self.children[0], values, **fields)
        packet[IP].src, packet[IP].dst = SERVER, OWN
        packet[UDP].sport, packet[UDP].dport = self.server_port, PORT
        return packet

    def send(self, child: Child, *packets: Packet) -> Output:
        return self.send_to(child.port, *packets)

    def send_to(self, port: int, *packets: Packet) -> Output:
        return self.target.exchange(port, [bytes(packet) for packet in packets])


def outcomes(target: Target) -> dict[Outcome, int]:
    program = target.plane.program
    return program.outcomes_in(target.connection.read([program.outcome_counts()]))


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
    result, rebuilt.checksum = rebuilt.checksum, None
    return bool(Aggregation(bytes(rebuilt)).checksum == result)


def two_workers(target: Target, **options: int) -> Node:
    return Node(target, [Child(0), Child(1)], is_root=True, **options)


def inner(target: Target, **options: int) -> Node:
    return Node(target, [Child(0), Child(1, workers=3, is_switch=True)], is_root=False, **options)


def fill(node: Node, *values: list[int], **fields: object) -> Output:
    output: Output = []
    for child, one in zip(node.children, values, strict=True):
        output += node.send(child, node.contribution(child, one, **fields))
    return output
