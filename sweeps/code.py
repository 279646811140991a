# SPDX-License-Identifier: Apache-2.0
"""Which rackhub this is: what a run in virtual time depends on beside its files."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from specs.paths import ROOT

_FOLDERS = (
    *("protocol", "switch", "topologies", "controller", "hosts", "specs", "workloads", "planner"),
    *("observability", "testbed", "simulation", "sweeps"),
)
_SUFFIXES = (".py", ".c", ".h")
_PROGRAM = "p4src/build/aggregation.*"


@cache
def digest() -> str:
    """SHA-256 of all sources that a run is made of, and of the compiled P4 program."""
    files = [
        path
        for folder in _FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in _SUFFIXES
    ]
    files += ROOT.glob(_PROGRAM)
    whole = hashlib.sha256()
    for path in sorted(files):
        name = str(Path(path).relative_to(ROOT)).encode()
        whole.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
