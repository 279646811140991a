# SPDX-License-Identifier: Apache-2.0
"""Runs commands at nodes of a running testbed for ``rackhub exec`` and ``rackhub launch``, with the
caller's environment, umask and folder, and its terminal or other files.

The caller passes its standard input, output and error over the testbed's ``exec`` socket
(SCM_RIGHTS, unix(7)), which works the same whether the sandbox was entered as root, in a user
namespace or through sudo. Signals are forwarded; when the caller ends, the command gets SIGHUP.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict, final

from typing_extensions import NotRequired

from observability.control import NOT_A_REQUEST, ControlError, connect, short_path
from observability.record import RunDirectory

SOCKET = "exec"
_REQUEST_BYTES = 1 << 20
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH)
_PASSED_ON = (*_FORWARDED, signal.SIGKILL)  # to the command, if the caller asks for it


class CommandError(ControlError):
    """A command cannot be run; ``status`` is a shell's exit status for that (126 or 127)."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def execute(run: RunDirectory, node: str, program: list[str]) -> int:
    """Runs a command at a node; returns its exit status (128 + n if signal n ended it).

    Raises what ``begin`` and ``ended`` raise.
    """
    with begin(run, node, program, [0, 1, 2]) as connection:

        def forward(number: int, _: object) -> None:
            send_signal(connection, number)

        before = {number: signal.signal(number, forward) for number in _FORWARDED}
        try:
            return ended(run, connection)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Command(TypedDict):
    """A request to run a command."""

    node: str
    program: list[str]
    """Command line."""
    cwd: str
    env: dict[str, str]
    umask: int


@final
class Ended(TypedDict):
    """The command has ended."""

    status: int
    """Exit status, or minus the number of a fatal signal."""


@final
class Refusal(TypedDict):
    """The command could not be started."""

    error: str
    status: NotRequired[int]
    """Exit status of a shell without such a command."""


def begin(
    run: RunDirectory,
    node: str,
    program: list[str],
    files: list[int],
    environment: Mapping[str, str] = os.environ,
) -> socket.socket:
    """Starts a command at a node and returns the connection to it; closing it hangs up the command.

    files: descriptors for standard input, output and error. Raises ``ControlError`` if the testbed
    does not answer or the request is too long.
    """
    request: Command = {
        "node": node,
        "program": program,
        "cwd": str(Path.cwd()),
        "env": dict(environment),
        "umask": _umask(),
    }
    data = json.dumps(request).encode()
    if len(data) > _REQUEST_BYTES:
        raise ControlError(
            f"command and environment are too long: {len(data)} bytes, at most {_REQUEST_BYTES}"
        )
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(connect(run, SOCKET))
        socket.send_fds(connection, [len(data).to_bytes(4, "big")], files)
        connection.sendall(data)
        stack.pop_all()
    return connection


def send_signal(connection: socket.socket, number: int) -> None:
    """Sends a signal to a command that ``begin`` started and to the processes that it started, if
    it has not ended."""
    with contextlib.suppress(OSError):
        connection.sendall(bytes([number]))


def ended(run: RunDirectory, connection: socket.socket) -> int:
    """Waits for the end of a command that ``begin`` started; returns its status like ``execute``.

    Raises ``CommandError`` if there is no such command, ``ControlError`` if there is no such node
    or the testbed has ended.
    """
    with connection.makefile("r", encoding="utf-8") as stream:
        answer = stream.readline()
    if not answer:
        raise ControlError(f"testbed {run.name} went away")
    message: Ended | Refusal = json.loads(answer)
    if "error" in message:
        if "status" in message:
            raise CommandError(message["error"], message["status"])
        raise ControlError(message["error"])
    status = message["status"]
    return status if status >= 0 else 128 - status


