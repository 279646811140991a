# SPDX-License-Identifier: Apache-2.0
"""Which numbers a worker asks about: as few as find out what is wrong.

All workers submit in the same order, so while the oldest number of a stream waits for a slow
worker the later ones do too, and one question about the oldest tells all there is to know. A window
of questions from each worker at once would be a burst of its own: it fills queues that count
packets, and then what was only late is lost. So a stream's timer restarts with every result
(RFC 6298, section 5.3), and what is asked about is the oldest number without one (5.4).

Where an answer shows a loss others are likely: then, and for some windows to come, every number is
asked about that is overdue by itself.

Nothing waits for ever: of all workers' oldest numbers the lowest is asked about by everyone who
lacks its sum, which is all that it takes to complete it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.slots import Rows, Slots

# After a loss, the windows of results until a stream counts as one that loses nothing. Long enough
# that a link that loses one packet in a hundred stays known as such.
_SUSPECT_WINDOWS = 4


class Questions:
    """Of the streams of `slots`, whose deadlines say when a number is overdue."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._windows = np.array(slots.windows)
        self._suspect = np.zeros_like(self._windows)  # results until it is trusted, by stream

    @property
    def suspicious(self) -> bool:
        """Whether any stream has lost something lately."""
        return bool(self._suspect.any())

    def candidates(self) -> Rows:
        """Rows of the numbers that may be asked about once they are overdue."""
        slots = self._slots
        rows = np.isfinite(slots.deadline).nonzero()[0]
        rows = rows[np.lexsort((slots.order[rows], slots.stream[rows]))]
        streams = slots.stream[rows]
        oldest = np.searchsorted(streams, streams) == np.arange(len(rows))
        chosen: Rows = rows[oldest | (self._suspect[streams] > 0)]
        return chosen

    def on_results(self, now: float, rows: Rows, timeouts: npt.NDArray[np.float64]) -> None:
        """Results of these distinct rows arrived; timeouts: (streams,) seconds."""
        slots = self._slots
        arrived = np.bincount(slots.stream[rows], minlength=len(timeouts))
        restarts = (arrived > 0) & (self._suspect == 0)
        restarted = np.where(restarts, now + timeouts, -np.inf)
        np.maximum(slots.deadline, restarted[slots.stream], out=slots.deadline)
        self._suspect = np.maximum(self._suspect - arrived, 0)

    def on_loss(self, rows: Rows) -> None:
        """Something about these numbers was lost or corrupted."""
        streams = self._slots.stream[rows]
        self._suspect[streams] = _SUSPECT_WINDOWS * self._windows[streams]
