# SPDX-License-Identifier: Apache-2.0
"""Tests file parameters of commands: problems are reported uniformly and first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.files import FILE, JOB, OUTPUT, OUTPUT_OR_DASH, PICTURE
from cli.main import main
from observability import pictures
from tests.conftest import ROOT

TWO_RACKS = str(ROOT / "topologies" / "two-racks.yaml")
GIVEN = {"chunk": "0", "job": "digits", "size": "20 kB"}
TO_READ, TO_WRITE = (FILE, JOB), (OUTPUT, OUTPUT_OR_DASH, PICTURE)


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


def calls(kinds: tuple[click.Path, ...], value: str) -> Iterator[list[str]]:
    """Each command with each of its parameters of these types having this value."""
    for names, command in commands(main):
        for given in command.params:
            if given.type not in kinds:
                continue
            needed = [one for one in command.params if one.required or one is given]
            arguments = list(names)
            for one in sorted(needed, key=lambda one: isinstance(one, click.Argument)):
                known = GIVEN.get(one.name or "", TWO_RACKS)
                arguments += [] if isinstance(one, click.Argument) else [one.opts[0]]
                arguments.append(value if one is given else known)
            yield arguments


def test_commands_use_common_file_parameters() -> None:
    """So the tests below are of all of them; where a sweep is kept, it makes itself, and so do
    experiments."""
    kinds = (*TO_READ, *TO_WRITE)
    others = [
        (names, one.name)
        for names, command in commands(main)
        for one in command.params
        if isinstance(one.type, click.Path) and one.type not in kinds and names[0] != "experiment"
    ]
    assert others == [(("sweep",), "folder")]


def test_missing_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [*calls(TO_READ, "nowhere.yaml")]
    assert {one[0] for one in asked} >= {"compare", "plan", "run", "submit", "sweep", "validate"}
    for arguments in asked:
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.output) == (1, "error: nowhere.yaml: no such file\n")
    for arguments in calls(TO_READ, "."):
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.output) == (1, "error: .: is no file\n")
    assert not runs.exists()


def test_a_job_is_named_without_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    topology = str(ROOT / "topologies" / "two-racks-10g.yaml")
    arguments = ["validate", topology, "--clock", "virtual", "--job", "vgg19", "--job", "resnet50"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, [*arguments, "--job", "vgg16"])
    assert result.exit_code == 1
    assert result.output.startswith("error: vgg16: is no file, and none of jobs/: ")
    assert {"digits", "resnet50", "vgg11"} <= set(result.output.replace(",", "").split())


def test_unwritable_file_is_reported_before_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.svg").mkdir()
    for path, reason in (
        ("none/x.svg", "No such file or directory"),
        ("folder.svg", "Is a directory"),
    ):
        asked = [*calls(TO_WRITE, path)]
        assert {one[0] for one in asked} >= {"bench", "calibrate", "compare", "graph", "sweep"}
        for arguments in asked:
            result = CliRunner().invoke(main, arguments)
            says = f"error: {path}: cannot be written: {reason}\n"
            assert (result.exit_code, result.output) == (1, says)
    assert not runs.exists()


def test_drawing_format_follows_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in calls((PICTURE,), str(tmp_path / "x.jpg")):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert "are written as .svg, .png or .pdf" in result.output
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    result = CliRunner().invoke(main, ["graph", TWO_RACKS, "-o", str(tmp_path / "x.png")])
    assert result.exit_code == 1
    assert "pip install 'rackhub[plots]'" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("suffix", "begins"),  # of the formats' specifications
    [(".png", b"\x89PNG\r\n\x1a\n"), (".pdf", b"%PDF-"), (".svg", b"<svg ")],
)
def test_graph_format_follows_suffix(tmp_path: Path, suffix: str, begins: bytes) -> None:
    path = tmp_path / f"x{suffix}"
    assert not pictures.missing(path)
    result = CliRunner().invoke(main, ["graph", TWO_RACKS, "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(begins)
