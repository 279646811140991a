# SPDX-License-Identifier: Apache-2.0
"""Client and server of a testbed's control socket, over which commands send requests.

A connection carries one request: a JSON object on a line, whose ``do`` names it. The answer is any
number of objects with ``event``, then one with ``result`` or ``error``; ``{}`` between them is a
heartbeat of the supervisor. A client that closes the connection early cancels its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from observability.processinfo import state_of
from observability.record import RunDirectory

SOCKET = "control"
_LIMIT = 16 << 20  # bytes of one line, and of unread answers
_ALIVE_SECONDS = 2.0
# A supervisor without a heartbeat for this long is stuck.
SILENCE_SECONDS = 20.0

Message = dict[str, Any]
Emit = Callable[[Message], None]


class ControlError(Exception):
    """The testbed refused a request or does not answer; the text says why."""


class SupervisorGoneError(ControlError):
    """The supervisor has ended, or is stuck (``stuck``)."""

    def __init__(self, text: str, *, stuck: bool) -> None:
        super().__init__(text)
        self.stuck = stuck


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yields a path to a socket that fits into a socket address (107 bytes)."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(run: RunDirectory, name: str = SOCKET) -> socket.socket:
    """Connects to a socket of a testbed; raises ``SupervisorGoneError`` if nothing listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(run.sockets / name) as path:
            connection.connect(path)
    except OSError as error:
        connection.close()
        text = f"testbed {run.name} does not answer: {error.strerror}"
        raise SupervisorGoneError(text, stuck=False) from error
    return connection


def converse(run: RunDirectory, do: str, **fields: Any) -> Iterator[Message]:
    """Sends a request; yields its events, then the object with its result.

    Raises ``ControlError`` with the testbed's text, ``SupervisorGoneError``.
    """
    with connect(run) as connection:
        connection.settimeout(SILENCE_SECONDS)
        try:
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.write(json.dumps({"do": do, **fields}) + "\n")
                stream.flush()
                for line in stream:
                    if not line.endswith("\n"):
                        break  # the supervisor died while writing
                    message: Message = json.loads(line)
                    if "error" in message:
                        raise ControlError(message["error"])
                    if message:
                        yield message
                    if "result" in message:
                        return
        except TimeoutError:
            raise SupervisorGoneError(_stuck(run), stuck=True) from None
        except ConnectionError:
            pass
    text = f"testbed {run.name} went away; its logs are in {run.logs}"
    raise SupervisorGoneError(text, stuck=False)


def ask(run: RunDirectory, do: str, on_event: Emit | None = None, **fields: Any) -> Any:
    """Sends a request; returns its result. Raises what ``converse`` raises."""
    for message in converse(run, do, **fields):
        if "result" in message:
            return message["result"]
        if on_event is not None:
            on_event(message)
    raise AssertionError("converse ended without a result")


def _stuck(run: RunDirectory) -> str:
    """Describes a supervisor that does not answer, with the command that ends it."""
    text = f"supervisor of testbed {run.name} does not answer for {SILENCE_SECONDS:g} s"
    pid = run.supervisor()
    if pid is None:
        return text
    if state_of(pid) in ("T", "t"):
        text += f": it is stopped (SIGSTOP, or a debugger), `kill -CONT {pid}` lets it go on"
    return f"{text}; `kill -KILL {pid}` ends the testbed"


# Exceptions of parsing a malformed request: wrong types, missing keys, lists nested too deep.
NOT_A_REQUEST = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

Handler = Callable[[Message, Emit], Awaitable[Any]]


async def _ended(reader: asyncio.StreamReader) -> None:
    """Waits until the client closes the connection; discards what it still sends."""
    while await reader.read(1 << 16):
        pass


@contextlib.asynccontextmanager
async def serve(path: Path, handler: Handler, owner: tuple[int, int] | None) -> AsyncIterator[None]:
    """Answers requests at a socket with ``handler(request, emit)`` while the context lasts.

    A ``ControlError`` of the handler is sent to the client. owner: user and group that may connect.
    """

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def emit(message: Message) -> None:
            if writer.transport.get_write_buffer_size() > _LIMIT:
                writer.transport.abort()  # a client that does not read counts as gone
            if not writer.is_closing():
                writer.write(json.dumps(message).encode() + b"\n")

        try:
            line = await reader.readline()
            if not line:
                return
            working = asyncio.ensure_future(handler(json.loads(line), emit))
            gone = asyncio.ensure_future(_ended(reader))
            while not (working.done() or gone.done()):
                await asyncio.wait(
                    [working, gone], timeout=_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                emit({})
            if not working.done():
                working.cancel()
            gone.cancel()
            try:
                emit({"result": await working})
            except ControlError as error:
                emit({"error": str(error)})
            except asyncio.CancelledError:
                emit({"error": "cancelled"})
        except NOT_A_REQUEST as error:
            emit({"error": f"not a request: {error!r:.200}"})
        except ConnectionError:
            pass  # the client is gone
        finally:
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

    path.unlink(missing_ok=True)
    with short_path(path) as short:
        server = await asyncio.start_unix_server(one, short, limit=_LIMIT)
    path.chmod(0o600)
    if owner is not None:
        os.chown(path, *owner)
    try:
        yield
    finally:
        server.close()
