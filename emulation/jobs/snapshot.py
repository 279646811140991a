# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of a running testbed for `status --live`, metrics and time series.

Slots held by jobs, epochs and trees come from the controller (its Status call), outcome counters
from the switches over P4Runtime, bytes of servers from the counters of the switch ports at their
links, and progress from workers. Fields of a process that is stopped or does not answer in time are
None. Requests at short intervals share a snapshot, so that polling often costs no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from emulation.jobs import service_status
from emulation.jobs.external_jobs import ExternalJobs
from emulation.jobs.jobrun import EmulatedJob
from emulation.nodes import counters
from emulation.nodes.process_supervisor import CONTROLLER, ProcessSupervisor
from emulation.nodes.switchprocess import PortCounters, SwitchProcess
from observability.messages.jobs import ExternalJob
from observability.messages.live import (
    Description,
    JobSnapshot,
    PlanState,
    ProcessSnapshot,
    ServerSnapshot,
    Snapshot,
    SwitchSnapshot,
)
from observability.outcomes import OpenSlots
from observability.series import SeriesWriter
from observability.server_times import server_rows
from protocol import jobs_pb2
from protocol.outcomes import Outcome
from topologies.model.replica_order import host_of

log = logging.getLogger("snapshot")

# Requests within this time share a snapshot.
FRESH_SECONDS = 0.2
# Long enough on a busy machine; metrics have to arrive within ten seconds.
_ANSWER_SECONDS = 4.0
# Seconds between samples of the series, least and most; samples over the time so far.
_LEAST_PAUSE, _MOST_PAUSE, _SAMPLES = 0.25, 5.0, 240
# The pause after a sample is at least its CPU time times this.
_REST = 25


