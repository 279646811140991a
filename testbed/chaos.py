# SPDX-License-Identifier: Apache-2.0
"""Carries out faults while a job runs (``testbed.faults``); ``testbed.recovery`` measures them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from controller.connection import SwitchError
from testbed import meddling
from testbed.control import Emit, Message
from testbed.faults import Fault
from testbed.jobrun import JobRun, Place
from testbed.processes import Process
from testbed.recovery import Fault as Record

log = logging.getLogger("chaos")


class Chaos:
    """The faults that one job is to have; they end with it."""

    def __init__(self, place: Place, faults: Sequence[Fault], emit: Emit) -> None:
        self._place = place
        self._faults = faults
        self._emit = emit
        self._running: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._chunks = 0
        self._further = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()
        self._per_iteration = 0
        self._stopped: list[Process] = []

    def heard(self, message: Message) -> None:
        """What the job tells whoever watches it, which goes on to them."""
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
    async def around(self, job: JobRun) -> AsyncIterator[None]:
        """While the job's life lasts, it has its faults."""
        self._per_iteration = job.workload.chunks
        tasks = [asyncio.create_task(self._one(fault, job)) for fault in self._faults]
        for task in tasks:
            task.add_done_callback(_complain)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for process in self._stopped:
                process.signal(signal.SIGCONT)

    async def _wake(self) -> None:
        async with self._further:
            self._further.notify_all()

    async def _one(self, fault: Fault, job: JobRun) -> None:
        """Waits for a fault's time, and lets it happen."""
        began = await asyncio.shield(self._running)
        if fault.chunks is None:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(began + fault.at - loop.time())
        else:
            least = fault.chunks
            async with self._further:
                await self._further.wait_for(lambda: self._chunks >= least)
        if job.state != "running":
            return
        if fault.kind == "impair":
            await self._impair(fault)
        elif fault.kind == "repush":
            await self._push(fault)
        else:
            await self._signal(fault, job)

    async def _begin(self, fault: Fault, what: str) -> Record:
        faults = self._place.faults
        before = await faults.snapshot()
        # All but a kill take their time.
        lasting = fault.kind != "kill"
        return faults.begin(fault.kind, fault.where, what, before, lasting=lasting)

    async def _signal(self, fault: Fault, job: JobRun) -> None:
        process = self._place.nodes.process(fault.node) or job.worker(fault.node)
        if process is None or not process.running:
            self._place.tell(f"{fault.node} is not there: it cannot be hit by {fault.kind}")
            return
        if fault.kind == "kill":
            await self._begin(fault, "was killed by SIGKILL")
            own = self._place.nodes.process(fault.node) is process
            hold = self._place.nodes.hold if own else job.hold
            hold[fault.node] = fault.seconds
            process.signal(signal.SIGKILL)
            return
        what = f"was stopped for {fault.seconds:g} s"
        record = await self._begin(fault, what)
        self._place.tell(f"{fault.node} {what}")
        self._stopped.append(process)
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        process.signal(signal.SIGCONT)
        record.over = time.monotonic()
        self._stopped.remove(process)

    async def _push(self, fault: Fault) -> None:
        switch = self._place.nodes.switches[fault.node]
        what = "had its program pushed anew by another client"
        record = await self._begin(fault, what)
        self._place.tell(f"{fault.node} {what}")
        switch.wiped += 1
        try:
            await asyncio.to_thread(meddling.push, switch, self._place.dataplane)
        except SwitchError as error:
            self._place.tell(f"{fault.node}: its program could not be pushed: {error}")
        record.over = time.monotonic()

    async def _impair(self, fault: Fault) -> None:
        quality = dict(fault.quality)
        words = ", ".join(f"{name} {value:.3%}" for name, value in quality.items())
        what = f"was impaired for {fault.seconds:g} s: {words}"
        topology = self._place.network.topology
        impairment = meddling.Impairment(topology, self._place.dataplane, fault.ends, quality)
        record = await self._begin(fault, what)
        self._place.tell(f"{fault.where} {what}")
        await self._write(impairment, impairment.begin)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await self._write(impairment, impairment.end)
            record.over = time.monotonic()

    async def _write(self, impairment: meddling.Impairment, updates: dict[str, Any]) -> None:
        for name, wanted in updates.items():
            switch = self._place.nodes.switches[name]
            try:
                await asyncio.to_thread(impairment.write, switch, wanted)
            except (grpc.RpcError, queue.Empty) as error:
                # It may be gone by now, or have been given its entries anew.
                log.warning("%s: its links are as they were: %s", name, error)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a fault could not be carried out", exc_info=task.exception())
