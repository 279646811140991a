# SPDX-License-Identifier: Apache-2.0
"""What faults did to the jobs that ran: how long each took to go on, and what was sent again.

A job has recovered from a fault when each of its workers has ended an iteration that it began after
the fault, or, where the fault lasts, after its end: until then one may have lived on results that
were there already. Packets sent again are counted over the same time. Workers' are what they sent
beyond one contribution for each result that they got; switches' are results and partial sums sent
once more, by their own counters. A switch that was killed takes its counts along, so these are the
least that it can have been.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emulation.nodes.switchprocess import SwitchProcess
from observability import outcomes
from observability.results import sent_again
from protocol.outcomes import Outcome

Message = dict[str, Any]
Read = Callable[[Iterable[SwitchProcess]], Awaitable[outcomes.Counts]]


@dataclass(eq=False)
class Impact:
    """What one fault did to one job."""

    job: str
    waits_for: set[int]  # ranks that have not gone on
    plan: int
    sent_again: dict[int, int]  # by workers so far, by rank
    again: int = 0  # by workers, since
    latest: float = 0.0  # when the last of those who have gone on did
    plan_after: int | None = None
    seconds: float | None = None
    by_switches: int | None = None


@dataclass(eq=False)
class Snapshot:
    """What switches that could be read had counted, and how often each had been wiped by then."""

    counts: outcomes.Counts
    wiped: dict[str, int]


@dataclass(eq=False)
class Fault:
    """One fault. ``at``: seconds since the testbed's first job ran; ``what``: in words; ``over``:
    when it had ended (inf: it has not)."""

    kind: str
    node: str
    what: str
    began: float
    over: float
    at: float | None
    before: Snapshot | None = None
    back: float | None = None  # when the worker that was killed took part again
    aggregating: int | None = None
    partial: int | None = None
    impacts: list[Impact] = field(default_factory=list)


@dataclass(eq=False)
class _Trained:
    """A job as its workers tell of it."""

    plan: int
    ranks: set[int]
    sent_again: dict[int, int] = field(default_factory=dict)


class FaultLog:
    """All faults of a testbed. ``frame_bytes``: of a packet with payload."""

    def __init__(self, switches: Mapping[str, SwitchProcess], read: Read, frame_bytes: int) -> None:
        self.faults: list[Fault] = []
        self._switches = switches
        self._read = read
        self._frame_bytes = frame_bytes
        self._jobs: dict[str, _Trained] = {}
        self._ran: float | None = None
        self._expected: dict[str, Fault] = {}
        # The fewest open slots seen since the plan last changed: at least those were given up.
        self._floor: dict[str, tuple[int, int]] = {}
        self._working: set[asyncio.Task[None]] = set()

    # --- faults ---

    async def snapshot(self) -> Snapshot:
        """What the switches have counted now; to be had just before a fault."""
        wiped = {name: switch.wiped for name, switch in self._switches.items()}
        serving = [switch for switch in self._switches.values() if switch.serving]
        return Snapshot(await self._read(serving), wiped)

    def under_way(self, snapshot: Snapshot) -> bool:
        """Whether slots were AGGREGATING and PARTIAL then: all that a fault could meet."""
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
        """A fault happens now; ``before``: see ``snapshot``, None if nobody knew it would come.

        lasting: whoever has begun it sets ``over``. killed: names of processes that it ends, if
        not the node's.
        """
        now = time.monotonic()
        at = None if self._ran is None else now - self._ran
        fault = Fault(kind, node, what, now, math.inf if lasting else now, at, before)
        if before is not None:
            fault.aggregating, fault.partial = self._open(before)
        if kind == "kill":
            self._expected.update(dict.fromkeys(killed or (node,), fault))
        for name, job in self._jobs.items():
            again = dict(job.sent_again)
            fault.impacts.append(Impact(name, set(job.ranks), job.plan, again))
        self.faults.append(fault)
        return fault

    def died(self, node: str, what: str) -> None:
        """A process has ended: as it was told to by a fault, or by itself."""
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
        """A job's workers have begun."""
        self._ran = time.monotonic() if self._ran is None else self._ran
        self._jobs[job] = _Trained(plan, set(ranks))

    def over(self, job: str) -> None:
        """A job's workers have ended."""
        self._jobs.pop(job, None)

    def lost(self, job: str, rank: int) -> None:
        """A job goes on without a worker."""
        if job in self._jobs:
            self._jobs[job].ranks.discard(rank)
        for fault in self.faults:
            for impact in fault.impacts:
                if impact.job == job and impact.seconds is None:
                    self._gone_on(fault, impact, rank, time.monotonic())

    def joined(self, job: str, rank: int, node: str) -> None:
        """A worker that was lost is in a job again."""
        if job in self._jobs:
            self._jobs[job].ranks.add(rank)
        for fault in reversed(self.faults):
            hit = any(impact.job == job for impact in fault.impacts)
            if fault.node == node and fault.kind in ("kill", "died") and hit:
                fault.back = fault.back or time.monotonic()
                return

    def progress(self, job: str, rank: int, report: Message) -> None:
        """A worker's report (``testbed.worker``, ``progress``)."""
        known = self._jobs.get(job)
        if known is None:
            return
        known.plan = max(known.plan, report["plan"])
        known.sent_again[rank] = sent_again(report["statistics"])
        for fault in self.faults:
            for impact in fault.impacts:
                if impact.job != job or rank not in impact.waits_for:
                    continue
                ended = next((end for began, end in report["spans"] if began > fault.over), None)
                if ended is not None:
                    had = impact.sent_again.get(rank, 0)
                    impact.again += max(0, known.sent_again[rank] - had)
                    impact.plan_after = max(impact.plan_after or 0, report["plan"])
                    self._gone_on(fault, impact, rank, ended)

    def _gone_on(self, fault: Fault, impact: Impact, rank: int, when: float) -> None:
        impact.waits_for.discard(rank)
        impact.latest = max(impact.latest, when)
        if not impact.waits_for and impact.seconds is None:
            impact.seconds = max(0.0, impact.latest - fault.began)
            self._later(self._settle(fault, impact))

    async def _settle(self, fault: Fault, impact: Impact) -> None:
        """A job has recovered: what switches have sent again by now was sent for that."""
        now = await self.snapshot()
        self._open(now, renewed=impact.plan_after != impact.plan)
        if fault.before is not None:
            impact.by_switches = sum(
                _by_switch(counts)
                - (
                    _by_switch(fault.before.counts[name])
                    if name in fault.before.counts and fault.before.wiped[name] == now.wiped[name]
                    else 0
                )
                for name, counts in now.counts.items()
            )

    # --- the record ---

    async def settled(self) -> None:
        """Until everything that is being read has been."""
        while self._working:
            await asyncio.wait(self._working)

    def rows(self) -> list[Message]:
        """An entry for each fault and each job that ran when it came."""
        none = Impact("", set(), 0, {})
        return [
            self._row(fault, impact) for fault in self.faults for impact in fault.impacts or [none]
        ]

    def _row(self, fault: Fault, impact: Impact) -> Message:
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
            # After how many seconds the worker that it cost the job was in it again.
            "rejoined_after": None if fault.back is None else fault.back - fault.began,
            "epoch_before": impact.plan or None,
            "epoch_after": impact.plan_after,
            "resent_packets": packets,
            "resent_bytes": None if packets is None else packets * self._frame_bytes,
        }

    # --- inside ---

    def _open(self, snapshot: Snapshot, *, renewed: bool = False) -> tuple[int, int]:
        """Slots that were AGGREGATING and PARTIAL, at least, over all switches that could tell."""
        total = [0, 0]
        for name, counts in snapshot.counts.items():
            # A cell may be read later than the one before it.
            aggregating, partial = outcomes.open_slots(counts)
            found = max(0, aggregating), max(0, partial)
            fewest = self._floor.get(name, (0, 0))
            if renewed:
                self._floor[name] = found
                continue
            self._floor[name] = (min(found[0], fewest[0]), min(found[1], fewest[1]))
            for which in (0, 1):
                total[which] += max(0, found[which] - fewest[which])
        return total[0], total[1]

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)


def _by_switch(counts: Counter[Outcome]) -> int:
    return counts[Outcome.REPLAYED] + counts[Outcome.RESENT]
