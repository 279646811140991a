# SPDX-License-Identifier: Apache-2.0
"""Starts Python processes by forking a process that has imported their modules.

A testbed has a Python process for every switch, server and worker, and each would import the same
modules, most of a second of CPU time. The *fork server*, forked from the supervisor, which needs
most of them, too, imports the rest once and forks for each process; the child becomes what
``python -m MODULE ...`` would be: session, network and mount namespaces, files, environment,
working directory, command line. Its parent is the supervisor, as of every process of a testbed
(prctl(2), PR_SET_CHILD_SUBREAPER).

``RACKHUB_FRESH=1`` in the environment disables it, for tools that hook into the start of an
interpreter (debuggers, ``sitecustomize``); ``RACKHUB_FRESH=testbed.worker`` does for the modules
named, with commas between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypedDict

import setproctitle

from hosts.native import loader

log = logging.getLogger("forkserver")

# Name for `python -m` -> module to import.
MODULES = {
    "switch": "switch.__main__",
    "controller": "controller.__main__",
    "hosts.server": "hosts.server.__main__",
    "testbed.worker": "testbed.worker",
    "workloads.reference": "workloads.reference",
    "simulation.replay": "simulation.replay",
}
_FRESH = "RACKHUB_FRESH"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
_NAMESPACES = ("net", "mnt")
_MOST_BYTES = 1 << 20
_MOST_SECONDS = 30.0  # for an answer
# The last argument of the supervisor. A process's title overwrites its arguments, so they reserve
# room for it; the environment follows them in memory and has to stay readable in /proc.
ROOM = " " * 4000  # which nobody sees in a list of processes


def fresh() -> set[str]:
    """Returns the modules whose processes are not forked."""
    named = set(os.environ.get(_FRESH, "").split(",")) - {""}
    return named if named <= MODULES.keys() else {*MODULES}


class _Command(TypedDict):
    words: list[str]
    """Command line: interpreter, -m, module and its arguments."""
    namespaces: int
    """Process whose network and mount namespaces are joined; 0: none."""


class Order(_Command):
    """A process to start."""

    cwd: str
    """Its working directory."""
    env: dict[str, str]
    """Its environment."""


class Answer(TypedDict, total=False):
    """The answer to an order: a process id, or an error; empty when the server is ready."""

    pid: int
    error: str


class Forked:
    """A process started by the fork server; the subset of ``subprocess.Popen`` that is needed."""

    def __init__(self, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or minus the number of a fatal signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """Client of a fork server, which ends when this socket is closed.

    pid: of the fork server, a child of this process.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        _libc("prctl", _SUBREAPER, 1, 0, 0, 0)
        self.pid = pid
        self._socket = connection
        self._socket.settimeout(_MOST_SECONDS)
        self._ready = False
        self._gone = False

    def close(self) -> None:
        """Ends the fork server; processes that it started continue."""
        self._socket.close()
        os.waitpid(self.pid, 0)

    def start(
        self,
        arguments: Sequence[str],
        output: int,
        *,
        cwd: Path,
        env: Mapping[str, str],
        wants_input: bool,
        wants_output: bool,
    ) -> Forked | None:
        """Starts a command line; returns None if it is not for the fork server or that has ended.

        output: a file descriptor for standard error, and standard output unless ``wants_output``.
        """
        command = _command(arguments)
        if command is None or self._gone:
            return None
        with contextlib.ExitStack() as theirs:
            stdin = stdout = None
            if wants_input:
                read, write = os.pipe()
                theirs.callback(os.close, read)
                stdin = os.fdopen(write, "wb")
            else:
                read = os.open(os.devnull, os.O_RDONLY)
                theirs.callback(os.close, read)
            if wants_output:
                source, sink = os.pipe()
                theirs.callback(os.close, sink)
                stdout = os.fdopen(source, "rb", buffering=0)
            else:
                sink = output
            order: Order = {**command, "cwd": str(cwd), "env": dict(env)}
            try:
                if not self._ready:
                    self._answer()
                    self._ready = True
                socket.send_fds(self._socket, [json.dumps(order).encode()], [read, sink, output])
                pid = int(self._answer()["pid"])
            except (OSError, EOFError) as error:
                log.warning("the fork server has ended; processes start without it: %s", error)
                for end in (stdin, stdout):
                    if end is not None:
                        end.close()
                self._gone = True
                os.kill(self.pid, signal.SIGKILL)
                return None
        return Forked(pid, stdin, stdout)

    def _answer(self) -> Answer:
        data = self._socket.recv(_MOST_BYTES)
        if not data:
            raise EOFError("it has ended")
        answer: Answer = json.loads(data)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer


