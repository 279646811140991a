# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and stops the processes of a testbed, each with its own log.

The future ``Processes.failure`` gets a ``ProcessError`` for the first process that ends
unexpectedly, with its name, its exit status and its log's last lines. Processes are signalled by
pid, never by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from emulation.nodes.forkserver import Forked, ForkServer
from observability.processinfo import STOPPED, state_of, tail
from specs.paths import ROOT
from testbed.errors import CONSEQUENCES

_log = logging.getLogger("processes")

_QUOTED = 200  # characters of a line
_STOP_SECONDS = 5.0
_CAUSE_SECONDS = 2.0


class ProcessError(Exception):
    """A process ended or is stuck; the text names it and shows its log's tail.

    name: name of the process.
    what: what happened to it, as a predicate: "was killed by SIGKILL".
    log: its log file.
    status: exit status, if it has ended.
    """

    def __init__(self, name: str, what: str, log: Path, status: int | None = None) -> None:
        self.name = name
        self.what = what
        self.log = log
        self.status = status
        super().__init__(f"{name} {what}\n{tail(log)}")


def environment() -> dict[str, str]:
    """Returns the environment of every process of a testbed: one BLAS thread, this project on
    PYTHONPATH.

    With more threads BLAS splits sums differently, and results differ in their last bits.
    """
    # Mininet imports distutils; where Python has its own, this avoids importing setuptools.
    own = {"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}
    threads = ("OPENBLAS", "OMP", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR")
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    return {
        **os.environ,
        **{f"{name}_NUM_THREADS": "1" for name in threads},
        **own,
        "PYTHONPATH": ":".join(paths),
        "PYTHONUNBUFFERED": "1",
        "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "ERROR"),
    }


def python(module: str, *arguments: str) -> list[str]:
    """Returns the command line of a module of this project under the current interpreter."""
    return [sys.executable, "-m", module, *arguments]


class Process:
    """One process.

    expected: its end was requested.
    exited: future of its exit status.
    judged: future of whether the group continues after its end.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        cwd: Path,
        env: Mapping[str, str],
        on_line: Callable[[str], None] | None,
        wants_input: bool,
        fork_server: ForkServer | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.log = log
        self.expected = False
        self.exited: asyncio.Future[int] = loop.create_future()
        self.judged: asyncio.Future[bool] = loop.create_future()
        self._on_line = on_line
        self._partial = b""
        with log.open("ab") as output:
            self._log = os.dup(output.fileno())
            forked = None
            if fork_server is not None:
                forked = fork_server.start(
                    arguments,
                    output.fileno(),
                    cwd=cwd,
                    env=env,
                    wants_input=wants_input,
                    wants_output=on_line is not None,
                )
            self.popen: Forked | subprocess.Popen[bytes] = forked or subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE if wants_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE if on_line else output,
                stderr=output,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        self._watch = os.pidfd_open(self.popen.pid)
        loop.add_reader(self._watch, self._ended)
        if self.popen.stdout is not None:
            os.set_blocking(self.popen.stdout.fileno(), False)
            loop.add_reader(self.popen.stdout.fileno(), self._read)

    @property
    def pid(self) -> int:
        """Process id in the sandbox."""
        return self.popen.pid

    @property
    def running(self) -> bool:
        """True if the process has not ended."""
        return not self.exited.done()

    def write(self, line: str) -> None:
        """Writes a line to its standard input. Raises ``ProcessError`` if that is closed."""
        assert self.popen.stdin is not None, f"{self.name} was started without input"
        if not self.running:
            raise ProcessError(self.name, "has ended", self.log, self.exited.result())
        try:
            self.popen.stdin.write(line.encode() + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError as error:
            raise ProcessError(self.name, "has closed its standard input", self.log) from error

    @property
    def stopped(self) -> bool:
        """True if it is stopped by a signal (SIGSTOP) or a debugger."""
        return self.running and state_of(self.pid) in STOPPED

    def signal(self, number: int) -> None:
        """Sends a signal to the process's group, unless the process has ended."""
        if self.running:
            # The process is not reaped before `_ended`, so the pid is still its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def stop(self) -> int:
        """Sends SIGTERM, and SIGKILL after some seconds; returns the exit status."""
        self.expected = True
        if self.stopped:  # it would not handle SIGTERM
            self.signal(signal.SIGKILL)
        self.signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(asyncio.shield(self.exited), _STOP_SECONDS)
        except asyncio.TimeoutError:
            os.write(self._log, b"(did not end on SIGTERM: killed)\n")
            self.signal(signal.SIGKILL)
            return await self.exited

    def _read(self) -> None:
        assert self.popen.stdout is not None
        try:
            data = os.read(self.popen.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self.popen.stdout.fileno())
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        assert self._on_line is not None
        if not line.startswith(b"{"):  # JSON reports do not go to the log
            os.write(self._log, line + b"\n")
        self._on_line(line.decode(errors="replace"))

    def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        status = self.popen.wait()
        loop.remove_reader(self._watch)
        os.close(self._watch)
        if self.popen.stdout is not None:
            loop.remove_reader(self.popen.stdout.fileno())
            with contextlib.suppress(BlockingIOError):
                while data := os.read(self.popen.stdout.fileno(), 1 << 16):
                    self._partial += data
            for line in self._partial.splitlines():
                self._line(line)
            self.popen.stdout.close()
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.close()
        os.close(self._log)
        if not self.exited.done():
            self.exited.set_result(status)


def describe(status: int) -> str:
    """Describes an exit status in words; a shell's status above 128 means a signal."""
    if status > 128 and status - 128 in set(signal.Signals):
        return describe(128 - status)
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class Processes:
    """A group of processes that fails when one of them ends unexpectedly.

    failure: a future that gets the ``ProcessError`` of the first process that ends without being
    stopped, unless it may finish and its status is 0.
    logs: folder of their logs.
    cwd: their working directory.
    fork_server: starts the Python processes among them.
    """

    def __init__(self, logs: Path, cwd: Path, fork_server: ForkServer | None = None) -> None:
        self._logs = logs
        self._cwd = cwd
        self._fork_server = fork_server
        self._members: list[Process] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._suspect: ProcessError | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Marks the exception as retrieved: not every group is waited for.
        self.failure.add_done_callback(lambda f: f.cancelled() or f.exception())

    def beside(self) -> Processes:
        """Returns a new group whose processes start in the same way."""
        return Processes(self._logs, self._cwd, self._fork_server)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        on_line: Callable[[str], None] | None = None,
        wants_input: bool = False,
        may_finish: bool = False,
        survived: Callable[[Process], bool] | None = None,
    ) -> Process:
        """Starts a process; its standard error (and output, without ``on_line``) go to NAME.log.

        on_line: called with each line of its standard output; an exception fails the group.
        wants_input: gives it a pipe as standard input, for ``Process.write``.
        may_finish: exit status 0 is no failure.
        survived: called at another unexpected end; returns whether the group continues.
        Raises ``ProcessError`` if it cannot be started.
        """
        log = self._logs / f"{name}.log"
        try:
            process = Process(
                name,
                arguments,
                log,
                cwd=self._cwd,
                env=environment(),
                on_line=partial(self._take_line, name, on_line, log) if on_line else None,
                wants_input=wants_input,
                fork_server=self._fork_server,
            )
        except OSError as error:
            what = f"cannot be started: {arguments[0]}: {error.strerror}"
            raise ProcessError(name, what, log) from error
        self._members.append(process)
        task = asyncio.get_running_loop().create_task(self._watch(process, may_finish, survived))
        self._watchers.add(task)
        task.add_done_callback(self._watched)
        return process

    def _take_line(self, name: str, on_line: Callable[[str], None], log: Path, line: str) -> None:
        """Calls ``on_line``; an exception there fails the group."""
        try:
            on_line(line)
        except Exception as error:
            _log.exception("cannot process a line of %s: %s", name, line)
            said = line if len(line) <= _QUOTED else f"{line[:_QUOTED]}..."
            what = f"wrote a line that was not processed ({type(error).__name__}: {error}): {said}"
            self.fail(ProcessError(name, what, log))

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watchers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.fail(error)

    def stopped(self) -> list[ProcessError]:
        """Returns an error for each process that is stopped by a signal or a debugger."""
        return [
            ProcessError(process.name, "is stopped (SIGSTOP, or a debugger)", process.log)
            for process in self._members
            if process.stopped
        ]

    def fail(self, failure: Exception) -> None:
        """Sets the group's failure, unless it has failed before."""
        if not self.failure.done():
            self.failure.set_exception(failure)

    async def _watch(
        self,
        process: Process,
        may_finish: bool,
        survived: Callable[[Process], bool] | None,
    ) -> None:
        status = await asyncio.shield(process.exited)
        fine = process.expected or (may_finish and status == 0)
        if not fine and not self.failure.done() and survived is not None:
            fine = survived(process)
        process.judged.set_result(fine)
        if fine or self.failure.done():
            return
        failed = ProcessError(process.name, describe(status), process.log, status)
        if status in CONSEQUENCES:
            # The process that caused this end fails itself, perhaps a moment later.
            if self._suspect is not None:
                return
            self._suspect = failed
            await asyncio.wait([self.failure], timeout=_CAUSE_SECONDS)
        self.fail(failed)

    async def until(self, condition: asyncio.Future[None], seconds: float, waiting: str) -> None:
        """Waits for a condition.

        waiting: what for, for the text of the ``TimeoutError``. Raises the group's failure, too.
        """
        await asyncio.wait(
            [condition, self.failure], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if self.failure.done():
            self.failure.result()
        if not condition.done():
            raise TimeoutError(f"after {seconds:g} s still waiting for {waiting}")
        condition.result()

    async def stop(
        self, processes: Sequence[Process] | None = None, *, in_order: bool = False
    ) -> None:
        """Stops these processes, or all.

        in_order: stops them one after the other, the last started first; else concurrently.
        """
        chosen = list(reversed(self._members if processes is None else processes))
        for process in chosen:
            process.expected = True
        if in_order:
            for process in chosen:
                await process.stop()
        else:
            await asyncio.gather(*(process.stop() for process in chosen))
        self._members = [process for process in self._members if process.running]
