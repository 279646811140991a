# SPDX-License-Identifier: Apache-2.0
"""Whoever reads what a command prints may leave before its end, as ``| head`` does."""

from __future__ import annotations

import errno
import os
import signal
import sys

from rich.console import Console

__all__ = ["PipedConsole", "discard_output", "end_without_reader", "is_reader_gone"]

_reader_gone = False


def is_reader_gone() -> bool:
    """Whether it was ``end_without_reader`` that raised SIGTERM."""
    return _reader_gone


def discard_output() -> None:
    """What is printed from now on where nobody reads goes nowhere, without an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def end_without_reader() -> None:
    """Ends a command whose output nobody reads any more.

    Where SIGTERM is handled, so that something is left in order, it is raised: SIGPIPE itself has
    to stay ignored, as every socket raises it whose other end is gone. Else ``BrokenPipeError``.
    """
    global _reader_gone
    discard_output()
    if not callable(signal.getsignal(signal.SIGTERM)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    _reader_gone = True
    signal.raise_signal(signal.SIGTERM)


class PipedConsole(Console):
    """A console that a command ends with."""

    def on_broken_pipe(self) -> None:
        """See ``end_without_reader``."""
        self.quiet = True
        end_without_reader()
