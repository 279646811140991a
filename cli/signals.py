# SPDX-License-Identifier: Apache-2.0
"""Ends commands in order on SIGTERM and SIGHUP, as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from cli import pipes


class EndedError(SystemExit):
    """A signal asked this process to end, or its output pipe was closed."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name
        if number == signal.SIGPIPE:
            self.name += " (its output pipe is closed)"


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into exceptions, as Ctrl-C is, so that contexts exit in order."""

    def end(number: int, _: object) -> None:
        raise EndedError(signal.SIGPIPE if pipes.is_reader_gone() else number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
