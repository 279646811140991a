# SPDX-License-Identifier: Apache-2.0
"""Measures how jobs recover from faults: recovery times and retransmitted packets.

A job has recovered from a fault when each of its workers has ended an iteration that it began after
the fault, or, if the fault lasts, after its end; earlier iterations may use results that already
existed. Retransmitted packets are counted over the same time. Those of workers are what they sent
beyond one contribution per result; those of switches are repeated results and partial sums, by
their own counters. A killed switch loses its counts, so the numbers are lower bounds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from emulation.nodes.switchprocess import SwitchProcess
from observability import outcomes
from observability.messages.process_reports import ProgressReport
from observability.messages.summary import FaultImpact
from observability.results import retransmitted

Read = Callable[[Iterable[SwitchProcess]], Awaitable[outcomes.Counts]]


@dataclass(eq=False)
class Impact:
    """The effect of one fault on one job."""

    job: str
    waits_for: set[int]  # ranks that have not recovered
    plan: int
    retransmitted: dict[int, int]  # packets retransmitted before the fault, by rank
    again: int = 0  # packets that workers retransmitted since
    latest: float = 0.0  # time of the latest recovery of a worker
    plan_after: int | None = None
    seconds: float | None = None
    by_switches: int | None = None


@dataclass(eq=False)
class Snapshot:
    """Counters of the switches that could be read, and how often each had lost its counters."""

    counts: outcomes.Counts
    wiped: dict[str, int]


@dataclass(eq=False)
class Fault:
    """One fault.

    what: description in words.
    began, over: times of begin and end (inf: it has not ended).
    at: seconds since the testbed's first job ran.
    before: counters just before the fault.
    back: time when the worker that was killed rejoined.
    aggregating, partial: slots in these states at the fault, at least.
    """

    kind: str
    node: str
    what: str
    began: float
    over: float
    at: float | None
    before: Snapshot | None = None
    back: float | None = None
    aggregating: int | None = None
    partial: int | None = None
    impacts: list[Impact] = field(default_factory=list)


@dataclass(eq=False)
class _Trained:
    """A job's epoch, workers and retransmissions, as its workers report them."""

    plan: int
    ranks: set[int]
    retransmitted: dict[int, int] = field(default_factory=dict)


