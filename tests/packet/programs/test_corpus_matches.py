# SPDX-License-Identifier: Apache-2.0
"""Tests tables of every match kind against a linear search."""

from __future__ import annotations

import random

import pytest

from switch.pipeline import (
    EntryExists,
    EntryIsConstant,
    EntryNotFound,
    Pipeline,
    PipelineError,
    TableFull,
)
from tests.p4 import corpus

WIDTHS = {"a": 32, "b": 12, "c": 4, "d": 128, "e": 8}
VERDICTS = ["exact", "lpm", "ternary", "range", "optional", "fixed", "hit"]


@pytest.fixture
def pipeline() -> Pipeline:
    return corpus("matches")


def ask(pipeline: Pipeline, **query: int) -> dict[str, int]:
    bits = 0
    for name, width in WIDTHS.items():
        bits = bits << width | query.get(name, 0)
    [(_, out)] = pipeline.inject(1, bits.to_bytes(23, "big"))
    return dict(zip(VERDICTS, out[23:], strict=True))


def test_exact(pipeline: Pipeline) -> None:
    big = (1 << 128) - 3
    pipeline.insert("Enter.exact_table", [1, 2, big, 0x80, 1], "Enter.exactly", [9])
    assert ask(pipeline, a=1, b=2, d=big, e=0x80)["exact"] == 9
    for other in ({"a": 2}, {"b": 3}, {"d": big ^ 1 << 127}, {"e": 0x81}):
        assert ask(pipeline, **{"a": 1, "b": 2, "d": big, "e": 0x80, **other})["exact"] == 0xEE


def test_size_is_a_limit(pipeline: Pipeline) -> None:
    handles = [
        pipeline.insert("Enter.exact_table", [i, 0, 0, 0, 1], "Enter.exactly", [i])
        for i in range(4)
    ]
    with pytest.raises(EntryExists):
        pipeline.insert("Enter.exact_table", [0, 0, 0, 0, 1], "Enter.exactly", [1])
    with pytest.raises(TableFull, match="size = 4"):
        pipeline.insert("Enter.exact_table", [9, 0, 0, 0, 1], "Enter.exactly", [1])
    pipeline.delete("Enter.exact_table", handles[2])
    pipeline.insert("Enter.exact_table", [9, 0, 0, 0, 1], "Enter.exactly", [1])
    found = [ask(pipeline, a=i)["exact"] for i in (0, 1, 2, 3, 9)]
    assert found == [0, 1, 0xEE, 3, 1]


def test_lpm_with_an_exact_field(pipeline: Pipeline) -> None:
    top = 0xABCD << 112
    for i, (c, length) in enumerate([(1, 0), (1, 4), (1, 16), (2, 128)], 1):
        pipeline.insert("Enter.lpm_table", [c, (top, length)], "Enter.longest", [i])
    assert ask(pipeline, c=1, d=top)["lpm"] == 3
    assert ask(pipeline, c=1, d=0xA << 124)["lpm"] == 2
    assert ask(pipeline, c=1, d=5)["lpm"] == 1
    assert ask(pipeline, c=2, d=top)["lpm"] == 4
    assert ask(pipeline, c=2, d=top + 1)["lpm"] == 0


