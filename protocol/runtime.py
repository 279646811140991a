# SPDX-License-Identifier: Apache-2.0
"""Time, threads and waiting, as hosts and controller have them: from a `Runtime`.

`REAL` is the machine's: `threading` and its monotonic clock. A runtime in virtual time
(`simulation.kernel.tasks`) gives the same objects, whose waiting lets simulated time pass.
Everything behaves as the object of `threading` or `concurrent.futures` does that has its name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol

__all__ = ["REAL", "Condition", "Event", "Lock", "Runtime", "Thread", "Timer"]


class Lock(Protocol):
    """See threading.Lock and RLock."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Condition(Lock, Protocol):
    """See threading.Condition; its lock is reentrant."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any: ...

    def notify(self, n: int = 1) -> None: ...

    def notify_all(self) -> None: ...


class Event(Protocol):
    """See threading.Event."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Thread(Protocol):
    """See threading.Thread."""

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Timer(Protocol):
    """See threading.Timer."""

    def start(self) -> None: ...

    def cancel(self) -> None: ...


class Runtime(Protocol):
    """Where code runs: its clock, and how it waits."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""

    def sleep(self, seconds: float) -> None:
        """Blocks for so long."""

    def thread(
        self,
        target: Callable[..., Any],
        name: str | None = None,
        args: tuple[Any, ...] = (),
        daemon: bool = False,
    ) -> Thread:
        """One that is to be started."""

    def timer(self, seconds: float, work: Callable[[], Any]) -> Timer:
        """Does work in a thread of its own, so long after its start; no reason to stay alive."""

    def current(self) -> object:
        """The thread that this is called in: what `thread` gave, for those that it did."""

    def lock(self) -> Lock:
        """Not held by anybody."""

    def rlock(self) -> Lock:
        """One that its holder may take again."""

    def condition(self) -> Condition:
        """With a reentrant lock of its own."""

    def event(self) -> Event:
        """Not set."""

    def future(self) -> Future[Any]:
        """Neither done nor running."""


class _Real:
    """See Runtime."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    current = staticmethod(threading.current_thread)
    lock = staticmethod(threading.Lock)
    rlock = staticmethod(threading.RLock)
    condition = staticmethod(threading.Condition)
    event = staticmethod(threading.Event)

    @staticmethod
    def thread(
        target: Callable[..., Any],
        name: str | None = None,
        args: tuple[Any, ...] = (),
        daemon: bool = False,
    ) -> threading.Thread:
        return threading.Thread(target=target, name=name, args=args, daemon=daemon)

    @staticmethod
    def timer(seconds: float, work: Callable[[], Any]) -> threading.Timer:
        timer = threading.Timer(seconds, work)
        timer.daemon = True
        return timer

    @staticmethod
    def future() -> Future[Any]:
        return Future()


REAL: Runtime = _Real()
