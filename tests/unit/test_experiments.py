# SPDX-License-Identifier: Apache-2.0
"""Tests that a file in experiments/ is an experiment, with the options that all have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import experiments
from experiments.__main__ import main

TINY = """\
import click
from experiments.common.command import Results, Setup, experiment


@experiment
@click.option("--fail", is_flag=True)
def main(setup: Setup, fail: bool) -> Results:
    \"""Measure nothing.\"""
    (setup.folder / "input.yaml").write_text("{}")
    return Results([{"line": 1}], ["a table"], lambda old: old + "new", ["wrong"] * fail)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.py").write_text(TINY)
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    return tmp_path


def test_a_file_is_listed_and_run(folder: Path) -> None:
    listed = CliRunner().invoke(main, ["list"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == [
        "cpu_bound",
        "placements",
        "predictions",
        "reliability",
        "tiny",
    ]
    assert listed[-1].endswith("  Measure nothing.")
    result = CliRunner().invoke(main, ["tiny"])
    assert (result.exit_code, result.stdout) == (0, "a table\n")


def test_common_options(folder: Path) -> None:
    page, to = folder / "page.md", folder / "kept"
    page.write_text("old, ")
    options = ["tiny", "--json", "--write", str(page), "--to", str(to), "--fail"]
    result = CliRunner().invoke(main, options)
    assert (result.exit_code, result.stderr) == (1, "error: wrong\n")
    assert (
        json.loads(result.stdout) == json.loads((to / "results.json").read_text()) == [{"line": 1}]
    )
    assert page.read_text() == "old, new"
    assert (to / "input.yaml").exists()
