# SPDX-License-Identifier: Apache-2.0
"""What the command line does before it has imported anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["exit_on_interrupt"]


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the process at once meanwhile, for the imports of others, which would tell of it
    each in a way of its own. In the main thread only."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:  # ignored, as in the background
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