class FaultLog:
    """Records the faults of a testbed and the recovery of its jobs.

    read: reads the counters of switches. frame_bytes: size of a packet with payload.
    """

    def __init__(self, switches: Mapping[str, SwitchProcess], read: Read, frame_bytes: int) -> None:
        self.faults: list[Fault] = []
        self._switches = switches
        self._read = read
        self._frame_bytes = frame_bytes
        self._jobs: dict[str, _Trained] = {}
        self._ran: float | None = None
        self._expected: dict[str, Fault] = {}
        self._slots = outcomes.OpenSlots()
        self._working: set[asyncio.Task[None]] = set()

    # --- faults ---

    @property
    def other_traffic(self) -> bool:
        """True if packets that belong to no job were sent on purpose."""
        return any(fault.kind == "load" for fault in self.faults)

    async def snapshot(self) -> Snapshot:
        """Reads the switches' counters; call it just before a fault."""
        wiped = {name: switch.wiped for name, switch in self._switches.items()}
        serving = [switch for switch in self._switches.values() if switch.serving]
        return Snapshot(await self._read(serving), wiped)

    def under_way(self, snapshot: Snapshot) -> bool:
        """Returns whether slots were both AGGREGATING and PARTIAL in a snapshot."""
        return all(self._open(snapshot))

    def begin(
        self,
        kind: str,
        node: str,
        what: str,
        before: Snapshot | None = None,
        *,
        lasting: bool = False,
        killed: Sequence[str] = (),
    ) -> Fault:
        """Records a fault that happens now.

        before: ``snapshot`` taken just before; None if the fault was not expected.
        lasting: the caller sets ``over`` of the result when the fault ends.
        killed: names of the processes that a kill ends, if not the node's.
        """
        now = time.monotonic()
        at = None if self._ran is None else now - self._ran
        fault = Fault(kind, node, what, now, math.inf if lasting else now, at, before)
        if before is not None:
            fault.aggregating, fault.partial = self._open(before)
        if kind == "kill":
            self._expected.update(dict.fromkeys(killed or (node,), fault))
        for name, job in self._jobs.items():
            again = dict(job.retransmitted)
            fault.impacts.append(Impact(name, set(job.ranks), job.plan, again))
        self.faults.append(fault)
        return fault

    def died(self, node: str, what: str) -> None:
        """Records the end of a process, by an injected fault or by itself."""
        fault = self._expected.pop(node, None)
        if fault is not None:
            fault.what = what
            return
        fault = self.begin("died", node, what)
        self._later(self._look(fault))

    async def _look(self, fault: Fault) -> None:
        fault.before = await self.snapshot()

    # --- jobs ---

    def runs(self, job: str, ranks: Iterable[int], plan: int) -> None:
        """Records that a job's workers run."""
        self._ran = time.monotonic() if self._ran is None else self._ran
        self._jobs[job] = _Trained(plan, set(ranks))

    def over(self, job: str) -> None:
        """Records that a job's workers have ended."""
        self._jobs.pop(job, None)

    def lost(self, job: str, rank: int) -> None:
        """Records that a job continues without a worker."""
        if job in self._jobs:
            self._jobs[job].ranks.discard(rank)
        for fault in self.faults:
            for impact in fault.impacts:
                if impact.job == job and impact.seconds is None:
                    self._gone_on(fault, impact, rank, time.monotonic())

    def met(self, job: str) -> bool:
        """Returns whether a fault happened while a job ran."""
        return any(impact.job == job for fault in self.faults for impact in fault.impacts)

    def joined(self, job: str, rank: int, node: str) -> None:
        """Records that a lost worker has rejoined a job."""
        if job in self._jobs:
            self._jobs[job].ranks.add(rank)
        for fault in reversed(self.faults):
            hit = any(impact.job == job for impact in fault.impacts)
            if fault.node == node and fault.kind in ("kill", "died") and hit:
                fault.back = fault.back or time.monotonic()
                return

    def progress(self, job: str, rank: int, report: ProgressReport) -> None:
        """Takes a worker's ``progress`` report (``testbed.worker``)."""
        known = self._jobs.get(job)
        if known is None:
            return
        known.plan = max(known.plan, report["plan"])
        known.retransmitted[rank] = retransmitted(report["statistics"])
        for fault in self.faults:
            for impact in fault.impacts:
                if impact.job != job or rank not in impact.waits_for:
                    continue
                ended = next((end for began, end in report["spans"] if began > fault.over), None)
                if ended is not None:
                    had = impact.retransmitted.get(rank, 0)
                    impact.again += max(0, known.retransmitted[rank] - had)
                    impact.plan_after = max(impact.plan_after or 0, report["plan"])
                    self._gone_on(fault, impact, rank, ended)

    def _gone_on(self, fault: Fault, impact: Impact, rank: int, when: float) -> None:
        impact.waits_for.discard(rank)
        impact.latest = max(impact.latest, when)
        if not impact.waits_for and impact.seconds is None:
            impact.seconds = max(0.0, impact.latest - fault.began)
            self._later(self._settle(fault, impact))

    async def _settle(self, fault: Fault, impact: Impact) -> None:
        """Counts what switches retransmitted until a job recovered."""
        now = await self.snapshot()
        if impact.plan_after != impact.plan:
            self._slots.renew()
        self._open(now)
        if fault.before is not None:
            impact.by_switches = sum(
                outcomes.retransmissions(counts)
                - (
                    outcomes.retransmissions(fault.before.counts[name])
                    if name in fault.before.counts and fault.before.wiped[name] == now.wiped[name]
                    else 0
                )
                for name, counts in now.counts.items()
            )

    # --- the record ---

    async def settled(self) -> None:
        """Waits until all reads under way have ended."""
        while self._working:
            await asyncio.wait(self._working)

    def rows(self) -> list[FaultImpact]:
        """Returns a row for each fault and each job that ran when it happened."""
        none = Impact("", set(), 0, {})
        return [
            self._row(fault, impact) for fault in self.faults for impact in fault.impacts or [none]
        ]

    def _row(self, fault: Fault, impact: Impact) -> FaultImpact:
        packets = None
        if impact.seconds is not None:
            packets = impact.again + (impact.by_switches or 0)
        return {
            "at": fault.at,
            "kind": fault.kind,
            "node": fault.node,
            "what": fault.what,
            "aggregating": fault.aggregating,
            "partial": fault.partial,
            "job": impact.job or None,
            "seconds": impact.seconds,
            "lasted": None if fault.over == math.inf else fault.over - fault.began,
            "rejoined_after": None if fault.back is None else fault.back - fault.began,
            "epoch_before": impact.plan or None,
            "epoch_after": impact.plan_after,
            "resent_packets": packets,
            "resent_bytes": None if packets is None else packets * self._frame_bytes,
        }

    # --- inside ---

    def _open(self, snapshot: Snapshot) -> tuple[int, int]:
        """Returns lower bounds of the slots in AGGREGATING and PARTIAL, over all switches read."""
        found = [self._slots.look(name, counts) for name, counts in snapshot.counts.items()]
        return sum(first for first, _ in found), sum(second for _, second in found)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
