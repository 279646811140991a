# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on a topology in virtual time, from their files to the run's directory.

One process, without root or namespaces. The result depends only on the files, the options and the
program.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from observability import links, transmissions
from observability.machine import machine_facts
from observability.messages.events import EmitEvent
from observability.messages.summary import JobSummary, is_finished
from observability.record import RunDirectory
from simulation.errors import LinkError, VirtualError
from simulation.faults.chaos import Chaos
from simulation.jobrun import VirtualJob
from simulation.kernel.progress import ProgressReporter
from simulation.links.link import LinkSpec
from simulation.links.trains import SECOND, picoseconds
from simulation.network import Network
from simulation.tracing.events import TraceFile
from simulation.tracing.tracer import Tracer
from specs.faultfile import CONTROLLER, Fault
from testbed import preflight
from testbed.errors import JobError
from testbed.jobrun import expected_loads, summary, unique_name
from testbed.preflight import Preflight
from topologies.model.addressing import Addressing
from topologies.model.spec import TopologyFile

log = logging.getLogger("virtual")

_NEW_OBJECTS = 200_000  # threshold of the garbage collector
_JOURNAL = "journal.db"  # of a controller that is killed
_QUIET_SECONDS = 0.1  # after the last job, for packets in flight


def check(topology: TopologyFile, jobs: Sequence[Path], dataplane: DataPlane) -> Preflight:
    """Checks whether the jobs can run (``preflight.check``, which also lists the errors)."""
    for link, places in zip(topology.topology.links, topology.places, strict=True):
        for quality, where in zip((link.forward, link.backward), places, strict=True):
            try:
                LinkSpec.of(quality)
            except LinkError as error:
                place = where.get("queue_bytes", where.get("rate", ("defaults",)))
                topology.refuse(place, f"{link.a} to {link.b}: {error}")
    topology.check()
    return preflight.check(topology, jobs, dataplane, "embedded", virtual=True)


