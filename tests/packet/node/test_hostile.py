# SPDX-License-Identifier: GPL-2.0-only
"""Sends masses of malformed packets from the hosts of one job: no slot of another job changes.

Seeded. RACKHUB_HOSTILE and RACKHUB_HOSTILE_INTERFACES say how many, in process and on interfaces.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from protocol.frames import ipv4_checksum
from protocol.header import PORT, Flag, Op
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.conftest import TARGETS
from tests.packet.node.node_rig import Child, Node, added, lanes, number, outcomes
from tests.packet.targets import MARKER_SOURCE, InProcess, Target, opened

pytestmark = pytest.mark.timeout(3600)

IN_PROCESS = int(os.environ.get("RACKHUB_HOSTILE", "200000"))
ON_INTERFACES = int(os.environ.get("RACKHUB_HOSTILE_INTERFACES", "3000"))
# More than this at once and the queues of interfaces overflow.
AT_ONCE = 64
SPARE_ADDRESS = "10.0.0.33"  # of the first hostile host, beside the one that it has as a worker

# Offset and size of every field.
FIELDS = {
    "ethernet.destination": (0, 6),
    "ethernet.source": (6, 6),
    "ethernet.type": (12, 2),
    "ipv4.version_ihl": (14, 1),
    "ipv4.tos": (15, 1),
    "ipv4.length": (16, 2),
    "ipv4.identification": (18, 2),
    "ipv4.fragment": (20, 2),
    "ipv4.ttl": (22, 1),
    "ipv4.protocol": (23, 1),
    "ipv4.checksum": (24, 2),
    "ipv4.source": (26, 4),
    "ipv4.destination": (30, 4),
    "udp.source": (34, 2),
    "udp.destination": (36, 2),
    "udp.length": (38, 2),
    "udp.checksum": (40, 2),
    "version_op": (42, 1),
    "flags": (43, 1),
    "job": (44, 2),
    "epoch": (46, 2),
    "stream": (48, 1),
    "sender": (49, 1),
    "seq": (50, 4),
    "chunk": (54, 4),
    "children": (58, 4),
    "workers": (62, 2),
    "exponent": (64, 1),
    "max_exponent": (65, 1),
    "lanes": (66, 2),
    "node": (68, 2),
    "checksum": (70, 4),
    "payload": (74, 4),
}
# What one packet is counted as, whatever else it completes.
CAUSES = set(Outcome) - {
    Outcome.FORWARDED,
    Outcome.COMPLETED,
    Outcome.PARTIAL_SENT,
    Outcome.OVERFLOWED,
}
MUST_OCCUR = {
    Outcome.NOT_IPV4,
    Outcome.BAD_IPV4_CHECKSUM,
    Outcome.TTL_EXPIRED,
    Outcome.NO_ROUTE,
    Outcome.SPOOFED_SOURCE,
    Outcome.MALFORMED,
    Outcome.NOT_A_CHILD,
    Outcome.WRONG_SOURCE,
    Outcome.WRONG_WORKERS,
    Outcome.OTHER_CHUNK,
    Outcome.STALE,
    Outcome.RESULT_REJECTED,
}


class Victims:
    """A job with a root and an inner node on the switch, and sums of every phase in its slots."""

    def __init__(self, target: Target) -> None:
        self.root = Node(target, [Child(0), Child(1)], is_root=True)
        job = self.root.job
        self.inner = Node(
            target, [Child(0), Child(1)], is_root=False, job=job, stream=4, base=8 * job + 4096
        )
        self.sums = {}
        for node in (self.root, self.inner):
            first, second = node.children
            for seq in range(2 * node.window):
                one, other = lanes(100 + seq), lanes(200 + seq)
                self.sums[seq] = added(one, other)
                node.send(first, node.contribution(first, one, seq=seq, chunk=seq))
                if seq % 2:  # complete: FINAL at the root, PARTIAL at the inner node
                    node.send(second, node.contribution(second, other, seq=seq, chunk=seq))

    def check(self) -> None:
        """Every sum is as it was, and those that lack a contribution take it."""
        _, second = self.root.children
        for seq, expected in self.sums.items():
            packet = self.root.contribution(second, lanes(200 + seq), seq=seq, chunk=seq)
            output = self.root.send(second, packet)
            assert len(output) == (1 if seq % 2 else 2)
            assert all(Ether(f)[Aggregation].values == expected for _, f in output)
            again = self.inner.contribution(second, lanes(200 + seq), seq=seq, chunk=seq)
            output = self.inner.send(second, again)
            assert [Ether(frame)[Aggregation].values for _, frame in output] == [expected]
            assert [Ether(frame)[Aggregation].op for _, frame in output] == [Op.CONTRIBUTE]


def _as_from_a_server(packet: Packet) -> Packet:
    """The same from the port of a server process."""
    packet[UDP].sport = PORT
    return packet


class Attacker:
    """A job with two workers on hosts of their own, which may send nothing in others' names."""

    def __init__(self, target: Target, victims: Victims, seed: int) -> None:
        self.draw = random.Random(seed)
        self.node = Node(target, [Child(2), Child(3)], is_root=True)
        entry = target.plane.p4info.table_entry
        for child in self.node.children:
            port = {"ingress_port": child.port}
            for address in (child.address, SPARE_ADDRESS, MARKER_SOURCE):
                match = port | {"source": (number(address), 32)}
                self.node.install(entry("source_guard.sources", match, "permit"))
            self.node.install(entry("source_guard.sources", port | {"source": (0, 0)}, "deny"))
        aims = [
            {"job": n.job, "epoch": n.epoch, "stream": n.stream, "node": n.node}
            for n in (victims.root, victims.inner)
        ]
        self.frames = {child.sender: self._packets(child, aims) for child in self.node.children}

    def _packets(self, child: Child, aims: list[dict[str, int]]) -> list[bytes]:
        """Right ones for the own node, and the same for the victims' nodes."""
        packets = []
        for aim in [{}, *aims]:
            for sender in {child.sender, 0, 1} if aim else {child.sender}:
                fields = aim | {"sender": sender, "seq": 3, "chunk": 3}
                payload = lanes(7)
                result = self.node.contribution(child, payload, op=Op.RESULT, **fields)
                packets += [
                    self.node.contribution(child, payload, **fields),
                    self.node.contribution(child, None, **fields),
                    self.node.contribution(child, payload, flags=int(Flag.DIRECT), **fields),
                    result,
                    _as_from_a_server(result.copy()),
                    self.node.query(child, **fields),
                    self.node.query(child, op=Op.STATE, **fields),
                ]
        return [bytes(packet) for packet in packets]

    def batch(self, child: Child, count: int) -> list[bytes]:
        return [
            self._spoil(bytearray(self.draw.choice(self.frames[child.sender])))
            for _ in range(count)
        ]

    def _spoil(self, frame: bytearray) -> bytes:
        draw = self.draw
        seq, _ = FIELDS["seq"]
        frame[seq + 3] = draw.randrange(24)  # three rounds of the slots
        if draw.random() < 0.1:
            at, size = FIELDS["ipv4.source"]
            frame[at : at + size] = number(SPARE_ADDRESS).to_bytes(size, "big")
        repaired = draw.random() < 0.9
        for name in draw.sample(list(FIELDS), draw.choice([0, 1, 1, 1, 2, 3])):
            at, size = FIELDS[name]
            if at + size <= len(frame):
                frame[at : at + size] = self._value(frame[at : at + size])
                repaired &= name != "ipv4.checksum"
        if repaired:
            frame[24:26] = b"\0\0"
            frame[24:26] = ipv4_checksum(bytes(frame[14:34])).to_bytes(2, "big")
        if draw.random() < 0.1:
            del frame[draw.randrange(14, len(frame)) :]
        elif draw.random() < 0.05:
            frame += draw.randbytes(draw.randrange(1, 1500))
        return bytes(frame)

    def _value(self, old: bytearray) -> bytes:
        size, draw = len(old), self.draw
        top = 1 << (8 * size)
        value = int.from_bytes(old, "big")
        kind = draw.randrange(6)
        if kind < 2:
            value = draw.randrange(top)
        elif kind < 4:
            value = (value + draw.choice([-2, -1, 1, 2])) % top
        elif kind == 4:
            value ^= 1 << draw.randrange(8 * size)
        else:
            value = draw.choice([0, top - 1])
        return value.to_bytes(size, "big")


