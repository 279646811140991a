# SPDX-License-Identifier: Apache-2.0
"""Testbeds that stay up: jobs, commands, faults and measurements on them."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Literal, final

from prometheus_client.core import Metric

from emulation.lifecycle import execution
from emulation.lifecycle.launcher import Launch, check_jobs
from emulation.lifecycle.running import bringing_up
from observability import control
from observability.messages.events import Event
from observability.messages.jobs import Clock, JobRow, ScaledJob
from observability.messages.live import Description, Snapshot, Status
from observability.messages.servers import JobServers
from observability.messages.waiting import JobExplanation
from observability.metrics import families
from observability.record import RunDirectory
from rackhub.given import File, JobSource, Text, dumped, job_file
from rackhub.results import Result
from rackhub.running import Progress, TargetName, TopologySource, following, topology_of
from rackhub.topology import Quantity, Topology
from specs import fault_schedule, faultfile
from specs.faultfile import Fault
from specs.scaling import changes
from testbed.errors import LaunchError


def up(
    topology: TopologySource,
    *,
    name: str | None = None,
    clock: Clock = "emulated",
    target: TargetName = "auto",
    pcap: bool = False,
) -> Testbed:
    """Brings a topology up, as ``rackhub up`` does: ``with rackhub.up(topology) as testbed:``.

    It is a process of its own, which ends with the context, by ``down``, and at the latest with
    the thread that called this. Commands such as ``rackhub status`` see it, too.

    Args:
        topology: A topology, its file, or the name of a shipped one.
        name: Of the testbed; None: the topology's, with a number if that is taken.
        clock: Only ``emulated``: in virtual time nothing stays up.
        target: What switches run on; auto: BMv2 if it is installed.
        pcap: Capture what every switch port carries.

    Raises:
        TopologyError: The topology cannot be emulated like this.
        LaunchError: It did not come up.
        Error: Base of these; others are about the machine, such as ``SandboxError``.
    """
    if clock != "emulated":
        raise LaunchError(
            f"clock {clock!r}: nothing stays up in virtual time; rackhub.run(topology, job,"
            " clock='virtual') runs a job in it"
        )
    chosen = topology_of(topology)
    with ExitStack() as stack, chosen.written() as file, following(False, file) as watcher:
        launched = stack.enter_context(
            bringing_up(
                file.path, watcher.note, name=name, target=target, pcap=pcap, warn=watcher.warn
            )
        )
        return Testbed(chosen, launched, launched.wait_until_up(), stack.pop_all())


@final
class Testbed:
    """A topology that is up (``up``). A context manager, which takes it down."""

    def __init__(
        self, topology: Topology, launched: Launch, description: Description, stack: ExitStack
    ) -> None:
        self.topology = topology
        """The topology."""
        self.description = description
        """Name, target and sizes."""
        self._launched, self._stack = launched, stack
        self._jobs: list[RunningJob] = []

    @property
    def name(self) -> str:
        """Its name."""
        return self.description["name"]

    @property
    def path(self) -> Path:
        """Its run directory."""
        return self._launched.run.path

    def __enter__(self) -> Testbed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.down()
        else:
            self._stack.__exit__(kind, error, trace)

    def down(self) -> None:
        """Takes it down; jobs that still run are stopped. Raises ``LaunchError`` if it failed."""
        with self._stack:
            if self._launched.down() != 0:
                raise self._launched.failure()

    # --- jobs ---

    def submit(
        self, job: JobSource = "digits", *, progress: Progress = False, **fields: object
    ) -> RunningJob:
        """Starts a job; returns once the testbed has accepted it.

        Args:
            job: A job's file, the name of a shipped one, or a mapping of its fields.
            progress: Show it, or a function that takes events, in a thread of the job.
            fields: Fields of the job file, in place of the job's own.

        Raises:
            JobFileError: The job is invalid, or cannot run here.
            LaunchError: The testbed refuses it.
        """
        with ExitStack() as stack:
            file = stack.enter_context(job_file(job, fields))
            check_jobs(self._launched.run, [file.path])
            running = RunningJob(self._launched, file, progress, stack.pop_all())
        self._jobs.append(running)
        return running

    def wait(self) -> list[Result]:
        """Waits until all jobs submitted here are over; returns their results, in order.

        Raises:
            LaunchError: One has failed.
        """
        return [job.wait() for job in self._jobs]

    def jobs(self) -> list[JobRow]:
        """Returns all jobs, also of users' own programs."""
        return self._launched.ask(control.jobs)

    def scale(
        self, job: str, servers: Sequence[str] = (), workers: Sequence[str] = ()
    ) -> ScaledJob:
        """Lets servers and workers of a job come and go while it trains.

        ``testbed.scale("digits", ["+s4", "-s1"])``: returns once that holds, with how much moved
        and from which round on.

        Args:
            job: Name of a running job.
            servers: Servers of the job that get slices of its keys (+), or lose all (-).
            workers: Hosts where a worker of a submitted job joins (+), or leaves at the end of its
                present round (-); it may come back.

        Raises:
            ValueError: A name without a sign, or given twice; or no name.
            LaunchError: There is no such job or server, or this cannot be done now.
        """
        return self._launched.ask(_scale(job, servers, workers))

    def why(self, job: str) -> JobExplanation:
        """Returns whether a job waits, and what for: its oldest chunks, node by node."""
        return self._launched.ask(partial(control.why, job=job))

    def servers(self, job: str) -> JobServers:
        """Returns what was measured of a job's servers and keys. Raises ``LaunchError`` if it
        measures none: ``balance: {measure: true}`` has it do so."""
        return self._launched.ask(partial(control.servers, job=job))

    # --- commands and measurements ---

    def exec(
        self,
        node: str,
        program: Sequence[str | Path],
        *,
        input: str = "",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program at a node, in the current folder, and waits for its end.

        Worker programs find the job service in their environment (docs/howto/use-the-api.md).

        Args:
            node: Such as ``w0``; the switches share the testbed's own network namespace.
            program: Its words.
            input: Its standard input.
            timeout: Seconds after which it gets SIGHUP.
            env: Its environment; None: this process's.
            check: Raise ``subprocess.CalledProcessError`` unless its status is 0.

        Raises:
            ControlError: There is no such node or program, or the testbed has ended.
            subprocess.TimeoutExpired: It took longer than ``timeout``.
        """
        words = [str(word) for word in program]
        run = self._launched.run
        with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            given.write(input)
            given.seek(0)
            files = [one.fileno() for one in (given, out, err)]
            environment = os.environ if env is None else env
            with execution.begin(run, node, words, files, environment) as connection:
                connection.settimeout(timeout)
                try:
                    status = execution.ended(run, connection)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(words, timeout or 0.0) from None
            texts = [Path(f"/proc/self/fd/{one.fileno()}").read_text() for one in (out, err)]
        done = subprocess.CompletedProcess(words, status, *texts)
        if check:
            done.check_returncode()
        return done

    def status(self) -> Status:
        """Returns nodes with their addresses, jobs, and what links have carried."""
        return self._launched.ask(control.status)

    def snapshot(self) -> Snapshot:
        """Returns the state of switches, servers and jobs now: slots, packets by outcome, rates."""
        return self._launched.ask(control.snapshot)

    def metrics(self) -> list[Metric]:
        """Returns the same as metrics of prometheus_client (docs/reference/metrics.md)."""
        return families([(self.name, self.snapshot())])

    # --- faults ---

    def kill(self, node: str, *, gone: Quantity | Literal["forever"] = 0) -> None:
        """Kills a node's processes (SIGKILL): a switch's, a server's, the controller's, or those
        of workers of submitted jobs.

        Args:
            node: A node, a server's process (``s0.1``), or ``controller``.
            gone: When it is restarted: after ``"5 s"``, ``"forever"``, or at once.

        Raises:
            FaultsError: There is no such node.
            ControlError: It is not running.
        """
        keywords = {"faults[0].kill": "node", "faults[0].gone": "gone"}
        self._inject(self._fault("kill", keywords, {"kill": node, "gone": gone}))

    def pause(self, node: str) -> None:
        """Stops a node's processes (SIGSTOP) until ``resume``; nodes and errors as of ``kill``."""
        self._inject(self._stop("pause", node))

    def resume(self, node: str) -> None:
        """Continues a node that is paused. Raises ``ControlError`` if it is not."""
        self._end(self._stop("resume", node))

    def impair(
        self,
        *ends: str,
        loss: Quantity = 0,
        duplicate: Quantity = 0,
        reorder: Quantity = 0,
        corrupt: Quantity = 0,
    ) -> None:
        """Has a link lose, duplicate, reorder or corrupt packets, both ways, until ``restore``.

        ``testbed.impair("tor0", "core0", loss="10 %")``

        Args:
            ends: The link's two nodes; none: every link.
            loss: Share of packets, ``"1 %"`` or 0.01; likewise the others.

        Raises:
            FaultsError: There is no such link, or shares are not understood.
            ControlError: It is impaired already.
        """
        quality = {"loss": loss, "duplicate": duplicate, "reorder": reorder, "corrupt": corrupt}
        self._inject(self._link("impair", ends, quality))

    def restore(self, *ends: str) -> None:
        """Ends the impairment of a link, or that of every link. Raises ``ControlError`` if there
        is none."""
        self._end(self._link("restore", ends, {"loss": 1}))

    def _stop(self, call: str, node: str) -> Fault:
        return self._fault(call, {"faults[0].stop": "node"}, {"stop": node, "for": 1})

    def _link(self, call: str, ends: Sequence[str], quality: Mapping[str, Quantity]) -> Fault:
        known = {frozenset((link.a, link.b)): [link.a, link.b] for link in self.topology.links}
        given: object = known.get(frozenset(ends), list(ends)) if ends else "all"
        keywords = {"faults[0].impair.": "", "faults[0].impair": call}
        return self._fault(call, keywords, {"impair": {"ends": given, **quality}, "for": 1})

    def _fault(self, call: str, keywords: Mapping[str, str], action: Mapping[str, object]) -> Fault:
        """Returns a fault that has no end of its own; raises ``FaultsError``, by keyword."""
        content = dumped({"faults": [{"at": 0, **action}]})
        text = Text(content, f"Testbed.{call}", keywords)
        with File(Path(text.origin), text).blamed():
            document = faultfile.parse(text.text, text.origin)
            (fault,) = fault_schedule.schedule(document, self.topology.model)
        lasting = fault.kind in faultfile.LASTING
        return dataclasses.replace(fault, seconds=math.inf) if lasting else fault

    def _inject(self, fault: Fault) -> None:
        control.inject(self._launched.run, [fault])

    def _end(self, fault: Fault) -> None:
        control.end(self._launched.run, [fault])

    def __repr__(self) -> str:
        return f"<Testbed {self.name}: {self.topology!r} on {self.description['target']}>"


@final
class RunningJob:
    """A job that was submitted to a testbed (``Testbed.submit``)."""

    def __init__(self, launched: Launch, file: File, progress: Progress, stack: ExitStack) -> None:
        self._launched = launched
        self._accepted: Future[str] = Future()
        self._result: Future[Result] = Future()
        self.latest: Event | None = None
        """The latest event: its state, or its progress."""
        self._iteration = 0
        self._further = threading.Condition()
        threading.Thread(
            target=self._follow, args=(file, progress, stack), name="job", daemon=True
        ).start()
        self.name = self._accepted.result()
        """Its name on the testbed."""

    @property
    def done(self) -> bool:
        """True if it is over, done or failed."""
        return self._result.done()

    def wait_for(self, iteration: int, timeout: float | None = None) -> None:
        """Waits until all workers have done so many iterations.

        Raises:
            LaunchError: It failed or was stopped before.
            TimeoutError: They have not after ``timeout`` seconds.
        """
        with self._further:
            there = self._further.wait_for(
                lambda: self.done or self._iteration >= iteration, timeout
            )
        if not there:
            raise TimeoutError(f"job {self.name}: {self._iteration} of {iteration} iterations")
        if self._iteration < iteration:
            self._result.result()

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until it is over; returns its result.

        Args:
            timeout: Seconds.

        Raises:
            LaunchError: It failed or was stopped, or its weights differ from the reference's.
            TimeoutError: It is not over yet.
        """
        with self._further:
            if not self._further.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"job {self.name} is not over after {timeout:g} s")
        return self._result.result()

    def why(self) -> JobExplanation:
        """Returns whether it waits, and what for."""
        return self._launched.ask(partial(control.why, job=self.name))

    def servers(self) -> JobServers:
        """Returns what was measured of its servers and keys (``Testbed.servers``)."""
        return self._launched.ask(partial(control.servers, job=self.name))

    def scale(self, servers: Sequence[str] = (), workers: Sequence[str] = ()) -> ScaledJob:
        """Lets servers and workers of it come and go (``Testbed.scale``)."""
        return self._launched.ask(_scale(self.name, servers, workers))

    def stop(self) -> None:
        """Ends it; the testbed stays up. Raises ``LaunchError`` if it is over already."""
        self._launched.ask(partial(control.stop, job=self.name))

    def _follow(self, file: File, progress: Progress, stack: ExitStack) -> None:
        """Submits it, and follows it to its end."""
        try:
            with stack, following(progress, file) as watcher:

                def take(event: Event) -> None:
                    self.latest = event
                    if event["event"] == "progress":
                        self._iteration = event["iteration"]
                        with self._further:
                            self._further.notify_all()
                    if event["event"] == "starting":
                        self._accepted.set_result(event["job"])
                    watcher.event(event)

                request = control.submission(file.path)
                run = self._launched.run
                job = self._launched.ask(partial(control.submit, request=request, on_event=take))
                if job["matches_reference"] is False:
                    raise LaunchError(f"job {job['job']}: the weights differ from the reference's")
                self._result.set_result(Result(run.path, job))
        except BaseException as error:  # of this thread: it is raised where the job is waited for
            for waiting in (self._accepted, self._result):
                if not waiting.done():
                    waiting.set_exception(error)
        finally:
            with self._further:
                self._further.notify_all()

    def __repr__(self) -> str:
        state = "over" if self.done else self.latest["event"] if self.latest else "starting"
        return f"<RunningJob {self.name}: {state}>"


def _scale(
    job: str, servers: Sequence[str], workers: Sequence[str]
) -> Callable[[RunDirectory], ScaledJob]:
    """Returns the request for changes of a job. Raises ``ValueError`` for impossible words."""
    if not any((*changes(servers), *changes(workers))):
        raise ValueError("no server or worker is named")
    return partial(control.scale, job=job, servers=servers, workers=workers)
