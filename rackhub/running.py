# SPDX-License-Identifier: Apache-2.0
"""Runs a job on a topology, and who follows it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from observability.messages.events import EmitEvent, Event, Watcher
from rackhub.given import FaultsSource, File, JobSource, faults_file, job_file
from rackhub.results import Result
from rackhub.topology import Topology
from specs import fault_schedule, faultfile, jobfile
from testbed.errors import LaunchError
from topologies.model.documents import Problem

if TYPE_CHECKING:
    from observability.progress_view import View

_log = logging.getLogger("rackhub")

TopologySource: TypeAlias = Topology | str | Path
Progress: TypeAlias = bool | Callable[[Event], None]
TargetName: TypeAlias = Literal["auto", "embedded", "bmv2"]


class _Follower:
    """Follows a run: on the screen, as a function of events, or not at all.

    Without a view notes are logged, as ``rackhub``, and warnings printed unless logging is set up
    otherwise.
    """

    def __init__(self, view: View | None, emit: EmitEvent, files: Sequence[File]) -> None:
        self._view, self._files = view, files
        self.event = emit

    def note(self, text: str) -> None:
        """Implements ``Watcher``."""
        if self._view is not None:
            self._view.note(text)
        else:
            _log.info("%s", text)

    def warn(self, problem: Problem) -> None:
        """Implements ``Watcher``; names what files were made of."""
        for file in self._files:
            problem = file.told(problem)
        if self._view is not None:
            self._view.warn(problem)
        else:
            _log.warning("%s", problem)


@contextlib.contextmanager
def following(progress: Progress, *files: File) -> Iterator[Watcher]:
    """Yields what follows a run with these files."""
    if progress is True:
        from rich.console import Console

        from observability.progress_view import View

        with View(Console(highlight=False)) as view:
            yield _Follower(view, view.event, files)
    else:
        yield _Follower(None, progress or (lambda _: None), files)


def topology_of(given: TopologySource) -> Topology:
    """Returns a topology, loaded unless it is one."""
    return given if isinstance(given, Topology) else Topology.load(given)


def run(
    topology: TopologySource,
    job: JobSource = "digits",
    *,
    clock: Literal["emulated", "virtual"] = "emulated",
    target: TargetName = "auto",
    pcap: bool = False,
    faults: FaultsSource | None = None,
    progress: Progress = False,
    **fields: object,
) -> Result:
    """Brings a topology up, runs a job on it and takes it down, as ``rackhub run`` does.

    In virtual time the job runs in this process; an emulated testbed is a process of its own,
    which ends with this one at the latest. Ctrl-C (in a notebook: interrupt) takes it down.

    Args:
        topology: A topology, its file, or the name of a shipped one: ``two-racks``.
        job: A job's file, the name of a shipped one, or a mapping of its fields.
        clock: Real time on Mininet, or virtual: a simulated network, without root.
        target: What switches run on; auto: BMv2 if it is installed.
        pcap: Capture what every switch port carries.
        faults: What happens meanwhile, as ``rackhub chaos`` has it: a file of faults, or its list
            ``faults``.
        progress: Show it, or a function that takes events.
        fields: Fields of the job file, in place of the job's own: ``iterations=20``.

    Raises:
        TopologyError: The topology cannot run like this.
        JobFileError: The job is invalid, or does not fit the topology; names fields.
        FaultsError: The same of faults.
        LaunchError: The run failed, or the job's weights differ from the reference's.
        Error: Base of these; others are about the machine, such as ``SandboxError``.
    """
    if clock not in ("emulated", "virtual"):
        raise ValueError(f"clock {clock!r} is neither emulated nor virtual")
    chosen = topology_of(topology)
    with (
        chosen.written() as file,
        job_file(job, fields) as given,
        faults_file(faults) as hits,
        following(progress, file, given) as watcher,
    ):
        if clock == "virtual":
            from simulation.running import run_virtually

            directory, matches = run_virtually(
                *(file.path, [given.path], watcher),
                target=target,
                pcap=pcap,
                faults=hits.path if hits is not None else None,
            )
        else:
            from emulation.lifecycle.running import run as run_emulated

            injected = []
            if hits is not None:
                injected = fault_schedule.schedule(
                    faultfile.load(hits.path), chosen.model, job=jobfile.load(given.path)
                )
            launched, matches = run_emulated(
                *(file.path, [given.path], watcher, injected),
                target=target,
                pcap=pcap,
                warn=watcher.warn,
            )
            directory = launched.run
    if not matches:
        raise LaunchError(f"the weights differ from the reference's; see {directory.path}")
    return Result.load(directory.path)
