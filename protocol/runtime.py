# SPDX-License-Identifier: Apache-2.0
"""Clock, threads and synchronisation for hosts and controller: a `Runtime`.

`REAL` is that of the machine: `threading` and its monotonic clock. A runtime in virtual time
(`simulation.kernel.tasks`) provides the same objects, which wait in simulated time. Each behaves as
the object of that name in `threading` or `concurrent.futures`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol

import setproctitle

# Name of the thread that sends and receives for a worker, before its rank. The kernel has it, too,
# so that the quota of a slow host finds it (emulation/faults/cpu_quota.py).
WORKER_THREAD = "worker-"


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
    """A clock, and factories of threads and synchronisation objects."""

    def now(self) -> float:
        """Returns the seconds of a monotonic clock."""

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread."""

    def thread(
        self,
        target: Callable[..., Any],
        name: str | None = None,
        args: tuple[Any, ...] = (),
        daemon: bool = False,
    ) -> Thread:
        """Returns a thread that is not started."""

    def timer(self, seconds: float, work: Callable[[], Any]) -> Timer:
        """Returns a timer, not started; its daemon thread runs `work` that long after its start."""

    def current(self) -> object:
        """Returns the calling thread: the object from `thread` if it was made there."""

    def lock(self) -> Lock:
        """Returns a lock that is free."""

    def rlock(self) -> Lock:
        """Returns a reentrant lock that is free."""

    def condition(self) -> Condition:
        """Returns a condition with a reentrant lock of its own."""

    def event(self) -> Event:
        """Returns an event that is not set."""

    def future(self) -> Future[Any]:
        """Returns a pending future."""


class _Real:
    """The runtime of this machine."""

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
        def run() -> None:
            if name is not None:
                setproctitle.setthreadtitle(name)
            target(*args)

        return threading.Thread(target=run, name=name, daemon=daemon)

    @staticmethod
    def timer(seconds: float, work: Callable[[], Any]) -> threading.Timer:
        timer = threading.Timer(seconds, work)
        timer.daemon = True
        return timer

    @staticmethod
    def future() -> Future[Any]:
        return Future()


REAL: Runtime = _Real()
