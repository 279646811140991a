# SPDX-License-Identifier: Apache-2.0
"""Tracks the jobs that are alive and makes their server processes join them.

The controller reports live jobs (``controller.service.notices``). The server processes that a job
names join it, whichever program created it, and rejoin it after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from controller.service.notices import JobNotice
from emulation.nodes.processes import ProcessError
from emulation.nodes.serverhost import ServerHost
from testbed.errors import JobError

log = logging.getLogger("serving")


@dataclass
class JobLife:
    """A job that is or was alive.

    workers: hosts, by rank.
    servers: names of server processes, by rank.
    switches: those that held slots for it in any epoch.
    since, until: begin and end (``time.monotonic``); ``until`` is None while it is alive.
    """

    number: int
    name: str
    nonce: str
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    switches: frozenset[str]
    since: float = field(default_factory=time.monotonic)
    until: float | None = None


class Serving:
    """Tracks the jobs of a testbed and the joins of their servers.

    known: all jobs so far, by number.
    servers: by name of the process.
    start: starts those of these servers that do not exist yet.
    tell: reports to the jobs' watchers that a job continues without a server.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerHost],
        start: Callable[[Sequence[str]], Awaitable[None]],
        tell: Callable[[str], None],
    ) -> None:
        self.known: dict[int, JobLife] = {}
        self._servers = servers
        self._start = start
        self._tell = tell
        self._joining: dict[int, asyncio.Task[None]] = {}  # by number, of those alive
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> list[JobLife]:
        """Live jobs, the oldest first."""
        return [job for job in self.known.values() if job.until is None]

    def update(self, jobs: Iterable[JobNotice]) -> None:
        """Takes a notice of the controller: all live jobs."""
        numbers = set()
        for one in jobs:
            number = one["job"]
            numbers.add(number)
            known = self.known.get(number)
            switches = frozenset(one["switches"])
            if known is not None and known.until is None:
                known.switches |= switches
                continue
            workers, servers = tuple(one["workers"]), tuple(one["servers"])
            job = JobLife(number, one["name"], one["nonce"], workers, servers, switches)
            self.known.pop(number, None)  # numbers repeat after 65,535 jobs
            self.known[number] = job
            task = asyncio.get_running_loop().create_task(self._join(job))
            task.add_done_callback(partial(self._joined, job))
            self._joining[number] = task
        for job in self.alive:
            if job.number not in numbers:
                job.until = time.monotonic()
                self._joining.pop(job.number).cancel()
                for name in job.servers:
                    if name in self._servers:
                        self._servers[name].forget(job.nonce)
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()

    async def joined(self, number: int, seconds: float) -> None:
        """Waits until all servers of a job have joined it.

        Raises ``JobError`` if one refuses or the job is over, ``ProcessError`` if one fails,
        ``TimeoutError`` if the controller does not report the job within so many seconds.
        """
        deadline = time.monotonic() + seconds
        while number not in self.known:
            left = max(0.0, deadline - time.monotonic())
            if not (await asyncio.wait([self._news], timeout=left))[0]:
                raise TimeoutError(f"the controller did not report the job within {seconds:g} s")
        task = self._joining.get(number)
        if task is not None:
            await asyncio.wait([task])
        if task is None or task.cancelled():
            raise JobError(f"job {number} is over")
        task.result()

    async def rejoin(self, server: str) -> None:
        """Makes a restarted server process rejoin the live jobs that name it.

        There is no time limit: the controller may be restarting as well.
        """
        await asyncio.gather(*(self._rejoin(job, server) for job in self.alive))

    def stop(self) -> None:
        """Cancels all joins under way."""
        for task in self._joining.values():
            task.cancel()

    # --- inside ---

    async def _join(self, job: JobLife) -> None:
        await self._start(job.servers)
        servers = [self._servers[name] for name in job.servers]
        await asyncio.gather(*(one.join(job.nonce, rank) for rank, one in enumerate(servers)))

    def _joined(self, job: JobLife, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, JobError | ProcessError | TimeoutError):
            first = str(error).split("\n", 1)[0]
            log.warning("job %d (%s) is not served: %s", job.number, job.name, first)
        else:
            log.error("job %d (%s) is not served", job.number, job.name, exc_info=error)

    async def _rejoin(self, job: JobLife, server: str) -> None:
        if server not in job.servers:
            return
        try:
            await self._servers[server].join(job.nonce, job.servers.index(server), None)
        except JobError as error:
            if job.until is None:
                self._tell(f"job {job.name} goes on without {error}")
        except ProcessError as error:  # it was killed again: the next process joins
            log.info("job %s: %s %s", job.name, error.name, error.what)
