# SPDX-License-Identifier: GPL-2.0-only
"""Subjects to fuzz: programs with contents of their tables, C code of hosts, and seed inputs."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from controller.p4rt.entries import clone_session, insertion
from protocol.header import Op as Kind
from switch.loader import load_program
from switch.pipeline import Pipeline
from switch.pipeline.action_profiles import ProfileState
from switch.pipeline.keys import Reference
from switch.pipeline.value_sets import ValueSetState
from tests.fuzz.inputs import TCPV4, Op, event, frame, gso
from tests.fuzz.recorder import Recording, recorded
from tests.packet.differential import arguments, headers
from tests.packet.differential.case import Case
from tests.packet.node.node_rig import Child, Node, lanes, number
from tests.packet.targets import InProcess

ROOT = Path(__file__).parents[2]
CPU_PORT = 64


HOSTS = ROOT / "hosts" / "native"


@dataclass(frozen=True)
class Program:
    """A P4 program to fuzz. path: of the compiled JSON; seeds: inputs by name."""

    path: Path
    tables: Recording
    seeds: dict[str, bytes]


@dataclass(frozen=True)
class Native:
    """C code of hosts to fuzz. sources: its files and its harness; seeds: inputs by name."""

    sources: tuple[Path, ...]
    seeds: dict[str, bytes]


Subject = Program | Native


def udp(destination: str, payload: bytes, ident: int = 1) -> bytes:
    ip = IP(src="10.0.0.1", dst=destination, id=ident, ttl=64)
    return bytes(Ether(dst="02:00:00:00:00:99") / ip / UDP(sport=4000, dport=5000) / Raw(payload))


def tcp(destination: str, payload: bytes, sequence: int, flags: str = "A") -> bytes:
    ip = IP(src="10.0.0.1", dst=destination, id=sequence & 0xFFFF, ttl=64)
    segment = TCP(sport=4000, dport=5000, seq=sequence, flags=flags)
    return bytes(Ether(dst="02:00:00:00:00:99") / ip / segment / Raw(payload))


def _pieces(destination: str) -> list[bytes]:
    return [tcp(destination, bytes([n]) * 90, 90 * n) for n in range(8)]


def _runs(network: str, kind: str) -> Iterator[bytes]:
    """Yields packets of one flow, every other one with a changed field."""
    changes = [
        (IP, "ttl", 9), (IP, "tos", 4), (IP, "flags", 2), (IP, "frag", 3), (IP, "id", 999),
        (IP, "src", "10.0.0.2"), (UDP, "sport", 1), (UDP, "dport", 1), (UDP, "chksum", 0),
        (UDP, "chksum", 5), (TCP, "sport", 1), (TCP, "seq", 5), (TCP, "ack", 5), (TCP, "window", 1),
        (TCP, "urgptr", 1), (TCP, "flags", "PA"), (TCP, "flags", "FA"), (TCP, "flags", "CA"),
        (TCP, "flags", "SA"), (TCP, "chksum", 5), (TCP, "options", [("Timestamp", (1, 2))]),
    ]  # fmt: skip
    for n in range(2 * len(changes)):
        payload, destination = bytes([n]) * 60, f"{network}2"
        made = udp(destination, payload, n) if kind == "udp" else tcp(destination, payload, 60 * n)
        packet = Ether(made)
        packet[IP].id = n
        layer, field, value = changes[n // 2]
        if n % 2 and layer in packet:
            setattr(packet[layer], field, value)
        for one in (IP, UDP, TCP):
            if one in packet and not (one == layer and field == "chksum" and n % 2):
                del packet[one].chksum
        for place, name in ((IP, "len"), (UDP, "len")):
            if place in packet:
                delattr(packet[place], name)
        yield bytes(packet)


def routed(network: str) -> dict[str, bytes]:
    """Returns packets to addresses network + port: single, in trains, above the MTU, tagged, while
    interfaces and programs change."""
    plain = [udp(f"{network}{port}", bytes(100 * port), port) for port in range(1, 6)]
    train = [udp(f"{network}2", bytes([n]) * 700, n) for n in range(6)]
    short = [udp(f"{network}4", bytes([n]) * 300, n) for n in range(9)]
    stream = [tcp(f"{network}3", bytes([n]) * 500, 500 * n) for n in range(5)]
    stream[-1] = tcp(f"{network}3", bytes(200), 2000, "PA")
    large = [tcp(f"{network}2", bytes(1400), 1400 * n) for n in range(3)]
    return {
        "plain": b"".join(frame(1, one) for one in plain),
        **{
            f"runs-{kind}": b"".join(frame(1, one) for one in _runs(network, kind))
            for kind in ("udp", "tcp")
        },
        # A checksum left to hardware: where it belongs, at the end of the frame, and behind it.
        "checksums": b"".join(
            event(Op.FRAME, 1, 1, 0, 0, start, offset, data=plain[2])
            for start, offset in [
                (34, 6),
                (34, len(plain[2]) - 36),
                (34, len(plain[2]) - 35),
                (14, 10),
                (len(plain[2]), 0),
                (len(plain[2]) - 1, 0),
                (13, 2),
                (65535, 65535),
            ]
        ),
        "tagged": frame(1, plain[1], tag=0x6005) + frame(2, train[0], tag=4),
        "train": gso(1, train) + gso(3, short) + event(Op.TIME, 1, 100),
        "tcp": gso(1, stream, TCPV4) + b"".join(frame(2, one) for one in stream),
        "full": gso(1, large, TCPV4, stretch=50000) + event(Op.TIME, 1, 60000),
        "large": b"".join(
            frame(1, udp(f"{network}{port}", bytes(size), n))
            for port, size in [(2, 1600), (5, 1600), (2, 9000), (2, 16300), (4, 16400)]
            for n in range(3)
        ),
        # More packets in one frame than leave in one call; a socket that is full meanwhile.
        "many": b"".join(
            event(Op.SEND, port, port % 3, 0)
            + gso(
                1,
                [tcp(f"{network}{port}", bytes([n]) * 90, 90 * n) for n in range(8)],
                TCPV4,
                60000,
            )
            + gso(1, train)
            + event(Op.WRITABLE, port)
            for port in (1, 2, 5)
        ),
        "blocked": b"".join(
            event(Op.SEND, port, 0, 0)
            + gso(1, [udp(f"{network}{port}", bytes([n]) * 600, n) for n in range(5)])
            + b"".join(frame(3, udp(f"{network}{port}", bytes([n]) * 900, n)) for n in range(5))
            + gso(1, train)
            + event(Op.WRITABLE, port)
            for port in (1, 2, 4)
        ),
        "refused": event(Op.SEND, 2, 0, 8)
        + gso(1, train)
        + event(Op.SEND, 2, 1)
        + b"".join(frame(1, one) for one in train)
        + event(Op.WRITABLE, 2),
        "gone": event(Op.LINK, 2)
        + gso(1, train)
        + event(Op.LINK, 2, 1)
        + gso(1, train)
        + event(Op.LINK, 2, 2, 600)
        + gso(1, train)
        + event(Op.LINK, 1, 3)
        + event(Op.RECEIVE_ERROR, 1, 2),
        "controller": event(Op.PACKET_OUT, data=plain[1])
        + event(Op.CONTROL, 1, 0, 1)
        + event(Op.CONTROL, 1, 2, 2, 3)
        + frame(1, plain[1])
        + event(Op.ATTACH)
        + frame(1, plain[2])
        + event(Op.ATTACH)
        + event(Op.CONTROL, 1, 1, 1)
        + frame(1, plain[1]),
    }


def aggregation() -> Program:
    """The aggregation program with a root, an inner node, a guarded port, impairments, thresholds
    and routes."""
    with recorded() as tables:
        target = InProcess("aggregation")
        nodes = [
            Node(target, [Child(0), Child(1)], is_root=True, job=1, group=1, base=0),
            Node(target, [Child(0), Child(1, workers=3, is_switch=True)], is_root=False, job=1,
                 group=2, stream=4, base=16),
        ]  # fmt: skip
        entry = target.plane.p4info.table_entry
        bad = {"seed": 7, "loss": 1 << 29, "duplicate": 1 << 30, "reorder": 1 << 30,
               "corrupt": 1 << 29}  # fmt: skip
        guard = {"ingress_port": 4}
        entities = [
            *(entry("forwarding.routes", {"destination": (number(f"10.9.0.{port}"), 32)},
                    "forward", {"port": port, "mac": port}) for port in range(1, 6)),
            entry("forwarding.routes", {"destination": (number("10.0.1.0"), 24)}, "forward",
                  {"port": 4, "mac": 4}),
            entry("source_guard.sources", guard | {"source": (number("10.0.0.1"), 32)}, "permit"),
            entry("source_guard.sources", guard | {"source": (0, 0)}, "deny"),
            entry("arrival.impairments", {"ingress_port": 3}, "arrival.impair", bad),
            entry("departure.impairments", {"egress_port": 5}, "departure.impair", bad),
            clone_session(3, [(3, 1)]),
            clone_session(5, [(5, 1)]),
            entry("congestion.thresholds", {"egress_port": 3}, "mark_above", {"depth": 2}),
        ]  # fmt: skip
        target.connection.write([insertion(entity) for entity in entities])
        seeds = routed("10.9.0.")
        for name, node in zip(("root", "inner"), nodes, strict=True):
            seeds |= {f"{name}-{what}": data for what, data in _sums(node)}
        target.close()
    return Program(ROOT / "p4src" / "build" / "aggregation.json", tables, seeds)


def _sums(node: Node) -> Iterator[tuple[str, bytes]]:
    """Yields a node's round: exponents, sums, results, queries; in trains and one by one."""
    first, second = node.children

    def sent(child: Child, seq: int, values: list[int] | None, **fields: object) -> bytes:
        return bytes(node.contribution(child, values, seq=seq, chunk=seq, **fields))

    def result(seq: int) -> bytes:
        return bytes(node.result(lanes(seq), seq=seq, chunk=seq))

    batch = {c.sender: [sent(c, seq, lanes(seq)) for seq in range(4)] for c in node.children}
    both = b"".join(gso(c.port, batch[c.sender]) for c in node.children)
    yield "exponents", b"".join(frame(c.port, sent(c, 0, None)) for c in node.children)
    yield "sums", both + gso(5, [result(seq) for seq in range(4)])
    yield (
        "overflow",
        b"".join(
            frame(c.port, sent(c, 1, lanes(1, 2**31 - 1))) for c in node.children for _ in range(2)
        ),
    )
    question = bytes(node.query(second, seq=2, chunk=2))
    replay = frame(first.port, batch[first.sender][2])
    yield (
        "questions",
        replay + frame(second.port, question) + both + replay + frame(second.port, question),
    )
    yield "direct", frame(first.port, sent(first, 3, lanes(3), flags=4)) + frame(5, result(3))
    yield "state", frame(second.port, bytes(node.query(second, op=Kind.STATE)))


