# SPDX-License-Identifier: Apache-2.0
"""Defers signals that end the process to the end of a round of the engine."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Yields a function that runs the handlers of signals received since its last call.

    An exception of a handler would otherwise look like an error of the host whose code runs.
    """
    received: list[Callable[[], object]] = []

    def later(number: int, _: object) -> None:
        received.append(partial(before[number], number, None))

    def handle() -> None:
        while received:
            received.pop(0)()

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _ENDING}
        before = {number: one for number, one in handlers.items() if callable(one)}
    for number in before:
        signal.signal(number, later)
    try:
        yield handle
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    handle()
