# SPDX-License-Identifier: Apache-2.0
"""The testbed's connection to a parameter server process (``hosts.server``)."""

from __future__ import annotations

import asyncio

from emulation.nodes.processes import Process, ProcessError
from testbed.errors import JobError

_JOIN_SECONDS = 30.0


class ServerHost:
    """A parameter server process and its pending requests.

    name: of the process; it differs from the host's name if a worker runs there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Process | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers: list[asyncio.Future[str]] = []
        self._joins: dict[str, asyncio.Future[str]] = {}  # by nonce, of this process

    def begin(self, process: Process) -> None:
        """Takes a newly started process, the first or a restarted one; cancels pending requests."""
        self.process = process
        if self.ready.done():
            self.ready = asyncio.get_running_loop().create_future()
        for answer in self._answers:
            answer.cancel()
        self._answers.clear()
        self._joins.clear()

    def line(self, line: str) -> None:
        """Takes a line of the server's standard output."""
        if line.startswith("ready") and not self.ready.done():
            self.ready.set_result(None)
        elif self._answers:
            answer = self._answers.pop(0)
            if not answer.done():
                answer.set_result(line)

    def forget(self, nonce: str) -> None:
        """Forgets a job that is over."""
        self._joins.pop(nonce, None)

    async def join(self, nonce: str, rank: int, seconds: float | None = _JOIN_SECONDS) -> None:
        """Makes the process a server of a job; repeated calls send one request per process.

        seconds: time limit; None: as long as the process lives. Raises ``JobError`` with its reason
        if it refuses, ``ProcessError`` if it takes longer or ends.
        """
        assert self.process is not None
        await asyncio.wait([self.ready], timeout=seconds)  # it may be restarting
        answer = self._joins.get(nonce)
        if answer is None:
            self.process.write(f"join {nonce} {rank}")
            answer = self._joins[nonce] = asyncio.get_running_loop().create_future()
            self._answers.append(answer)
        await asyncio.wait([answer], timeout=seconds)
        if answer.cancelled():
            raise ProcessError(self.name, "ended while it joined", self.process.log)
        if not answer.done():
            raise ProcessError(self.name, f"did not join within {seconds:g} s", self.process.log)
        said = answer.result()
        if not said.startswith("joined"):
            raise JobError(f"{self.name}: {said}", self.name)