def corpus(name: str, fill: Callable[[Pipeline], None], seeds: dict[str, bytes]) -> Program:
    path = ROOT / "tests" / "p4" / f"{name}.json"
    with recorded() as tables, Pipeline(load_program(path), pool=64) as pipeline:
        fill(pipeline)
    return Program(path, tables, seeds)


def router() -> Program:
    """A hundred networks, so that masks share hash tables, and an address for each port."""

    def fill(pipeline: Pipeline) -> None:
        draw = random.Random(5)
        routes = {(number(f"192.168.0.{port}"), 32): port for port in range(1, 6)}
        while len(routes) < 100:
            length = draw.randrange(33)
            address = draw.getrandbits(32) >> (32 - length) << (32 - length)
            routes[address, length] = draw.choice([1, 2, 3, 4, 5, CPU_PORT, 77])
        for key, port in routes.items():
            pipeline.insert("Route.routes", [key], "Route.forward", [port, port])

    return corpus("router", fill, routed("192.168.0."))


def parsing() -> Program:
    """Every way through the parser."""

    def start(kind: int, tag: int, length: int = 0) -> bytes:
        return struct.pack(">HH", kind << 12 | length, tag)

    labels = [struct.pack(">I", n << 12 | (n % 2) << 8 | 9) for n in range(4)]
    seeds = {
        "one-label": start(1, 0x8847) + labels[1],
        "labels": start(1, 0x8847) + labels[0] + labels[1],
        "too-many": start(1, 0x8847) + labels[0] * 5,
        "skip": start(2, 7, 3) + bytes(9),
        "tail": start(3, 0x1FF) + bytes(9),
        "peek": start(5, 0x80) + b"\xab" + bytes(9),
        "cut": start(5, 0x80),
    }
    return corpus(
        "parsing",
        lambda _: None,
        {name: frame(1, one) + frame(2, one + bytes(50)) for name, one in seeds.items()},
    )


