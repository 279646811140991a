# SPDX-License-Identifier: GPL-2.0-only
"""This target makes of the same packets and entries what BMv2 makes of them: every packet, port,
counter and register, for our own program and for the corpus of tests/p4."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.packet import recordings
from tests.packet.differential import Case, differences, embedded
from tests.packet.differential_bmv2 import BMV2, bmv2
from tests.packet.differential_cases import cases

pytestmark = pytest.mark.packet

CASES = cases()
LIVE = 30  # packets of each case for the BMv2 that is installed


def of_program() -> list[str]:
    """One case of each program, the first."""
    first: dict[str, str] = {}
    for one in CASES.values():
        first.setdefault(one.program_sha256, one.name)
    return list(first.values())


@pytest.mark.parametrize("name", CASES)
def test_as_bmv2_was_recorded(name: str) -> None:
    case = CASES[name]
    recorded = recordings.read(case)
    assert not differences(case, embedded(case), recorded)


def test_every_recording_is_of_a_case() -> None:
    files = {one.name.removesuffix(".json.xz") for one in recordings.FOLDER.glob("*.json.xz")}
    assert files == set(CASES)


@pytest.mark.parametrize("change", ["program", "inputs"])
def test_a_recording_of_something_else_is_refused(change: str) -> None:
    case = CASES["operators-filled"]
    other: Case = (
        replace(case, program=case.program + b" ")
        if change == "program"
        else replace(case, arrivals=[*case.arrivals[1:], (1, b"another")])
    )
    with pytest.raises(recordings.StaleRecordingError, match=f"another {change}.*operators-filled"):
        recordings.read(other)


def test_a_difference_is_found_and_told() -> None:
    case = CASES["operators-filled"]
    recorded = recordings.read(case)
    port, frame = recorded.outputs[3][0]
    recorded.outputs[3] = [(port, frame[:-1] + bytes([frame[-1] ^ 1]))]
    [told] = differences(case, embedded(case), recorded)
    assert told.startswith("operators-filled: packet 3 on port ")


@pytest.mark.bmv2
@pytest.mark.skipif(BMV2 is None, reason="simple_switch_grpc is not on PATH")
@pytest.mark.parametrize("name", of_program())
def test_as_the_installed_bmv2(name: str) -> None:
    case = CASES[name]
    case = replace(case, arrivals=case.arrivals[:LIVE])
    ours = embedded(case)
    assert not differences(case, ours, bmv2(case, ours.outputs))
