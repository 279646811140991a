# SPDX-License-Identifier: Apache-2.0
"""Tests that hosts and controller get clock and threads from their runtime only."""

from __future__ import annotations

import ast
from pathlib import Path

import controller
import hosts

OWN = {"threading", "time", "queue", "sched", "asyncio"}
# The edges to this machine: processes, gRPC's own threads, the application's event loop, and how
# long a simulation waits for its threads.
EDGES = {
    "controller/__main__.py": {"threading"},
    "controller/p4rt/connection.py": {"queue"},
    "controller/service/servicer.py": {"ThreadPoolExecutor"},
    "hosts/client/asynchronous.py": {"asyncio", "ThreadPoolExecutor"},
    "hosts/net/background.py": {"time"},
    "hosts/net/environment.py": {"ThreadPoolExecutor"},
}


def own_means(source: str) -> set[str]:
    """Modules of clocks and threads that a file imports, and thread pools."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & OWN
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} & OWN
            found |= {alias.name for alias in node.names} & {"ThreadPoolExecutor", "wait"}
    return found


def test_clock_and_threads_come_from_runtime():
    found = {}
    for package in (hosts, controller):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            if means := own_means(file.read_text()):
                found[str(file.relative_to(folder.parent))] = means
    assert found == EDGES
