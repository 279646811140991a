# SPDX-License-Identifier: GPL-2.0-only
"""Tests the differential program fuzzer: valid, deep inputs; small, reproducible findings."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from switch.loader import load_program
from switch.pipeline import Pipeline
from tests.fuzz.programs.__main__ import Subject, case_of, subjects
from tests.fuzz.programs.comparison import compare, refusals, timeless
from tests.fuzz.programs.generator import source
from tests.fuzz.programs.reduction import fewest, load, save
from tests.p4 import HERE
from tests.packet.differential.case import Answer, Embedded


def subject(name: str) -> Subject:
    return Subject(name, HERE / f"{name}.json", HERE / f"{name}.p4info.txtpb")


@pytest.mark.parametrize("name", ["lookups", "metered", "p4rt_switch", "profiles", "valuesets"])
def test_entries_are_taken(name: str) -> None:
    """All but keys that are drawn twice, and entries for tables whose entries are const."""
    case = case_of(subject(name), 1, 1)
    target = Embedded(replace(case, updates=()))
    try:
        found = refusals(target.connection, case.updates)
    finally:
        target.close()
    assert len(case.updates) > 2
    known = ("ALREADY_EXISTS", "has const entries")
    assert [one for one in found if one and not any(word in one for word in known)] == []


@pytest.mark.parametrize("name", ["parsing", "stacks", "unionstacks", "options"])
def test_frames_come_to_every_state_of_the_parser(name: str) -> None:
    program = load_program(HERE / f"{name}.json")
    seen: set[str] = set()
    with Pipeline(program, traced=True) as pipeline:

        def note(line: str) -> None:
            _, _, states = line.partition(" parser: ")
            seen.update(states.partition(";")[0].split(", ") if states else ())

        pipeline.set_trace(note)
        for port, frame in case_of(subject(name), 1, 300).arrivals:
            pipeline.inject(port, frame)
    assert set(program.parser_states) - seen == set()


def test_the_same_seed_draws_the_same() -> None:
    first, second, other = (case_of(subject("router"), seed, 5) for seed in (1, 1, 2))
    assert (first.updates, first.arrivals) == (second.updates, second.arrivals)
    assert first.arrivals != other.arrivals
    assert source(random.Random(5)) == source(random.Random(5)) != source(random.Random(6))


def test_the_fewest_items_are_found() -> None:
    asked: list[list[int]] = []

    def holds(items: list[int]) -> bool:
        asked.append(items)
        return {7, 31} <= set(items)

    assert fewest(range(100), holds) == [7, 31]
    assert len(asked) < 100


def test_a_case_that_is_kept_comes_back(tmp_path: Path) -> None:
    case = case_of(subject("profiles"), 3, 10)
    save(case, tmp_path / "profiles")
    again = load(tmp_path / "profiles")
    assert again.inputs_sha256 == case.inputs_sha256
    assert again.program == case.program


def test_programs_are_found_with_their_p4info(tmp_path: Path) -> None:
    for ending in (".json", ".p4info.txtpb"):
        (tmp_path / "deep").mkdir(exist_ok=True)
        shutil.copy(HERE / f"router{ending}", tmp_path / "deep" / f"router{ending}")
    (tmp_path / "alone.json").write_text("{}")
    assert [one.name for one in subjects(tmp_path)] == ["deep-router"]


def test_only_state_that_depends_on_the_time_is_left_out() -> None:
    early = Answer(registers={"seen": {0: 10, 1: 3}}, hits=[(1, 60), (2, 90)],
                   digests={"learn": [b"a"]})  # fmt: skip
    late = replace(early, registers={"seen": {0: 99, 1: 3}}, hits=[(1, 60), (0, 0)])
    bmv2 = replace(early, registers={"seen": {0: 11, 1: 4}}, digests={"learn": [b"b"]})
    left = timeless(bmv2, early, late)
    assert left.registers == {"seen": {1: 4}}
    assert (left.hits, left.digests) == ([(1, 60)], {"learn": [b"b"]})
    assert timeless(early, early, late).registers == {"seen": {1: 3}}


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c is not installed")
@pytest.mark.parametrize("seed", range(5))
def test_random_programs_compile_and_run(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "random.p4"
    path.write_text(source(random.Random(seed)))
    command = ["p4c-bm2-ss", "--std", "p4-16", "-o", str(tmp_path / "random.json"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rng = random.Random(seed)
    with Pipeline(load_program(tmp_path / "random.json")) as pipeline:
        pipeline.set_multicast_group(1, [(1, 0)])
        # Longer ones may be dropped, whatever else they do.
        assert any(pipeline.inject(0, rng.randbytes(rng.randrange(60))) for _ in range(50))


@pytest.mark.bmv2
@pytest.mark.parametrize("name", ["arguments", "lookups", "profiles"])
def test_targets_agree(name: str) -> None:
    result = compare(case_of(subject(name), 7, 60))
    assert (result.refused_here, result.refused_there) == ("", "")
    assert result.packets
    assert [words for words, _ in result.findings] == []
