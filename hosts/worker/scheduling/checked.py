# SPDX-License-Identifier: Apache-2.0
"""Checks what a chunk scheduler returns."""

from __future__ import annotations

import numpy as np

from hosts.worker.policies import naming
from hosts.worker.scheduling.scheduler import ChunkScheduler, Numbers
from protocol.plan import WorkerPlan

_WHAT = "chunk scheduler"


class CheckedScheduler(ChunkScheduler):
    """A scheduler of a kind, whose failures and wrong results are ``PolicyError``."""

    def __init__(self, kind: type[ChunkScheduler], plan: WorkerPlan) -> None:
        super().__init__(plan)
        self._kind = kind
        with naming(_WHAT, kind):
            self._scheduler = kind(plan)

    def arrange(self, chunks: Numbers) -> Numbers:
        n = len(chunks)
        with naming(_WHAT, self._kind):
            found = np.asarray(self._scheduler.arrange(chunks))
            whole = found.shape == (n,) and (not n or 0 <= found.min() <= found.max() < n)
            if not (whole and (np.bincount(found, minlength=n) == 1).all()):
                raise ValueError(
                    f"arrange() has to return the numbers from 0 to {n - 1}, each once; it returned"
                    f" {_short(found)}"
                )
        return found

    def streams(self, chunks: Numbers) -> Numbers:
        streams, n = len(self.plan.streams), len(chunks)
        with naming(_WHAT, self._kind):
            found = np.asarray(self._scheduler.streams(chunks))
            if found.shape != (n,) or (n and not 0 <= found.min() <= found.max() < streams):
                raise ValueError(
                    f"streams() has to return {n} numbers from 0 to {streams - 1}; it returned"
                    f" {_short(found)}"
                )
        return found

    def priorities(self) -> Numbers:
        streams = len(self.plan.streams)
        with naming(_WHAT, self._kind):
            found = np.asarray(self._scheduler.priorities())
            if found.shape != (streams,):
                raise ValueError(
                    f"priorities() has to return {streams} numbers; it returned {_short(found)}"
                )
        return found


def _short(found: Numbers) -> str:
    return np.array2string(found, threshold=8, edgeitems=3)