def replication() -> Program:
    """Groups and sessions of every kind, and packets that ask for all of them."""

    def fill(pipeline: Pipeline) -> None:
        pipeline.set_multicast_group(1, [(port, port) for port in range(1, 6)])
        pipeline.set_multicast_group(2, [(CPU_PORT, 1), (500, 1), (3, 2), (3, 3)])
        pipeline.set_multicast_group(3, [])
        pipeline.set_multicast_group(4, [(2, number) for number in range(30)])
        pipeline.set_clone_session(1, [(2, 1), (4, 2)])
        pipeline.set_clone_session(2, [(5, 1)], truncate=25, priority=3)

    def ask(op: int, argument: int, payload: bytes = bytes(40)) -> bytes:
        return struct.pack(">BBBBBBHHHI", op, argument, 0, 0, 0, 0, 0, 0, 0, 0) + payload

    seeds = {
        f"{op}-{argument}": frame(1, ask(op, argument)) * 3 + event(Op.TIME, 1, 9)
        for op in range(10)
        for argument in (1, 2)
    }
    # Copies wait while the socket of their port is full, and the next frames arrive.
    copied = b"".join(frame(1, ask(1, 4, bytes([n]) * 600)) for n in range(25))
    others = b"".join(frame(1, ask(1, 1, bytes([n]) * 600)) for n in range(25, 50))
    waiting = event(Op.SEND, 2, 0, 0) + copied + event(Op.TIME) + others
    seeds["waiting"] = waiting + event(Op.WRITABLE, 2)
    return corpus("replication", fill, seeds)


