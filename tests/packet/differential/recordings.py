# SPDX-License-Identifier: GPL-2.0-only
"""Recorded answers of BMv2 to each differential case, for machines without BMv2.

After a change of programs or cases, record again where simple_switch_grpc is installed:

    python -m tests.packet.differential.recordings [NAME...]         (make recordings CASES=NAME)

A recording (tests/p4/recorded/NAME.json.xz; `xzcat` shows it) says by SHA-256 of which program and
inputs it is. What BMv2 answers is written as it is, whatever this target would.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.p4 import HERE
from tests.packet.differential.bmv2 import BMV2, bmv2, version
from tests.packet.differential.case import Answer, Case, differences, embedded
from tests.packet.differential.cases import cases

FOLDER = HERE / "recorded"
COMMAND = "python -m tests.packet.differential.recordings"


class StaleRecordingError(Exception):
    """No recording matches the case; the message says what to do."""


def path(case: Case) -> Path:
    return FOLDER / f"{case.name}.json.xz"


def names() -> list[str]:
    """Returns the names of all recorded cases."""
    return sorted(one.name.removesuffix(".json.xz") for one in FOLDER.glob("*.json.xz"))


def write(case: Case, answer: Answer, bmv2_version: str) -> None:
    document = {
        "bmv2": bmv2_version,
        "program": case.program_sha256,
        "inputs": case.inputs_sha256,
        "outputs": [[[port, frame.hex()] for port, frame in one] for one in answer.outputs],
        "counters": answer.counters,
        "registers": answer.registers,
        "hits": answer.hits,
        "digests": {name: [one.hex() for one in found] for name, found in answer.digests.items()},
    }
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(document, separators=(",", ":")).encode()
    path(case).write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def read(case: Case) -> Answer:
    """Returns BMv2's recorded answer. Raises StaleRecordingError."""
    if not path(case).exists():
        raise StaleRecordingError(f"no recording of case {case.name}: run `{COMMAND} {case.name}`")
    document = json.loads(lzma.decompress(path(case).read_bytes()))
    for what, own in (("program", case.program_sha256), ("inputs", case.inputs_sha256)):
        if document[what] != own:
            raise StaleRecordingError(
                f"the recording of case {case.name} has another {what}: "
                f"run `{COMMAND} {case.name}` and look at what changes"
            )
    return Answer(
        [[(port, bytes.fromhex(frame)) for port, frame in one] for one in document["outputs"]],
        {name: _cells(cells, tuple) for name, cells in document["counters"].items()},
        {name: _cells(cells, int) for name, cells in document["registers"].items()},
        [(packets, octets) for packets, octets in document["hits"]],
        {
            name: [bytes.fromhex(one) for one in found]
            for name, found in document.get("digests", {}).items()
        },
    )


def _cells(cells: dict[str, Any], kind: Any) -> dict[int, Any]:
    return {int(index): kind(value) for index, value in cells.items()}


def main(names: Sequence[str]) -> int:
    """Records cases and prints where this target differs; returns 0 if nowhere."""
    if BMV2 is None:
        print("simple_switch_grpc is not on PATH: there is nothing to record", file=sys.stderr)
        return 2
    every = cases()
    installed, different = version(), 0
    for name in names or every:
        case = every[name]
        ours = embedded(case)
        answer = bmv2(case, ours.outputs)
        write(case, answer, installed)
        found = differences(case, ours, answer)
        different += bool(found)
        size = path(case).stat().st_size
        print(f"{name}: {len(case.arrivals)} packets, {size} bytes", *found, sep="\n")
    for old in FOLDER.glob("*.json.xz"):
        if not names and old.name.removesuffix(".json.xz") not in every:
            old.unlink()
            print(f"{old.name}: removed, there is no such case")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
