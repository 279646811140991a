# SPDX-License-Identifier: Apache-2.0
"""Handling of output pipes whose reader closes them early, as ``| head`` does."""

from __future__ import annotations

import errno
import os
import signal
import sys

from rich.console import Console

_reader_gone = False


def is_reader_gone() -> bool:
    """Tells whether ``end_without_reader`` raised the SIGTERM."""
    return _reader_gone


def discard_output() -> None:
    """Redirects output streams whose pipe is closed to the null device."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def end_without_reader() -> None:
    """Ends the command when its output pipe is closed.

    Raises SIGTERM if it has a handler, which cleans up: SIGPIPE itself has to stay ignored, as
    sockets with a closed peer raise it, too. Raises ``BrokenPipeError`` otherwise.
    """
    global _reader_gone
    discard_output()
    if not callable(signal.getsignal(signal.SIGTERM)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    _reader_gone = True
    signal.raise_signal(signal.SIGTERM)


class PipedConsole(Console):
    """A console that ends the command when its pipe is closed."""

    def on_broken_pipe(self) -> None:
        """Ends the command (``end_without_reader``)."""
        self.quiet = True
        end_without_reader()
