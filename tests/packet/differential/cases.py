# SPDX-License-Identifier: GPL-2.0-only
"""All differential cases: the programs of tests/p4 with entries and packets, which cover every
supported feature.

Seeds are fixed: what BMv2 made of each case is committed (tests/p4/recorded).
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from controller.p4rt.entries import P4Info
from switch.p4runtime.stubs import p4info_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.aggregation import cases as aggregation
from tests.packet.differential.arguments import cases as arguments
from tests.packet.differential.case import Case, program_files
from tests.packet.differential.entries import drawn, entries, frame, replication
from tests.packet.differential.headers import cases as headers
from tests.packet.differential.legacy import rewritten
from tests.packet.differential.notices import learned, metered
from tests.packet.differential.profiles import blocks
from tests.packet.differential.profiles import cases as profiles
from tests.packet.programs import test_corpus_arithmetic as arithmetic
from tests.packet.programs import test_corpus_parsing as parsing
from tests.packet.programs import test_corpus_replication as replicated
from tests.packet.programs import test_corpus_state as state

Arrivals = Sequence[tuple[int, bytes]]


def case(
    name: str, program: str, arrivals: Arrivals, *updates: Sequence[p4rt.Update], seed: int = 0
) -> Case:
    text, p4info = program_files(HERE / f"{program}.json")
    return Case(name, text, p4info, [one for part in updates for one in part], arrivals)


def info(program: str) -> P4Info:
    return program_files(HERE / f"{program}.json")[1]


def spread(rng: random.Random, frames: Iterator[bytes] | Sequence[bytes]) -> Arrivals:
    """Frames on ports at random."""
    return [(rng.randrange(8), one) for one in frames]


def operators() -> Iterator[Case]:
    rng = random.Random(101)
    widths = [32, 32, 64, 128, 48, 8, 4, 12, 1, 7, 8, 8, 32, 32, 64]
    frames = [frame(rng, widths) for _ in range(150)] + [b"\0" * 30]
    arrivals = spread(rng, frames)
    yield case("operators", "operators", arrivals)
    yield case("operators-filled", "operators", arrivals[:40], entries(info("operators"), 102))
    [plain] = [case("operators-legacy", "operators", arrivals)]
    yield replace(plain, program=rewritten(plain.program))


def expressions() -> Iterator[Case]:
    """Random trees of operators, which no source says: the JSON is made here."""
    trees = arithmetic.Trees(7)
    results, assignments = arithmetic.choose(trees)
    kept = [(name, tree) for name, tree in assignments if not _divides(tree)]
    program = json.dumps(arithmetic.document(results, kept)).encode()
    arrivals = []
    for _ in range(100):
        values = {}
        for name, width, signed in arithmetic.INPUTS:
            rng = trees.random
            value = rng.choice([rng.getrandbits(width), rng.choice(arithmetic.CORNERS)])
            values[name] = arithmetic.wrap(value, width, signed)
        arrivals.append((0, arithmetic.pack(arithmetic.INPUTS, values) + bytes(1200)))
    yield Case("expressions", program, P4Info(p4info_pb2.P4Info()), [], arrivals)


def _divides(tree: Any) -> bool:
    """BMv2 ends at a division by zero."""
    return isinstance(tree, dict) and (
        tree.get("op") in ("/", "%") or any(map(_divides, tree.values()))
    )


def stacks() -> Iterator[Case]:
    rng = random.Random(201)
    frames = []
    for _ in range(300):
        what = rng.choice([1 << rng.randrange(8), rng.randrange(256), rng.randrange(256)])
        count = rng.choice([0, 0, 0, 0x0F, 0x10, 0x20, 0x2F, 0xFF, rng.randrange(256)])
        one = bytes([what, rng.randrange(8), count])
        for _ in range(rng.randrange(7)):
            value = rng.choice([0x11, 0x7F, 5, 5, rng.randrange(128)])
            one += bytes([value << 1 | (rng.random() < 0.3)]) + rng.choice([b"\1\2", b"\3\4"])
        one += rng.randbytes(rng.randrange(12))
        frames.append(one[: rng.randrange(1, len(one) + 1)] if rng.random() < 0.2 else one)
    yield case("stacks", "stacks", spread(rng, frames))
    plain = case("stacks-legacy", "stacks", spread(rng, frames))
    yield replace(plain, program=rewritten(plain.program))


def checksums() -> Iterator[Case]:
    rng = random.Random(301)
    frames = []
    for _ in range(200):
        one = bytes([rng.randrange(128), drawn(rng, 8)]) + frame(rng, [4, 12, 16, 32])
        one += frame(rng, [16, 16, 24, 8]) + rng.randbytes(rng.randrange(20))
        if rng.random() < 0.3:
            one = _right(one)
        frames.append(one if rng.random() < 0.9 else one[: rng.randrange(1, len(one))])
    yield case("checksums", "checksums", spread(rng, frames))


def _right(one: bytes) -> bytes:
    """The frame with right checksums, where the program verifies them."""
    data = bytearray(one)
    kind = one[0] & 3
    if kind & 1:
        data[4:6] = _csum16(data[2:4] + data[6:10])
    at = {2: 2, 3: 10}.get(kind)
    if at is not None:
        data[at : at + 2] = _csum16(bytes([one[1], 0]) + data[at + 2 :])
    return bytes(data)


def _csum16(data: bytes) -> bytes:
    return struct.pack(">H", state.internet_checksum(bytes(data)))


def combos() -> Iterator[Case]:
    rng = random.Random(401)
    frames = []
    for _ in range(300):
        ingress = 0
        for _ in range(rng.randrange(3)):
            ingress |= 1 << rng.randrange(8)
        egress = 0
        for _ in range(rng.randrange(3)):
            egress |= 1 << rng.randrange(8)
        if ingress & 2 and egress & 4:  # a clone that has not kept its count would go round forever
            egress -= 4
        rounds = rng.randrange(3)
        group, session = rng.randrange(7), rng.randrange(1, 7)
        order = struct.pack(
            ">BBBBBBH", ingress, egress, rng.randrange(8), group, session, rounds,
            rng.choice([1, 5, 30, 33, 40, 500]),
        )  # fmt: skip
        frames.append(order + bytes(23) + rng.randbytes(rng.randrange(30)))
    frames += [frames[0][:7], frames[1][:20]]
    copies = case("combos", "combos", spread(rng, frames), replication(402))
    yield replace(copies, races=True)
    # Without groups and sessions nothing is copied.
    yield case("combos-empty", "combos", spread(rng, frames[:40]))


def lookups() -> Iterator[Case]:
    rng = random.Random(501)
    widths = [32, 16, 8, 4, 4, 128, 16]
    arrivals = spread(rng, [frame(rng, widths) + b"\1" for _ in range(300)])
    yield case("lookups", "lookups", arrivals, entries(info("lookups"), 502))
    yield case("lookups-crowded", "lookups", arrivals, entries(info("lookups"), 503, count=64))
    yield case("lookups-empty", "lookups", arrivals[:60])
    arrivals = spread(rng, [frame(rng, [32, 12, 4, 128, 8]) for _ in range(200)])
    yield case("matches", "matches", arrivals, entries(info("matches"), 504))


def router() -> Iterator[Case]:
    rng = random.Random(601)
    frames = []
    for _ in range(200):
        head = bytearray(frame(rng, [8, 8, 16, 16, 3, 13, 8, 8, 16, 32, 32]))
        head[0] = rng.choice([0x45, 0x45, 0x45, 0x46, 0x65])
        if rng.random() < 0.7:
            head[10:12] = bytes(2)
            head[10:12] = _csum16(head)
        type_ = rng.choice([b"\x08\x00", b"\x08\x00", b"\x86\xdd"])
        one = rng.randbytes(12) + type_ + bytes(head) + rng.randbytes(rng.randrange(20))
        frames.append(one if rng.random() < 0.9 else one[: rng.randrange(1, len(one))])
    routed = spread(rng, frames)
    yield case("router", "router", routed, entries(info("router"), 602))
    plain = case("router-legacy", "router", routed[:60], entries(info("router"), 602))
    yield replace(plain, program=rewritten(plain.program))
    yield case("router-empty", "router", spread(rng, frames[:30]))
    frames = [frame(rng, [48, 48, 16]) + rng.randbytes(rng.randrange(9)) for _ in range(150)]
    frames[0] = frames[0][:9]
    switch = info("p4rt_switch")
    yield case("switch", "p4rt_switch", spread(rng, frames), entries(switch, 603), replication(604))
    everything = [one.preamble.name for one in switch.message.tables]
    for name in ("bridge", "routes", "policy"):
        left = [one for one in everything if one.endswith(name)]
        yield case(
            f"switch-without-{name}", "p4rt_switch", spread(rng, frames[:40]),
            entries(switch, 605, empty=left), replication(604),
        )  # fmt: skip


def states() -> Iterator[Case]:
    # Not READ_SIGNED: see docs/reference/bmv2-differences.md.
    rng = random.Random(701)
    ops = [state.WRITE, state.READ_WIDE, state.READ_NARROW, state.LOG]
    frames = []
    for _ in range(250):
        value = rng.choice([rng.randbytes(9), b"\xff" * 9, bytes(9)])
        frames.append(bytes([rng.choice(ops), rng.randrange(8)]) + value)
    yield case("state", "state", spread(rng, frames))
    frames = [
        bytes(12) + b"\x88\xb5" + bytes([rng.choice([0, 1, 1]), 0, 0, rng.randrange(4)])
        + (rng.randbytes(32) + rng.choice([b"\x7f\xff\xff\xff", b"\0\0\0\1"]) * 8) * 16
        for _ in range(60)
    ]  # fmt: skip
    yield case("adder", "adder", spread(rng, frames))
    found = [one for one in parsing.random_frames(random.Random(9), 300) if one]
    yield case("parsing", "parsing", spread(rng, found))
    # Where the parser would not end BMv2 does not.
    found = [
        bytes([rng.randrange(4), 0, 0, 0]) + bytes([rng.randrange(0xF0)]) + rng.randbytes(40)
        for _ in range(40)
    ]
    yield case("spinning", "spinning", spread(rng, found))


def rounds() -> Iterator[Case]:
    rng = random.Random(801)
    frames = [
        replicated.frame(op, argument, bytes(range(20)))
        for op in (*range(replicated.ENDLESS), replicated.TRUNCATE_AND_RECIRCULATE)
        for argument in (0, 1, 2, 3, 4, 25, 200)
        if (op, argument) != (replicated.TRUNCATE, 0)  # a packet of nothing leaves BMv2 alone
    ]
    yield case("replication", "replication", spread(rng, frames), replication(802))


GENERATORS: list[Callable[[], Iterator[Case]]] = [
    operators, stacks, checksums, combos, lookups, router, states, rounds,
    aggregation, expressions, profiles, blocks, headers, metered, learned, arguments,
]  # fmt: skip


@lru_cache(maxsize=1)
def cases() -> dict[str, Case]:
    """Every case by name."""
    return {one.name: one for generator in GENERATORS for one in generator()}
