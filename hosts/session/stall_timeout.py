# SPDX-License-Identifier: Apache-2.0
"""Bounds the wait of a call, and reports stalls meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hosts.errors import StalledError
from hosts.worker.explanation import Waiting
from hosts.worker.transport import WorkerTransport
from protocol.runtime import REAL

# Seconds without any sum before a call reports a stall, and between reports.
_STALL_SECONDS = 5.0
_STALL_AGAIN_SECONDS = 2.0


@dataclass(frozen=True)
class Stall:
    """A call that waits without any sum arriving.

    Attributes:
        seconds: Since the last sum, or since the call.
        missing: Chunks without a sum.
        oldest: The first of them in order of submission, None if none is in a window.
        node: The tree node that this worker sends it to.
        boundary: True if the call has not begun, as another worker is about to join.
    """

    seconds: float
    missing: int
    oldest: Waiting | None
    node: int | None
    boundary: bool = False

    def __str__(self) -> str:
        if self.boundary:
            return f"not begun for {self.seconds:.1f} s: a worker is about to join"
        text = f"no sum for {self.seconds:.1f} s, {self.missing} chunks wait"
        if self.oldest is None:
            return text
        if self.oldest.node is None:
            return f"{text}; the first, sent to node {self.node}: {self.oldest}"
        return f"{text}; the first: {self.oldest}"


class StallTimeout:
    """The time limits of one call over `missing` chunks, which begins now.

    timeout: seconds for the call, None for no limit.
    seconds: without any sum.
    on_stall: see Client.
    look: returns the current transport.
    clock: see Runtime.
    """

    def __init__(
        self,
        missing: int,
        timeout: float | None,
        seconds: float,
        on_stall: Callable[[Stall], None] | None,
        look: Callable[[], WorkerTransport],
        clock: Callable[[], float] = REAL.now,
    ) -> None:
        self._clock = clock
        self.missing = missing
        self._begun = False
        self._timeout = timeout
        self._patience = seconds
        self._on_stall = on_stall
        self._look = look
        began = clock()
        self.deadline = math.inf if timeout is None else began + timeout
        self._moved = began
        self._notice = began + _STALL_SECONDS

    def begin(self) -> None:
        """Begins the call after a boundary has held it back."""
        self._begun, self._moved = True, self._clock()

    def moved(self, missing: int, at: float) -> None:
        """Records that a sum has arrived at this time."""
        self.missing, self._moved = missing, at

    @property
    def late(self) -> bool:
        """Returns true if the call's timeout has expired."""
        return self._clock() >= self.deadline

    @property
    def next(self) -> float:
        """Returns the time of the next call of `look`."""
        return min(self.deadline, self._notice, self._moved + self._patience)

    def look(self) -> None:
        """Reports a stall when it is time to.

        Raises TimeoutError or StalledError when a limit has expired.
        """
        now = self._clock()
        if now >= self.deadline:
            raise TimeoutError(self._overdue())
        if now >= self._moved + self._patience:
            stall = self._stall(now - self._moved)
            raise StalledError(f"{stall}; given up after {self._patience:g} s")
        if now < self._moved + _STALL_SECONDS:
            self._notice = self._moved + _STALL_SECONDS
            return
        if now >= self._notice:
            if self._on_stall is not None:
                self._on_stall(self._stall(now - self._moved))
            self._notice = now + _STALL_AGAIN_SECONDS

    def _overdue(self) -> str:
        text = f"{self.missing} chunks without a sum after {self._timeout} s"
        if not self._begun:
            return f"{text}: not begun, as a worker is about to join"
        waiting = self._look().explain(self._clock())
        return f"{text}; the first: {waiting[0]}" if waiting else text

    def _stall(self, seconds: float) -> Stall:
        if not self._begun:
            return Stall(seconds, self.missing, None, None, boundary=True)
        transport = self._look()
        waiting = transport.explain(self._clock())
        if not waiting:
            return Stall(seconds, self.missing, None, None)
        oldest = waiting[0]
        nodes = {stream.stream: stream.node for stream in transport.plan.streams}
        return Stall(seconds, self.missing, oldest, nodes[oldest.stream])
