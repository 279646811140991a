# SPDX-License-Identifier: Apache-2.0
"""Tests that orders reach the controller one at a time, also after its restart."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from emulation.nodes.controllerhost import ControllerHost
from emulation.nodes.processes import Process, Processes

# Answers each line by what it was, until it gets the order to die: that one stays unanswered.
ECHO = """
import os, sys
print("ready", flush=True)
for line in sys.stdin:
    if '"loss": 0.666' in line and not os.path.exists("died"):
        open("died", "w").close()
        os._exit(1)
    print(line, end="", flush=True)
"""


def started(host: ControllerHost, folder: Path) -> Process:
    process = Process(
        "controller",
        [sys.executable, "-c", ECHO],
        folder / "log",
        cwd=folder,
        env={},
        on_line=host.line,
        wants_input=True,
    )
    host.begin(process)
    return process


def impairments(answer: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer)["impair"]
    return found


def test_the_worst_of_several_impairments_counts_while_it_lasts(tmp_path: Path) -> None:
    async def orders() -> list[str]:
        host = ControllerHost()
        process = started(host, tmp_path)
        first, second = [("tor0", "core0")], [("tor0", "core0"), ("tor1", "core0")]
        answers = [host.impair(first, {"loss": 0.1, "reorder": 0.2})]
        answers += [host.impair(second, {"loss": 0.3})]
        answers += [host.mend(first, {"loss": 0.1, "reorder": 0.2})]
        answers += [host.mend(second, {"loss": 0.3})]
        try:
            return await asyncio.wait_for(asyncio.gather(*answers), 30)
        finally:
            await process.stop()

    alone, both, other, none = map(impairments, asyncio.run(orders()))
    assert alone == [{"ends": ["tor0", "core0"], "loss": 0.1, "reorder": 0.2}]
    assert both == [
        {"ends": ["tor0", "core0"], "loss": 0.3, "reorder": 0.2},
        {"ends": ["tor1", "core0"], "loss": 0.3},
    ]
    assert other == [{"ends": [tor, "core0"], "loss": 0.3} for tor in ("tor0", "tor1")]
    assert none == []


def test_restarted_controller_gets_pending_orders_and_state(tmp_path: Path) -> None:
    link = [("tor0", "core0")]

    async def orders() -> tuple[str, str, str]:
        host = ControllerHost()
        first = started(host, tmp_path)
        held = await asyncio.wait_for(host.impair(link, {"loss": 0.1}), 30)
        deadly = host.impair(link, {"loss": 0.666})
        await asyncio.wait_for(first.exited, 60)
        second = started(host, tmp_path)
        owed = await asyncio.wait_for(deadly, 60)
        await second.stop()
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        third = started(host, tmp_path)
        hear = host.line

        def listen(line: str) -> None:
            hear(line)
            if "impair" in line and not heard.done():
                heard.set_result(line)

        third._on_line = listen
        unasked = await asyncio.wait_for(heard, 60)
        await third.stop()
        return held, owed, unasked

    held, owed, unasked = asyncio.run(orders())
    assert impairments(held) == [{"ends": ["tor0", "core0"], "loss": 0.1}]
    assert impairments(owed) == [{"ends": ["tor0", "core0"], "loss": 0.666}]
    assert unasked == owed


def test_orders_after_an_end_reach_the_restarted_controller(tmp_path: Path) -> None:
    """Several die at once: their ends are reported before the controller is started again."""

    async def orders() -> str:
        host = ControllerHost()
        first = started(host, tmp_path)
        await asyncio.wait_for(host.ready, 60)
        first.signal(signal.SIGKILL)
        await asyncio.wait_for(first.exited, 60)
        owed = host.impair([("tor0", "core0")], {"loss": 0.1})
        second = started(host, tmp_path)
        try:
            return await asyncio.wait_for(owed, 60)
        finally:
            await second.stop()

    owed = asyncio.run(orders())
    assert impairments(owed) == [{"ends": ["tor0", "core0"], "loss": 0.1}]


def test_an_error_while_handling_an_end_fails_the_group(tmp_path: Path) -> None:
    def survived(process: Process) -> bool:
        raise ValueError(f"what now, without {process.name}?")

    async def ended() -> Exception | None:
        processes = Processes(tmp_path, tmp_path)
        processes.start("s1", [sys.executable, "-c", "raise SystemExit(1)"], survived=survived)
        await asyncio.wait([processes.failure], timeout=60)
        failure = processes.failure.exception()
        assert failure is None or isinstance(failure, Exception)
        return failure

    assert str(asyncio.run(ended())) == "what now, without s1?"
