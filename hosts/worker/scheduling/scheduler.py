# SPDX-License-Identifier: Apache-2.0
"""The interface of chunk schedulers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from protocol.plan import WorkerPlan

Numbers = npt.NDArray[np.int64]


class ChunkScheduler(ABC):
    """Decides the order in which a worker's chunks are sent, and the stream of each.

    One instance serves one worker in one epoch. `arrange` and `streams` are called for the chunks
    of a submission (a push, or a part of one), and not again for the same ones; `priorities` once.
    A chunk gets its number in its stream at submission, and all workers of a job must number alike.
    So a scheduler depends on its arguments and on those parts of the plan that all workers share,
    and on nothing else: no clock, no random numbers, no arrivals. Sums do not depend on it.

    plan: of the epoch.
    in_network: switches serve its classes by strict priority, too; else workers alone do.
    """

    in_network = False

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan

    @abstractmethod
    def arrange(self, chunks: Numbers) -> Numbers:
        """Returns the order in which the chunks of one submission get their numbers, as (n,)
        indices into `chunks`, each once.

        chunks: (n,) distinct, in the order of the call.
        """

    def streams(self, chunks: Numbers) -> Numbers:
        """Returns the stream (n,) of each chunk, as an index into the plan's streams.

        It must lead to the chunk's server (`protocol.partition.servers_of`), and is the same in
        every call with that chunk. Default: the plan's, which spreads the slices of each server
        evenly over its streams.
        """
        streams: Numbers = self.plan.stream_of(chunks)
        return streams

    def priorities(self) -> Numbers:
        """Returns the priority (streams,) of each stream: whenever the link has room, streams of
        higher priority send first; among equals chunks leave in the order of their numbering.

        Default: the plan's.
        """
        return np.array([stream.priority for stream in self.plan.streams], np.int64)
