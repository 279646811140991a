# SPDX-License-Identifier: Apache-2.0
"""Servers of racks whose sums switches add up: a job of its own, in which they are the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from baselines.innetwork import JobMembership
from baselines.members import StreamMember
from hosts.client import Sums
from planner.collectives.streams import Array


class ClientSwitches(JobMembership):
    """A box's sums by switches (implements ``streams.Switches``). rank: among boxes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = threading.Lock()  # nothing waits while it is held
        self._then: list[Callable[[Array], None]] = []
        self._came: dict[int, Array] = {}
        self._given = 0
        self._done: Future[None] = Future()

    def add(self, key: int, values: Array, then: Callable[[Array], None]) -> None:
        """Implements ``Switches.add``."""
        assert self._client is not None
        if key == 0:
            self._then, self._came, self._given = [], {}, 0
            self._done = self._environment.runtime.future()
        self._then.append(then)
        pushed = self._client.push({str(key): values})
        pushed.add_done_callback(lambda future: self._take(key, future))

    def wait(self) -> None:
        """Implements ``Switches.wait``. Raises ClientError."""
        self._done.result()

    def _take(self, key: int, future: Future[Sums]) -> None:
        """Gives sums to `then` in the order of keys."""
        with self._lock:
            try:
                sums = future.result()
            except Exception as error:  # raised by `wait`
                if not self._done.done():
                    self._done.set_exception(error)
                return
            self._came[key] = np.asarray(sums[str(key)], np.float32).reshape(-1)
            while self._given in self._came:
                self._then[self._given](self._came.pop(self._given))
                self._given += 1
            if self._given == len(self.bounds) - 1:
                self._done.set_result(None)


class BoxMember(StreamMember):
    """A box (a ``Member``): its streams have these switches, which it opens and closes."""

    def __init__(self, switches: ClientSwitches, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._switches = switches

    def prepare(self) -> Any:
        """Implements ``Member.prepare``."""
        return self._switches.prepare()

    def open(self, setup: Any) -> None:
        """Implements ``Member.open``."""
        self._switches.open(setup)
        super().open(setup)

    def close(self) -> None:
        """Implements ``Member.close``."""
        self._switches.close()
        super().close()
