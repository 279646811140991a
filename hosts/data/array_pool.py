# SPDX-License-Identifier: Apache-2.0
"""Memory of large arrays: freed memory that is kept, and arrays of which little is used.

The kernel clears memory that is new to a process, page by page, when it is first written, which
takes longer than most of what a worker does with a gradient. So freed arrays are kept.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# References to an array that only the pool has: its list, and the argument of getrefcount.
_UNUSED = 2
_LOOKS = 64  # arrays that are looked at for an unused one
_SMALL = 1 << 16  # bytes; the C library keeps freed memory of smaller arrays itself
_LINE = 64  # bytes of a processor's cache
_LARGE = 32 << 20  # bytes of an array whose memory the C library takes from the kernel, and returns
_KEPT = 256 << 20  # bytes at the end of the heap that it keeps at most
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt(3), from glibc's malloc.h


class ArrayPool:
    """Hands out arrays, and reuses their memory once neither the array nor a view of it is
    referenced.

    For one thread at a time. It keeps about as much as was in use at once.
    """

    def __init__(self) -> None:
        self._kept: defaultdict[int, list[npt.NDArray[np.uint8]]] = defaultdict(list)
        self._next: defaultdict[int, int] = defaultdict(int)  # of those kept, to look at

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns an uninitialised array, as numpy.empty."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < _SMALL:
            return np.empty(shape, kind)
        # Powers of two, so that slightly different sizes share memory.
        memory = self._memory(1 << max(0, size - 1).bit_length())
        return memory[:size].view(kind).reshape(shape)

    def _memory(self, size: int) -> npt.NDArray[np.uint8]:
        kept, first = self._kept[size], self._next[size]
        for step in range(min(_LOOKS, len(kept))):
            place = (first + step) % len(kept)
            if sys.getrefcount(kept[place]) == _UNUSED:
                self._next[size] = place
                return kept[place]
        # The next time at others, if there are: these may be in use for long.
        self._next[size] = (first + _LOOKS) % (len(kept) + 1)
        kept.append(np.empty(size, np.uint8))
        return kept[-1]


def demand_zeros(n: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns n zeros, whose memory the kernel provides when it is written, page by page.

    For arrays of which little is used: the C library may clear the memory of numpy.zeros at once.
    """
    size = max(1, n * np.dtype(kind).itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, kind, n)


def demand_columns(n: int, kinds: Mapping[str, npt.DTypeLike]) -> dict[str, npt.NDArray[Any]]:
    """Returns arrays of n zeros by name, in one block of such memory.

    A worker has dozens of arrays, and to make each by itself takes longer than to fill it.
    """
    places, end = {}, 0
    for name, kind in kinds.items():
        places[name] = end
        # With a line between them: else a row of one would be in the same set of a processor's
        # cache as that of all others whose length is a multiple of a page.
        end += (-(-n * np.dtype(kind).itemsize // _LINE) + 1) * _LINE
    memory = demand_zeros(end, np.uint8)
    return {name: np.frombuffer(memory, kind, n, places[name]) for name, kind in kinds.items()}


@functools.cache
def keep_freed() -> None:
    """Lets the C library keep freed memory of arrays below 32 MiB, at the end of its heap up to 256
    MiB; has no effect without glibc.

    By default it returns memory to the kernel whenever a few arrays at the end of its heap are
    free, which many of a virtual network's are at a time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, _KEPT)
