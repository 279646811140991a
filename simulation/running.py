# SPDX-License-Identifier: Apache-2.0
"""Runs job files on a topology file in virtual time, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from observability import record
from observability.messages.events import Watcher, ended_by
from observability.record import Facts, RunDirectory, shown
from observability.wording import count
from simulation import session
from simulation.faults.check import scheduled
from simulation.tracing.events import TraceFile
from specs.p4program import make_ready
from testbed.errors import JobError, LaunchError
from testbed.preflight import Preflight
from testbed.program import compile_once, program_for
from topologies.model import wording
from topologies.model.spec import read as read_topology


def check_virtually(
    topology: Path,
    jobs: Sequence[Path],
    say: Callable[[str], None],
    *,
    target: str = "auto",
    program: Path | None = None,
    p4info: Path | None = None,
    topology_seed: int | None = None,
) -> tuple[Preflight, Path, Path, DataPlane]:
    """Checks that jobs can run in virtual time; returns the check, program, p4info, data plane.

    Raises:
        TopologyError, JobFileError, LaunchError, DataPlaneError
    """
    if target == "bmv2":
        raise LaunchError(
            "--target bmv2: a switch in virtual time is the embedded target, in process; leave it"
            " out, or use --clock emulated"
        )
    loaded = read_topology(topology).seeded(topology_seed)
    if program is None and p4info is None:
        make_ready(say=say)
    program, p4info, dataplane = program_for(jobs, program, p4info)
    return session.check(loaded, jobs, dataplane), program, p4info, dataplane


def run_virtually(
    topology: Path,
    jobs: list[Path],
    watcher: Watcher,
    *,
    name: str | None = None,
    target: str = "auto",
    pcap: bool = False,
    program: Path | None = None,
    p4info: Path | None = None,
    topology_seed: int | None = None,
    trace: Path | None = None,
    faults: Path | None = None,
    faults_seed: int | None = None,
) -> tuple[RunDirectory, bool]:
    """Runs jobs; returns the run's directory and whether all weights match the reference.

    faults: a fault file; faults_seed: of random ones, instead of the file's.

    Raises:
        TopologyError, JobFileError, FaultsError, LaunchError, RunError, DataPlaneError,
        VirtualError
    """
    checked, program, p4info, dataplane = check_virtually(
        *(topology, jobs, watcher.note),
        target=target,
        program=program,
        p4info=p4info,
        topology_seed=topology_seed,
    )
    chosen = scheduled(faults, checked, faults_seed) if faults is not None else []
    for warning in checked.warnings:
        watcher.warn(warning)
    compile_once(program)
    facts: Facts = {
        "topology": str(topology.resolve()),
        "topology_seed": checked.topology.seed,
        "target": "embedded",
        "clock": "virtual",
        "pcap": pcap,
        "program": str(program.resolve()),
        "p4info": str(p4info.resolve()),
        "owner": None,
        "command": record.command_line(),
    }
    wanted = checked.topology.name if name is None else name
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(TraceFile(trace)) if trace is not None else None
        run = stack.enter_context(record.create(wanted, chosen=name is not None, facts=facts))
        nodes = checked.topology
        sizes = [
            count(len(nodes.workers), "worker"),
            count(len(nodes.servers), "server"),
            count(len(nodes.switches), "switch", "switches"),
        ]
        try:
            watcher.note(f"{nodes.name}: {', '.join(sizes)} in virtual time\n{shown(run.path)}")
            if slowing := wording.costs(nodes.costs):
                watcher.note(slowing)
            started = session.Session(
                *(checked, dataplane, run, watcher.event),
                pcap=pcap,
                trace=events,
                faults=chosen,
            )
            return run, started.execute()
        except JobError as error:
            log = run.logs / "virtual.log"
            raise LaunchError(f"{error}\n(in virtual time; its log: {shown(log)})") from error
        except (KeyboardInterrupt, SystemExit) as error:
            text = ended_by(error)
            watcher.note(f"{text}; its record is {shown(run.path)}")
            run.note_failure(text, None)
            raise
