# SPDX-License-Identifier: Apache-2.0
"""First in, first out."""

from __future__ import annotations

import numpy as np

from hosts.worker.scheduling.scheduler import ChunkScheduler, Numbers


class Fifo(ChunkScheduler):
    """Sends chunks in the order of submission. So numbers do not depend on how a round is split
    into calls.

    Whole keys are an exception: a part for each server is sent at a time, as MXNet has a connection
    to each. Else all workers would send to the first server, then to the second.
    """

    def arrange(self, chunks: Numbers) -> Numbers:
        if not self.plan.propagation.parts:
            return np.arange(len(chunks))
        servers = np.asarray(self.plan.server_of(chunks))
        by_server = np.argsort(servers, kind="stable")
        begins = np.concatenate(([0], np.cumsum(np.bincount(servers))))
        turns = np.empty(len(chunks), np.int64)
        turns[by_server] = np.arange(len(chunks)) - begins[servers[by_server]]
        return np.argsort(turns, kind="stable")
