# SPDX-License-Identifier: GPL-2.0-only
"""Differential cases of parsers that depend on the control plane or extract variable shapes, and
of CRCs with parameters set at run time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from controller.p4rt.entries import P4Info, modification
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import Case, program_files

KINDS = (0x11, 0x20, 0xFF)
PAIRS = ((0x123, 0x10), (0xFFF, 0x10), (0, 0))
WIDES = (0x0102030405060708FF, 0xFF0000000000000000)


def value_set(
    p4info: P4Info, name: str, members: Sequence[Sequence[int | tuple[int, int]]]
) -> p4rt.Update:
    """A whole set; each element of a member is a value, or a value and a mask."""
    [declared] = [one for one in p4info.message.value_sets if one.preamble.alias == name]
    entity = p4rt.Entity()
    entity.value_set_entry.value_set_id = declared.preamble.id
    for member in members:
        made = entity.value_set_entry.members.add()
        for field, element in zip(declared.match, member, strict=True):
            match = made.match.add(field_id=field.id)
            value, mask = element if isinstance(element, tuple) else (element, None)
            if mask is None:
                match.exact.value = _bytes(value)
            else:
                match.ternary.value, match.ternary.mask = _bytes(value), _bytes(mask)
    return modification(entity)


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def sets(p4info: P4Info) -> list[p4rt.Update]:
    return [
        value_set(p4info, "kinds", [(one,) for one in KINDS]),
        value_set(p4info, "pairs", [(tag, (kind, 0xFF)) for tag, kind in PAIRS]),
        value_set(p4info, "wides", [(one,) for one in WIDES]),
    ]


def value_sets() -> Iterator[Case]:
    text, p4info = program_files(HERE / "valuesets.json")
    rng = random.Random(1001)
    arrivals = []
    for _ in range(200):
        kind = rng.choice([*KINDS, 0x10, 0x20, 0x10, rng.randrange(256)])
        tag = rng.choice([0x123, 0xFFF, 0, rng.randrange(4096)])
        one = bytes([kind]) + (tag << 4 | rng.randrange(16)).to_bytes(2, "big") + b"\0"
        if rng.random() < 0.4:
            one += rng.choice(WIDES).to_bytes(9, "big")
        else:
            for _ in range(5):
                one += bytes([rng.choice([*KINDS, 0, 0x12]), rng.randrange(256)])
        one += rng.randbytes(rng.randrange(9))
        arrivals.append((rng.randrange(8), one[: rng.randrange(1, 25)]))
    yield Case("valuesets", text, p4info, sets(p4info), arrivals)
    yield Case("valuesets-empty", text, p4info, [], arrivals[:30])


def unions() -> Iterator[Case]:
    text, p4info = program_files(HERE / "unions.json")
    rng = random.Random(1101)
    arrivals = []
    for _ in range(250):
        first, second, what = rng.randrange(6), rng.randrange(6), rng.randrange(12)
        one = bytes([first, second, what, 0, 0, 0, 0, 0])
        one += rng.choice([rng.randbytes(30), bytes(3) + b"\5\xff\xfa" * 5, bytes(30)])
        one += rng.randbytes(rng.choice([0, 0, 0, 170, 330]))
        one = one if rng.random() < 0.9 else one[: rng.randrange(8, len(one))]
        arrivals.append((rng.randrange(8), one))
    yield Case("unions", text, p4info, [], arrivals)


def options() -> Iterator[Case]:
    text, p4info = program_files(HERE / "options.json")
    rng = random.Random(1201)
    arrivals = []
    for _ in range(400):
        words, items = rng.choice([0, 0, 1, 3, 10, 11, 15]), rng.choice([0, 1, 1, 2, 3, 9, 9])
        one = bytes([0x40 | words, rng.randrange(9), 0, 0, 0, 0, items, 0])
        one += rng.randbytes(4 * words)
        for _ in range(4):
            bits = rng.choice([0, 8, 16, 24, 64, 8, 72, 7, 0x28])
            one += bytes([bits, bits]) + rng.randbytes(bits // 8 + 1)
        one = one if rng.random() < 0.8 else one[: rng.randrange(8 + 4 * words, len(one))]
        arrivals.append((rng.randrange(8), one))
    yield Case("options", text, p4info, [], arrivals)


def crcs() -> Iterator[Case]:
    text, p4info = program_files(HERE / "crcs.json")
    rng = random.Random(1301)
    yield Case("crcs", text, p4info, [], [(1, rng.randbytes(12)) for _ in range(60)])


def cases() -> Iterator[Case]:
    yield from crcs()
    yield from options()
    yield from value_sets()
    yield from unions()
