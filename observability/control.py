# SPDX-License-Identifier: Apache-2.0
"""Client and server of a testbed's control socket, over which commands send requests.

A connection carries one request: a JSON object on a line, whose ``do`` names it. The answer is any
number of objects with ``event``, then one with ``result`` or ``error``; ``{}`` between them is a
heartbeat of the supervisor. A client that closes the connection early cancels its request.

Each request has a function here. All raise ``ControlError`` with the testbed's text, and
``SupervisorGoneError``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

# pydantic needs this TypedDict before Python 3.12.
from typing_extensions import NotRequired, TypedDict

from observability.messages.events import EmitEvent, Event
from observability.messages.jobs import CreatedJob, JobRow, NewJob, ScaledJob
from observability.messages.live import Description, Snapshot, Status
from observability.messages.servers import JobServers
from observability.messages.summary import FinishedJob
from observability.messages.waiting import JobExplanation
from observability.processinfo import STOPPED, state_of
from observability.record import RunDirectory
from protocol.errors import Error
from specs.faultfile import Fault

SOCKET = "control"
_LIMIT = 16 << 20  # bytes of one line, and of unread answers
_ALIVE_SECONDS = 2.0
# A supervisor without a heartbeat for this long is stuck.
SILENCE_SECONDS = 20.0


class Request(TypedDict):
    """A request to a testbed."""

    do: str
    """One of ``wait``, ``detach``, ``submit``, ``create``, ``jobs``, ``stop``, ``scale``, ``why``,
    ``servers``, ``status``, ``snapshot``, ``inject``, ``end``, ``down``."""
    job: NotRequired[str]
    """File of a job to submit, or name of a job."""
    faults: NotRequired[Sequence[Fault]]
    """Faults to inject while a submitted job runs, now, or to end."""
    restore: NotRequired[str]
    """File of the checkpoint that a submitted job continues from, instead of its own."""
    new: NotRequired[NewJob]
    """Job to create."""
    servers: NotRequired[list[str]]
    """Servers that get slices, +s4, and that lose all, -s1."""
    workers: NotRequired[list[str]]
    """Workers that join, +w9, and that leave, -w1."""


class Result(TypedDict):
    """The last object of an answer; its type depends on the request."""

    result: Any


class Refusal(TypedDict):
    """The last object of an answer to a request that was refused or failed."""

    error: str


class Heartbeat(TypedDict):
    """The supervisor is alive."""


Answer: TypeAlias = (
    Description
    | Status
    | Snapshot
    | JobExplanation
    | JobServers
    | FinishedJob
    | CreatedJob
    | ScaledJob
    | list[JobRow]
    | str
    | None
)
_REQUEST = TypeAdapter(Request)


class ControlError(Error):
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


def converse(run: RunDirectory, request: Request) -> Generator[Event, None, Any]:
    """Sends a request; yields its events and returns its result."""
    with connect(run) as connection:
        connection.settimeout(SILENCE_SECONDS)
        try:
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.write(json.dumps(request, default=dataclasses.asdict) + "\n")
                stream.flush()
                for line in stream:
                    if not line.endswith("\n"):
                        break  # the supervisor died while writing
                    message = json.loads(line)
                    if "error" in message:
                        raise ControlError(message["error"])
                    if "result" in message:
                        return message["result"]
                    if message:
                        yield message
        except TimeoutError:
            raise SupervisorGoneError(_stuck(run), stuck=True) from None
        except ConnectionError:
            pass
    text = f"testbed {run.name} went away; its logs are in {run.logs}"
    raise SupervisorGoneError(text, stuck=False)


def _ask(run: RunDirectory, request: Request, on_event: EmitEvent | None = None) -> Any:
    """Sends a request; returns its result."""
    events = converse(run, request)
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            return end.value
        if on_event is not None:
            on_event(event)


def wait(run: RunDirectory) -> Description:
    """Waits until the testbed is up; returns its description."""
    found: Description = _ask(run, {"do": "wait"})
    return found


def detach(run: RunDirectory) -> None:
    """Keeps the testbed up when the process that started it ends."""
    _ask(run, {"do": "detach"})


def submission(job: Path, faults: Sequence[Fault] = (), restore: Path | None = None) -> Request:
    """Returns the request to run a job. faults: injected while it runs. restore: checkpoint to
    continue from, instead of the file's."""
    request: Request = {"do": "submit", "job": str(job.resolve()), "faults": faults}
    if restore is not None:
        request["restore"] = str(restore.resolve())
    return request


