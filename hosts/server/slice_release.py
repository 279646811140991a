# SPDX-License-Identifier: Apache-2.0
"""Holds the sums of a slice back until all of them are complete.

Parameter servers that exchange messages (ps-lite, and so MXNet and P3's artifact) answer a slice,
or a whole key, when it has arrived from all workers. Sums that leave chunk by chunk are faster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from switch.ports.paced_line import address

Numbers = npt.NDArray[np.int64]


class SliceRelease:
    """The complete sums of one stream that wait for others of their slice; `release` in
    hosts/native/root.c works on it.

    A worker has a window of numbers in flight, so sums that wait must not fill it: longer slices
    are released in pieces of half a window, divided by the slices that are sent at once. (Half, as
    a chunk's first round is two numbers.)

    slices: (chunks,) slice of each chunk of the job, ascending.
    window: of the stream.
    slots: most sums that wait.
    at_once: slices that a worker sends at a time in this stream.
    fields: of `struct root`.
    """

    def __init__(self, slices: Numbers, window: int, slots: int, at_once: int = 1) -> None:
        most = max(1, window // (2 * at_once))
        begins = np.flatnonzero(np.diff(slices, prepend=-1))
        place = np.arange(len(slices)) - begins[slices]
        pieces = np.cumsum(place % most == 0) - 1  # of chunks
        lengths = np.bincount(pieces)
        self._arrays = {
            "pieces": pieces,
            "lengths": lengths,
            "missing": lengths.copy(),
            "held": np.zeros(slots, np.int64),
        }
        self.fields = {name: address(array) for name, array in self._arrays.items()}