def state() -> Program:
    """Registers, hashes, messages."""
    seeds = {
        f"{op}": b"".join(
            frame(1, bytes([op, index]) + value.to_bytes(9, "big"))
            for index in (0, 7, 8)
            for value in (7, 1 << 70)
        )
        for op in range(6)
    }
    return corpus("state", lambda _: None, seeds)


def options() -> Program:
    """Varbit fields of any length."""
    return corpus("options", lambda _: None, _compared(headers.options))


def unaligned() -> Program:
    """Varbit fields that begin within a byte."""
    return corpus("unaligned", lambda _: None, _compared(arguments.unaligned))


def unions() -> Program:
    """One header in the place of another."""
    return corpus("unions", lambda _: None, _compared(headers.unions))


def blocks() -> Program:
    """Headers that stay in the frame, and all that may become of their packets; a selector."""

    def fill(pipeline: Pipeline) -> None:
        spread = ProfileState(pipeline, "Enter.spread")
        for member in range(4):
            spread.set_member(member, "Enter.mark", [member])
            spread.set_member(member + 4, "Enter.send", [member + 1, member + 4])
        spread.set_group(0, [])
        spread.set_group(1, [0, 1, 4, 5, 6, 7, 7])
        for key, chosen in [(0, Reference(1, group=True)), (1, Reference(5)), (2, Reference(99)),
                            (7, Reference(0, group=True))]:  # fmt: skip
            pipeline.insert("Enter.keys", [key], chosen)
        pipeline.set_multicast_group(1, [(port, port) for port in range(1, 6)])
        pipeline.set_multicast_group(2, [(CPU_PORT, 1), (3, 2), (3, 3)])
        pipeline.set_multicast_group(4, [(2, number) for number in range(9)])
        pipeline.set_clone_session(1, [(2, 1), (4, 2)])
        pipeline.set_clone_session(2, [(5, 1)], truncate=60, priority=3)
        pipeline.set_clone_session(3, [(3, 1)])

    draw = random.Random(6)

    def ask() -> bytes:
        ingress, egress = (
            sum(1 << bit for bit in draw.sample(range(8), draw.randrange(4))) for _ in range(2)
        )
        numbers = (draw.randrange(1, 6), draw.choice([1, 2, 4]), draw.randrange(1, 4))
        order = bytes(
            [ingress, egress, *numbers, draw.randrange(3), 0, draw.choice([0, 1, 2, 3, 7])]
        )
        return order + bytes(8) + draw.randbytes(draw.choice([128, 256, 300, 600]))

    seeds = {}
    for n in range(30):
        asked = [ask() for _ in range(5)]
        sent = b"".join(frame(1 + i % 3, one) for i, one in enumerate(asked))
        seeds[f"{n}"] = sent + event(Op.TIME, 1, 100) + event(Op.PACKET_OUT, data=asked[0])
        if n % 3 == 0:
            port = 1 + n % 5
            seeds[f"{n}"] = event(Op.SEND, port, 0, 0) + seeds[f"{n}"] + event(Op.WRITABLE, port)
    meter = event(Op.CONTROL, 1, 10, 0, 1, 2, 3)
    take = event(Op.CONTROL, 1, 15, 0, 8)
    seeds["controlled"] = meter + seeds["1"] + take + event(Op.TIME, 1, 9) + seeds["2"] + take
    seeds["chosen"] = b"".join(
        event(Op.CONTROL, 1, *control, data=bytes([4, 0, 6, 0, 30, 0])) + seeds["4"]
        for control in [(11, 5, 30), (13, 0, 1), (12, 0, 6), (14, 0, 1), (13, 0, 39)]
    )
    return corpus("blocks", fill, seeds)


