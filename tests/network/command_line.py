# SPDX-License-Identifier: Apache-2.0
"""Runs commands of ``rackhub`` in forks of an interpreter that has imported them.

Tests run hundreds of commands, and the imports of each would take up to half a second of CPU time.
A fork has its own arguments, environment, files and exit status, as a command that is started has;
``python -m tests.network.command_line FD`` is the interpreter that forks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypedDict

from specs.paths import ROOT

MODULES = (
    *("cli.main", "cli.commands.control", "cli.commands.inspect", "cli.commands.report"),
    *("cli.commands.run", "cli.commands.launch", "cli.commands.compare"),
)
_MOST_BYTES = 1 << 20
_READ_BYTES = 1 << 16


class Order(TypedDict):
    """A command to run: its words after ``rackhub``, environment and working directory."""

    words: list[str]
    env: dict[str, str]
    cwd: str


class CommandLine:
    """The interpreter that forks; it ends with this object."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.network.command_line", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # no terminal, as the pipes of its forks
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        assert self._socket.recv(_MOST_BYTES), "a command cannot be imported"

    def close(self) -> None:
        """Ends the interpreter; commands that it has started continue."""
        self._socket.close()
        self._process.wait()

    def run(
        self, words: Sequence[str], env: Mapping[str, str], given: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``rackhub WORDS`` until it has ended and nothing else has its output open, as
        ``subprocess.run`` does.

        given: What it reads from standard input; None: nothing.
        """
        deadline = time.monotonic() + timeout
        order: Order = {"words": list(words), "env": dict(env), "cwd": str(Path.cwd())}
        said: dict[int, list[bytes]] = {}
        with ExitStack() as stack, selectors.DefaultSelector() as open_ends:
            theirs = []
            with ExitStack() as handed:
                for _ in ("output", "errors", "status"):
                    ours, end = os.pipe()
                    stack.callback(os.close, ours)
                    handed.callback(os.close, end)
                    theirs.append(end)
                    said[ours] = []
                    open_ends.register(ours, selectors.EVENT_READ)
                read, write = os.pipe()
                handed.callback(os.close, read)
                with os.fdopen(write, "w") as keyboard:
                    keyboard.write(given or "")  # less than a pipe has room for
                socket.send_fds(self._socket, [json.dumps(order).encode()], [read, *theirs])
                pid = int(self._socket.recv(_MOST_BYTES))
            try:
                while open_ends.get_map():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise subprocess.TimeoutExpired(["rackhub", *words], timeout)
                    for key, _ in open_ends.select(left):
                        data = os.read(key.fd, _READ_BYTES)
                        if data:
                            said[key.fd].append(data)
                        else:
                            open_ends.unregister(key.fd)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise
        output, errors, status = (b"".join(parts).decode() for parts in said.values())
        return subprocess.CompletedProcess(list(words), int(status), output, errors)


def main() -> None:
    """Imports the modules, then forks for each order until the socket is closed. Returns in each
    fork, too, after its command."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    assert len(list(Path("/proc/self/task").iterdir())) == 1  # their locks would be held for good
    connection.send(b"ready")
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as events:
        events.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is not connection:
                    events.unregister(key.fd)
                    os.close(key.fd)
                    pid, status = running.pop(key.fd)
                    _, ended = os.waitpid(pid, 0)
                    with suppress(BrokenPipeError):  # nobody waits for it any more
                        os.write(status, str(os.waitstatus_to_exitcode(ended)).encode())
                    os.close(status)
                    continue
                data, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 4)
                if not data:
                    return
                *standard, status = files
                pid = os.fork()
                if pid == 0:
                    os.close(status)
                    for others in running.values():
                        os.close(others[1])
                    connection.close()
                    become(json.loads(data), standard)
                    return
                for file in standard:
                    os.close(file)
                watch = os.pidfd_open(pid)
                running[watch] = pid, status
                events.register(watch, selectors.EVENT_READ)
                connection.send(str(pid).encode())


def become(order: Order, standard: Sequence[int]) -> None:
    """Turns this process into a command, as ``python -m cli WORDS`` is one."""
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    sys.orig_argv = [sys.executable, "-m", "cli", *order["words"]]
    sys.argv = ["-m", *order["words"]]
    runpy.run_module("cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
