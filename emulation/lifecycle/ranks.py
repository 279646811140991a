# SPDX-License-Identifier: Apache-2.0
"""Runs the processes of a user's own job, one for each rank, on a running testbed (``rackhub
launch``)."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from emulation.lifecycle.execution import begin, ended, send_signal
from observability.control import ControlError
from observability.record import RunDirectory

# For a process after SIGTERM, then for the kernel after SIGKILL.
GRACE_SECONDS = 5.0
_PIECE = 1 << 16
_ENDED = 0  # beside 1 and 2, the numbers of outputs
_OUTPUTS = (1, 2)

Show = Callable[[int, int, bytes], None]


class Failure(NamedTuple):
    """The rank that failed first, and its exit status (128 + n if signal n ended it)."""

    rank: int
    status: int


class Ranks:
    """The processes of a job's ranks; as a context manager it ends those that are left.

    show: takes a rank, 1 or 2 for its standard output or error, and what it has written there;
        nothing at the end.
    statuses: of those that have ended, by rank, in the order of their ends.
    """

    def __init__(self, run: RunDirectory, show: Show) -> None:
        self._run, self._show = run, show
        self._running: dict[int, socket.socket] = {}
        self._pipes: dict[tuple[int, int], int] = {}
        self.statuses: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(ControlError):  # the testbed is gone, and they with it
                self._end()
        finally:
            for connection in self._running.values():
                connection.close()
            for pipe in self._pipes.values():
                os.close(pipe)
            self._selector.close()

    def start(
        self, rank: int, node: str, program: list[str], environment: Mapping[str, str]
    ) -> None:
        """Starts a rank's process. Raises what ``begin`` raises."""
        with contextlib.ExitStack() as stack:
            theirs = [os.open(os.devnull, os.O_RDONLY)]
            stack.callback(os.close, theirs[0])
            for number in _OUTPUTS:
                self._pipes[rank, number], there = os.pipe()
                stack.callback(os.close, there)
                theirs.append(there)
            connection = begin(self._run, node, program, theirs, environment)
        self._running[rank] = connection
        self._selector.register(connection, selectors.EVENT_READ, (rank, _ENDED))
        for number in _OUTPUTS:
            pipe = self._pipes[rank, number]
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ, (rank, number))

    def wait(self, culprit: Callable[[], int | None]) -> Failure | None:
        """Waits until all have ended, or one has failed; returns the first failure.

        culprit: returns the rank that ended the job, if one did. Others fail as a consequence, and
        may end before it does.

        Raises ``CommandError`` or ``ControlError`` for a process that could not be started, or if
        the testbed has ended.
        """
        while self._running and not any(self.statuses.values()):
            self._turn(None)
        failed = [rank for rank, status in self.statuses.items() if status]
        if not failed:
            return None
        first = culprit()
        if first is not None:
            self._until(lambda: first not in self._running)
            if self.statuses.get(first):
                return Failure(first, self.statuses[first])
        return Failure(failed[0], self.statuses[failed[0]])

    # --- inside ---

    def _end(self) -> None:
        """Ends all processes; an interruption shortens the wait."""
        interruption: BaseException | None = None
        for number in (signal.SIGTERM, signal.SIGKILL):
            for connection in self._running.values():
                send_signal(connection, number)
            try:
                self._until(lambda: not self._running)
            except (KeyboardInterrupt, SystemExit) as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition, but no longer than the grace."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not condition() and (left := deadline - time.monotonic()) > 0:
            self._turn(left)

    def _turn(self, timeout: float | None) -> None:
        """Handles what comes next: output, or ends."""
        for key, _ in self._selector.select(timeout):
            rank, number = key.data
            if number == _ENDED:
                self._take_end(rank)
            elif (rank, number) in self._pipes:  # not closed with the end, just before
                self._read(rank, number)

    def _take_end(self, rank: int) -> None:
        self._selector.unregister(self._running[rank])
        with self._running.pop(rank) as connection:
            self.statuses[rank] = ended(self._run, connection)
        # Processes that it has left behind may hold its outputs open: only what there is by now.
        for number in _OUTPUTS:
            while (rank, number) in self._pipes:
                self._read(rank, number, last=True)

    def _read(self, rank: int, number: int, *, last: bool = False) -> None:
        """Shows what there is of an output; closes it at its end, or where no more is there and it
        is the last."""
        pipe = self._pipes[rank, number]
        try:
            data = os.read(pipe, _PIECE)
        except BlockingIOError:
            if not last:
                return
            data = b""
        if not data:
            self._selector.unregister(pipe)
            os.close(self._pipes.pop((rank, number)))
        self._show(rank, number, data)
