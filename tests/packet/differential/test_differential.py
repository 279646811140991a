# SPDX-License-Identifier: GPL-2.0-only
"""Compares this target with BMv2: every packet, port, counter and register, for the aggregation
program and the corpus of tests/p4."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.packet.differential import recordings
from tests.packet.differential.bmv2 import bmv2
from tests.packet.differential.case import Case, differences, embedded
from tests.packet.differential.cases import cases

LIVE = 30  # packets of a case for the BMv2 that is installed
# A case of each program. Cases are made when a test needs them, not when tests are listed.
PROGRAMS = [
    "adder", "arguments", "blocks", "called", "checksums", "combos", "crcs", "defaults",
    "expressions", "headers-leaf", "inner", "jumbo-root", "learning", "limits", "lookups",
    "matches", "metered", "operators-filled", "operators-legacy", "options", "parsing",
    "profiles", "replication", "router", "router-legacy", "spinning", "stacks", "stacks-legacy",
    "state", "switch", "unaligned", "unions", "unionstacks", "unionstacks-wholes",
    "valuesets", "varbits",
]  # fmt: skip


@pytest.mark.parametrize("name", recordings.names())
def test_as_bmv2_was_recorded(name: str) -> None:
    case = cases()[name]
    recorded = recordings.read(case)
    assert not differences(case, embedded(case), recorded)


def test_every_case_is_recorded_and_every_program_is_live() -> None:
    assert recordings.names() == sorted(cases())
    live = {cases()[name].program_sha256 for name in PROGRAMS}
    assert live == {one.program_sha256 for one in cases().values()}


@pytest.mark.parametrize("change", ["program", "inputs"])
def test_a_recording_of_something_else_is_refused(change: str) -> None:
    case = cases()["operators-filled"]
    other: Case = (
        replace(case, program=case.program.replace(b'"+"', b'"-"'))
        if change == "program"
        else replace(case, arrivals=[*case.arrivals[1:], (1, b"another")])
    )
    with pytest.raises(recordings.StaleRecordingError, match=f"another {change}.*operators-filled"):
        recordings.read(other)


def test_difference_is_found_and_reported() -> None:
    case = cases()["operators-filled"]
    recorded = recordings.read(case)
    port, frame = recorded.outputs[3][0]
    recorded.outputs[3] = [(port, frame[:-1] + bytes([frame[-1] ^ 1]))]
    [result] = differences(case, embedded(case), recorded)
    assert result.startswith("operators-filled: packet 3 on port ")


def test_is_valid_of_indexed_stack_element() -> None:
    """BMv2 refuses such a program; what is asked for is what the program counts itself."""
    case = cases()["stacks"]
    document = json.loads(case.program)
    index = {"type": "field", "value": ["order", "index"]}
    masked = {"op": "&", "left": index, "right": {"type": "hexstr", "value": "0x3"}}
    element = {
        "op": "dereference_header_stack",
        "left": {"type": "header_stack", "value": "items"},
        "right": {"type": "expression", "value": masked},
    }
    asked = {"type": "field", "value": [element, "$valid$"]}
    [one] = [
        one
        for one in document["pipelines"][0]["conditionals"]
        if one.get("source_info", {}).get("source_fragment") == "index < meta.parsed"
    ]
    one["expression"] = {"type": "expression", "value": {"op": "d2b", "left": None, "right": asked}}
    other = replace(case, program=json.dumps(document).encode())
    assert not differences(case, embedded(other), recordings.read(case))


@pytest.mark.bmv2
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_the_installed_bmv2(name: str) -> None:
    case = cases()[name]
    case = replace(case, arrivals=case.arrivals[:LIVE])
    ours = embedded(case)
    assert not differences(case, ours, bmv2(case, ours.outputs))
