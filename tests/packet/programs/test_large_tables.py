# SPDX-License-Identifier: Apache-2.0
"""Tests tables with thousands of changing entries against a linear search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.forwarding.contenders import OWN_PROGRAMS
from switch.compiler import FLAGS
from switch.loader import load_program
from switch.pipeline import KeyElement, Pipeline

ROOT = Path(__file__).parents[3]
ETHERTYPES = {"exact": 0x88B5, "lpm": 0x88B6, "ternary": 0x88B7}
TABLES = {"exact": "by_value", "lpm": "by_prefix", "ternary": "by_mask"}
FORWARD = "IngressPipeline.forward"
FULL = 0xFFFFFFFF
LARGE = 5000  # from 4,096 on lookups are done ahead
BATCH = 250


@dataclass
class Entry:
    """port: of the action, so that every one of many can be distinguished."""

    handle: int
    value: int
    mask: int
    priority: int
    port: int


@dataclass
class Entries:
    """Of one table, and of the model that it is compared with, in the order of insertion."""

    pipeline: Pipeline
    kind: str
    rng: np.random.Generator
    known: list[Entry] = field(default_factory=list)

    def add(self, count: int) -> None:
        """New ones: dense enough that many cover a key, with equal priorities and a default."""
        taken = {(one.value, one.mask, one.priority) for one in self.known}
        while len(self.known) < count:
            mask, priority = self._mask(), 0
            value = int(self.rng.integers(1 << 18)) << 14 & mask
            key: KeyElement = value
            if self.kind == "lpm":
                priority = mask.bit_count()
                key = (value, priority)
            elif self.kind == "ternary":
                priority = 1 + int(self.rng.integers(4))
                key = (value, mask)
            if (value, mask, priority) in taken:
                continue
            taken.add((value, mask, priority))
            port = 1 + int(self.rng.integers(510))
            rank = priority if self.kind == "ternary" else 0
            handle = self.pipeline.insert(self._table, [key], FORWARD, [port], rank)
            self.known.append(Entry(handle, value, mask, priority, port))

    def _mask(self) -> int:
        if self.kind == "exact":
            return FULL
        if self.kind == "lpm":
            return FULL << (32 - int(self.rng.choice([0, 9, 12, 15, 16, 17, 18]))) & FULL
        width = int(self.rng.integers(6, 18))
        return ((1 << width) - 1) << int(self.rng.integers(14, 33 - width))

    @property
    def _table(self) -> str:
        return f"IngressPipeline.{TABLES[self.kind]}"

    def remove(self, count: int) -> None:
        """Some, in any order."""
        gone = {int(at) for at in self.rng.permutation(len(self.known))[:count]}
        for at in gone:
            self.pipeline.delete(self._table, self.known[at].handle)
        self.known = [one for at, one in enumerate(self.known) if at not in gone]

    def change(self, count: int) -> None:
        """What some do."""
        for at in self.rng.permutation(len(self.known))[:count]:
            one = self.known[at]
            one.port = 1 + one.port % 510
            self.pipeline.modify(self._table, one.handle, FORWARD, [one.port])

    def check(self) -> None:
        """Keys that are there, keys next to them, and others: all at once, then some alone."""
        some = self.rng.choice([one.value for one in self.known], 1000)
        keys = np.concatenate(
            [
                some,
                some ^ 1 << self.rng.integers(14, 32, 1000),
                self.rng.integers(1 << 32, size=500),
            ]
        ).tolist()
        expected = self._ports(keys)
        assert len(expected) >= len(some)
        frames = [self._frame(key, at) for at, key in enumerate(keys)]
        out = {}
        for first in range(0, len(frames), BATCH):
            batch = frames[first : first + BATCH]
            result = self.pipeline.inject_batch([1] * len(batch), batch)
            out.update({_number(frame): port for port, frame in result})
        assert out == expected
        for at in self.rng.permutation(len(keys))[:50]:
            ports = [port for port, _ in self.pipeline.inject(1, frames[at])]
            assert ports == ([expected[at]] if at in expected else [])

    def _ports(self, keys: Sequence[int]) -> dict[int, int]:
        """By a key's position where it goes to, unless nowhere, by the model: what the strongest
        entry says, of equally strong ones the oldest."""
        values = np.array([one.value for one in self.known])
        masks = np.array([one.mask for one in self.known])
        ages = np.arange(len(self.known))
        strengths = np.array([one.priority for one in self.known]) * len(ages) - ages
        found = {}
        for at, key in enumerate(keys):
            hits = (key & masks) == values
            if hits.any():
                best = int(np.where(hits, strengths, strengths.min() - 1).argmax())
                found[at] = self.known[best].port
        return found

    def _frame(self, key: int, number: int) -> bytes:
        header = bytes(12) + ETHERTYPES[self.kind].to_bytes(2, "big") + key.to_bytes(4, "big")
        return header + number.to_bytes(4, "big") + bytes(42)


def _number(frame: bytes) -> int:
    return int.from_bytes(frame[18:22], "big")


# Not only with the vector instructions that this machine may have.
@pytest.mark.parametrize("flags", [FLAGS, (*FLAGS, "-mno-avx2")], ids=["native", "no AVX2"])
@pytest.mark.parametrize("kind", list(TABLES))
def test_a_lookup_finds_what_a_search_finds(kind: str, flags: tuple[str, ...]) -> None:
    program = load_program(OWN_PROGRAMS / "tables.json")
    with Pipeline(program, flags=flags) as pipeline:
        entries = Entries(pipeline, kind, np.random.default_rng(5))
        for count in (1500, LARGE):
            entries.add(count)
            entries.check()
        entries.change(1000)
        entries.remove(LARGE - 1200)
        entries.check()
        entries.add(LARGE)
        entries.remove(LARGE // 2)
        entries.add(LARGE)
        entries.check()


Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rule:
    """An entry of a table of several fields: each as (value, mask) or (low, high)."""

    key: Pairs
    priority: int
    verdict: int


WORDS = [3 << 30, 0x0A0B0C0D, 0x0A0B0C0E, 0x0A0BFFFF]
WIDE = [0, 0x20010DB8 << 96, 0x20010DB8 << 96 | 1 << 64, 0x20010DB8 << 96 | 1]


def _prefix(bits: int, width: int) -> int:
    return (1 << width) - (1 << width - bits)


def _near(rng: np.random.Generator) -> tuple[int, int]:
    """Values of 32 and 128 bits that share prefixes of all lengths."""
    return (
        WORDS[rng.integers(4)] ^ int(rng.integers(16)) << int(rng.integers(29)),
        WIDE[rng.integers(4)] ^ int(rng.integers(16)) << int(rng.integers(125)),
    )


def _masked(rng: np.random.Generator) -> Pairs:
    """Prefixes of both fields or, one in eight, any bits of the first."""
    first = _prefix(int(rng.choice([0, 8, 16, 24, 31, 32])), 32)
    if rng.integers(8) == 0:
        first = int(rng.integers(1 << 32))
    second = _prefix(int(rng.choice([0, 32, 48, 64, 100, 127, 128])), 128)
    values = _near(rng)
    return (values[0] & first, first), (values[1] & second, second)


def _within(rng: np.random.Generator) -> Pairs:
    """Two ranges and, between them, a value."""
    first, last = np.sort(rng.integers([1 << 12, 1 << 32], size=(2, 2)), axis=0).tolist()
    value = int(rng.integers(16))
    return (first[0], last[0]), (value, value), (first[1], last[1])


def _covers(table: str, key: Pairs, values: Sequence[int]) -> bool:
    pairs = zip(values, key, strict=True)
    if table == "Enter.ternary_table":
        return all(at & mask == value for at, (value, mask) in pairs)
    return all(low <= at <= high for at, (low, high) in pairs)


def _change(pipeline: Pipeline, table: str, rules: dict[int, Rule], keep: int, rng: Any) -> None:
    """Deletes all but some, then adds until there are 900."""
    action, make = RULES[table]
    for handle in rng.permutation(list(rules))[keep:].tolist():
        pipeline.delete(table, handle)
        del rules[handle]
    taken = {(one.key, one.priority) for one in rules.values()}
    while len(rules) < 900:
        rule = Rule(make(rng), 1 + int(rng.integers(5)), 1 + int(rng.integers(255)))
        if (rule.key, rule.priority) in taken:
            continue
        taken.add((rule.key, rule.priority))
        key: list[KeyElement] = list(rule.key)
        if table == "Enter.range_table":
            key[1] = rule.key[1][0]
        rules[pipeline.insert(table, key, action, [rule.verdict], rule.priority)] = rule


RULES: dict[str, tuple[str, Callable[[np.random.Generator], Pairs]]] = {
    "Enter.ternary_table": ("Enter.masked", _masked),
    "Enter.range_table": ("Enter.within", _within),
}


def test_wide_masks_and_ranges_find_what_a_search_finds() -> None:
    rng = np.random.default_rng(11)
    known: dict[str, dict[int, Rule]] = {table: {} for table in RULES}
    program = load_program(ROOT / "tests" / "p4" / "matches.json")
    with Pipeline(program) as pipeline:
        for keep in (0, 100, 600):
            for table, rules in known.items():
                _change(pipeline, table, rules, keep, rng)
            found = 0
            for _ in range(120):
                (a, d), b, c = _near(rng), int(rng.integers(1 << 12)), int(rng.integers(16))
                packed = a << 152 | b << 140 | c << 136 | d << 8
                ((_, out),) = pipeline.inject(1, packed.to_bytes(23, "big"))
                expected = []
                for values, (table, rules) in zip([(a, d), (b, c, a)], known.items(), strict=True):
                    hits = [one for one in rules.values() if _covers(table, one.key, values)]
                    best = max(hits, key=lambda one: one.priority, default=None)  # the oldest
                    expected.append(best.verdict if best else 0)
                assert list(out[25:27]) == expected
                found += all(expected)
            assert found > 20
