# SPDX-License-Identifier: Apache-2.0
"""Runs workers' turns in threads beside Python (``hosts/native/background.c``).

For simulations of many workers: while one's packets are taken and sent in C, Python prepares the
next one's.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

from hosts.data.array_pool import ArrayPool
from hosts.data.workspace import Workspace
from hosts.native.loader import check_constants, load_native

_TURNS = 8  # as in background.h
# A turn takes some 0.1 ms. Where threads get no CPU, waiting for them costs more than they save:
# after turns that were waited for longer than this in the mean, others do without for a while.
_LONG = 0.0002
_MEASURED, _PAUSE = 32, 1000  # turns


class Space(NamedTuple):
    """A place for a turn, and its memory."""

    place: int
    workspace: Workspace


class Background:
    """Threads, started with the first turn, and memory for the turns that are under way.

    threads: how many. Not thread safe: one thread begins turns and finishes them.
    """

    most = _TURNS

    def __init__(self, threads: int) -> None:
        self._lib: Any = load_native()
        check_constants(self._lib, {"background_turns": _TURNS})
        self._threads = threads
        self._handle: int | None = None
        self._turns, self._waited = 0, 0.0  # since it was last looked at
        self._pause = 0
        pool = ArrayPool()
        self._spaces = [Space(place, Workspace(pool)) for place in range(_TURNS)]

    def close(self) -> None:
        """Ends the threads; turns that are under way cannot be finished any more."""
        handle, self._handle = self._handle, None
        self._lib.background_destroy(handle)

    def begin(self) -> Space | None:
        """Returns a place for a turn, until `finish`; None if as many as possible are under way, or
        threads would be waited for."""
        if self._pause:
            self._pause -= 1
            return None
        return self._spaces.pop() if self._spaces else None

    def run(self, space: Space, *addresses: int) -> None:
        """Begins ``worker_run`` with structures at these addresses. Raises MemoryError."""
        if self._handle is None:
            self._handle = self._lib.background_create(self._threads)
            if not self._handle:
                raise MemoryError("no memory for threads")
        self._lib.background_begin(self._handle, space.place, *addresses)

    def ready(self, space: Space) -> bool:
        """Returns true if `wait` would not wait for another thread."""
        return bool(self._lib.background_ready(self._handle, space.place))

    def wait(self, space: Space) -> int:
        """Waits for the end of a turn; returns how many packets it took."""
        began = None if self.ready(space) else perf_counter()
        taken: int = self._lib.background_finish(self._handle, space.place)
        self._turns += 1
        if began is not None:
            self._waited += perf_counter() - began
        if self._turns == _MEASURED:
            self._pause = _PAUSE if self._waited > _MEASURED * _LONG else 0
            self._turns, self._waited = 0, 0.0
        return taken

    def finish(self, space: Space) -> None:
        """Makes a place available again."""
        self._spaces.append(space)
