# SPDX-License-Identifier: Apache-2.0
"""The in-network contender: a member that sums with the client of training jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from baselines.members import Report, ServiceOptions, values_of, wrong
from hosts.client import Client
from hosts.net.environment import HERE, HostEnvironment
from hosts.session.job_service import create_service


class InNetwork:
    """A worker whose job is summed by switches or servers (a ``members.Member``).

    sizes: Values of each key.
    client: Creates the client.
    create: Arguments of ``create_service`` for the member that creates the job, else None.
    service: Address of the job service.
    environment: The host's environment. If its chunks have no payload, sums are not checked.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        sizes: Sequence[int],
        client: Callable[[], Client],
        create: ServiceOptions | None,
        service: str | None = None,
        environment: HostEnvironment = HERE,
    ) -> None:
        self._rank, self._workers = rank, workers
        self._ends = np.cumsum([0, *sizes]).tolist()
        self._make, self._create = client, create
        self._service, self._environment = service, environment
        self._client: Client | None = None

    def prepare(self) -> Any:
        """Implements ``Member.prepare``: creates the job."""
        if self._create is None:
            return None
        made = create_service(self._service, **self._create, environment=self._environment)
        return {"nonce": made.nonce, "servers": list(made.servers)}

    def open(self, setup: Any) -> None:
        """Implements ``Member.open``."""
        self._client = self._make()
        self._client.connect_service(setup["nonce"], self._rank)
        keys = zip(self._ends, self._ends[1:], strict=False)
        self._client.init_service({str(i): b - a for i, (a, b) in enumerate(keys)})

    def iterate(self, number: int) -> Report:
        """Implements ``Member.iterate``."""
        assert self._client is not None
        clock = self._environment.runtime.now
        values = values_of(self._rank, number, self._ends[-1])
        keys = zip(self._ends, self._ends[1:], strict=False)
        parts = {str(i): values[a:b] for i, (a, b) in enumerate(keys)}
        began = clock()
        sums = self._client.push_pull(parts)
        ended = clock()
        if not self._environment.payload:
            return Report(began, ended, None)
        came = np.concatenate([sums[key].reshape(-1) for key in parts])
        return Report(began, ended, wrong(came, self._workers, number))

    def close(self) -> None:
        """Implements ``Member.close``."""
        if self._client is not None:
            self._client.leave()
