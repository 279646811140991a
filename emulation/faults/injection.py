# SPDX-License-Identifier: Apache-2.0
"""Carries out faults on a testbed's processes and links (``specs.faultfile``)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from controller.p4rt.connection import SwitchError
from emulation.faults import rogue_controller
from emulation.faults.background import background_traffic
from emulation.faults.severing import sever
from emulation.faults.slowdowns import Apply, Slowdowns
from emulation.jobs.context import TestbedContext
from emulation.jobs.jobrun import EmulatedJob
from emulation.jobs.recovery import Fault as Record
from emulation.jobs.scaling import scale_job
from emulation.nodes.processes import ProcessError
from observability.control import ControlError
from specs.faultfile import Fault, load_words, slow_words
from specs.slowdowns import EVERY_LINK
from topologies.model.replica_order import host_of

# How long a fault waits for sums in flight: at least and at most; between them until it has looked
# for them as often as an idle machine does.
_AIM_SECONDS = 1.0, 10.0
_AIM_LOOKS = 100
_ANSWER_SECONDS = 5.0
# Waits until the end of a lasting fault.
Last = Callable[[], Awaitable[None]]


class Injector:
    """Carries out faults.

    jobs: returns the jobs that run, whose workers may be hit.
    """

    def __init__(self, context: TestbedContext, jobs: Callable[[], Iterable[EmulatedJob]]) -> None:
        self._context, self._jobs = context, jobs
        self._slowdowns = Slowdowns(context.network)
        self._flows = 0

    async def inject(self, fault: Fault, last: Last) -> None:
        """Carries out a fault. One that lasts ends after ``last``, which begins once it happens,
        or when this is cancelled. Raises ``ControlError`` if there is nothing that it hits."""
        if fault.kind == "impair":
            await self._impair(fault, last)
        elif fault.kind == "slow":
            await self._slow(fault, last)
        elif fault.kind == "load":
            await self._load(fault, last)
        elif fault.kind == "scale":
            await self._scale(fault)
        elif fault.kind == "repush":
            await self._push(fault)
        elif fault.kind == "disconnect":
            await self._disconnect(fault, last)
        else:
            await self._signal(fault, last)

    async def _begin(self, fault: Fault, what: str, killed: Sequence[str] = ()) -> Record:
        """Records a fault's begin, after waiting a while for sums in flight that it can hit, if a
        job runs.

        killed: names of the processes that it ends.
        """
        faults, loop = self._context.faults, asyncio.get_running_loop()
        least, most = (loop.time() + seconds for seconds in _AIM_SECONDS)
        for look in itertools.count(1):
            before = await faults.snapshot()
            over = loop.time() >= (most if look < _AIM_LOOKS else least)
            if over or faults.under_way(before) or not any(self._jobs()):
                break
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

    async def _signal(self, fault: Fault, last: Last) -> None:
        nodes = self._context.nodes
        # On a worker's host the name means the workers; the server there has another name.
        hit = [p for p in nodes.all_at(fault.node) if host_of(p.name) == host_of(fault.node)]
        workers = [job.workers for job in self._jobs() if fault.node in job.workers.members]
        if hit:
            workers = []
        hit += [one.members[fault.node] for one in workers]
        hit = [process for process in hit if process.running]
        if not hit:
            raise ControlError(f"{fault.node} is not running: {fault.kind} has no effect")
        if fault.kind == "kill":
            names = [fault.node] if workers else [process.name for process in hit]
            await self._begin(fault, "was killed by SIGKILL", names)
            for delays in [one.restart_delays for one in workers] or [nodes.restart_delays]:
                delays.update(dict.fromkeys(names, fault.seconds))
            for process in hit:
                process.signal(signal.SIGKILL)
            return
        async with self._lasting(fault, f"was stopped{fault.span}"):
            try:
                for process in hit:
                    process.signal(signal.SIGSTOP)
                await last()
            finally:
                for process in hit:
                    process.signal(signal.SIGCONT)

    async def _slow(self, fault: Fault, last: Last) -> None:
        if not fault.node:
            with self._slowdowns.of_link(fault) as apply:
                await self._slowly(fault, last, apply)
            return
        nodes = self._context.nodes
        hit = [p for p in nodes.all_at(fault.node) if host_of(p.name) == host_of(fault.node)]
        workers = [job.workers for job in self._jobs() if fault.node in job.workers.members]
        hit += [one.members[fault.node] for one in workers]
        pids = [process.pid for process in hit if process.running]
        if not pids:
            raise ControlError(f"{fault.node} is not running: {fault.kind} has no effect")
        with self._slowdowns.of_processes(fault.where, pids) as apply:
            await self._slowly(fault, last, apply)

    async def _slowly(self, fault: Fault, last: Last, apply: Apply) -> None:
        async with self._lasting(fault, slow_words(fault)):
            following = asyncio.create_task(self._slowdowns.follow(fault, apply))
            try:
                ending = asyncio.ensure_future(last())
                await asyncio.wait([following, ending], return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                await ending
            finally:
                ending.cancel()
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _load(self, fault: Fault, last: Last) -> None:
        self._flows += 1
        name = f"traffic{self._flows}"
        context = self._context
        traffic = background_traffic(context.network, context.nodes.processes, fault, name)
        try:
            async with self._lasting(fault, load_words(fault)), traffic:
                await last()
        except ProcessError as error:
            raise ControlError(str(error)) from error

    async def _scale(self, fault: Fault) -> None:
        job = next(iter(self._jobs()), None)
        if job is None:
            raise ControlError(f"no job runs: {fault.kind} has no effect")
        await scale_job(self._context, job.name, job, fault, planned=True)

    async def _push(self, fault: Fault) -> None:
        switch = self._context.nodes.switches[fault.node]
        async with self._lasting(fault, "had its program pushed again by another client"):
            switch.wiped += 1
            try:
                await asyncio.to_thread(rogue_controller.push, switch, self._context.dataplane)
            except SwitchError as error:
                self._context.tell(f"{fault.node}: its program could not be pushed: {error}")

    async def _disconnect(self, fault: Fault, last: Last) -> None:
        switch = self._context.nodes.switches[fault.node]
        controller = self._context.nodes.controller.process
        what = f"lost its P4Runtime connection{fault.span}"
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
                await last()

    async def _impair(self, fault: Fault, last: Last) -> None:
        quality = dict(fault.quality)
        words = ", ".join(f"{name} {value:.3%}" for name, value in quality.items())
        links = [
            (link.a, link.b)
            for link in self._context.network.topology.links
            if fault.ends == EVERY_LINK or {link.a, link.b} == set(fault.ends)
        ]
        controller = self._context.nodes.controller
        async with self._lasting(fault, f"was impaired{fault.span}: {words}"):
            try:
                await self._ordered(fault, controller.impair(links, quality))
                await last()
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