def submit(run: RunDirectory, request: Request, on_event: EmitEvent) -> FinishedJob:
    """Runs a job (``submission``) to its end; returns its part of the summary."""
    found: FinishedJob = _ask(run, request, on_event)
    return found


def create(run: RunDirectory, new: NewJob) -> CreatedJob:
    """Creates a job; it ends with ``stop`` unless its workers leave it first."""
    found: CreatedJob = _ask(run, {"do": "create", "new": new})
    return found


def jobs(run: RunDirectory) -> list[JobRow]:
    """Returns the testbed's jobs."""
    found: list[JobRow] = _ask(run, {"do": "jobs"})
    return found


def stop(run: RunDirectory, job: str) -> str:
    """Ends a job; returns its name."""
    return str(_ask(run, {"do": "stop", "job": job}))


def scale(
    run: RunDirectory,
    job: str,
    servers: Sequence[str],
    workers: Sequence[str],
    on_event: EmitEvent = lambda event: None,
) -> ScaledJob:
    """Lets servers, +s4 and -s1, and workers of a job come and go; returns once that holds."""
    request: Request = {
        "do": "scale",
        "job": job,
        "servers": list(servers),
        "workers": list(workers),
    }
    found: ScaledJob = _ask(run, request, on_event)
    return found


def why(run: RunDirectory, job: str) -> JobExplanation:
    """Returns what a job waits for."""
    found: JobExplanation = _ask(run, {"do": "why", "job": job})
    return found


def servers(run: RunDirectory, job: str) -> JobServers:
    """Returns what was measured of a job's servers."""
    found: JobServers = _ask(run, {"do": "servers", "job": job})
    return found


def status(run: RunDirectory) -> Status:
    """Returns nodes, jobs, and what links have carried."""
    found: Status = _ask(run, {"do": "status"})
    return found


def snapshot(run: RunDirectory) -> Snapshot:
    """Returns the state of the testbed now."""
    found: Snapshot = _ask(run, {"do": "snapshot"})
    return found


def inject(run: RunDirectory, faults: Sequence[Fault]) -> None:
    """Makes faults happen now. One that lasts does so for its ``seconds`` or until ``end``."""
    _ask(run, {"do": "inject", "faults": faults})


def end(run: RunDirectory, faults: Sequence[Fault]) -> None:
    """Ends faults of these kinds at these nodes and links."""
    _ask(run, {"do": "end", "faults": faults})


def down(run: RunDirectory) -> list[JobRow]:
    """Takes the testbed down; returns the jobs that this ends."""
    found: list[JobRow] = _ask(run, {"do": "down"})
    return found


def _stuck(run: RunDirectory) -> str:
    """Describes a supervisor that does not answer, with the command that ends it."""
    text = f"supervisor of testbed {run.name} does not answer for {SILENCE_SECONDS:g} s"
    pid = run.supervisor()
    if pid is None:
        return text
    if state_of(pid) in STOPPED:
        text += f": it is stopped (SIGSTOP, or a debugger), `kill -CONT {pid}` lets it go on"
    return f"{text}; `kill -KILL {pid}` ends the testbed"


# Exceptions of parsing a malformed request: wrong types, missing keys, lists nested too deep.
NOT_A_REQUEST = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

Handler: TypeAlias = Callable[[Request, EmitEvent], Awaitable[Answer]]


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
        def emit(message: Event | Result | Refusal | Heartbeat) -> None:
            if writer.transport.get_write_buffer_size() > _LIMIT:
                writer.transport.abort()  # a client that does not read counts as gone
            if not writer.is_closing():
                writer.write(json.dumps(message).encode() + b"\n")

        try:
            line = await reader.readline()
            if not line:
                return
            working = asyncio.ensure_future(handler(_REQUEST.validate_json(line), emit))
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
