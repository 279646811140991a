# SPDX-License-Identifier: Apache-2.0
"""Whoever reads what a command prints may leave before its end, as ``| head`` does."""

from __future__ import annotations

import errno
import os
import signal
import sys

from rich.console import Console

__all__ = ["PipedConsole", "end_unread", "left", "silence"]

_left = False


def left() -> bool:
    """Whether it was ``end_unread`` that raised SIGTERM."""
    return _left


def silence() -> None:
    """What is printed from now on where nobody reads goes nowhere, without an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def end_unread() -> None:
    """Ends a command whose output nobody reads any more.

    Where SIGTERM is handled, so that something is left in order, it is raised: SIGPIPE itself has
    to stay ignored, as every socket raises it whose other end is gone. Else ``BrokenPipeError``.
    """
    global _left
    silence()
    if not callable(signal.getsignal(signal.SIGTERM)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    _left = True
    signal.raise_signal(signal.SIGTERM)


class PipedConsole(Console):
    """A console that a command ends with."""

    def on_broken_pipe(self) -> None:
        """See ``end_unread``."""
        self.quiet = True
        end_unread()
