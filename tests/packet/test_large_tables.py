# SPDX-License-Identifier: Apache-2.0
"""Tables of thousands of entries that come, change and go, against a search through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from switch.compile import FLAGS
from switch.pipeline import KeyElement, Pipeline
from switch.program import Program
from testbed.bench.forwarding.contenders import OWN_PROGRAMS

pytestmark = pytest.mark.packet

ETHERTYPES = {"exact": 0x88B5, "lpm": 0x88B6, "ternary": 0x88B7}
TABLES = {"exact": "by_value", "lpm": "by_prefix", "ternary": "by_mask"}
FORWARD = "IngressPipeline.forward"
FULL = 0xFFFFFFFF
LARGE = 5000  # from 4,096 on lookups are done ahead
BATCH = 250


@dataclass
class Entry:
    """port: of the action, so that every one of many can be told apart."""

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
            told = self.pipeline.inject_batch([1] * len(batch), batch)
            out.update({_number(frame): port for port, frame in told})
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
        told = {}
        for at, key in enumerate(keys):
            hits = (key & masks) == values
            if hits.any():
                best = int(np.where(hits, strengths, strengths.min() - 1).argmax())
                told[at] = self.known[best].port
        return told

    def _frame(self, key: int, number: int) -> bytes:
        header = bytes(12) + ETHERTYPES[self.kind].to_bytes(2, "big") + key.to_bytes(4, "big")
        return header + number.to_bytes(4, "big") + bytes(42)


def _number(frame: bytes) -> int:
    return int.from_bytes(frame[18:22], "big")


# Not only with the vector instructions that this machine may have.
@pytest.mark.parametrize("flags", [FLAGS, (*FLAGS, "-mno-avx2")], ids=["native", "no AVX2"])
@pytest.mark.parametrize("kind", list(TABLES))
def test_a_lookup_finds_what_a_search_finds(kind: str, flags: tuple[str, ...]) -> None:
    program = Program.load(OWN_PROGRAMS / "tables.json")
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
