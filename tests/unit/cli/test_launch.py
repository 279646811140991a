# SPDX-License-Identifier: Apache-2.0
"""Tests what `rackhub launch` refuses before anything starts, and how it prints ranks' output."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.display.ranks import RankLines
from cli.main import main
from tests.conftest import ROOT

TWO_RACKS = str(ROOT / "topologies" / "two-racks.yaml")
PROGRAM = str(ROOT / "examples" / "regression.py")


def launch(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["launch", *arguments])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-n 9", "-n 9: two-racks has 8 workers, one for each rank; allowed: 1 to 8"),
        ("--hosts w0,w9", "--hosts: two-racks has no worker 'w9'; allowed: w0..w7"),
        ("--hosts s0", "--hosts: two-racks has no worker 's0'; allowed: w0..w7"),
        ("--hosts w1,w0,w1", "--hosts: w1 is named twice"),
        ("--hosts w1,w0 -n 3", "-n 3: --hosts names 2; leave -n out"),
        ("--servers s0,s7", "--servers: two-racks has no server 's7'; allowed: s0, s1"),
        ("--placement cs -n 2 --servers s0", "has no server 's0'; allowed: w0, w1"),
        ("--placement ncc --servers s0,s1", "has one; allowed: one of s0, s1"),
        ("--placement ncs --tree core", "--tree core does not go with placement ncs"),
        ("--tree core", "--tree core: packets from w0 to s0 pass no core"),
        ("--clock virtual", "--clock virtual: nothing stays up in virtual time"),
    ],
)
def test_what_the_topology_does_not_have_is_refused(runs: Path, options: str, says: str) -> None:
    result = launch(TWO_RACKS, *options.split(), PROGRAM)
    assert result.exit_code == 1
    assert says in result.stderr
    assert not runs.exists()


@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("absent.py", 1, "absent.py: no such file"),
        ("./", 126, "./: is a folder"),
        ("./plain", 126, "./plain: not executable"),
        ("no-such-command", 127, "no-such-command: command not found"),
    ],
)
def test_a_program_that_cannot_run_starts_nothing(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    status: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").touch(mode=0o644)
    result = launch(TWO_RACKS, "-n", "2", program)
    assert (result.exit_code, result.stderr) == (status, f"error: {says}\n")
    assert not runs.exists()


def test_testbed_that_is_not_up_is_refused(runs: Path) -> None:
    result = launch("--on", "mine", "-n", "2", PROGRAM)
    assert (result.exit_code, result.stderr) == (1, "error: no testbed 'mine' is up; up: none\n")
    result = launch("--on=mine", "--topology-seed", "1", PROGRAM)
    assert "error: --topology-seed: the testbed of --on is up; leave" in result.stderr
    result = launch(PROGRAM)
    assert result.exit_code == 2
    assert "TOPOLOGY and PROGRAM are needed" in result.stderr
    assert not runs.exists()


def test_options_after_the_program_are_its_own(runs: Path) -> None:
    for given in (
        ("-n", "9", TWO_RACKS, PROGRAM, "-n", "2"),
        ("--target", "embedded", TWO_RACKS, "-n9", PROGRAM, "--on", "x", "-n", "2"),
        (TWO_RACKS, "-n", "9", "--", PROGRAM, "--help"),
    ):
        assert "error: -n 9: two-racks has 8 workers" in launch(*given).stderr
    for given in (("--on", "mine", PROGRAM, "--on", "other"), ("--on=mine", PROGRAM, "-n", "x")):
        assert "no testbed 'mine' is up" in launch(*given).stderr


def test_lines_are_whole_whatever_the_pieces(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = RankLines()
    for rank, number, data in (
        (0, 1, b"one\ntw"),
        (1, 1, b"el"),
        (0, 2, b"bad"),
        (0, 1, b"o\n\nthr"),
        (1, 1, b"f\n"),
        (10, 1, b"\xff\r\n"),
        (0, 1, b"ee"),
        (1, 1, b""),
        (0, 1, b""),
        (0, 2, b""),
    ):
        lines.show(rank, number, data)
    said = capfdbinary.readouterr()
    assert said.out == b"[0] one\n[0] two\n[0] \n[1] elf\n[10] \xff\r\n[0] three\n"
    assert said.err == b"[0] bad\n"


def test_ranks_have_colours_on_a_terminal_only(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, coloured in (("FORCE_COLOR", True), ("NO_COLOR", False)):
        monkeypatch.setenv(variable, "1")  # the second beside the first
        lines = RankLines()
        for rank in range(7):
            lines.show(rank, 1, b"x\n")
        written = capfdbinary.readouterr().out.splitlines()
        assert (written != [b"[%d] x" % rank for rank in range(7)]) is coloured
        assert [b"\x1b[" in one for one in written] == [coloured] * 7
