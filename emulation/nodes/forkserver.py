# SPDX-License-Identifier: Apache-2.0
"""Python processes that start with all their modules there: forked, not started anew.

A testbed has a Python process for every switch, server and worker, and each would import the same
modules, most of a second of CPU time. The *fork server* (``python -m emulation.nodes.forkserver``)
imports them once; for each process that is to start it forks, and the child becomes what ``python
-m MODULE ...`` would be: session, network and mount namespaces, files, environment, working
directory, command line. Its parent is the supervisor, as of every process of a testbed (prctl(2),
PR_SET_CHILD_SUBREAPER).

``RACKHUB_FRESH=1`` in the environment does without: for what hooks into the start of an interpreter
(debuggers, ``sitecustomize``).
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
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import setproctitle

from hosts.native import library

log = logging.getLogger("forkserver")

# As `python -m` names them, and what is imported for them.
MODULES = {
    "switch": "switch.__main__",
    "controller": "controller.__main__",
    "hosts.server": "hosts.server.__main__",
    "testbed.worker": "testbed.worker",
    "workloads.reference": "workloads.reference",
}
FRESH = "RACKHUB_FRESH"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
_NAMESPACES = ("net", "mnt")
_MOST_BYTES = 1 << 20
_MOST_SECONDS = 30.0  # for an answer
# A process's title takes the place of its arguments, so there has to be room for it; what follows
# them in memory is the environment, which is to stay readable in /proc.
_ROOM = 4000

Message = dict[str, Any]


class Forked:
    """A process that the fork server has started; has what is needed of ``subprocess.Popen``."""

    def __init__(self, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or minus the signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """Starts the process; ``start`` has it start others. It ends with the socket to it.

    log: where its own errors go. Raises ``OSError`` if it cannot be started.
    """

    def __init__(self, log: Path, env: Mapping[str, str]) -> None:
        _libc("prctl", _SUBREAPER, 1, 0, 0, 0)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_MOST_SECONDS)
        self._ready = False
        self._gone = False
        command = [
            sys.executable,
            "-m",
            "emulation.nodes.forkserver",
            str(theirs.fileno()),
            "-" * _ROOM,
        ]
        with theirs, log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**env, "SPT_NOENV": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """Ends it. What it has started goes on."""
        self._socket.close()
        self._popen.wait()

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
        """Starts a command line; None if that is not for the fork server, or it is gone.

        output: a file descriptor for standard error, and standard output unless ``wants_output``.
        """
        order = _order(arguments)
        if order is None or self._gone:
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
            order |= {"cwd": str(cwd), "env": dict(env)}
            try:
                if not self._ready:
                    self._answer()
                    self._ready = True
                socket.send_fds(self._socket, [json.dumps(order).encode()], [read, sink, output])
                pid = int(self._answer()["pid"])
            except (OSError, EOFError) as error:
                log.warning("the fork server is gone, processes start anew from now on: %s", error)
                for end in (stdin, stdout):
                    if end is not None:
                        end.close()
                self._gone = True
                self._popen.kill()
                return None
        return Forked(pid, stdin, stdout)

    def _answer(self) -> Message:
        data = self._socket.recv(_MOST_BYTES)
        if not data:
            raise EOFError("it has ended")
        answer: Message = json.loads(data)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer


def _order(arguments: Sequence[str]) -> Message | None:
    """What the fork server is told of a command line: a Python module's, perhaps in the namespaces
    of a process (``mnexec -a PID``); None if it is another's."""
    words, namespaces = list(arguments), 0
    if words[:2] == ["mnexec", "-a"]:
        namespaces, words = int(words[2]), words[3:]
    if words[:2] != [sys.executable, "-m"] or words[2] not in MODULES:
        return None
    return {"words": words, "namespaces": namespaces}


# --- the fork server itself ---


def main(arguments: Sequence[str]) -> None:
    """Imports, then forks for each order, to the end of orders. Returns in each child, too, when
    what that was to run has come to its end."""
    connection = socket.socket(fileno=int(arguments[0]))
    for module in MODULES.values():
        importlib.import_module(module)
    library.library()  # compiled, or read from the cache, once for all
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        # A lock that another thread holds at the fork is held for good in the child.
        connection.send(json.dumps({"error": f"{threads} threads after imports"}).encode())
        return
    setproctitle.setproctitle("rackhub fork server")
    gc.collect()
    gc.freeze()
    connection.send(b"{}")
    while True:
        data, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if not data:
            return
        order = json.loads(data)
        try:
            pid, told = _fork()
        except OSError as error:
            answer: Message = {"error": f"fork: {error.strerror}"}
        else:
            if pid == 0:
                connection.close()
                become(order, files, told)
                return
            answer = {"pid": pid}
        for file in files:
            os.close(file)
        connection.send(json.dumps(answer).encode())


def _fork() -> tuple[int, int]:
    """As os.fork, but the child's parent is whoever takes orphans: the supervisor; and the child
    says when it can be seen as itself: 0, and the pipe that it writes its pid to then."""
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
    with os.fdopen(read, "rb") as told:
        os.waitpid(between, 0)
        pid = int.from_bytes(told.read(8), "little")
    if not pid:
        raise OSError(0, "it has ended at once; its log may say why")
    return pid, -1


def become(order: Message, files: Sequence[int], told: int) -> None:
    """Makes this process what an order says, tells its pid, and runs it to its end."""
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
    with os.fdopen(told, "wb") as pipe:
        pipe.write(os.getpid().to_bytes(8, "little"))
    sys.orig_argv = words
    sys.argv = ["-m", *words[3:]]
    # It is to run as the main module, for which it must not be there as another.
    sys.modules.pop(words[2], None)
    gc.unfreeze()
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)


def _enter(pid: int) -> None:
    """Network and mount namespaces of a process."""
    kept = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES]
    for file in kept:
        _libc("setns", file, 0)
        os.close(file)


def _libc(function: str, *arguments: int) -> None:
    """A system call that Python has no name for (setns: from 3.12 on). Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
