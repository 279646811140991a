# SPDX-License-Identifier: Apache-2.0
"""Settings of the process while the command line imports modules, which takes most of the time
until a command begins."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Lets Ctrl-C end the process at once inside the context, and collects no garbage. For the main
    thread only."""
    gc.disable()
    try:
        with _exit_on_interrupt():
            yield
    finally:
        gc.freeze()  # modules make many objects, and nearly all of them stay
        gc.enable()


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """An interrupted import of a third party would print a traceback or hide the interrupt."""
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
