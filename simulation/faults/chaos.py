# SPDX-License-Identifier: Apache-2.0
"""Has faults happen while jobs run in virtual time (``specs.faultfile``).

A task of the operator for each fault waits until it is due. Changes reach switches and hosts as
calls, 1 ms later, and say themselves from what time on they hold: what is known before is exact to
the picosecond.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from hosts.errors import ClientError
from observability.messages.events import EmitEvent
from observability.messages.summary import FaultImpact
from planner.link_loads import Direction
from simulation.jobrun import VirtualJob
from simulation.kernel.calls import ask
from simulation.kernel.engine import Node
from simulation.links.timeline import Step, Timeline, product
from simulation.links.trains import NEVER, SECOND, picoseconds
from simulation.network import Network
from simulation.nodes.background import BackgroundFlow, is_background
from simulation.nodes.host import HostNode
from specs.faultfile import Fault, slow_words
from specs.scaling import changes, scaled_words
from specs.slowdowns import EVERY_LINK
from topologies.model.topology import Link
from topologies.model.units import rate_text

__all__ = ["Chaos"]

_AHEAD = SECOND  # ps that steps of a pattern are known before they happen

Hit = Direction | str
"""A direction of a link, or a host, that may be slow."""


@dataclass(eq=False)
class _Happened:
    """A fault that has happened: when it began and, NEVER before that, ended (ps)."""

    fault: Fault
    what: str
    began: int
    over: int = NEVER


@dataclass(eq=False)
class _Training:
    """When each worker of a job, by rank, began and ended its iterations (ps), as far as known."""

    workers: int
    chunks: int  # of an iteration
    times: dict[int, list[int]] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)  # iterations

    @property
    def running(self) -> bool:
        """True once all workers run."""
        return len(self.times) >= self.workers

    @property
    def chunks_done(self) -> int:
        """Chunks of iterations that all workers have ended."""
        return self.chunks * min(self.done.values()) if self.running else 0

    def take(self, rank: int, iteration: int, at: int) -> None:
        """Takes the end of a worker's iteration, or that it has begun."""
        self.times.setdefault(rank, []).append(at)
        self.done[rank] = iteration

    def recovered(self, fault: _Happened) -> int | None:
        """Returns when all workers had ended an iteration begun after the fault's end, or None."""
        latest = 0
        for times in self.times.values():
            ends = (end for began, end in itertools.pairwise(times) if began >= fault.over)
            end = next(ends, None)
            if end is None:
                return None
            latest = max(latest, end)
        return latest


