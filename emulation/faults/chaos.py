# SPDX-License-Identifier: Apache-2.0
"""Injects faults while a job runs (``specs.faultfile``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Sequence

from controller.p4rt.connection import SwitchError
from emulation.faults import rogue_controller
from emulation.faults.severing import sever
from emulation.jobs.context import TestbedContext
from emulation.jobs.jobrun import EmulatedJob
from emulation.jobs.recovery import Fault as Record
from observability.messages.events import EmitEvent, Event
from specs.faultfile import EVERY_LINK, Fault
from topologies.model.replica_order import host_of

log = logging.getLogger("chaos")
# The longest time that a fault waits for sums in flight.
_AIM_SECONDS = 1.0
_ANSWER_SECONDS = 5.0


class Chaos:
    """Injects the faults of one job; they end with it."""

    def __init__(self, context: TestbedContext, faults: Sequence[Fault], emit: EmitEvent) -> None:
        self._context = context
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
        if fault.kind == "impair":
            await self._impair(fault)
        elif fault.kind == "repush":
            await self._push(fault)
        elif fault.kind == "disconnect":
            await self._disconnect(fault)
        else:
            await self._signal(fault, job)

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

    async def _begin(self, fault: Fault, what: str, killed: Sequence[str] = ()) -> Record:
        """Records a fault's begin, after waiting a while for sums in flight that it can hit.

        killed: names of the processes that it ends.
        """
        faults, loop = self._context.faults, asyncio.get_running_loop()
        latest = loop.time() + _AIM_SECONDS
        before = await faults.snapshot()
        while not faults.under_way(before) and loop.time() < latest:
            before = await faults.snapshot()
        # All faults but a kill last.
        lasting = fault.kind != "kill"
        return faults.begin(fault.kind, fault.where, what, before, lasting=lasting, killed=killed)

    @contextlib.asynccontextmanager
    async def _lasting(self, fault: Fault, what: str) -> AsyncIterator[None]:
        """Records and reports a fault; it is over when the context exits, also with its job."""
        record = await self._begin(fault, what)
        self._context.tell(f"{fault.where} {what}")
        try:
            yield
        finally:
            record.over = time.monotonic()

    async def _signal(self, fault: Fault, job: EmulatedJob) -> None:
        nodes, worker = self._context.nodes, job.workers.members.get(fault.node)
        # On a worker's host the name means the worker; the server there has another name.
        hit = [p for p in nodes.all_at(fault.node) if host_of(p.name) == host_of(fault.node)]
        own = bool(hit)
        if worker is not None and not own:
            hit = [worker]
        hit = [process for process in hit if process.running]
        if not hit:
            self._context.tell(f"{fault.node} is not running: {fault.kind} has no effect")
            return
        if fault.kind == "kill":
            names = [process.name for process in hit] if own else [fault.node]
            await self._begin(fault, "was killed by SIGKILL", names)
            (nodes.restart_delays if own else job.workers.restart_delays).update(
                dict.fromkeys(names, fault.seconds)
            )
            for process in hit:
                process.signal(signal.SIGKILL)
            return
        async with self._lasting(fault, f"was stopped for {fault.span}"):
            try:
                for process in hit:
                    process.signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
            finally:
                for process in hit:
                    process.signal(signal.SIGCONT)

    async def _push(self, fault: Fault) -> None:
        switch = self._context.nodes.switches[fault.node]
        async with self._lasting(fault, "had its program pushed again by another client"):
            switch.wiped += 1
            try:
                await asyncio.to_thread(rogue_controller.push, switch, self._context.dataplane)
            except SwitchError as error:
                self._context.tell(f"{fault.node}: its program could not be pushed: {error}")

    async def _disconnect(self, fault: Fault) -> None:
        switch = self._context.nodes.switches[fault.node]
        controller = self._context.nodes.controller.process
        what = f"lost its P4Runtime connection for {fault.span}"
        async with self._lasting(fault, what):
            with switch.unplugged():
                if controller is not None and controller.running:
                    bound = switch.address.removeprefix("unix:")
                    try:
                        await asyncio.to_thread(sever, controller.pid, bound)
                    except (ProcessLookupError, FileNotFoundError):
                        pass  # the controller has ended, and its connections with it
                    except OSError as error:
                        self._context.tell(
                            f"{fault.node}: its connection could not be cut: {error}"
                        )
                await self._last(fault)

    async def _impair(self, fault: Fault) -> None:
        quality = dict(fault.quality)
        words = ", ".join(f"{name} {value:.3%}" for name, value in quality.items())
        links = [
            (link.a, link.b)
            for link in self._context.network.topology.links
            if fault.ends == EVERY_LINK or {link.a, link.b} == set(fault.ends)
        ]
        controller = self._context.nodes.controller
        async with self._lasting(fault, f"was impaired for {fault.span}: {words}"):
            try:
                await self._ordered(fault, controller.impair(links, quality))
                await self._last(fault)
            except BaseException:  # the job is over: do not wait for the controller
                controller.mend(links, quality)
                raise
            await self._ordered(fault, controller.mend(links, quality))

    async def _ordered(self, fault: Fault, answer: asyncio.Future[str]) -> None:
        """Waits a while for the controller to carry out an order; reports if it has not."""
        await asyncio.wait([answer], timeout=_ANSWER_SECONDS)
        said = answer.result() if answer.done() else "the controller does not answer"
        if said != "done":
            self._context.tell(f"{fault.where}: impairments are not applied yet: {said}")


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a fault could not be injected", exc_info=task.exception())
