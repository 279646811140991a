# SPDX-License-Identifier: Apache-2.0
"""Shuts down connections of another process over a unix socket (pidfd_getfd(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

# https://man7.org/linux/man-pages/man2/pidfd_getfd.2.html; the same number on every architecture.
_PIDFD_GETFD = 438
_LIBC = ctypes.CDLL(None, use_errno=True)


def sever(pid: int, address: str) -> int:
    """Shuts down, both ways, every connection of a process to the socket bound to ``address``.

    address: exactly as the listener bound it. Returns the number of connections. Raises ``OSError``
    if the process is gone, or the kernel does not give its parent access to its sockets.
    """
    cut = 0
    with _handle(pid) as process:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            # The process runs meanwhile and may close descriptors.
            with suppress(FileNotFoundError):
                if not entry.readlink().name.startswith("socket:"):
                    continue
                copy = _copy(process, int(entry.name))
                if copy is not None:
                    with closing(copy):
                        cut += _shut(copy, address)
    return cut


@contextmanager
def _handle(pid: int) -> Iterator[int]:
    process = os.pidfd_open(pid)
    try:
        yield process
    finally:
        os.close(process)


def _copy(process: int, number: int) -> socket.socket | None:
    """Duplicates a socket of another process; returns None if the descriptor is closed by now."""
    descriptor = _LIBC.syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor >= 0:
        return socket.socket(fileno=descriptor)
    code = ctypes.get_errno()
    if code == errno.EBADF:
        return None
    raise OSError(code, f"pidfd_getfd: {os.strerror(code)}")


def _shut(connection: socket.socket, address: str) -> bool:
    if connection.family != socket.AF_UNIX:
        return False
    try:
        if connection.getpeername() != address:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:  # it listens, or was just closed
            raise
        return False
    return True