def _command(arguments: Sequence[str]) -> _Command | None:
    """Returns the command for a command line that runs a Python module to fork, with or without
    ``mnexec -a PID`` in front; None for other command lines."""
    words, namespaces = list(arguments), 0
    if words[:2] == ["mnexec", "-a"]:
        namespaces, words = int(words[2]), words[3:]
    if words[:2] != [sys.executable, "-m"] or words[2] not in MODULES.keys() - fresh():
        return None
    return {"words": words, "namespaces": namespaces}


# --- the fork server itself ---


def fork(log: Path) -> ForkServer:
    """Forks a fork server from this process, which may not have another thread, and whose last
    argument has to be ``ROOM``. Returns its client; never returns in the fork server.

    log: file for the server's own errors. Raises ``OSError``.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.setsid()
            with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
                for number, file in enumerate((nothing, output, output)):
                    os.dup2(file.fileno(), number)
            # Locks and pipes that others gave this process say by their end that it has ended.
            kept = theirs.fileno()
            os.closerange(3, kept)
            os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
            serve(theirs)
            sys.exit()
    return ForkServer(ours, pid)


def serve(connection: socket.socket) -> None:
    """Imports the modules, then forks for each order until the socket is closed. Returns in each
    child, too, after its module has run."""
    os.environ["SPT_NOENV"] = "1"  # for setproctitle, which would write over the environment
    gc.disable()  # modules make many objects, and nearly all of them stay
    for module in MODULES.values():
        importlib.import_module(module)
    loader.load_native()  # compiled or loaded once, for all children
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        # A lock that another thread holds at the fork is held for good in the child.
        connection.send(json.dumps({"error": f"{threads} threads after imports"}).encode())
        return
    setproctitle.setproctitle("rackhub fork server")
    gc.collect()
    gc.freeze()
    gc.enable()
    connection.send(b"{}")
    while True:
        data, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if not data:
            return
        order = json.loads(data)
        try:
            pid, pid_pipe = _fork()
        except OSError as error:
            answer: Answer = {"error": f"fork: {error.strerror}"}
        else:
            if pid == 0:
                connection.close()
                become(order, files, pid_pipe)
                return
            answer = {"pid": pid}
        for file in files:
            os.close(file)
        connection.send(json.dumps(answer).encode())


def _fork() -> tuple[int, int]:
    """Forks a grandchild, which the supervisor adopts as subreaper.

    Returns its pid and -1; in the grandchild 0 and a pipe. It writes its pid there once it has its
    own session, namespaces and title; the parent waits for that.
    """
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid:
            os._exit(0)
        os.close(read)
        return 0, write
    os.close(write)
    with os.fdopen(read, "rb") as pid_pipe:
        os.waitpid(between, 0)
        pid = int.from_bytes(pid_pipe.read(8), "little")
    if not pid:
        raise OSError(0, "it has ended at once; its log may say why")
    return pid, -1


def become(order: Order, files: Sequence[int], pid_pipe: int) -> None:
    """Turns this process into the one that an order describes, writes its pid to the pipe, and runs
    the module."""
    words = order["words"]
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    if order["namespaces"]:
        _enter(order["namespaces"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    setproctitle.setproctitle(" ".join(words))
    with os.fdopen(pid_pipe, "wb") as pipe:
        pipe.write(os.getpid().to_bytes(8, "little"))
    sys.orig_argv = words
    sys.argv = ["-m", *words[3:]]
    # runpy warns if the module that it is to run as __main__ is already imported.
    sys.modules.pop(words[2], None)
    # What the fork server imported stays frozen: looking through it would copy all of its memory.
    try:
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    finally:
        gc.freeze()  # all memory is about to be freed: not first looked through, several times


def _enter(pid: int) -> None:
    """Joins the network and mount namespaces of a process."""
    kept = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES]
    for file in kept:
        _libc("setns", file, 0)
        os.close(file)


def _libc(function: str, *arguments: int) -> None:
    """Calls a libc function that Python lacks (setns: before 3.12). Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")
