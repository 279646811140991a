# SPDX-License-Identifier: Apache-2.0
"""The in-network contender: a member that sums with the client of training jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from baselines.members import Report, ServiceOptions, values_of, wrong
from hosts.client import Client
from hosts.net.environment import HERE, HostEnvironment
from hosts.session.job_service import create_service


class JobMembership:
    """A rank of a job of its own, with the client of training jobs.

    bounds: Boundaries of its keys, from 0 to the number of values.
    client: Creates the client.
    create: Arguments of ``create_service`` for the rank that creates the job, else None.
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
        self._rank, self.bounds, self._make, self._create = rank, bounds, client, create
        self._service, self._environment = service, environment
        self._client: Client | None = None

    def prepare(self) -> Any:
        """Creates the job, if it is this rank's; returns what `open` needs. Raises ClientError."""
        if self._create is None:
            return None
        made = create_service(self._service, **self._create, environment=self._environment)
        return {"nonce": made.nonce, "servers": list(made.servers)}

    def open(self, setup: Any) -> None:
        """Joins the job. Raises ClientError."""
        self._client = self._make()
        self._client.connect_service(setup["nonce"], self._rank)
        keys = enumerate(pairwise(self.bounds))
        self._client.init_service({str(key): end - begin for key, (begin, end) in keys})

    def close(self) -> None:
        """Leaves the job."""
        if self._client is not None:
            self._client.leave()


class InNetwork(JobMembership):
    """A worker whose job is summed by switches or servers (a ``members.Member``).

    sizes: Values of each key. If chunks of its environment have no payload, sums are not checked.
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
        bounds = np.cumsum([0, *sizes]).tolist()
        super().__init__(rank, bounds, client, create, service, environment)
        self._workers = workers

    def iterate(self, number: int) -> Report:
        """Implements ``Member.iterate``."""
        assert self._client is not None
        clock = self._environment.runtime.now
        values = values_of(self._rank, number, self.bounds[-1])
        parts = {str(i): values[a:b] for i, (a, b) in enumerate(pairwise(self.bounds))}
        began = clock()
        sums = self._client.push_pull(parts)
        ended = clock()
        if not self._environment.payload:
            return Report(began, ended, None)
        came = np.concatenate([sums[key].reshape(-1) for key in parts])
        return Report(began, ended, wrong(came, self._workers, number))
