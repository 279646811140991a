# SPDX-License-Identifier: Apache-2.0
"""Runs the same job in one process, without a network (``workloads.reference``)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from emulation.nodes.processes import ProcessError, Processes, python
from workloads.reference import ReferenceResult

_SECONDS = 600.0
_LOOK_SECONDS = 5.0


async def reference(
    name: str,
    arguments: Sequence[str],
    processes: Processes,
    waits: Callable[[float, str], None],
) -> ReferenceResult:
    """Runs the reference as a process of this name and returns its result.

    waits: called with the seconds waited so far and the reason while a process is stuck.
    Raises ``ProcessError``.
    """
    lines: list[str] = []
    program = python("workloads.reference", *arguments)
    process = processes.start(name, program, on_line=lines.append, may_finish=True)
    either: list[asyncio.Future[Any]] = [process.exited, processes.failure]
    began = time.monotonic()
    while (waited := time.monotonic() - began) < _SECONDS:
        await asyncio.wait(either, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if any(one.done() for one in either):
            break
        for stuck in processes.stopped():
            waits(waited, f"{stuck.name} {stuck.what}")
    if not process.running and process.exited.result() != 0:
        await asyncio.wait([processes.failure])
    if processes.failure.done():
        processes.failure.result()
    if process.running or not lines:
        raise ProcessError(name, f"gave no result within {_SECONDS:g} s", process.log)
    result: ReferenceResult = json.loads(lines[-1])
    return result
