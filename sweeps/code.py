# SPDX-License-Identifier: Apache-2.0
"""Identifies the code that a run in virtual time depends on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from specs.paths import ROOT

_FOLDERS = (
    *("protocol", "switch", "topologies", "controller", "hosts", "specs", "workloads", "planner"),
    *("observability", "testbed", "simulation", "sweeps"),
)
_DRAWING = ("observability/pictures.py", "observability/report/", "sweeps/plot.py")
_SUFFIXES = (".py", ".c", ".h")
_PROGRAM = "p4src/build/aggregation.*"


@cache
def digest() -> str:
    """Returns the SHA-256 of all sources a run uses and of the compiled P4 program.

    What only draws results is left out, so that a change of it runs nothing again.
    """
    files = [
        path
        for folder in _FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in _SUFFIXES and not path.relative_to(ROOT).as_posix().startswith(_DRAWING)
    ]
    files += ROOT.glob(_PROGRAM)
    whole = hashlib.sha256()
    for path in sorted(files):
        name = str(Path(path).relative_to(ROOT)).encode()
        whole.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