def test_ternary_by_priority_like_a_search_of_all(pipeline: Pipeline) -> None:
    rng = random.Random(11)
    entries: dict[tuple[int, int, int, int, int], int] = {}
    handles = {}
    for i in range(300):
        mask_a = rng.choice([0, 0xFF, 0xFF00, 0xFFFFFFFF, 0xF0F0])
        mask_d = rng.choice([0, 0xF, (1 << 128) - 1, 0xFF << 120])
        a, d = rng.choice([0x1234, 0xF0F0, 0x12]), rng.choice([0, 3, 0xAB << 120])
        entry = (a & mask_a, mask_a, d & mask_d, mask_d, rng.randrange(1, 40))
        key = [entry[0:2], entry[2:4]]
        if entry in entries:
            with pytest.raises(EntryExists):
                pipeline.insert("Enter.ternary_table", key, "Enter.masked", [1], entry[4])
            continue
        entries[entry] = i % 250 + 1
        handles[entry] = pipeline.insert(
            "Enter.ternary_table", key, "Enter.masked", [i % 250 + 1], entry[4]
        )

    def check() -> None:
        for a in (0x1234, 0xF0F0, 0x12, 0x34, 0):
            for d in (0, 3, 0xAB << 120, 0xAB << 120 | 3):
                hits = [
                    entry
                    for entry in entries
                    if a & entry[1] == entry[0] and d & entry[3] == entry[2]
                ]
                got = ask(pipeline, a=a, d=d)
                if not hits:
                    assert (got["ternary"], got["hit"]) == (0, 0)
                    continue
                # max keeps the first of equals: the older entry
                best = max(hits, key=lambda entry: entry[4])
                assert (got["ternary"], got["hit"]) == (entries[best], 1)

    check()
    for entry in rng.sample(sorted(entries), len(entries) // 2):
        pipeline.delete("Enter.ternary_table", handles[entry])
        del entries[entry]
    check()


def test_ranges(pipeline: Pipeline) -> None:
    add = pipeline.insert
    add("Enter.range_table", [(10, 20), 1, (0, (1 << 32) - 1)], "Enter.within", [1], 1)
    add("Enter.range_table", [(15, 15), 1, (100, 200)], "Enter.within", [2], 5)
    add("Enter.range_table", [(0, 4095), 2, (7, 7)], "Enter.within", [3], 5)
    for b, c, a, verdict in (
        (9, 1, 0, 0), (10, 1, 0, 1), (20, 1, 0, 1), (21, 1, 0, 0), (15, 1, 99, 1),
        (15, 1, 100, 2), (15, 1, 200, 2), (15, 1, 201, 1), (0, 2, 7, 3), (0, 2, 8, 0),
    ):  # fmt: skip
        assert ask(pipeline, a=a, b=b, c=c)["range"] == verdict


def test_optional(pipeline: Pipeline) -> None:
    pipeline.insert("Enter.optional_table", [(5, 0xFFF), (0, 0)], "Enter.perhaps", [1], 1)
    pipeline.insert("Enter.optional_table", [(5, 0xFFF), (3, 0xF)], "Enter.perhaps", [2], 2)
    pipeline.insert("Enter.optional_table", [(0, 0), (4, 0xF)], "Enter.perhaps", [3], 3)
    answers = [ask(pipeline, b=b, c=c)["optional"] for b, c in ((5, 0), (5, 3), (5, 4), (6, 3))]
    assert answers == [1, 2, 3, 0]


def test_declared_entries_come_in_their_order(pipeline: Pipeline) -> None:
    answers = [
        ask(pipeline, b=b, c=c)["fixed"] for b, c in ((0x123, 4), (0x124, 4), (0x200, 4), (0, 0))
    ]
    assert answers == [1, 2, 3, 0xFF]
    assert len(pipeline.initial_entries("Enter.fixed_table")) == 3
    with pytest.raises(EntryIsConstant):
        pipeline.insert("Enter.fixed_table", [(0, 0), (0, 0)], "Enter.fixed", [1], 1)
    with pytest.raises(EntryIsConstant):
        pipeline.delete("Enter.fixed_table", pipeline.initial_entries("Enter.fixed_table")[0])
    with pytest.raises(EntryIsConstant):
        pipeline.set_default("Enter.fixed_table", "Enter.fixed", [1])


def test_mistakes_are_named(pipeline: Pipeline) -> None:
    table, action = "Enter.ternary_table", "Enter.masked"
    with pytest.raises(KeyError, match=r"has no table 'nothing'; it has: .*Enter\.lpm_table"):
        pipeline.insert("nothing", [], action)
    with pytest.raises(KeyError, match=r"no action 'Enter\.fixed'; it has: Enter\.masked"):
        pipeline.insert(table, [(0, 0), (0, 0)], "Enter.fixed", [1])
    with pytest.raises(ValueError, match="has 2 key fields, not 1"):
        pipeline.insert(table, [(0, 0)], action, [1])
    with pytest.raises(ValueError, match=r"field 'hdr\.query\.a' .*does not fit in 32 bits"):
        pipeline.insert(table, [(1 << 32, 0), (0, 0)], action, [1])
    with pytest.raises(ValueError, match=r"argument 'v': 0x100 does not fit in 8 bits"):
        pipeline.insert(table, [(0, 0), (0, 0)], action, [256])
    with pytest.raises(ValueError, match=r"takes 1 arguments \(v:8\), not 0"):
        pipeline.insert(table, [(0, 0), (0, 0)], action)
    with pytest.raises(ValueError, match="prefix length 129"):
        pipeline.insert("Enter.lpm_table", [0, (0, 129)], "Enter.longest", [1])
    with pytest.raises(ValueError, match="is empty"):
        pipeline.insert("Enter.range_table", [(5, 4), 0, (0, 0)], "Enter.within", [1])
    with pytest.raises(EntryNotFound, match="no entry with handle 77"):
        pipeline.delete(table, 77)
    with pytest.raises(PipelineError, match="no direct counter"):
        pipeline.direct_counter(table, None)
