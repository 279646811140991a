# SPDX-License-Identifier: Apache-2.0
"""The testbed's connection to the controller process: sends orders, receives notices of jobs.

Formats: ``controller.service.orders`` and ``controller.service.notices``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.service.notices import JobNotice
from emulation.nodes.processes import Process, ProcessError

Links = Sequence[tuple[str, str]]  # pairs of ends, in the topology's order
Quality = Mapping[str, float]  # loss, duplicate, reorder, corrupt


@dataclass
class _Order:
    kind: str
    line: str
    answer: asyncio.Future[str]


class ControllerHost:
    """The controller process and the orders that it has not answered.

    Orders are sent one at a time, since a full pipe to a stopped process would block the writer. A
    restarted controller gets the unanswered orders and the impairments in force.

    on_jobs: called with the live jobs whenever the controller reports them.
    """

    def __init__(self, on_jobs: Callable[[list[JobNotice]], None] = lambda jobs: None) -> None:
        self._on_jobs = on_jobs
        self.process: Process | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._orders: deque[_Order] = deque()
        self._impaired: list[tuple[Links, Quality]] = []

    def begin(self, process: Process) -> None:
        """Takes a newly started controller process, the first or a restarted one."""
        self.process = process
        if self.ready.done():
            self.ready = asyncio.get_running_loop().create_future()

    def line(self, line: str) -> None:
        """Takes a line of the controller's standard output."""
        if line.startswith('{"jobs":'):
            self._on_jobs(json.loads(line)["jobs"])
        elif not self.ready.done():
            if line.startswith("ready"):
                self.ready.set_result(None)
                self._send()
                if self._impaired and not any(one.kind == "impair" for one in self._orders):
                    self._order_impairments()
        elif self._orders:
            answer = self._orders.popleft().answer
            if not answer.done():
                answer.set_result(line)
            self._send()

    def impair(self, links: Links, quality: Quality) -> asyncio.Future[str]:
        """Makes links lose, duplicate, reorder or corrupt packets, both ways, until ``mend``.

        Of several impairments of a link, the highest probabilities apply. Returns the controller's
        answer: ``done``, or why not.
        """
        self._impaired.append((links, quality))
        return self._order_impairments()

    def mend(self, links: Links, quality: Quality) -> asyncio.Future[str]:
        """Ends an impairment; arguments and result as of ``impair``."""
        self._impaired.remove((links, quality))
        return self._order_impairments()

    def died(self, name: str, how: str) -> None:
        """Reports the end of a switch's or server's process."""
        self._order("died", name, how=how)

    def stop_job(self, number: int, why: str) -> asyncio.Future[str]:
        """Makes a job fail, whichever program created it. Returns the controller's answer."""
        return self._order("stop", number, why=why)

    # --- inside ---

    def _order_impairments(self) -> asyncio.Future[str]:
        worst: dict[tuple[str, str], dict[str, float]] = {}
        for links, quality in self._impaired:
            for ends in links:
                known = worst.setdefault(ends, {})
                known.update({name: max(known.get(name, 0.0), p) for name, p in quality.items()})
        return self._order("impair", [{"ends": ends, **known} for ends, known in worst.items()])

    def _order(self, kind: str, content: Any, **more: Any) -> asyncio.Future[str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._orders.append(_Order(kind, json.dumps({kind: content, **more}), answer))
        if len(self._orders) == 1:
            self._send()
        return answer

    def _send(self) -> None:
        if self._orders and self.ready.done() and self.process is not None:
            # If the process has just ended, the restarted one gets the order.
            with contextlib.suppress(ProcessError):
                self.process.write(self._orders[0].line)
