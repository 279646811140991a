# SPDX-License-Identifier: GPL-2.0-only
"""Differential cases of programs with header and standard metadata arguments, varbit fields that
are compared or unaligned, numbers wider than BMv2 accepts, or stacks of header unions."""

from __future__ import annotations

import random
from collections.abc import Iterator

from controller.p4rt.entries import insertion
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import Case, program_files
from tests.packet.differential.legacy import unions_as_wholes


def groups() -> list[p4rt.Update]:
    """Groups 1 and 2, to two ports each."""
    made = []
    for number, ports in ((1, (2, 3)), (2, (4, 5))):
        entry = p4rt.PacketReplicationEngineEntry()
        entry.multicast_group_entry.multicast_group_id = number
        for port in ports:
            entry.multicast_group_entry.replicas.add(egress_port=port, instance=port)
        made.append(insertion(p4rt.Entity(packet_replication_engine_entry=entry)))
    return made


def arguments() -> Iterator[Case]:
    text, p4info = program_files(HERE / "arguments.json")
    rng = random.Random(1401)
    arrivals = []
    for _ in range(400):
        # Numbers below 8 are also priority 0; others are dropped where `what` is 12.
        number = rng.choice([rng.randrange(8), rng.randrange(8), 9, 56, 0xFF])
        one = bytes([rng.randrange(19), number, 0, 0])
        for _ in range(rng.randint(1, 4)):
            one += bytes([rng.choice([0, 0, 1, 2])]) + rng.randbytes(3)
        one += bytes([rng.choice([0, 1])]) + rng.choice([b"\1\2\3", rng.randbytes(3)])
        one += bytes([rng.choice([0, 1])]) + rng.choice([b"\1\2\3", rng.randbytes(3)])
        one += rng.randbytes(rng.randrange(6))
        arrivals.append((rng.randrange(8), one if rng.random() < 0.9 else one[: rng.randint(4, 9)]))
    yield Case("arguments", text, p4info, groups(), arrivals)


def varbits() -> Iterator[Case]:
    text, p4info = program_files(HERE / "varbits.json")
    rng = random.Random(1501)
    arrivals = []
    for _ in range(400):
        first, second = (rng.choice([0, 1, 2, 3, 8, 8, 9]) for _ in range(2))
        texts = [
            rng.choice([bytes(size), rng.randbytes(size), b"\1".rjust(size, b"\0")[:size]])
            for size in (first, second)
        ]
        if first == second and rng.random() < 0.5:
            texts[1] = texts[0]
        one = bytes([first, second, rng.randrange(2), rng.randrange(6)])
        one += rng.choice([b"\0\0", b"\xff\xff", rng.randbytes(2)])
        length = rng.randrange(256)
        one += bytes([length]) + texts[0]
        one += bytes([rng.choice([length, length, rng.randrange(256)])]) + texts[1]
        one += rng.randbytes(rng.choice([0, 0, 1, 7, 40]))
        arrivals.append((rng.randrange(8), one if rng.random() < 0.9 else one[: rng.randint(1, 9)]))
    yield Case("varbits", text, p4info, [], arrivals)


def unaligned() -> Iterator[Case]:
    text, p4info = program_files(HERE / "unaligned.json")
    rng = random.Random(1701)
    arrivals = []
    for _ in range(500):
        first, second = (rng.choice([0, 1, 2, 3, 8, 8, 9]) for _ in range(2))
        third, fourth = rng.choice([0, 1, 2, 3, 3, 4]), rng.choice([0, 1, 5, 15, 16, 16, 17])
        one = bytes([first, second, third, fourth, rng.randrange(12), 0]) + rng.randbytes(2)
        nibble = rng.randbytes(2 + first)
        one += nibble
        one += nibble if first == second and rng.random() < 0.4 else rng.randbytes(2 + second)
        one += rng.randbytes(1 + third)
        one += rng.choice([b"\xff" * (18 + fourth), rng.randbytes(18 + fourth)])
        one += rng.randbytes(rng.choice([0, 0, 1, 7, 40]))
        whole = rng.random() < 0.9
        arrivals.append((rng.randrange(8), one if whole else one[: rng.randint(1, len(one))]))
    yield Case("unaligned", text, p4info, [], arrivals)


def limits() -> Iterator[Case]:
    text, p4info = program_files(HERE / "limits.json")
    rng = random.Random(1801)
    arrivals = []
    for _ in range(300):
        low = rng.randrange(10)
        bits = rng.choice([0, 8, 32, 40, 12, 1 << 31, (1 << 32) - 160, (1 << 32) - 1])
        index = rng.choice([low, low, 1 << 32 | low, 3 << 40 | low, rng.getrandbits(48)])
        one = bits.to_bytes(4, "big") + index.to_bytes(6, "big")
        one += bytes(2) + rng.randbytes(2) + rng.randbytes(rng.choice([0, 1, 3, 9]))
        arrivals.append((rng.randrange(8), one))
    yield Case("limits", text, p4info, [], arrivals)


def called() -> Iterator[Case]:
    text, p4info = program_files(HERE / "called.json")
    rng = random.Random(1901)
    updates = [
        insertion(
            p4info.table_entry(
                table, {field: key}, "Enter.add", {"number": rng.randrange(1 << 16), "place": 2}
            )
        )
        for table, field in (("Enter.numbers", "hdr.order.key"), ("Enter.others", "hdr.order.what"))
        for key in range(0, 10, 3)
    ]
    arrivals = [
        (rng.randrange(8), bytes([rng.randrange(10), rng.randrange(10)]) + rng.randbytes(3))
        for _ in range(150)
    ]
    yield Case("called", text, p4info, updates, arrivals)


def defaults() -> Iterator[Case]:
    text, p4info = program_files(HERE / "defaults.json")
    rng = random.Random(2001)
    arrivals = [
        (rng.randrange(8), bytes([rng.randrange(6), rng.choice([0, 3, 7, 9])]) + rng.randbytes(3))
        for _ in range(60)
    ]
    yield Case("defaults", text, p4info, [], arrivals)


def union_stacks() -> Iterator[Case]:
    text, p4info = program_files(HERE / "unionstacks.json")
    rng = random.Random(1601)
    arrivals = []
    for _ in range(400):
        one = bytes([rng.randrange(13), 0])
        for _ in range(rng.randint(1, 4)):
            kind = rng.randrange(4)
            following = rng.choice([0, 1, 2, 3, 4, 9])
            value = rng.choice([b"\0\0\7", rng.randbytes(3)])
            size = rng.choice([0, 1, 2, 3, 4, 5])
            one += {
                0: bytes([following]) + value[:1],
                1: bytes([0x40 + following]) + value,
                2: bytes([0x80 + following, size]) + rng.randbytes(size),
                3: rng.randbytes(2),
            }[kind]
        one += rng.randbytes(rng.randrange(4))
        arrivals.append((rng.randrange(8), one if rng.random() < 0.9 else one[: rng.randint(2, 5)]))
    yield Case("unionstacks", text, p4info, [], arrivals)
    yield Case("unionstacks-wholes", unions_as_wholes(text), p4info, [], arrivals)


def cases() -> Iterator[Case]:
    yield from arguments()
    yield from varbits()
    yield from unaligned()
    yield from limits()
    yield from called()
    yield from defaults()
    yield from union_stacks()
