# SPDX-License-Identifier: Apache-2.0
"""Starts a testbed's supervisor in a sandbox, talks to it, and ends it.

The supervisor's standard input is a pipe that this process holds, so the testbed ends with this
process, unless ``Launch.detach`` was called.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from emulation.network.namespaces import command, through_sudo
from emulation.nodes.forkserver import ROOM
from emulation.nodes.processes import describe, environment, python
from observability import control, record
from observability.control import SOCKET, ControlError, SupervisorGoneError, connect
from observability.messages.jobs import Clock
from observability.messages.live import Description
from observability.processinfo import tail
from observability.record import Facts, RunDirectory
from specs.p4program import make_ready
from testbed import preflight
from testbed.errors import LaunchError
from testbed.program import compile_once, program_files, read_program
from testbed.targets import choose
from topologies.model.documents import Problem
from topologies.model.spec import read as read_topology

T = TypeVar("T")
_DOWN_SECONDS = 120.0  # long: many processes end one after the other on a busy machine
_POLL_SECONDS = 0.02
# From the start of the supervisor until it has built the network and answers.
_BUILD_SECONDS = 300.0
# Between the end of a supervisor's connections and that of the process that started it.
_REAP_SECONDS = 5.0


def _own_group() -> dict[str, Any]:
    """Returns options of ``Popen`` for a process group of its own.

    Ctrl-C then reaches only this process, which takes the testbed down in order. The terminal
    stays, as sudo remembers a password per terminal. `process_group` is new in Python 3.11;
    `preexec_fn` needs fork(), at which gRPC's threads may abort the child.
    """
    if sys.version_info >= (3, 11):
        return {"process_group": 0}
    return {"preexec_fn": os.setpgrp}


def check_jobs(up: RunDirectory, jobs: Sequence[Path], restore: Path | None = None) -> None:
    """Raises ``JobFileError`` for jobs that cannot run on this testbed, or cannot continue from the
    checkpoint ``restore``."""
    facts = up.facts
    plane = read_program(Path(facts["program"]), Path(facts["p4info"]))
    preflight.check(read_topology(facts["topology"]), jobs, plane, facts["target"], restore)


class Launch:
    """A started testbed; as a context manager it takes the testbed down at the end."""

    def __init__(self, run: RunDirectory, process: subprocess.Popen[bytes]) -> None:
        self.run = run
        self.process = process
        self._detached = False
        self._stuck = False

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._detached:
            self.down()

    def wait_until_up(self) -> Description:
        """Waits until the testbed is ready; returns its description. Raises ``LaunchError``."""
        deadline = time.monotonic() + _BUILD_SECONDS
        while not self._listening():
            if self.process.poll() is not None:
                raise self.failure()
            if time.monotonic() > deadline:
                self._stuck = True
                raise self._failed(f"has not built the network after {_BUILD_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)  # another process creates the socket: no event to wait for
        return self.ask(control.wait)

    def _listening(self) -> bool:
        if not (self.run.sockets / SOCKET).exists():
            return False
        try:
            connect(self.run).close()
        except SupervisorGoneError:  # bound, but not listening yet
            return False
        return True

    def ask(self, request: Callable[[RunDirectory], T]) -> T:
        """Sends a request (of ``observability.control``); raises ``LaunchError`` with the testbed's
        failure."""
        try:
            return request(self.run)
        except SupervisorGoneError as error:
            if error.stuck:
                self._stuck = True
                text = str(error)
                self.run.note_failure(text, "supervisor")
                raise LaunchError(f"{text}\n{tail(self._log)}") from error
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_REAP_SECONDS)
            raise self.failure() from error
        except ControlError as error:
            if (self.run.path / "failure.txt").exists():
                raise self.failure() from error
            raise LaunchError(str(error)) from error

    @property
    def _log(self) -> Path:
        return self.run.logs / "supervisor.log"

    def failure(self) -> LaunchError:
        """Returns why the testbed ended: its own text, or how its supervisor ended."""
        file = self.run.path / "failure.txt"
        with contextlib.suppress(OSError):
            why = file.read_text().rstrip()
            full = f"the testbed ended, and could not write why to {file}: is that disk full?"
            return LaunchError(why or full)
        # The supervisor writes failure.txt unless it is killed; unshare may hide the signal.
        status = self.process.poll()
        if status is None:
            return self._failed("closed the connection without an answer and has not ended")
        return self._failed(f"was killed or crashed (what started it {describe(status)})")

    def _failed(self, what: str) -> LaunchError:
        """Records that the supervisor itself failed, also in the summary; returns the error."""
        self.run.note_failure(f"supervisor {what}", "supervisor")
        return LaunchError(f"supervisor {what}\n{tail(self._log)}")

    def detach(self) -> None:
        """Keeps the testbed up when this process ends."""
        self.ask(control.detach)
        self._detached = True

    def down(self) -> int:
        """Takes the testbed down, kills it if it does not end; returns its exit status."""
        assert self.process.stdin is not None
        try:
            if self._stuck:
                return self._kill()
            if self.process.poll() is None:
                try:
                    control.down(self.run)
                except ControlError:
                    # It does not listen or answer; closing its input ends it.
                    self.process.stdin.close()
            return self.process.wait(_DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            return self._kill()
        finally:
            self.process.stdin.close()

    def _kill(self) -> int:
        """Kills the testbed; returns its exit status once all its processes are gone.

        The supervisor is the first process of a PID namespace, so the kernel ends the others with
        it, and what started it, which waits for that, ends last. Killed itself, it would not wait.
        """
        pid = self.run.supervisor()
        try:
            if pid is None:
                self.process.kill()
            else:
                os.kill(pid, signal.SIGKILL)
        except PermissionError:  # it runs by sudo
            self.process.kill()
        return self.process.wait()


def _say(text: str) -> None:
    click.echo(text, err=True)


def _warn(problem: Problem) -> None:
    _say(f"warning: {problem}")


@contextlib.contextmanager
def launch(
    topology: Path,
    *,
    jobs: Sequence[Path] = (),
    name: str | None = None,
    target: str = "auto",
    clock: Clock = "emulated",
    pcap: bool = False,
    program: Path | None = None,
    p4info: Path | None = None,
    topology_seed: int | None = None,
    tied: bool = True,
    warn: Callable[[Problem], None] = _warn,
) -> Iterator[Launch]:
    """Starts a testbed; leaving the context takes it down, unless it was detached.

    jobs: files to be submitted later, which are checked with the topology.
    name: of the testbed; None: the topology's, with a number if that is taken.
    topology_seed: replaces the file's.
    tied: the kernel ends the testbed with this process (parent-death signal).
    warn: takes warnings about topology and jobs.
    Raises ``TopologyError``, ``JobFileError``, ``LaunchError``, ``RunError``, ``TargetError``,
    ``SandboxError``, ``DataPlaneError``.
    """
    if clock != "emulated":
        raise LaunchError(
            "--clock virtual: nothing stays up in virtual time; `rackhub run --clock virtual --job"
            " FILE`, --job as often as there are jobs, runs all of it at once"
        )
    loaded = read_topology(topology).seeded(topology_seed)
    chosen = choose(target)
    if program is None and p4info is None:
        make_ready(say=_say)
    program, p4info = program_files(program, p4info)
    checked = preflight.check(loaded, jobs, read_program(program, p4info), chosen)
    for warning in checked.warnings:
        warn(warning)
    compile_once(program if chosen == "embedded" else None)
    facts: Facts = {
        "topology": str(topology.resolve()),
        "topology_seed": loaded.topology.seed,
        "target": chosen,
        "clock": clock,
        "pcap": pcap,
        "program": str(program.resolve()),
        "p4info": str(p4info.resolve()),
        # Under sudo the testbed's files would belong to root.
        "owner": (os.getuid(), os.getgid()) if through_sudo() else None,
        "command": record.command_line(),
    }
    start = command([*python("emulation.lifecycle.supervisor")], tied=tied)
    wanted = checked.topology.name if name is None else name
    with record.create(wanted, chosen=name is not None, facts=facts) as run:
        if run.name != wanted:
            _say(
                f"a testbed named {wanted} is up already, so this one is {run.name}: commands take"
                f" it with --on {run.name}"
            )
        with (run.logs / "supervisor.log").open("wb") as log, run.lock() as lock:
            process = subprocess.Popen(
                [*start, str(run.path), ROOM],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(),
                # The outermost process, which ends last, holds the lock too.
                pass_fds=[lock.fileno()],
                **_own_group(),
            )
        with Launch(run, process) as started:
            yield started
