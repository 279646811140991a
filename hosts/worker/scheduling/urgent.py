# SPDX-License-Identifier: Apache-2.0
"""The most urgent chunks first."""

from __future__ import annotations

import numpy as np

from hosts.worker.scheduling.scheduler import ChunkScheduler, Numbers


class MostUrgentFirst(ChunkScheduler):
    """Sends the chunks that the next forward pass needs first, first, as in P3 (SysML 2019).

    Keys are numbered in the order of the forward pass, and so are chunks. Streams belong to
    classes of keys, and those of a more urgent class are served first; so chunks of a call overtake
    those of earlier calls that are of lower classes. Within a class chunks leave in the order of
    calls, and of one call the most urgent first.
    """

    in_network = True

    def arrange(self, chunks: Numbers) -> Numbers:
        return np.argsort(chunks, kind="stable")


class MostUrgentByCredit(MostUrgentFirst):
    """Sends the most urgent chunks first while others in flight leave room in a credit of bytes, as
    ByteScheduler (SOSP 2019) does, which knows of no priorities in the network."""

    in_network = False
