# SPDX-License-Identifier: Apache-2.0
"""Handling of Ctrl-C while the command line is still importing modules."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["exit_on_interrupt"]


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Lets Ctrl-C end the process at once inside the context: an interrupted import of a third
    party prints a traceback or hides the interrupt. For the main thread only."""
    handler = signal.getsignal(signal.SIGINT)
    if (
        handler is not signal.default_int_handler
    ):  # e.g. ignored, as a shell sets it for background processes
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
