# SPDX-License-Identifier: Apache-2.0
"""Tests that the committed data plane matches its sources."""

from __future__ import annotations

import re
import shutil
from enum import IntEnum
from pathlib import Path

import pytest

from protocol.outcomes import Impaired, Outcome
from specs import p4program


def test_committed_builds_match_their_sources() -> None:
    assert p4program.read_manifest(), "p4src/build/MANIFEST is empty: run make p4"
    assert p4program.out_of_date() == []


@pytest.fixture
def copy_of_sources(tmp_path: Path) -> Path:
    return Path(shutil.copytree(p4program.SOURCES, tmp_path / "p4src"))


def test_an_edited_source_is_noticed(copy_of_sources: Path) -> None:
    source = copy_of_sources / "node.p4"
    source.write_text(source.read_text() + "\n")
    assert p4program.out_of_date(copy_of_sources) == ["node.p4"]


def test_without_a_compiler_an_edited_source_stops_with_advice(
    copy_of_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy_of_sources / "node.p4").unlink()
    monkeypatch.setenv("PATH", str(copy_of_sources))
    with pytest.raises(p4program.DataPlaneError, match=r"node\.p4.*p4lang-p4c"):
        p4program.make_ready(copy_of_sources)


@pytest.mark.skipif(shutil.which(p4program.COMPILER) is None, reason="p4c is not installed")
def test_every_build_is_announced_and_made(copy_of_sources: Path) -> None:
    source = copy_of_sources / "node.p4"
    source.write_text(source.read_text() + "\n")
    said: list[str] = []
    assert p4program.make_ready(copy_of_sources, said.append) == ["node.p4"]
    assert said == [
        f"compiling p4src/build/{build.name}.json ({number} of {len(p4program.BUILDS)})"
        for number, build in enumerate(p4program.BUILDS, 1)
    ]
    assert p4program.make_ready(copy_of_sources, said.append) == []


@pytest.mark.skipif(shutil.which(p4program.COMPILER) is None, reason="p4c is not installed")
def test_a_broken_source_shows_the_compilers_message(copy_of_sources: Path) -> None:
    source = copy_of_sources / "forwarding.p4"
    source.write_text(source.read_text().replace("ttl - 1", "no_such_field - 1"))
    with pytest.raises(p4program.DataPlaneError, match="no_such_field"):
        p4program.make_ready(copy_of_sources)


@pytest.mark.parametrize(("p4_enum", "python_enum"), [("Outcome", Outcome), ("Impaired", Impaired)])
def test_counter_names_agree_with_the_program(p4_enum: str, python_enum: type[IntEnum]) -> None:
    text = (p4program.SOURCES / "outcomes.p4").read_text()
    body = re.search(rf"enum bit<32> {p4_enum} \{{(.*?)\}}", text, re.S)
    assert body is not None
    declared = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", body[1])}
    assert declared == {member.name: member.value for member in python_enum}
