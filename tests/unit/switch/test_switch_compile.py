# SPDX-License-Identifier: Apache-2.0
"""Tests the cache of compiled programs, and compiler errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switch.codegen import generate
from switch.compiler import CompilerError, build_program
from switch.loader import load_program, read_program
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


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -x")
    with pytest.raises(CompilerError, match=r"no C compiler 'no-such-compiler -x': install gcc"):
        build_program("int x;", FLAGS)


def test_a_compiler_that_fails_shows_what_it_said(cache: Path) -> None:
    with pytest.raises(CompilerError, match="expected") as error:
        build_program("int broken(", FLAGS)
    assert (cache / "failed.c").read_text() == "int broken("
    assert "failed.c" in str(error.value)
