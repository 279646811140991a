# SPDX-License-Identifier: Apache-2.0
"""Measures in virtual time how jobs recover from faults (`emulation.jobs.recovery` says from when
on a job has recovered), and what workers retransmitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from observability.messages.process_reports import ProgressReport
from observability.messages.summary import FaultImpact
from observability.results import retransmitted
from simulation.jobrun import Follower, VirtualJob
from simulation.links.trains import NEVER, SECOND
from simulation.nodes.host import HostNode
from specs.faultfile import Fault

__all__ = ["Happened", "Training"]


@dataclass(eq=False)
class Happened:
    """A fault that has happened.

    began, over: when it began and, NEVER before that, ended (ps).
    waits: ranks of each job that were in it then.
    """

    fault: Fault
    what: str
    began: int
    over: int = NEVER
    waits: Mapping[str, Set[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Mark:
    """A worker's report: when (ps), its plan's epoch, and the packets that it has retransmitted."""

    at: int
    plan: int
    again: int


class _Iterations:
    """The iterations of a job's workers, by rank, as far as known."""

    def __init__(self) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}  # begins and ends (ps)
        self.began: dict[int, int] = {}  # the present one's begin
        self._gone: dict[int, list[int]] = {}  # when the job went on without a worker

    def begin(self, rank: int, at: int) -> None:
        """A worker begins to train, or again."""
        self._spans.setdefault(rank, [])
        self.began[rank] = at

    def end(self, rank: int, at: int) -> None:
        """A worker ends an iteration."""
        self._spans[rank].append((self.began[rank], at))
        self.began[rank] = at

    def lose(self, rank: int, at: int) -> None:
        """The job goes on without a worker."""
        self._gone.setdefault(rank, []).append(at)

    def recovered(self, rank: int, fault: Happened) -> tuple[int, bool] | None:
        """Returns when a worker ended the first iteration that it began after a fault's end, or
        when the job went on without it, which is True; None before that."""
        spans = [(end, False) for began, end in self._spans[rank] if began >= fault.over]
        gone = [(at, True) for at in self._gone.get(rank, ()) if at >= fault.began]
        return min([*spans[:1], *gone[:1]], default=None)


class Training(Follower):
    """What the workers of a job have done so far.

    heard: called at a worker's host with work for the operator, which hears of it later; and
        whether a worker begins.
    say: called at the operator with texts.
    """

    def __init__(
        self,
        job: VirtualJob,
        now: Callable[[], int],
        heard: Callable[[HostNode, Callable[[], None], bool], None],
        say: Callable[[str], None],
    ) -> None:
        self.name, self._job, self._world = job.name, job, len(job.placement.workers)
        self._chunks = job.forecast.workload.chunks  # of an iteration
        self._now, self._heard, self._say = now, heard, say
        self._recorded = _Iterations()
        self._marks: dict[int, list[_Mark]] = {}
        self._back: dict[int, list[int]] = {}  # when a worker was in the job again (ps)
        # What the operator knows.
        self._known = _Iterations()
        self._done: dict[int, int] = {}  # iterations, of those in the job
        self.ran: int | None = None  # when all workers ran (ps)

    # --- Follower ---

    def runs(self, host: HostNode, rank: int, done: int, plan: int) -> None:
        """Implements Follower."""
        at = host.now
        if rank in self._marks:
            self._back.setdefault(rank, []).append(at)
        self._marks.setdefault(rank, []).append(_Mark(at, plan, 0))
        self._recorded.begin(rank, at)

        def learn() -> None:
            self._known.begin(rank, at)
            self._done[rank] = done
            if self.ran is None and len(self._done) == self._world:
                self.ran = max(self._known.began.values())

        self._heard(host, learn, True)

    def iterated(self, host: HostNode, rank: int, iteration: int) -> None:
        """Implements Follower."""
        at = host.now
        self._recorded.end(rank, at)

        def learn() -> None:
            self._known.end(rank, at)
            self._done[rank] = iteration

        self._heard(host, learn, False)

    def reported(self, host: HostNode, rank: int, report: ProgressReport) -> None:
        """Implements Follower."""
        again = retransmitted(report["statistics"])
        self._marks[rank].append(_Mark(host.now, report["plan"], again))

    def lost(self, rank: int) -> None:
        """Implements Follower."""
        self._recorded.lose(rank, self._now())
        self._known.lose(rank, self._now())
        self._done.pop(rank, None)

    def tell(self, text: str) -> None:
        """Implements Follower."""
        self._say(text)

    # --- what the operator knows ---

    @property
    def present(self) -> frozenset[int]:
        """Ranks that are in the job."""
        return frozenset(self._done)

    @property
    def chunks_done(self) -> int:
        """Chunks of iterations that all workers have ended."""
        return self._chunks * min(self._done.values(), default=0)

    def has_recovered(self, fault: Happened) -> bool:
        """Returns whether the job has recovered from a fault."""
        return all(self._known.recovered(rank, fault) for rank in fault.waits[self.name])

    # --- the record ---

    def row(self, one: Happened, ran: int, ended: int, frame_bytes: int) -> FaultImpact:
        """Returns the row of a fault that has happened.

        ran: when the first job ran; ended: when the last one ended (ps). frame_bytes: of a packet.
        """
        ends = {rank: self._recorded.recovered(rank, one) for rank in one.waits[self.name]}
        recovered = None
        if all(ends.values()):
            recovered = max((end[0] for end in ends.values() if end), default=one.began)
        before = [m.plan for marks in self._marks.values() for m in marks if m.at <= one.began]
        plans, again = [], 0
        for rank, end in ends.items():
            marks = self._marks[rank]
            mark = next((m for m in marks if end and not end[1] and m.at >= end[0]), None)
            if mark is not None:
                plans.append(mark.plan)
                had = [m.again for m in marks if m.at <= one.began]
                again += max(0, mark.again - (had[-1] if had else 0))
        packets = None if recovered is None else again
        back = self._rejoined(one)
        return {
            "at": (one.began - ran) / SECOND,
            "kind": one.fault.kind,
            "node": one.fault.where,
            "what": one.what,
            "aggregating": None,
            "partial": None,
            "job": self.name,
            "seconds": None if recovered is None else (recovered - one.began) / SECOND,
            "lasted": None if one.over > ended else (one.over - one.began) / SECOND,
            "rejoined_after": None if back is None else (back - one.began) / SECOND,
            "epoch_before": max(before, default=None),
            "epoch_after": None if recovered is None else max(plans, default=None),
            "resent_packets": packets,
            "resent_bytes": None if packets is None else packets * frame_bytes,
        }

    def _rejoined(self, one: Happened) -> int | None:
        """Returns when the worker that a fault killed was in the job again (ps)."""
        hosts = self._job.placement.workers
        if one.fault.kind != "kill" or one.fault.node not in hosts:
            return None
        times = self._back.get(hosts.index(one.fault.node), ())
        return next((at for at in times if at >= one.began), None)