@pytest.fixture(scope="module", params=TARGETS)
def alone(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A switch that no other test uses: its edge ports are guarded."""
    yield from opened(request.param)


def registers(target: InProcess, but: range) -> list[int]:
    """Every cell of every slot but those."""
    pipeline = target.device.pipeline
    assert pipeline is not None
    return [
        pipeline.register(name, slot)
        for name, register in pipeline.program.registers.items()
        if ".aggregation." in name
        for slot in range(register.size)
        if slot not in but
    ]


def test_packets_with_every_field_mutated_change_nothing_of_another_job(alone: Target) -> None:
    victims = Victims(alone)
    attacker = Attacker(alone, victims, seed=1)
    node = attacker.node
    in_process = isinstance(alone, InProcess)
    slots = range(node.base, node.base + 2 * node.window)
    states = registers(alone, slots) if in_process else []
    before = Counter(outcomes(alone))
    count = IN_PROCESS if in_process else ON_INTERFACES
    ports: Counter[int] = Counter()
    for first in range(0, count, AT_ONCE):
        child = attacker.draw.choice(node.children)
        frames = attacker.batch(child, min(AT_ONCE, count - first))
        ports.update(port for port, _ in alone.exchange(child.port, frames))
    counted = Counter(outcomes(alone)) - before
    assert sum(counted[cause] for cause in CAUSES) == count, counted
    assert set(counted) >= MUST_OCCUR, MUST_OCCUR - set(counted)
    assert ports.keys() <= {child.port for child in node.children}, "victims got something"
    if in_process:
        assert registers(alone, slots) == states
    victims.check()