class Session:
    """A run of jobs that passed ``check``.

    pcap: capture the packets of switch ports.
    trace: the file for trace events.
    faults: what happens meanwhile (``simulation.faults.check``).
    """

    def __init__(
        self,
        checked: Preflight,
        dataplane: DataPlane,
        run: RunDirectory,
        emit: EmitEvent,
        *,
        pcap: bool = False,
        trace: TraceFile | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.run = run
        self._pcap, self._trace = pcap, trace
        topology = checked.topology
        self.addressing = Addressing(topology)
        priorities = any(plan.file.spec.propagation.in_network for plan in checked.jobs)
        killed = {fault.node for fault in faults if fault.kind == "kill"}
        hit = {fault.node for fault in faults if fault.kind in ("kill", "stop")}
        fragile = any(node.name in hit for node in topology.switches)
        self.network = Network(
            topology, self.addressing, dataplane, priorities=priorities, fragile=fragile
        )
        if CONTROLLER in killed:
            self.network.controller.journal = run.path / _JOURNAL
        if pcap:
            run.pcap.mkdir(exist_ok=True)
            self.network.capture(run.pcap)
        self._tracer = Tracer(trace, self.network) if trace is not None else None
        names: list[str] = []
        for plan in checked.jobs:
            names.append(unique_name(plan.file.spec.name, names))
        self.jobs = [
            VirtualJob(
                *(self.network, dataplane, plan.file, name, plan.placement, run.path, emit),
                self._tracer,
            )
            for plan, name in zip(checked.jobs, names, strict=True)
        ]
        for job in self.jobs:
            job.alongside = sorted(other.name for other in self.jobs if other is not job)
        self._chaos = Chaos(self.network, dataplane, faults, self.jobs, emit) if faults else None
        self._progress = ProgressReporter(self.jobs, self.network.engine.settled, emit)
        self._over = False
        self._seconds = 0.0

    def execute(self) -> bool:
        """Runs all jobs; returns whether all weights match the reference, where there is one.

        Raises JobError for the first job that failed, VirtualError.
        """
        with _rare_garbage_collection():
            return self._execute()

    def _execute(self) -> bool:
        began = time.monotonic()
        failure: VirtualError | None = None
        stopped = False
        with _log_to_file(self.run.logs / "virtual.log", self.network):
            try:
                self.network.controller.begin()
                self.network.operator.tasks.thread(self._run_jobs, name="run").start()
                self.network.engine.run(self._ended)
            except VirtualError as error:
                failure = error
            except (KeyboardInterrupt, SystemExit):
                stopped = True
                log.info("ended at %.9f s by a signal", self.network.engine.settled() / SECOND)
                # Messages of tasks that are stopped at an arbitrary point are meaningless.
                logging.getLogger().setLevel(logging.CRITICAL)
                self._seconds = self.network.engine.settled() / SECOND
                raise
            finally:
                self._simulated = time.monotonic() - began
                self._carried = self.network.carried()
                self.network.close()
                if self._tracer is not None:
                    self._tracer.close()
                if stopped:
                    self._stop(began)
            try:
                for job in self.jobs if failure is None else ():
                    job.finish(alone=len(self.jobs) == 1)
            except (KeyboardInterrupt, SystemExit):
                self._stop(began)
                raise
        failed = next((job for job in self.jobs if job.state == "failed"), None)
        text = str(failure) if failure is not None else failed.reason if failed is not None else ""
        written = self._write(text, time.monotonic() - began)
        if self._pcap:
            transmissions.note(self.run, self.addressing)
        if failure is not None:
            raise failure
        if failed is not None:
            raise JobError(failed.reason)
        return all(one["matches_reference"] is not False for one in written if is_finished(one))

    def _ended(self) -> bool:
        if self._tracer is not None:
            self._tracer.tick()
        self._progress.poll()
        return self._over

    def _run_jobs(self) -> None:
        tasks = self.network.operator.tasks
        if self._chaos is not None:
            self._chaos.begin()
        running = [tasks.thread(job.run, name=job.name) for job in self.jobs]
        for one in running:
            one.start()
        for one in running:
            one.join()
        self._seconds = tasks.now()
        if self._chaos is not None:
            self._chaos.end()
        self.network.stop()
        tasks.sleep(_QUIET_SECONDS)
        self._over = True

    def _stop(self, began: float) -> None:
        """Writes the summary of a run that a signal ended."""
        for job in self.jobs:
            job.stop("ended by a signal")
        self._write("", time.monotonic() - began)

    def _write(self, failure: str, wall: float) -> list[JobSummary]:
        """Writes the summary; returns the jobs' parts.

        failure: why the run failed; empty if it did not.
        """
        other = self._chaos is not None and self._chaos.other_traffic
        expected = None if other else expected_loads(self.jobs)
        rows = links.rows(self.addressing, self._carried, expected)
        for job in self.jobs:
            job.wall_seconds, job.links = wall, rows if len(self.jobs) == 1 else []
        engine, costs = self.network.engine, self.network.topology.costs
        written = summary(
            self.jobs,
            name=self.run.name,
            target=VirtualJob.target,
            clock=VirtualJob.clock,
            shaping="simulated",
            links=rows,
            machine=machine_facts("embedded"),
            simulation={
                "simulated_seconds": self._simulated,
                "packets": sum(row["packets"] or 0 for row in rows),
                "rounds": engine.rounds,
            },
            failure={"message": failure.split("\n", 1)[0]} if failure else None,
            faults=self._chaos.rows(picoseconds(self._seconds)) if self._chaos is not None else (),
            virtual={
                "seconds": self._seconds,
                "control_latency": engine.control_latency / SECOND,
                "framing": costs.framing,
                "switch_latency": costs.switch_latency,
                "host_per_packet": costs.host_per_packet,
                "host_per_byte": costs.host_per_byte,
                "interrupt_interval": costs.interrupt_interval,
                "server_rate": costs.server_rate,
                "trace": str(self._trace.path) if self._trace is not None else None,
            },
        )
        self.run.write_summary(written)
        return written["jobs"]


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Runs the garbage collector less often: with a thousand hosts, scanning long-lived objects
    would take a quarter of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


class _VirtualTimeFilter(logging.Filter):
    """Adds the virtual time, node and task to each log record."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    def filter(self, record: logging.LogRecord) -> bool:
        record.virtual = self._network.where()
        return not self._network.ending  # nothing that a killed process still says


@contextlib.contextmanager
def _log_to_file(path: Path, network: Network) -> Iterator[None]:
    """Logs to a file, each line with its virtual time."""
    handler = logging.FileHandler(path)
    handler.addFilter(_VirtualTimeFilter(network))
    handler.setFormatter(logging.Formatter("%(virtual)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)
        handler.close()
