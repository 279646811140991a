# SPDX-License-Identifier: Apache-2.0
"""Holds the sums of a slice back until all of them are complete.

Parameter servers that exchange messages (ps-lite, and so MXNet and P3's artifact) answer a slice,
or a whole key, when it has arrived from all workers. Sums that leave chunk by chunk are faster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class SliceRelease:
    """The complete sums of one stream that wait for others of their slice.

    A worker has a window of numbers in flight, so sums that wait must not fill it: longer slices
    are released in pieces of half a window, divided by the slices that are sent at once. (Half, as
    a chunk's first round is two numbers.)

    slices: (chunks,) slice of each chunk of the job, ascending.
    at_once: slices that a worker sends at a time in this stream.
    """

    def __init__(self, slices: Numbers, window: int, at_once: int = 1) -> None:
        most = max(1, window // (2 * at_once))
        begins = np.flatnonzero(np.diff(slices, prepend=-1))
        place = np.arange(len(slices)) - begins[slices]
        self._pieces = np.cumsum(place % most == 0) - 1  # of chunks
        self._lengths = np.bincount(self._pieces)
        self._missing = self._lengths.copy()
        self._slots: Numbers = np.zeros(0, np.int64)
        self._held: Numbers = np.zeros(0, np.int64)  # pieces of the slots

    def take(self, slots: Numbers, chunks: Numbers) -> Numbers:
        """Takes slots with complete sums of chunks (n,); returns those to send, which may be
        earlier ones."""
        self._slots = np.concatenate((self._slots, slots))
        self._held = np.concatenate((self._held, self._pieces[chunks]))
        np.subtract.at(self._missing, self._pieces[chunks], 1)
        ready = self._missing[self._held] == 0
        pieces = self._held[ready]
        released: Numbers = self._slots[ready]
        self._slots, self._held = self._slots[~ready], self._held[~ready]
        self._missing[pieces] = self._lengths[pieces]
        return released
