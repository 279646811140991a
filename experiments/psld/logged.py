# SPDX-License-Identifier: Apache-2.0
"""Runs a job, and reads from its log what the balancer moved and what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypedDict

from observability.record import RunDirectory
from sweeps.execution import Order, run_virtually

__all__ = ["MoveRow", "moves", "run"]

_BEGUN = re.compile(r"moves (\d+) slices: (.+)$")
_HOLDS = re.compile(r"the new chunk map holds from round (\d+)$")
_UNDO = " did not help"


class MoveRow(TypedDict):
    """A move: the first round under its chunk map, slices that are not where the plan has them,
    why, and whether it undid the one before."""

    round: int
    slices: int
    why: str
    undoes: bool


def run(directory: RunDirectory, order: Order) -> dict[str, Any]:
    """Runs an order's job; returns its summary with `moves`, a list of ``MoveRow``."""
    summary = run_virtually(directory, order)
    text = (directory.logs / "virtual.log").read_text()
    return {**summary, "moves": moves(text.splitlines())}


def moves(log: Iterable[str]) -> list[MoveRow]:
    """Returns the moves of a job's log that took place."""
    found: list[MoveRow] = []
    slices, why = 0, ""
    for line in log:
        if begun := _BEGUN.search(line):
            slices, why = int(begun[1]), begun[2]
        elif holds := _HOLDS.search(line):
            undoes = why.endswith(_UNDO)
            found.append({"round": int(holds[1]), "slices": slices, "why": why, "undoes": undoes})
    return found
