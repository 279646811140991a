# SPDX-License-Identifier: Apache-2.0
"""Tests hostile topology, job and fault files: each is read or rejected with file and line, at
bounded cost."""

from __future__ import annotations

import os
import random
import re
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specs import fault_schedule, jobfile
from specs import faultfile as faults
from tests.conftest import ROOT
from topologies.model import spec
from topologies.model.documents import DEEPEST, MOST_BYTES, DocumentError

EXAMPLES = int(os.environ.get("RACKHUB_HOSTILE_CALLS", "400")) // 4
SPOTS = int(os.environ.get("RACKHUB_HOSTILE_CALLS", "400")) // 80
LONGEST_LINE = 2000
TOPOLOGY = spec.load(ROOT / "topologies" / "two-racks.yaml")
TEXTS = {
    "topology": (ROOT / "topologies" / "two-racks.yaml").read_text(),
    "job": (ROOT / "jobs" / "digits.yaml").read_text(),
    "faults": (
        "name: x\n"
        "faults:\n"
        "  - {at: 2 s, kill: tor0}\n"
        "  - {at: 1500 chunks, kill: core0, gone: 5 s}\n"
        "  - {at: 5 s, impair: {ends: [tor0, core0], loss: 10 %}, for: 5 s}\n"
        "random: {seed: 1, every: 5 s, count: 10, kinds: [kill], nodes: [switches]}\n"
    ),
}
READERS: dict[str, Callable[[str], object]] = {
    "topology": lambda text: spec.parse(text, "f.yaml"),
    "job": lambda text: jobfile.parse(text, "f.yaml").place(TOPOLOGY),
    "faults": lambda text: fault_schedule.schedule(faults.parse(text, "f.yaml"), TOPOLOGY),
}
kinds = pytest.mark.parametrize("kind", READERS)


def problems(kind: str, text: str) -> list[str]:
    """What is wrong with a file; nothing if it is read."""
    try:
        READERS[kind](text)
    except DocumentError as error:
        found = str(error).splitlines()
        assert found
        for line in found:
            assert re.match(r"f\.yaml:[1-9][0-9]*: .", line), line
            assert len(line) <= LONGEST_LINE, line[:200]
            number = int(line.split(":")[1])
            assert number <= len(re.findall("[\n\r\x85\u2028\u2029]", text)) + 1
        return found
    return []


NASTY = [
    ".nan", ".inf", "-.inf", "1e400", "9" * 400, "9" * 5000, "-" + "9" * 400, "0x" + "f" * 5000,
    "0b" + "1" * 20000, "1:99:99:99", "2026-99-99", "2026-11-21", "~", "''", "'\\0'", "true", "[]",
    "{}", "!!int ''", "!!int x", "!!float ''", "!!bool x", "!!timestamp x", "!!binary '#'",
    "!!set {a}", "!!omap [a: 1]", "!!pairs [a: 1]", "!!python/object:os.system {}", "!x y",
    "!!map x", "!!seq x", "!!str {}", "!!merge x", "<<", "*unknown", "&a [*a]", "&a {b: *a}",
    "'" + "x" * 20000 + "'", "\u202e\u0000", "\ud7ff", "\u2028", "\x07", "'w\u0660'", "\u0661",
    "'" + "9" * 5000 + " chunks'", "'" + "9" * 400 + " s'", "'-1 s'", "'.5 s'", "'1 %'", "@", "%",
    "? [a, b]\n: c", "? {a: b}\n: c", "|", ">", "- - - -", "\t", "---", "...", "[" * 200,
    "{a: " * 200, "[" * DEEPEST + "]" * DEEPEST, "{<<: {rate: 1}}", "{<<: [{a: 1}, {a: 2}]}",
]  # fmt: skip


@kinds
@pytest.mark.parametrize("value", NASTY, ids=lambda value: ascii(value)[:30])
def test_no_value_of_any_field_breaks_the_reader(kind: str, value: str) -> None:
    text = "\n".join(line for line in TEXTS[kind].splitlines() if not line.startswith("#"))
    # In the place of a value, of one in a list, or of a key; of many, some.
    spots = list(re.finditer(r"(?<=: )[^,{}\[\]\n]+|(?<=\[)[^,{}\[\]\n]+|[a-z]+(?=: )", text))
    for spot in random.Random(value).sample(spots, min(SPOTS, len(spots))):
        problems(kind, text[: spot.start()] + value + text[spot.end() :])
    assert problems(kind, value), "a lone value is no file"


leaves: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=20)
    | st.dates()
    | st.sampled_from(["w0", "s0", "tor0", "core0", "controller", "forever", "all", "1 s", "5 %"])
)
FIELDS = sorted(set(re.findall(r"[a-z_]+(?=:)", " ".join(TEXTS.values()))))
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)


