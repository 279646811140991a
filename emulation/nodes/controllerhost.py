# SPDX-License-Identifier: Apache-2.0
"""The controller's process: gets orders from the testbed, and tells it of jobs.

See ``controller.service.orders`` and ``controller.service.notices``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulation.nodes.processes import Process, ProcessError

Links = Sequence[tuple[str, str]]  # by their ends, in the topology's order
Quality = Mapping[str, float]  # loss, duplicate, reorder, corrupt


@dataclass
class _Order:
    kind: str
    line: str
    answer: asyncio.Future[str]


class ControllerHost:
    """The controller, and the orders that it has not answered.

    They go out one by one, since what a stopped process does not read blocks whoever writes. One
    that ends and is started again gets what it owed, and what its predecessor knew.

    told: gets the jobs that are alive, whenever the controller tells.
    """

    def __init__(self, told: Callable[[list[dict[str, Any]]], None] = lambda jobs: None) -> None:
        self._told = told
        self.process: Process | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._orders: deque[_Order] = deque()
        self._impaired: list[tuple[Links, Quality]] = []

    def begin(self, process: Process) -> None:
        """Its process was started, perhaps again."""
        self.process = process
        if self.ready.done():
            self.ready = asyncio.get_running_loop().create_future()

    def line(self, line: str) -> None:
        """Takes a line of its standard output."""
        if line.startswith('{"jobs":'):
            self._told(json.loads(line)["jobs"])
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
        """Links lose, duplicate, reorder or corrupt packets, both ways, until they are mended.

        Where a link is impaired by several, the worst counts. Returns the controller's answer:
        ``done``, or why not.
        """
        self._impaired.append((links, quality))
        return self._order_impairments()

    def mend(self, links: Links, quality: Quality) -> asyncio.Future[str]:
        """What was impaired is not any more; see ``impair``."""
        self._impaired.remove((links, quality))
        return self._order_impairments()

    def died(self, name: str, how: str) -> None:
        """The process of a switch or server has ended."""
        self._order("died", name, how=how)

    def stop_job(self, number: int, why: str) -> asyncio.Future[str]:
        """A job fails, whoever created it. Returns the controller's answer."""
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
            # Whoever has just ended is started again, and gets it then.
            with contextlib.suppress(ProcessError):
                self.process.write(self._orders[0].line)
