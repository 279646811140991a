# SPDX-License-Identifier: Apache-2.0
"""First in, first out."""

from __future__ import annotations

import numpy as np

from hosts.worker.scheduling.scheduler import ChunkScheduler, Numbers


class Fifo(ChunkScheduler):
    """Sends chunks in the order of submission. So numbers do not depend on how a round is split
    into calls."""

    def arrange(self, chunks: Numbers) -> Numbers:
        return np.arange(len(chunks))