def _umask() -> int:
    """Returns this process's umask, which can only be read by setting another (umask(2))."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


class ExecutionServer:
    """Serves the ``exec`` socket of a testbed.

    path: of the socket.
    command: returns the command line that runs a program at a node, or raises ``ControlError``.
    owner: user and group that may connect.
    environment: variables of commands at a node, besides their caller's.
    """

    def __init__(
        self,
        path: Path,
        command: Callable[[str, list[str]], list[str]],
        owner: tuple[int, int] | None,
        environment: Callable[[str], Mapping[str, str]] = lambda node: {},
    ) -> None:
        self._command = command
        self._environment = environment
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        with short_path(path) as short:
            self._listener.bind(short)
        path.chmod(0o600)
        if owner is not None:
            os.chown(path, *owner)
        self._listener.listen()
        threading.Thread(target=self._accept, name="exec", daemon=True).start()

    def close(self) -> None:
        """Accepts no more commands; those that run end with the sandbox."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                length, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
            except OSError:
                return  # the client has closed the connection
            try:
                answer: Ended | Refusal = self._run(
                    connection, int.from_bytes(length, "big"), descriptors
                )
            except CommandError as error:
                answer = {"error": str(error), "status": error.status}
            except (ControlError, OSError) as error:
                answer = {"error": str(error)}
            except NOT_A_REQUEST as error:
                answer = {"error": f"not a request to run a command: {error!r:.200}"}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(answer).encode() + b"\n")

    def _run(self, connection: socket.socket, length: int, descriptors: list[int]) -> Ended:
        if len(descriptors) != 3 or not 0 < length <= _REQUEST_BYTES:
            raise ControlError("not a request to run a command")
        data = b""
        while len(data) < length:
            part = connection.recv(length - len(data))
            if not part:
                raise ControlError("the request was cut short")
            data += part
        request: Command = json.loads(data)
        program = [str(word) for word in request["program"]]
        node = str(request["node"])
        command = self._command(node, program)
        path = search_path(request["env"])
        check_command(program[0], Path(request["cwd"]), path)
        umask = int(request["umask"])
        if not 0 <= umask <= 0o777:
            raise ValueError(f"umask {umask:o}")
        process = subprocess.Popen(
            command,
            stdin=descriptors[0],
            stdout=descriptors[1],
            stderr=descriptors[2],
            cwd=request["cwd"],
            env={**request["env"], "PATH": path, **self._environment(node)},
            umask=umask,
            start_new_session=True,
        )
        return {"status": self._wait(connection, process)}

    @staticmethod
    def _wait(connection: socket.socket, process: subprocess.Popen[bytes]) -> int:
        ended = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(ended, selectors.EVENT_READ)
                selector.register(connection, selectors.EVENT_READ)
                while True:
                    ready = {key.fileobj for key, _ in selector.select()}
                    if ended in ready:
                        return process.wait()
                    try:
                        numbers = connection.recv(64) or None
                    except OSError:
                        numbers = None
                    if numbers is None:  # the caller is gone
                        selector.unregister(connection)
                        os.killpg(process.pid, signal.SIGHUP)
                        continue
                    for number in numbers:
                        if number in _PASSED_ON:
                            os.killpg(process.pid, number)
        finally:
            os.close(ended)


def search_path(environment: Mapping[str, str]) -> str:
    """Returns PATH for commands of a caller with this environment.

    `python` has to be the interpreter with this project, before the caller's; tools of the testbed,
    such as mnexec, come last.
    """
    paths = (environment.get("PATH", ""), os.environ.get("PATH", os.defpath))
    return ":".join([str(Path(sys.executable).parent), *filter(None, paths)])


def check_command(name: str, cwd: Path, search: str) -> None:
    """Raises ``CommandError`` for a command that cannot be run, like a shell (POSIX, 2.8.2)."""
    if "/" in name:
        path: Path | None = cwd / name
    else:
        found = shutil.which(name, path=search) or shutil.which(name, os.F_OK, search)
        path = Path(found) if found is not None else None
    if path is None or not path.exists():
        raise CommandError(f"{name}: command not found", 127)
    if path.is_dir():
        raise CommandError(f"{name}: is a folder", 126)
    if not os.access(path, os.X_OK):
        raise CommandError(f"{name}: not executable", 126)
