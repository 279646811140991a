# SPDX-License-Identifier: Apache-2.0
"""Tests the cache of compiled programs, and compiler errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import switch
from switch.codegen import cached_source, generate
from switch.compiler import CompilerError, build_program
from switch.loader import load_program, parse_program, read_program
from switch.program.model import Program
from tests.p4 import HERE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rackhub"


FLAGS = ("-O0", "-fPIC", "-shared", "-pthread")


def test_a_program_is_compiled_once(cache: Path) -> None:
    source = generate(load_program(HERE / "router.json"))
    library = build_program(source, FLAGS)
    made = library.stat().st_mtime_ns
    assert library.parent == cache
    assert build_program(source, FLAGS) == library
    assert library.stat().st_mtime_ns == made
    assert build_program(source, (*FLAGS, "-DOTHER")) != library
    assert build_program(source + "\n// changed\n", FLAGS) != library
    assert {path.suffix for path in cache.iterdir()} == {".so", ".o"}


def test_the_runtime_is_compiled_once_for_all_programs(cache: Path) -> None:
    source = generate(load_program(HERE / "router.json"))
    build_program(source, FLAGS)
    (runtime,) = cache.glob("runtime-*.o")
    made = runtime.stat().st_mtime_ns
    build_program(source + "\n// another\n", FLAGS)
    assert [(one, one.stat().st_mtime_ns) for one in cache.glob("*.o")] == [(runtime, made)]
    build_program(source, (*FLAGS, "-DOTHER"))
    assert len(list(cache.glob("runtime-*.o"))) == 2


def test_the_generated_source_does_not_depend_on_the_run() -> None:
    document = json.loads((HERE / "matches.json").read_bytes())
    assert generate(read_program(document)) == generate(read_program(document))


def unread() -> Program:
    raise AssertionError("it has to be in the cache")


def test_a_source_is_generated_once(cache: Path) -> None:
    program = load_program(HERE / "router.json")
    source = generate(program)
    assert cached_source(program.digest, lambda: program) == source
    assert cached_source(program.digest, unread) == source
    traced = cached_source(program.digest, lambda: program, traced=True)
    assert traced == generate(program, traced=True) != source
    shutil.rmtree(cache)
    assert cached_source(program.digest, lambda: program) == source


def test_a_changed_program_has_another_source() -> None:
    text = (HERE / "router.json").read_bytes()
    sources = []
    for one in (text, text.replace(b'"max_size" : ', b'"max_size" : 1')):
        program = parse_program(one)
        sources.append(cached_source(program.digest, lambda program=program: program))
        assert sources[-1] == generate(program)
    assert sources[0] != sources[1]


@pytest.mark.parametrize("file", ["codegen/source.py", "program/model.py", "loader/reader.py"])
def test_a_changed_generator_makes_sources_again(tmp_path: Path, file: str) -> None:
    program = load_program(HERE / "router.json")
    kept = cached_source(program.digest, lambda: program)
    copy = tmp_path / "changed" / "switch"
    shutil.copytree(Path(switch.__file__).parent, copy)
    script = f"""
from switch.codegen import cached
assert cached.__file__.startswith({str(copy)!r})
cached.cached_source({program.digest!r}, lambda: exit("generated"))
"""

    def run() -> str:
        command = [sys.executable, "-c", script]
        environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        ).stderr

    assert run() == ""
    with (copy / file).open("a") as changed:
        changed.write("# changed\n")
    assert run() == "generated\n"
    assert cached_source(program.digest, unread) == kept


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    program = load_program(HERE / "router.json")
    assert cached_source(program.digest, lambda: program) == generate(program)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -x")
    with pytest.raises(CompilerError, match=r"no C compiler 'no-such-compiler -x': install gcc"):
        build_program("int x;", FLAGS)


def test_a_compiler_that_fails_shows_what_it_said(cache: Path) -> None:
    with pytest.raises(CompilerError, match="expected") as error:
        build_program("int broken(", FLAGS)
    assert (cache / "failed.c").read_text() == "int broken("
    assert "failed.c" in str(error.value)