@kinds
@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(data=st.data())
def test_any_structure_is_read_or_refused_with_its_place(kind: str, data: st.DataObject) -> None:
    whole = yaml.safe_load(TEXTS[kind])
    for field in data.draw(st.lists(st.sampled_from(sorted(whole)), max_size=3)):
        whole[field] = data.draw(anything)
    problems(kind, yaml.safe_dump(whole, allow_unicode=True))


@kinds
@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(cut=st.integers(0, 2000), put=st.text(max_size=12), gone=st.integers(0, 12))
@example(cut=0, put="\x00", gone=0)
def test_any_text_is_read_or_refused_with_its_place(
    kind: str, cut: int, put: str, gone: int
) -> None:
    text = TEXTS[kind]
    at = cut % len(text)
    problems(kind, text[:at] + put + text[at + gone :])


@kinds
@pytest.mark.parametrize("field", ["name", "racks", "faults", "hidden", "x"])
def test_small_file_cannot_exhaust_memory(kind: str, field: str) -> None:
    """A bomb of aliases: 9^12 values; as a list, as groups of fields, and merged."""
    for first, open_, close in (("[1]", "[", "]"), ("{a: 1}", "{<<: [", "]}")):
        names = "abcdefghijkl"
        lines = [f"bomb_a: &a {first}"]
        for before, name in pairwise(names):
            lines.append(f"bomb_{name}: &{name} {open_}{', '.join([f'*{before}'] * 9)}{close}")
        lines.append(f"{field}: *l")
        tracemalloc.start()
        try:
            assert problems(kind, "\n".join(lines))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 200 << 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "f.yaml:1: not valid YAML: too many groups in one another"),
        ("a: " + "{a: " * 100_000, "f.yaml:1: not valid YAML: too many groups in one another"),
        ("name: &a [*a]", "too much; allowed: "),
        ("name: x\nracks: [{workers: 1, servers: 1}]\nx: {<<: {a: 1}}", "f.yaml:3: x: `<<` is not"),
        ("name: x\n? [a]\n: 1\nracks: []", "f.yaml:2: field names are words, not ['a']"),
        (f"name: x\nracks: []\n? {'k' * 5000}\n: 1", "f.yaml:3: no field has a name like 'kkk"),
        (f"name: x\ncores: {'9' * 400}", "f.yaml:2: cores: beyond all limits: '999"),
        ("name: x\nname: y\nracks: []", "f.yaml:2: name: given twice, first on line 1"),
        ("name: x\nuplinks: {rate: .nan}", "f.yaml:2: uplinks.rate: nan is not a finite number"),
        ("name: !!int ''", "f.yaml:1: name: not a plain value: '', read as 'tag:yaml.org"),
    ],
    ids=[str(number) for number in range(10)],
)
def test_errors_have_line_and_field(text: str, says: str) -> None:
    assert any(says in line for line in problems("topology", text)), problems("topology", text)


@pytest.mark.parametrize(
    "racks",
    [
        f"[{', '.join(['{workers: 200, servers: 200}'] * 400)}]",
        f"[{', '.join(['{workers: 250, servers: 250}'] * 100_000)}]",
        f"[{', '.join(['{workers: 1000000000}'] * 3)}]",
        f"[{{workers: 250, servers: 250}}, {', '.join(['&a {workers: 250}'] * 100)}]",
        "[{workers: 250, servers: 1, count: 4000}]",
        "[{workers: 1, servers: 1, count: 4000}]",
    ],
    ids=["160000 hosts", "100000 racks", "giant racks", "25000 workers", "1 line", "1 core"],
)
def test_topologies_beyond_all_machines_are_refused(racks: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(f"name: x\nracks: {racks}\ncores: 1\n")
    with pytest.raises(spec.TopologyError) as caught:
        spec.load(path)
    assert len(caught.value.problems) <= 3
    assert all(str(problem).startswith(f"{path}:") for problem in caught.value.problems)


def test_a_large_topology_with_every_link_changed_is_read_in_the_time_of_its_size() -> None:
    """Each link is looked up, not looked for: a thousand times a thousand would not end."""
    racks = 32
    lines = [f"name: x\nracks: [{', '.join(['{workers: 127, servers: 1}'] * racks)}]\ncores: 1"]
    lines.append("links:")
    lines += [f"  - {{ends: [w{w}, tor{w // 127}], rate: 1 Mbit/s}}" for w in range(127 * racks)]
    topology = spec.parse("\n".join(lines))
    assert len(topology.hosts) == 128 * racks
    assert {link.forward.rate for link in topology.links if link.a[0] == "w"} == {1_000_000}


@pytest.mark.parametrize(
    "data",
    [b"x" * (MOST_BYTES + 1), b"\xff\xfe", b"a: \xc3", b"\0" * 100],
    ids=["long", "UTF-16", "cut", "zeros"],
)
def test_a_file_that_is_no_text_or_too_long_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    for load in (spec.load, jobfile.load, faults.load):
        with pytest.raises(DocumentError) as caught:
            load(path)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"{path}:1: ")
        assert len(line) < LONGEST_LINE
