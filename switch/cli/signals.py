# SPDX-License-Identifier: Apache-2.0
"""Lets the main thread wait while other threads work, and signals wake it at once."""

from __future__ import annotations

import signal
import socket
import threading


def wait(stop: threading.Event) -> None:
    """Blocks the main thread until a signal handler has set ``stop``; handlers run meanwhile.

    Python runs a handler when the main thread gets back to Python code. A signal that arrives just
    before that thread blocks in ``stop.wait()`` would not get it there; here it leaves a byte to
    read, see ``signal.set_wakeup_fd``.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            while not stop.is_set():
                reader.recv(64)
        finally:
            signal.set_wakeup_fd(before)
