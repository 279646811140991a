# SPDX-License-Identifier: Apache-2.0
"""The parameter server of one host, as the testbed speaks with it (``hosts.server_main``)."""

from __future__ import annotations

import asyncio

from testbed.processes import Process, ProcessError

_JOIN_SECONDS = 30.0


class JobError(Exception):
    """A job was refused or failed; the text names the process and shows its log's tail.

    process: the name of the process that failed, None if it was none.
    """

    def __init__(self, text: str, process: str | None = None) -> None:
        super().__init__(text)
        self.process = process


class ServerHost:
    """The parameter server process of one host, and the answers that it owes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Process | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers: list[asyncio.Future[str]] = []

    def line(self, line: str) -> None:
        """Takes a line of its standard output."""
        if line.startswith("ready") and not self.ready.done():
            self.ready.set_result(None)
        elif self._answers:
            answer = self._answers.pop(0)
            if not answer.done():
                answer.set_result(line)

    async def join(self, nonce: str, rank: int) -> None:
        """Makes it a server of a job; raises ``JobError`` with its reason if it refuses."""
        assert self.process is not None
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self.process.write(f"join {nonce} {rank}")
        try:
            said = await asyncio.wait_for(answer, _JOIN_SECONDS)
        except asyncio.TimeoutError:
            what = f"did not join within {_JOIN_SECONDS:g} s"
            raise ProcessError(self.name, what, self.process.log) from None
        if not said.startswith("joined"):
            raise JobError(f"{self.name}: {said}", self.name)
