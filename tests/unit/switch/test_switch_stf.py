# SPDX-License-Identifier: Apache-2.0
"""Tests that the STF runner finds errors and names their lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switch.pipeline import Pipeline
from switch.pipeline.meters_and_digests import Externs
from switch.stf import Mismatch, StfError, StfRunner, main
from tests.p4 import HERE, corpus

QUERY = "00001234 0055 " + "00" * 15 + "07 01"
ADD = """
# what is matched
add ternary_table 10 query.a:0x000012** masked(v:7)
add ternary_table 11 query.a:0x0000****  hdr.query.d:0x7 masked(v:0x8)
add exact_table query.a:0x1234 query.b:5 query.d:7 query.e:1 verdict.$valid$:1 exactly(v:17)
add lpm_table query.c:5 query.d:0x0/0 longest(v:3)
setdefault optional_table perhaps(v:9)
"""


@pytest.fixture
def pipeline() -> Pipeline:
    return corpus("matches")


def run(pipeline: Pipeline, text: str) -> None:
    StfRunner(pipeline, "test").run(text)


def test_a_test_passes(pipeline: Pipeline) -> None:
    run(pipeline, f"{ADD}\npacket 3 {QUERY}\nexpect 3 {QUERY} 11 03 08 00 09 ff 01 $")
    run(pipeline, f"packet 3 {QUERY}\nexpect 3 ****1234\nexpect 4")


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("expect 3 12", "test:2: port 3"),
        (f"expect 3 {QUERY} $", "test:2: port 3"),
        (f"expect 3 {QUERY}\nexpect 3 {QUERY}", "1 frames, expected 2"),
        ("", "1 frames, expected 0"),
    ],
)
def test_wrong_output_is_found(pipeline: Pipeline, end: str, message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        run(pipeline, f"packet 3 {QUERY}\n{end}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("add nothing a:1 b()", "test:1: .*no table 'nothing'"),
        ("add exact_table zzz:1 exactly(v:1)", "has no field zzz"),
        ("add exact_table query.a:1 masked(v:1)", "no action of table"),
        ("launch 1", "unknown statement"),
        ("packet x 00", "test:1"),
    ],
)
def test_mistakes_name_the_line(pipeline: Pipeline, line: str, message: str) -> None:
    with pytest.raises(StfError, match=message):
        run(pipeline, line)


COUNTED = f"""
add exact_table query.b:0 query.d:0 query.s:0 mark.$valid$:0 NoAction() = A
add lpm_table query.e:0 query.a:0x0/0 NoAction() = B
packet 1 {"00" * 27}
packet 1 {"00" * 27}
expect 1
check_counter exact_hits($A) packets == 2
check_counter exact_hits($A) bytes == 54
check_counter lpm_hits($B) packets >= 2
check_counter lpm_hits($B)
counter_write verdicts 3 40 5000
counter_read verdicts 3
check_counter verdicts(3) packets == 40
"""


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("check_counter exact_hits($A) packets == 3", Mismatch, r"exact_hits\[\$A\] packets = 2"),
        ("check_counter lpm_hits($A)", StfError, r"entry \$A is of table 'Enter.exact_table'"),
        ("check_counter lpm_hits($Z)", StfError, "test:14: .*Z"),
    ],
)
def test_counters_of_entries_are_checked(line: str, error: type[Exception], message: str) -> None:
    with corpus("lookups") as lookups:
        run(lookups, COUNTED)
    with corpus("lookups") as lookups, pytest.raises(error, match=message):
        run(lookups, COUNTED + line)


def test_rates_of_meters_are_set() -> None:
    with corpus("metered") as metered:
        run(metered, "meter_array_set_rates Enter.bytes 0.5:100 1:200\n"
            "meter_set_rates bytes 2 0.000005:4 0.00002:5\nmeter_get_rates bytes 2")  # fmt: skip
        assert Externs(metered).meter("Enter.bytes", 2) == (5, 4, 20, 5)
        assert Externs(metered).meter("Enter.bytes", 7) == (500_000, 100, 1_000_000, 200)


@pytest.mark.parametrize("words", [("-m", "switch.stf"), ("-c", "import switch.loader")])
def test_a_process_may_begin_with_it(words: tuple[str, str]) -> None:
    """Modules that import each other in a circle come to an end in one order only."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert "ImportError" not in done.stderr
    assert ("usage: python -m switch.stf" in done.stderr) == (words[0] == "-m")


def test_the_command_says_how_tests_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.stf", tmp_path / "bad.stf"
    good.write_text(f"packet 3 {QUERY}\nexpect 3\n")
    bad.write_text(f"packet 3 {QUERY}\nexpect 3 12\n")
    program = str(HERE / "matches.json")
    assert main([program, str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: ok\n"
    assert main([program, str(bad), str(good)]) == 1
    assert f"{bad}: failed\n{bad}:2: port 3: got" in capsys.readouterr().out
    assert main([program, str(tmp_path / "none.stf")]) == 2
    assert main([program]) == 2
