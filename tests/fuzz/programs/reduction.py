# SPDX-License-Identifier: Apache-2.0
"""Reduces differing cases to a minimum of entries and packets; saves and loads cases.

A folder has `program.json`, `program.p4info.txtpb`, `updates.txtpb` (a P4Runtime WriteRequest) and
`packets.txt` (a line each: the port and the frame in hexadecimal).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.differential.case import Case, program_files

Item = TypeVar("Item")


def reduced(case: Case, still_differs: Callable[[Case], bool], seconds: float = 60) -> Case:
    """Removes packets and updates that the difference does not need, within a time limit."""
    end = time.monotonic() + seconds

    def differs(smaller: Case) -> bool:
        return time.monotonic() < end and still_differs(smaller)

    arrivals = fewest(case.arrivals, lambda kept: differs(replace(case, arrivals=kept)))
    case = replace(case, arrivals=arrivals)
    updates = fewest(case.updates, lambda kept: differs(replace(case, updates=kept)))
    return replace(case, updates=updates)


def fewest(items: Sequence[Item], holds: Callable[[list[Item]], bool]) -> list[Item]:
    """A part of the items for which it still holds, none of which can be left out alone (delta
    debugging, Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002)."""
    kept, size = list(items), len(items)
    while size:
        at = 0
        while at < len(kept):
            without = kept[:at] + kept[at + size :]
            if holds(without):
                kept = without
            else:
                at += size
        size //= 2
    return kept


def save(case: Case, folder: Path) -> None:
    """Writes a case to a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.json").write_bytes(case.program)
    info = text_format.MessageToString(case.p4info.message)
    (folder / "program.p4info.txtpb").write_text(info)
    write = p4rt.WriteRequest(updates=case.updates)
    (folder / "updates.txtpb").write_text(text_format.MessageToString(write))
    lines = (f"{port} {frame.hex()}\n" for port, frame in case.arrivals)
    (folder / "packets.txt").write_text("".join(lines))


def load(folder: Path) -> Case:
    """Loads a case written by `save`. Raises OSError, ValueError."""
    program, p4info = program_files(folder / "program.json")
    write = text_format.Parse((folder / "updates.txtpb").read_text(), p4rt.WriteRequest())
    packets = []
    for line in (folder / "packets.txt").read_text().splitlines():
        port, _, frame = line.partition(" ")
        packets.append((int(port), bytes.fromhex(frame)))
    return Case(folder.name, program, p4info, list(write.updates), packets, anywhere=True)
