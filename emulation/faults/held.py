# SPDX-License-Identifier: Apache-2.0
"""Faults that begin and end on request."""

from __future__ import annotations

import asyncio
import contextlib

from emulation.faults.injection import Injector
from observability.control import ControlError
from specs.faultfile import LASTING, Fault

_WORDS = {"stop": "stopped", "disconnect": "disconnected", "impair": "impaired"}


class HeldFaults:
    """Begins faults, and keeps those that last until they are to end."""

    def __init__(self, injector: Injector) -> None:
        self._injector = injector
        self._held: dict[tuple[str, str], tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def begin(self, fault: Fault) -> None:
        """Carries out a fault; returns once it has happened. Raises ``ControlError`` if nothing is
        hit, or the node or link has such a fault already."""
        key = fault.kind, fault.where
        if key in self._held:
            raise ControlError(f"{fault.where} is {_WORDS[fault.kind]} already")
        happened, over = asyncio.Event(), asyncio.Event()

        async def last() -> None:
            happened.set()
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), fault.seconds)

        task = asyncio.get_running_loop().create_task(self._injector.inject(fault, last))
        if fault.kind in LASTING:
            self._held[key] = task, over
            task.add_done_callback(lambda _: self._held.pop(key, None))
            waiting = asyncio.ensure_future(happened.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if task.done() or fault.kind not in LASTING:
            await task

    async def end(self, fault: Fault) -> None:
        """Ends a fault; returns once it has ended. Raises ``ControlError`` if there is none."""
        held = self._held.get((fault.kind, fault.where))
        if held is None:
            raise ControlError(f"{fault.where} is not {_WORDS[fault.kind]}")
        task, over = held
        over.set()
        await task

    async def end_all(self) -> None:
        """Ends all faults at once, without waiting for the controller."""
        tasks = [task for task, _ in self._held.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
