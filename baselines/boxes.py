# SPDX-License-Identifier: Apache-2.0
"""Servers of racks whose sums switches add up: a job of its own, in which they are the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from baselines.members import ServiceOptions, StreamMember
from hosts.client import Client, Sums
from hosts.net.environment import HERE, HostEnvironment
from hosts.session.job_service import create_service
from planner.collectives.streams import Array


class ClientSwitches:
    """A box's sums by switches, with the client of training jobs (implements
    ``streams.Switches``).

    rank: among boxes.
    bounds: boundaries of keys.
    client: Creates the client.
    create: Arguments of ``create_service`` for the box that creates the job, else None.
    service: Address of the job service.
    environment: The host's environment.
    """

    def __init__(
        self,
        rank: int,
        bounds: Sequence[int],
        client: Callable[[], Client],
        create: ServiceOptions | None,
        service: str | None = None,
        environment: HostEnvironment = HERE,
    ) -> None:
        self.bounds = bounds
        self._rank, self._make, self._create = rank, client, create
        self._service, self._environment = service, environment
        self._client: Client | None = None
        self._lock = threading.Lock()  # nothing waits while it is held
        self._then: list[Callable[[Array], None]] = []
        self._came: dict[int, Array] = {}
        self._given = 0
        self._done: Future[None] = Future()

    def prepare(self) -> Any:
        """Creates the job, if it is this box's; returns what `open` needs."""
        if self._create is None:
            return None
        made = create_service(self._service, **self._create, environment=self._environment)
        return {"nonce": made.nonce, "servers": list(made.servers)}

    def open(self, setup: Any) -> None:
        """Joins the job."""
        self._client = self._make()
        self._client.connect_service(setup["nonce"], self._rank)
        ends = self.bounds
        self._client.init_service({str(n): ends[n + 1] - ends[n] for n in range(len(ends) - 1)})

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

    def close(self) -> None:
        """Leaves the job."""
        if self._client is not None:
            self._client.leave()

    def _take(self, key: int, future: Future[Sums]) -> None:
        """Gives sums to `then` in the order of keys."""
        with self._lock:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                if not self._done.done():
                    self._done.set_exception(error)
                return
            self._came[key] = np.asarray(future.result()[str(key)], np.float32).reshape(-1)
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