class Observer:
    """Takes snapshots of a testbed.

    jobs: submitted jobs, by name.
    external: jobs of users' own programs.
    describe: returns what the testbed is.
    """

    def __init__(
        self,
        nodes: ProcessSupervisor,
        jobs: Mapping[str, EmulatedJob],
        external: ExternalJobs,
        dataplane: DataPlane,
        describe: Callable[[], Description],
    ) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._external = external
        self._dataplane = dataplane
        self._describe = describe
        self._taking: asyncio.Task[Snapshot] | None = None
        self._taken = 0.0
        self._open = OpenSlots()
        self._asked: dict[str, asyncio.Task[dict[int, PortCounters] | None]] = {}

    async def snapshot(self) -> Snapshot:
        """Returns the state of the testbed now; docs/reference/metrics.md lists its fields."""
        over = self._taking is None or self._taking.done()
        if over and time.monotonic() - self._taken > FRESH_SECONDS:
            self._taking = asyncio.get_running_loop().create_task(self._take())
            self._taking.add_done_callback(lambda task: task.cancelled() or task.exception())
        assert self._taking is not None
        return await asyncio.shield(self._taking)

    async def record(self, series: SeriesWriter) -> None:
        """Adds samples to a series while jobs run, and one after; runs until cancelled."""
        active, began = False, 0.0
        while True:
            before, start, used = active, time.monotonic(), time.process_time()
            active = any(job.state == "running" for job in self._jobs.values())
            began = began if before else start
            if active or before:
                await self.sample(series)
            now = time.monotonic()
            rest = _REST * (time.process_time() - used)
            wanted = max(_LEAST_PAUSE, (now - began) / _SAMPLES, rest)
            await asyncio.sleep(min(_MOST_PAUSE, wanted))

    async def sample(self, series: SeriesWriter) -> None:
        """Adds a sample to a series; logs a failure instead of raising it."""
        try:
            series.sample(await self.snapshot())
        except Exception:
            log.exception("cannot take a sample of the series")

    # --- inside ---

    async def _take(self) -> Snapshot:
        when = time.monotonic()
        serving = [
            switch
            for switch in self._nodes.switches.values()
            if switch.serving and switch.process is not None and not switch.process.stopped
        ]
        status, (counts, _), ports = await asyncio.gather(
            service_status.read_status(_ANSWER_SECONDS),
            counters.read(serving, self._dataplane, _ANSWER_SECONDS),
            self._ports(serving),
        )
        self._taken = time.monotonic()
        jobs = {job.job: job for job in status.jobs} if status is not None else {}
        if status is not None:
            self._open.plans({number: job.epoch for number, job in jobs.items() if job.slots})
        about = self._describe()
        budgets = {one.switch: one for one in status.budgets} if status is not None else {}
        return {
            "name": about["name"],
            "topology": about["topology"],
            "target": about["target"],
            "clock": about["clock"],
            "seconds_up": about["seconds_up"],
            "monotonic": when,
            "controller": self._up(CONTROLLER),
            "switches": [
                self._switch(name, budgets.get(name), counts.get(name))
                for name in self._nodes.switches
            ],
            "servers": [self._server(host, ports) for host in self._server_hosts],
            "jobs": [
                *(self._job(job, jobs.get(job.number)) for job in self._jobs.values()),
                *(_external(row, jobs.get(row["number"])) for row in self._external.rows(status)),
            ],
        }

    async def _ports(
        self, serving: list[SwitchProcess]
    ) -> dict[str, dict[int, PortCounters] | None]:
        """Returns port counters of the switches that servers are linked to; switches that do not
        answer in time are left out."""
        addressing = self._nodes.addressing
        hosts = self._server_hosts
        wanted = {end.switch for host in hosts for end in addressing.host_interfaces(host)}
        asked = {}
        for switch in serving:
            if switch.name not in wanted:
                continue
            # A switch that owes an answer is not queried once more.
            task = self._asked.get(switch.name)
            if task is None or task.done():
                task = asyncio.get_running_loop().create_task(_counters(switch))
                self._asked[switch.name] = task
            asked[switch.name] = task
        if asked:
            await asyncio.wait(asked.values(), timeout=_ANSWER_SECONDS)
        return {name: task.result() for name, task in asked.items() if task.done()}

    @property
    def _server_hosts(self) -> list[str]:
        """Hosts with server processes."""
        return list(dict.fromkeys(host_of(name) for name in self._nodes.servers))

    def _up(self, name: str) -> bool:
        process = self._nodes.at(name)
        return process is not None and process.running and not process.stopped

    def _pid(self, name: str) -> int | None:
        process = self._nodes.at(name)
        return process.pid if process is not None and process.running else None

    def _switch(
        self, name: str, budget: jobs_pb2.Budget | None, counted: Counter[Outcome] | None
    ) -> SwitchSnapshot:
        aggregating, partial = None, None
        if counted is not None:
            held = budget.used if budget is not None else None
            aggregating, partial = self._open.look(name, counted, held)
        return {
            "name": name,
            "up": self._up(name),
            "slots": {
                "total": budget.slots if budget is not None else None,
                "held": budget.used if budget is not None else None,
                "aggregating": aggregating,
                "partial": partial,
            },
            "outcomes": (
                {one.name.lower(): counted[one] for one in Outcome} if counted is not None else None
            ),
            "cpu_seconds": _cpu_seconds(self._pid(name)),
        }

    def _server(
        self, host: str, ports: Mapping[str, dict[int, PortCounters] | None]
    ) -> ServerSnapshot:
        """Returns the row of a server host, whose processes share its links."""
        processes: list[ProcessSnapshot] = [
            {"name": one.name, "up": self._up(name), "cpu_seconds": _cpu_seconds(self._pid(name))}
            for name, one in self._nodes.servers.items()
            if host_of(name) == host
        ]
        used = [one["cpu_seconds"] for one in processes if one["cpu_seconds"] is not None]
        ends = self._nodes.addressing.host_interfaces(host)
        counted = [(ports.get(end.switch) or {}).get(end.switch_port) for end in ends]
        known = [one for one in counted if one is not None]
        whole = len(known) == len(ends)
        return {
            "name": host,
            "up": all(one["up"] for one in processes),
            "received_bytes": sum(one.tx_bytes for one in known) if whole else None,
            "sent_bytes": sum(one.rx_bytes for one in known) if whole else None,
            # Sum over its links, bit/s.
            "receive_rate": sum(end.incoming.rate for end in ends),
            "send_rate": sum(end.outgoing.rate for end in ends),
            "cpu_seconds": sum(used) if used else None,
            "processes": processes,
        }

    @staticmethod
    def _job(job: EmulatedJob, status: jobs_pb2.Job | None) -> JobSnapshot:
        progress = job.progress()
        rate = progress.get("chunks_per_second")
        if rate is not None and job.state != "running":
            rate = 0.0  # its last one is over
        return {
            "job": job.name,
            "number": job.number,
            "state": job.state,
            "reason": job.reason.split("\n", 1)[0] or (status.reason if status else ""),
            "workers": len(job.placement.workers),
            "present": len(job.workers.present) if job.state == "running" else None,
            "tree": status.tree.lower().replace("_", "-") if status else job.file.spec.tree,
            **_plan(status),
            "iteration": progress["iteration"],
            "iterations": progress["iterations"],
            "passes": progress.get("passes"),
            "loss": progress.get("loss"),
            "accuracy": progress.get("accuracy"),
            "chunks_per_second": rate,
            "share_in_network": progress.get("share_in_network"),
            "servers": server_rows(status) if status else [],
        }


def _plan(status: jobs_pb2.Job | None) -> PlanState:
    """Returns what the controller reports of a job's plan."""
    return {
        "plan_epoch": status.epoch if status else None,
        "window": status.window if status else None,
        "slots": dict(status.slots) if status else None,
    }


def _external(row: ExternalJob, status: jobs_pb2.Job | None) -> JobSnapshot:
    """Returns the row of an external job, whose progress is unknown."""
    return {
        **row,
        **_plan(status),
        "passes": None,
        "loss": None,
        "accuracy": None,
        "chunks_per_second": None,
        "share_in_network": None,
        "servers": server_rows(status) if status else [],
    }


async def _counters(switch: SwitchProcess) -> dict[int, PortCounters] | None:
    with contextlib.suppress(TimeoutError, OSError):
        return await switch.counters()
    return None


def _cpu_seconds(pid: int | None) -> float | None:
    """Returns the CPU time of a process and of its living descendants (proc(5))."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_seconds(int(child)) or 0.0 for child in children)