class Chaos:
    """The faults of a run; times count from when its first job runs."""

    def __init__(
        self,
        network: Network,
        faults: Sequence[Fault],
        jobs: Sequence[VirtualJob],
        emit: EmitEvent,
    ) -> None:
        self._network, self._faults, self._jobs, self._emit = network, faults, jobs, emit
        self._engine, self._operator = network.engine, network.operator
        if any("corrupt" in dict(fault.quality) for fault in faults):
            network.corrupts = True
        for fault in faults:
            if fault.kind == "load":
                network.hosts[fault.ends[1]].discards = is_background
        self._tasks = [
            self._operator.tasks.thread(self._one, f"fault {number}", (number, fault))
            for number, fault in enumerate(faults)
        ]
        self._further = self._operator.tasks.condition()
        self._ran = NEVER  # ps when the first job ran, once it does
        self._over = False
        self._happened: list[_Happened] = []
        self._flows: list[tuple[HostNode, BackgroundFlow]] = []
        self._slow: dict[Hit, dict[int, Timeline]] = {}  # by fault
        self._impaired: dict[int, tuple[list[Link], dict[str, float]]] = {}  # by fault
        # What the operator knows, and what has happened by the end of the run.
        self._known = {job.name: self._training(job) for job in jobs}
        self._recorded = {job.name: self._training(job) for job in jobs}
        self._counts = any((one.chunks, one.lasts, one.after) != (None,) * 3 for one in faults)
        for job in jobs:
            job.heard = partial(self._hear, job.name)

    @property
    def other_traffic(self) -> bool:
        """True if links carry more than the jobs' packets."""
        return any(fault.kind == "load" for fault in self._faults)

    def begin(self) -> None:
        """Starts to wait for the faults; call from a task of the operator."""
        for task in self._tasks:
            task.start()

    def end(self) -> None:
        """Has no more faults happen, and ends background traffic; call from a task of the
        operator."""
        self._over = True
        for host, flow in self._flows:
            self._call(host, flow.stop)

    def rows(self, ended: int) -> list[FaultImpact]:
        """Returns a row for each fault that has happened and each job.

        ended: when the jobs had ended (ps).
        """
        return [
            self._row(one, name, training, ended)
            for one in sorted(self._happened, key=lambda one: one.began)
            for name, training in self._recorded.items()
            if one.began <= ended
        ]

    # --- what workers do ---

    @staticmethod
    def _training(job: VirtualJob) -> _Training:
        return _Training(len(job.placement.workers), job.forecast.workload.chunks)

    def _hear(self, job: str, host: HostNode, rank: int, iteration: int) -> None:
        """Handles, at its host, that a worker runs or has ended an iteration."""
        at = host.now
        first = rank not in self._recorded[job].times
        self._recorded[job].take(rank, iteration, at)
        if first or self._counts:
            self._engine.post(
                host,
                self._operator,
                at + self._engine.control_latency,
                lambda: self._learn(job, rank, iteration, at),
            )

    def _learn(self, job: str, rank: int, iteration: int, at: int) -> None:
        known = self._known[job]
        known.take(rank, iteration, at)
        if known.running and self._ran == NEVER:
            self._ran = max(times[0] for times in known.times.values())
        self._operator.tasks.thread(self._wake, "faults").start()

    def _wake(self) -> None:
        with self._further:
            self._further.notify_all()

    @property
    def _chunks(self) -> int:
        """Chunks that the first job has done."""
        return self._known[self._jobs[0].name].chunks_done

    # --- when faults happen ---

    def _one(self, number: int, fault: Fault) -> None:
        """Waits until a fault is due, and has it happen."""
        with self._further:
            self._further.wait_for(lambda: self._ran < NEVER)
        begins = self._ran + picoseconds(fault.at)
        if fault.after is not None:
            for earlier, task in zip(self._faults[:number], self._tasks, strict=False):
                if not earlier.endless:
                    task.join()
            with self._further:
                self._further.wait_for(self._recovered)
            self._until_chunks(self._chunks + fault.after)
        elif fault.chunks is not None:
            self._until_chunks(fault.chunks)
        if fault.after is not None or fault.chunks is not None:
            begins = self._operator.now
        if self._over:
            return
        if fault.kind == "slow":
            self._slow_down(number, fault, begins)
        elif fault.kind == "load":
            self._load(fault, begins)
        else:
            self._until(begins)
            if self._over:
                return
            if fault.kind == "scale":
                self._scale(fault)
            else:
                self._impair(number, fault)

    def _recovered(self) -> bool:
        """Returns whether all jobs have recovered from every fault so far that ends."""
        return all(
            job.recovered(one) is not None
            for one in self._happened
            if not one.fault.endless
            for job in self._known.values()
        )

    def _until(self, at: int) -> None:
        """Waits until a time (ps)."""
        if at > self._operator.now:
            self._operator.tasks.sleep((at - self._operator.now) / SECOND)

    def _until_chunks(self, chunks: int, timeout: float | None = None) -> bool:
        """Waits until the first job has done so many chunks; returns whether it has."""
        with self._further:
            return bool(self._further.wait_for(lambda: self._chunks >= chunks, timeout))

    def _until_over(self, fault: Fault, begins: int) -> None:
        """Waits until the end of a fault."""
        if fault.lasts is not None:
            self._until_chunks(self._chunks + fault.lasts)
        elif fault.seconds < math.inf:
            self._until(begins + picoseconds(fault.seconds))

    def _begin(self, fault: Fault, began: int, what: str) -> _Happened:
        """Records and reports that a fault has begun."""
        happened = _Happened(fault, what, began)
        self._happened.append(happened)
        for job in self._jobs:
            number = len(self._happened)
            text = f"{fault.where} {what}"
            self._emit({"event": "fault", "job": job.name, "number": number, "text": text})
        return happened

    # --- slow links and hosts ---

    def _slow_down(self, number: int, fault: Fault, begins: int) -> None:
        hit, timeline = self._hit(fault), Timeline()
        soonest = self._operator.now + self._engine.control_latency
        begins = max(begins, soonest)
        lasts = math.inf if fault.lasts is not None else fault.seconds
        steps = (
            (begins + picoseconds(at), factor)
            for at, factor in fault.pattern.steps(fault.by, lasts)
        )
        for one in hit:
            self._slow.setdefault(one, {})[number] = timeline
        known = self._feed(timeline, steps, hit)
        self._until(begins)
        if self._over:
            return
        happened = self._begin(fault, begins, slow_words(fault))
        wanted = self._chunks + (fault.lasts or 0)
        while known < NEVER or fault.lasts is not None:
            if fault.lasts is not None:
                left = None if known == NEVER else (known - _AHEAD // 2 - self._operator.now)
                if self._until_chunks(wanted, left and max(0, left) / SECOND):
                    ends = self._operator.now + self._engine.control_latency
                    timeline.replace(ends, [(ends, Fraction(1))])
                    self._spread(hit)
                    happened.over = ends
                    return
            else:
                self._until(known - _AHEAD // 2)
            if self._over:
                return
            known = self._feed(timeline, steps, hit)
        if lasts < math.inf:
            happened.over = begins + picoseconds(lasts)
            self._until(happened.over)

    def _feed(self, timeline: Timeline, steps: Iterator[Step], hit: Sequence[Hit]) -> int:
        """Adds the steps of the near future; returns until when they are known, NEVER if that is
        all."""
        until = self._operator.now + _AHEAD
        known = NEVER
        for at, factor in steps:
            timeline.replace(at, [(at, factor)])
            if at >= until:
                known = at
                break
        self._spread(hit)
        return known

    def _spread(self, hit: Sequence[Hit]) -> None:
        """Tells nodes what is slow from the time on at which they hear it."""
        network = self._network
        at = self._operator.now + self._engine.control_latency
        links = network.links()
        for one in hit:
            steps = product(list(self._slow[one].values()), at)
            if isinstance(one, str):
                host = network.hosts[one]
                self._call(host, partial(host.slow, steps))
            else:
                self._call(network.node(one.node), partial(links[one].slow, at, steps))

    def _hit(self, fault: Fault) -> list[Hit]:
        if fault.node:
            return [fault.node]
        network, found = self._network, list[Hit]()
        ways = {
            (sender, receiver)
            for link in self._links(fault)
            for way, sender, receiver in (("up", link.a, link.b), ("down", link.b, link.a))
            if fault.way in ("both", way)
        }
        for direction, receiver in network.receivers().items():
            if (direction.node, receiver) in ways:
                found.append(direction)
        return found

    def _links(self, fault: Fault) -> list[Link]:
        links = self._network.topology.links
        every = fault.ends == EVERY_LINK
        return [link for link in links if every or {link.a, link.b} == set(fault.ends)]

    # --- background traffic ---

    def _load(self, fault: Fault, begins: int) -> None:
        network, latency = self._network, self._engine.control_latency
        begins = max(begins, self._operator.now + latency)
        sender, receiver = fault.ends
        busy, idle = map(picoseconds, fault.turns)
        host = network.hosts[sender]
        target = int(network.addressing.address(receiver))
        mtu = min(
            end.mtu for link in network.topology.links for end in (link.forward, link.backward)
        )
        flow = BackgroundFlow(host, target, mtu, fault.rate, busy, idle)
        self._flows.append((host, flow))
        ends = NEVER
        if fault.lasts is None and fault.seconds < math.inf:
            ends = begins + picoseconds(fault.seconds)
        self._call(host, partial(flow.begin, begins, ends))
        self._until(begins)
        if self._over:
            return
        by_turns = f", {fault.turns[0]:g} s busy, {fault.turns[1]:g} s idle" if idle else ""
        text = f"has other traffic{fault.span}: {rate_text(fault.rate)}{by_turns}"
        happened = self._begin(fault, begins, text)
        self._until_over(fault, begins)
        if fault.lasts is not None:
            ends = self._operator.now + latency
            self._call(host, flow.stop)
        happened.over = ends

    def _call(self, node: Node, work: Callable[[], None]) -> None:
        at = self._operator.now + self._engine.control_latency
        self._engine.post(self._operator, node, at, work)

    # --- servers and workers that come and go ---

    def _scale(self, fault: Fault) -> None:
        """Changes which servers of the first job have slices, and adds workers."""
        began, job = self._operator.now, self._jobs[0]
        what = ""
        try:
            if fault.workers:
                job.add_workers(changes(fault.workers).added)
                what = f"changed: {len(job.placement.workers)} workers"
            if fault.servers:
                done = job.scale(changes(fault.servers))
                what = scaled_words(done.slices, done.bytes, done.from_round)
        except ClientError as error:
            what = f"were refused: {error}"
        self._begin(fault, began, what).over = self._operator.now

    # --- impaired links ---

    def _impair(self, number: int, fault: Fault) -> None:
        quality = dict(fault.quality)
        words = ", ".join(f"{name} {value:.3%}" for name, value in quality.items())
        began = self._operator.now
        happened = self._begin(fault, began, f"was impaired{fault.span}: {words}")
        self._impaired[number] = self._links(fault), quality
        self._order()
        self._until_over(fault, began)
        if self._over:
            return
        happened.over = self._operator.now
        del self._impaired[number]
        self._order()

    def _order(self) -> None:
        """Has the controller impair links: of several impairments of one, the highest
        probabilities apply."""
        worst: dict[frozenset[str], dict[str, float]] = {}
        for links, quality in self._impaired.values():
            for link in links:
                known = worst.setdefault(frozenset((link.a, link.b)), {})
                known.update({name: max(known.get(name, 0.0), p) for name, p in quality.items()})
        controller = self._network.controller
        ask(self._engine, self._operator, controller, partial(controller.impair, worst))

    # --- the record ---

    def _row(self, one: _Happened, job: str, training: _Training, ended: int) -> FaultImpact:
        recovered = training.recovered(one)
        return {
            "at": (one.began - self._ran) / SECOND,
            "kind": one.fault.kind,
            "node": one.fault.where,
            "what": one.what,
            "aggregating": None,
            "partial": None,
            "job": job,
            "seconds": None if recovered is None else (recovered - one.began) / SECOND,
            "lasted": None if one.over > ended else (one.over - one.began) / SECOND,
            "rejoined_after": None,
            "epoch_before": None,
            "epoch_after": None,
            "resent_packets": None,
            "resent_bytes": None,
        }
