# SPDX-License-Identifier: Apache-2.0
"""The lock of a worker's state machines, which their driver keeps while it waits for packets.

The driver waits in native code, where it can go on with what arrives at once. So a thread that
needs the lock asks for it first, which ends that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from protocol.runtime import Condition


class SharedTurn:
    """A condition whose lock may be asked for; see Condition in protocol.runtime.

    ask: makes the holder come back, if it keeps the lock; called by any thread.
    """

    def __init__(self, condition: Condition, ask: Callable[[], object]) -> None:
        self._condition, self._ask = condition, ask
        self._asking: deque[None] = deque()  # one for each thread that waits for the lock
        self._kept = False

    def keep(self) -> bool:
        """Returns true if the holder may keep the lock while it waits, until `give_back`: no other
        thread waits for it. One that does from now on asks."""
        self._kept = True
        if self._asking:
            self._kept = False
        return self._kept

    def give_back(self) -> None:
        """Ends what `keep` began."""
        self._kept = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock, for which it asks a holder that keeps it; returns whether it did.

        timeout: seconds to wait; -1: no limit.
        """
        self._asking.append(None)
        try:
            if self._kept:
                self._ask()
            return self._condition.acquire(blocking, timeout)
        finally:
            self._asking.pop()

    def release(self) -> None:
        """Releases the lock."""
        self._condition.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Releases the lock until a notification, up to `timeout` seconds (None: no limit); returns
        whether there was one. Meanwhile no holder keeps the lock."""
        self._asking.append(None)  # it needs the lock again whenever there is something new
        try:
            return self._condition.wait(timeout)
        finally:
            self._asking.pop()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Waits until the predicate is true, up to `timeout` seconds (None: no limit); returns its
        last value."""
        self._asking.append(None)
        try:
            return self._condition.wait_for(predicate, timeout)
        finally:
            self._asking.pop()

    def notify(self, n: int = 1) -> None:
        """Wakes up to `n` threads that wait."""
        self._condition.notify(n)

    def notify_all(self) -> None:
        """Wakes all threads that wait."""
        self._condition.notify_all()
