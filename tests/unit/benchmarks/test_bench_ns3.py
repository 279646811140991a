# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub bench virtual --ns3`; what needs ns-3 is skipped where it is not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import ns3
from cli.main import main
from switch.compiler import CompilerError, compiler


@cache
def _installed() -> bool:
    """Tells whether a C++ compiler finds ns-3's headers."""
    try:
        command = [*compiler("C++"), "-E", "-x", "c++", "-"]
    except CompilerError:
        return False
    text = "#if !__has_include(<ns3/core-module.h>)\n#error\n#endif\n"
    return not subprocess.run(command, input=text, capture_output=True, text=True).returncode


needs_ns3 = pytest.mark.skipif(not _installed(), reason="ns-3 or a C++ compiler is not installed")
needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="benchmarks need two cores"
)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """Forgets the program that another test had, with another compiler."""
    ns3.program.cache_clear()


@pytest.mark.parametrize("more", [("--window", "8"), ("--chunks", "100"), ("--resnet",)])
def test_options_of_the_other_measurements_are_refused(more: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["bench", "virtual", "--ns3", *more])
    assert (result.exit_code, "measuring" in result.output) == (2, False)
    assert f"--ns3 does not go with {more[0]}: give --exchange-window" in result.output


@needs_two_cores
def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    result = CliRunner().invoke(main, ["bench", "virtual", "--ns3"])
    assert (result.exit_code, "measuring" in result.output) == (1, False)
    assert "no C++ compiler 'no-such-compiler': install g++" in result.output


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler is installed")
@needs_two_cores
def test_without_the_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The compiler takes an empty folder for the machine's root."""
    monkeypatch.setenv("CXX", f"c++ --sysroot={tmp_path}")
    result = CliRunner().invoke(main, ["bench", "virtual", "--ns3"])
    assert (result.exit_code, "measuring" in result.output) == (1, False)
    assert "is ns-3 installed (Debian: apt install libns3-dev)?" in result.output
    assert "ns3/core-module.h: No such file or directory" in result.output


@needs_ns3
@needs_two_cores
def test_both_carry_the_same_packets() -> None:
    """That each link carries as many in both is what the command itself sees to, or it fails."""
    small = ("--rounds", "1", "--exchange-chunks", "300", "--exchange-window", "16", "--no-resnet")
    result = CliRunner().invoke(main, ["bench", "virtual", "--ns3", *small, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["ns3"]
    assert (found["chunks"], found["window"], found["packet_hops"]) == (300, 16, 20 * 300)
    rates = {one: rate["median"] for one, rate in found["packet_hops_per_second"].items()}
    assert list(rates) == ["udp", "devices", "payload", "headers"]
    for kind, ratios in found["ratios"].items():
        for way, ratio in ratios.items():
            assert ratio["median"] == pytest.approx(rates[kind] / rates[way])


@needs_ns3
@pytest.mark.parametrize("way", ns3.NS3)
def test_packets_are_counted_where_they_arrive(way: str) -> None:
    """Of a burst of 16 packets the queue of a host holds one, beside that on the line."""
    load = (16, 16, 1056, 10**10, 10**6)
    arrived = ns3.run_program(way, (*load, 1 << 20))["arrived"]
    assert arrived == [16] * 20
    dropped = ns3.run_program(way, (*load, 1100))["arrived"]
    # Each packet that arrives releases another one, which finds the line free.
    assert len(dropped) == 20
    assert all(2 <= number < 16 for number in dropped), dropped


@needs_ns3
def test_the_program_is_built_once() -> None:
    built = ns3.program()
    made = built.stat().st_mtime_ns
    ns3.program.cache_clear()
    assert (ns3.program(), built.stat().st_mtime_ns) == (built, made)
