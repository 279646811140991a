# SPDX-License-Identifier: Apache-2.0
"""Runs the same job again, in one process: without a network, which its weights are compared with
(``workloads.reference``), and in virtual time, for its times (``simulation.replay``)."""

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
    result: ReferenceResult = await _result(
        name, python("workloads.reference", *arguments), processes, waits
    )
    return result


async def replay(name: str, arguments: Sequence[str], processes: Processes) -> list[float]:
    """Runs the job in virtual time as a process of this name and returns the seconds of iterations.

    Raises ``ProcessError``.
    """
    program = python("simulation.replay", *arguments)
    seconds: list[float] = (await _result(name, program, processes, lambda *_: None))["seconds"]
    return seconds


async def _result(
    name: str,
    program: Sequence[str],
    processes: Processes,
    waits: Callable[[float, str], None],
) -> Any:
    lines: list[str] = []
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
    return json.loads(lines[-1])