def metered() -> Program:
    """Meters of every kind, with rates."""

    def fill(pipeline: Pipeline) -> None:
        pipeline.insert("Enter.hosts", [(1, 0xFF)], "Enter.forward", [2], priority=9)
        pipeline.insert("Enter.hosts", [(0, 0xF0)], "Enter.keep", [], priority=3)
        pipeline.insert("Leave.ports", [1, (0, 9)], "Leave.read", [], priority=1)
        pipeline.insert("Leave.ports", [2, (0, 255)], "Leave.read", [], priority=1)

    asked = b"".join(frame(1 + n % 5, bytes([n * 29 % 256, n % 3]) + bytes(60)) for n in range(12))
    set_rates = [(9, 0, 1, 2, 1), (9, 1, 1, 200, 1), (10, 0, 1, 2, 3), (10, 2, 90, 200, 100)]
    seeds = {
        f"{n}": event(Op.CONTROL, 1, *numbers) + asked + event(Op.TIME, 1, 5000) + asked
        for n, numbers in enumerate(set_rates)
    }
    return corpus("metered", fill, seeds)


def valuesets() -> Program:
    """Value sets, whose members come and go."""

    def fill(pipeline: Pipeline) -> None:
        for name, members in [
            ("Parse.kinds", [((1, 0xFF),), ((2, 0xFF),), ((3, 0xFF),)]),
            ("Parse.pairs", [((n, 0xFFF), (n, 0xF)) for n in range(8)]),
            ("Parse.wides", [((7, (1 << 72) - 1),), ((0, 0),)]),
        ]:
            ValueSetState(pipeline, name).replace(members)

    seeds = {}
    for name, make in _compared(headers.value_sets).items():
        seeds[name] = make + event(Op.CONTROL, 1, 0, 1) + make + event(Op.CONTROL, 1, 1, 1) + make
    return corpus("valuesets", fill, seeds)


def _compared(cases: Callable[[], Iterator[Case]]) -> dict[str, bytes]:
    """Returns packets of the first differential case, a few per seed."""
    case = next(cases())
    frames = [frame(1 + port % 5, data) for port, data in case.arrivals[:60]]
    return {f"{i}": b"".join(frames[i : i + 6]) for i in range(0, len(frames), 6)}


def worker() -> Native:
    """A worker's transport, in jobs of every kind. Any bytes are a job and what happens to it."""
    files = "window", "loss_detection", "receive", "send", "quantize", "read_ahead"
    draw = random.Random(7)
    return Native(
        (ROOT / "tests" / "fuzz" / "worker.c", *(HOSTS / f"{name}.c" for name in files)),
        {f"{n}": draw.randbytes(20 * n) for n in range(2, 50)},
    )


def server() -> Native:
    """The root of a stream at a server. Any bytes are a tree and the packets that come."""
    draw = random.Random(8)
    return Native(
        (ROOT / "tests" / "fuzz" / "server.c", HOSTS / "root.c"),
        {f"{n}": draw.randbytes(40 * n) for n in range(2, 50)},
    )


SUBJECTS: dict[str, Callable[[], Subject]] = {
    one.__name__: one
    for one in (
        aggregation,
        router,
        parsing,
        replication,
        state,
        options,
        unaligned,
        unions,
        blocks,
        metered,
        valuesets,
        worker,
        server,
    )
}
