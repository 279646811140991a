# SPDX-License-Identifier: Apache-2.0
"""The STF runner finds what is wrong, and names the line."""

from __future__ import annotations

import pytest

from switch.pipeline import Pipeline
from switch.stf import Mismatch, StfError, StfRunner
from tests.p4 import corpus

pytestmark = pytest.mark.unit

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
