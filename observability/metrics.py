# SPDX-License-Identifier: Apache-2.0
"""Exports snapshots of running testbeds as Prometheus metrics
(https://prometheus.io/docs/concepts/).

Testbeds have network namespaces of their own, where they cannot be scraped. A process outside
listens instead (``rackhub metrics --listen``) and queries testbeds through their control sockets
whenever it is scraped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswerError
from typing import get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from observability import control
from observability.control import ControlError
from observability.messages.jobs import JobState
from observability.messages.live import JobSnapshot, ServerSnapshot, Snapshot, SwitchSnapshot
from observability.messages.servers import ServerTimes
from observability.record import RunDirectory

JOB_STATES: tuple[JobState, ...] = get_args(JobState)
# Prometheus gives a target ten seconds by default.
_ANSWER_SECONDS = 8.0

Family = GaugeMetricFamily | CounterMetricFamily


class _Families:
    """Metric families by name, in the order of their first use."""

    def __init__(self) -> None:
        self.all: dict[str, Family] = {}

    def gauge(self, name: str, about: str, value: float | None, **labels: str) -> None:
        """Adds a value that goes up and down; None: unknown."""
        self._add(GaugeMetricFamily, name, about, value, labels)

    def counter(self, name: str, about: str, value: float | None, **labels: str) -> None:
        """Adds a value that grows or is reset; Prometheus appends ``_total`` to the name."""
        self._add(CounterMetricFamily, name, about, value, labels)

    def _add(
        self,
        kind: Callable[..., Family],
        name: str,
        about: str,
        value: float | None,
        labels: dict[str, str],
    ) -> None:
        name = f"rackhub_{name}"
        if name not in self.all:
            self.all[name] = kind(name, about, labels=list(labels))
        if value is not None:
            self.all[name].add_metric(list(labels.values()), value)


def families(snapshots: Iterable[tuple[str, Snapshot | None]]) -> list[Metric]:
    """Returns the metrics of testbeds, given by name with their snapshots (None: no answer)."""
    found = _Families()
    for name, snapshot in snapshots:
        about = "Whether the testbed answers."
        found.gauge("up", about, float(snapshot is not None), testbed=name)
        if snapshot is not None:
            _testbed(found, name, snapshot)
    return list(found.all.values())


def _testbed(to: _Families, testbed: str, snapshot: Snapshot) -> None:
    about = {
        "topology": snapshot["topology"],
        "target": snapshot["target"],
        "clock": snapshot["clock"],
    }
    to.gauge("info", "What the testbed is.", 1, testbed=testbed, **about)
    to.gauge("uptime_seconds", "Since it was started.", snapshot["seconds_up"], testbed=testbed)
    here = "Whether the process runs."
    up = float(snapshot["controller"])
    to.gauge("node_up", here, up, testbed=testbed, node="controller", kind="controller")
    # A server with several processes counts as so many nodes, s0.0, s0.1..
    nodes = [(one["name"], "switch", one["up"], one["cpu_seconds"]) for one in snapshot["switches"]]
    nodes += [
        (one["name"], "server", one["up"], one["cpu_seconds"])
        for server in snapshot["servers"]
        for one in server["processes"]
    ]
    for name, kind, runs, used in nodes:
        where = {"testbed": testbed, "node": name, "kind": kind}
        to.gauge("node_up", here, float(runs), **where)
        to.counter("node_cpu_seconds", "CPU time of the process.", used, **where)
    for switch in snapshot["switches"]:
        _switch(to, {"testbed": testbed, "switch": switch["name"]}, switch)
    for server in snapshot["servers"]:
        _server(to, {"testbed": testbed, "server": server["name"]}, server)
    for state in JOB_STATES:
        count = sum(job["state"] == state for job in snapshot["jobs"])
        to.gauge("jobs", "Jobs by state.", count, testbed=testbed, state=state)
    # Jobs may reuse the name of one that is over; a series has one value, that of the newest.
    for job in {job["job"]: job for job in snapshot["jobs"]}.values():
        _job(to, {"testbed": testbed, "job": job["job"]}, job)


def _switch(to: _Families, where: dict[str, str], one: SwitchSnapshot) -> None:
    slots = one["slots"]
    to.gauge("switch_slots", "Slots that there are.", slots["total"], **where)
    to.gauge("switch_slots_held", "Slots that jobs hold.", slots["held"], **where)
    text = "Slots with a sum under way, at least."
    for phase, count in (("aggregating", slots["aggregating"]), ("partial", slots["partial"])):
        to.gauge("switch_slots_open", text, count, **where, phase=phase)
    for outcome, count in (one["outcomes"] or {}).items():
        text = "Packets by what became of them, by the switch's own counters."
        to.counter("switch_packets", text, count, **where, outcome=outcome)


def _server(to: _Families, where: dict[str, str], one: ServerSnapshot) -> None:
    for direction, count, rate in (
        ("received", one["received_bytes"], one["receive_rate"]),
        ("sent", one["sent_bytes"], one["send_rate"]),
    ):
        text = "Bytes on the server's links, frames without FCS."
        to.counter("server_bytes", text, count, **where, direction=direction)
        text = "Rate of the server's links."
        to.gauge("server_link_bytes_per_second", text, rate / 8, **where, direction=direction)


def _job(to: _Families, where: dict[str, str], job: JobSnapshot) -> None:
    rate, share = job["chunks_per_second"], job["share_in_network"]
    for name, value, text in (
        ("iteration", job["iteration"], "Iterations that all workers have done."),
        ("iterations", job["iterations"], "Iterations that the job has."),
        ("loss", job["loss"], "Mean loss of the last iteration."),
        ("accuracy", job["accuracy"], "Share of the test set, when last measured."),
        ("chunks_per_second", rate, "Chunks that each worker had back, lately."),
        ("workers", job["workers"], "Workers that it began with."),
        ("workers_present", job["present"], "Workers that are in it."),
        ("plan_epoch", job["plan_epoch"], "Plan epoch: the number of its current plan."),
        ("window_chunks", job["window"], "Chunks in flight per stream."),
        ("share_in_network", share, "Share of chunks that switches summed, 0 to 1."),
    ):
        to.gauge(f"job_{name}", text, value, **where)
    for switch, held in (job["slots"] or {}).items():
        to.gauge("job_slots_held", "Slots that it holds.", held, **where, switch=switch)
    for one in job["servers"]:
        _job_server(to, {**where, "server": one["server"]}, one)


def _job_server(to: _Families, where: dict[str, str], one: ServerTimes) -> None:
    for name, value, text in (
        ("waiting_seconds", one["waiting"], "From a contribution to its sum, at workers."),
        ("handling_seconds", one["handling"], "Of these at the server."),
        ("queueing_seconds", one["queueing"], "Of these before it read the contribution."),
        ("propagation_seconds", one["propagation"], "Of waiting, what is not handling."),
        ("optimizer_seconds", one["optimizer"], "Of handling, for optimizer steps."),
        ("holding_sums", one["holding"], "Complete sums whose results are not ready."),
        ("summing_chunks", one["summing"], "Chunks that lacked contributions, at most."),
        ("blamed_seconds", one["blamed"], "Of a round, that workers waited because of it."),
        ("blame_share", one["blame"], "The same as a share of all servers', 0 to 1."),
        ("straggles", float(one["straggles"]), "Whether it counts as a straggler."),
    ):
        to.gauge(f"job_server_{name}", text, value, **where)
    for direction, value in (
        ("received", one["received_per_second"]),
        ("sent", one["sent_per_second"]),
    ):
        text = "Bytes of the job, frames without FCS."
        to.gauge("job_server_bytes_per_second", text, value, **where, direction=direction)


class Exporter(Collector):
    """Queries the testbeds that ``which`` returns whenever it is scraped."""

    def __init__(self, which: Callable[[], Sequence[RunDirectory]]) -> None:
        self._which = which
        self._pool = ThreadPoolExecutor(thread_name_prefix="metrics")

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of all testbeds."""
        asked = [(run.name, self._pool.submit(control.snapshot, run)) for run in self._which()]
        yield from families([(name, _answer(future)) for name, future in asked])


def _answer(future: Future[Snapshot]) -> Snapshot | None:
    # In Python 3.10, TimeoutError of concurrent.futures is not the built-in one.
    with contextlib.suppress(ControlError, NoAnswerError):
        return future.result(_ANSWER_SECONDS)
    return None


def registry(which: Callable[[], Sequence[RunDirectory]]) -> CollectorRegistry:
    """Returns a registry for ``prometheus_client``, collected at every scrape."""
    asking = CollectorRegistry()
    asking.register(Exporter(which))
    return asking
