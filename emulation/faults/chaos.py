# SPDX-License-Identifier: Apache-2.0
"""Injects faults while a job runs, when they are due (``specs.faultfile``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from emulation.faults.injection import Injector
from emulation.jobs.context import TestbedContext
from emulation.jobs.jobrun import EmulatedJob
from observability.control import ControlError
from observability.messages.events import EmitEvent, Event
from specs.faultfile import Fault

log = logging.getLogger("chaos")


class Chaos:
    """Injects the faults of one job; they end with it."""

    def __init__(self, context: TestbedContext, faults: Sequence[Fault], emit: EmitEvent) -> None:
        self._context = context
        self._jobs: list[EmulatedJob] = []
        self._injector = Injector(context, lambda: self._jobs)
        self._faults = faults
        self._emit = emit
        self._running: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._chunks = 0  # completed
        self._further = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()
        self._per_iteration = 0
        self._tasks: list[asyncio.Task[None]] = []

    def forward(self, message: Event) -> None:
        """Takes an event of the job and forwards it to the job's watchers."""
        self._emit(message)
        loop = asyncio.get_running_loop()
        if message["event"] == "running" and not self._running.done():
            self._running.set_result(loop.time())
        elif message["event"] == "progress" and self._faults:
            self._chunks = message["iteration"] * self._per_iteration
            task = loop.create_task(self._wake())
            self._waking.add(task)
            task.add_done_callback(self._waking.discard)

    @contextlib.asynccontextmanager
    async def around(self, job: EmulatedJob) -> AsyncIterator[None]:
        """Context in which the faults happen; leaving it ends those that last."""
        self._per_iteration = job.forecast.workload.chunks
        self._jobs = [job]
        tasks = self._tasks
        for number, fault in enumerate(self._faults):
            tasks.append(asyncio.create_task(self._one(number, fault, job)))
            tasks[-1].add_done_callback(_log_failure)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wake(self) -> None:
        async with self._further:
            self._further.notify_all()

    async def _one(self, number: int, fault: Fault, job: EmulatedJob) -> None:
        """Waits until a fault is due, and injects it."""
        began = await asyncio.shield(self._running)
        if fault.after is not None:
            if self._tasks[:number]:
                await asyncio.wait(self._tasks[:number])
            async with self._further:
                await self._further.wait_for(self._recovered)
            await self._until(self._chunks + fault.after)
        elif fault.chunks is None:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(began + fault.at - loop.time())
        else:
            await self._until(fault.chunks)
        if job.state != "running":
            return
        try:
            await self._injector.inject(fault, lambda: self._last(fault))
        except ControlError as error:
            self._context.tell(str(error))

    async def _until(self, chunks: int) -> None:
        """Waits until so many chunks are completed."""
        async with self._further:
            await self._further.wait_for(lambda: self._chunks >= chunks)

    def _recovered(self) -> bool:
        """Returns whether all jobs have recovered from every fault so far."""
        records = self._context.faults.faults
        return all(impact.seconds is not None for one in records for impact in one.impacts)

    async def _last(self, fault: Fault) -> None:
        """Waits until the end of a lasting fault."""
        if fault.lasts is None:
            await asyncio.sleep(fault.seconds)
        else:
            await self._until(self._chunks + fault.lasts)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a fault could not be injected", exc_info=task.exception())
