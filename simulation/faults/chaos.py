# SPDX-License-Identifier: Apache-2.0
"""Has faults happen while jobs run in virtual time (``specs.faultfile``).

A task of the operator for each fault waits until it is due. Changes reach switches and hosts as
calls, 1 ms later, and say themselves from what time on they hold: what is known before is exact to
the picosecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial

from controller.p4rt.connection import SwitchError
from controller.p4rt.dataplane import DataPlane
from hosts.errors import ClientError
from observability.messages.events import EmitEvent
from observability.messages.summary import FaultImpact
from planner.link_loads import Direction
from simulation.faults.recovery import Happened, Training
from simulation.faults.strikes import STRIKES, Strikes
from simulation.jobrun import VirtualJob
from simulation.kernel.engine import Node
from simulation.kernel.processes import KILLED
from simulation.links.timeline import Step, Timeline, product
from simulation.links.trains import NEVER, SECOND, picoseconds
from simulation.network import Network
from simulation.nodes.background import BackgroundFlow, is_background
from simulation.nodes.host import HostNode
from specs.faultfile import LASTING, Fault, load_words, slow_words
from specs.scaling import changes, scaled_words
from specs.slowdowns import EVERY_LINK
from testbed.errors import JobError
from topologies.model.topology import Link

__all__ = ["Chaos"]

_STRUCK = {
    "kill": KILLED,
    "stop": "was stopped",
    "repush": "had its program pushed again by another client",
    "disconnect": "lost its P4Runtime connection",
}
_AHEAD = SECOND  # ps that steps of a pattern are known before they happen

Hit = Direction | str
"""A direction of a link, or a host, that may be slow."""


class Chaos:
    """The faults of a run; times count from when its first job runs."""

    def __init__(
        self,
        network: Network,
        dataplane: DataPlane,
        faults: Sequence[Fault],
        jobs: Sequence[VirtualJob],
        emit: EmitEvent,
    ) -> None:
        self._network, self._faults, self._jobs, self._emit = network, faults, jobs, emit
        self._dataplane = dataplane
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
        self._over = False
        self._happened: list[Happened] = []
        self._said = 0
        self._flows: list[tuple[HostNode, BackgroundFlow]] = []
        self._slow: dict[Hit, dict[int, Timeline]] = {}  # by fault
        self._ordered = False  # the controller has orders to impair links
        self._impaired: dict[int, tuple[list[Link], dict[str, float]]] = {}  # by fault
        self._strikes = Strikes(network, jobs, dataplane, self._tell, self._order)
        self._trainings = [
            Training(job, lambda: self._operator.now, self._hear, self._tell) for job in jobs
        ]
        self._counts = any((one.chunks, one.lasts, one.after) != (None,) * 3 for one in faults)
        for job, training in zip(jobs, self._trainings, strict=True):
            job.follower = training

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
            training.row(one, self._ran, ended, self._dataplane.frame_bytes)
            for one in sorted(self._happened, key=lambda one: one.began)
            for training in self._trainings
            if one.began <= ended
        ]

    # --- what workers do ---

    def _hear(self, host: HostNode, learn: Callable[[], None], begins: bool) -> None:
        """Has the operator hear of what a worker does."""
        if begins or self._counts:
            at = host.now + self._engine.control_latency
            self._engine.post(host, self._operator, at, partial(self._learn, learn))

    def _learn(self, learn: Callable[[], None]) -> None:
        learn()
        self._operator.tasks.thread(self._wake, "faults").start()

    def _wake(self) -> None:
        with self._further:
            self._further.notify_all()

    @property
    def _chunks(self) -> int:
        """Chunks that the first job has done."""
        return self._trainings[0].chunks_done

    @property
    def _ran(self) -> int:
        """When the first job ran (ps); NEVER before."""
        return min((one.ran for one in self._trainings if one.ran is not None), default=NEVER)

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
        elif fault.kind in STRIKES:
            self._until(begins - self._engine.control_latency)
            self._strike(number, fault, begins)
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
            job.has_recovered(one)
            for one in self._happened
            if not one.fault.endless
            for job in self._trainings
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

    def _begin(self, fault: Fault, began: int, what: str, then: str | None = "") -> Happened:
        """Records and reports that a fault has begun.

        then: what follows; None: others report that.
        """
        waits = {one.name: one.present for one in self._trainings}
        happened = Happened(fault, what, began, waits=waits)
        self._happened.append(happened)
        if then is not None:
            self._tell(f"{fault.where} {what}{then}")
        return happened

    def _tell(self, text: str) -> None:
        self._said += 1
        for job in self._jobs:
            self._emit({"event": "fault", "job": job.name, "number": self._said, "text": text})

    # --- processes and connections ---

    def _strike(self, number: int, fault: Fault, begins: int) -> None:
        if self._over:
            return
        begins = max(begins, self._operator.now + self._engine.control_latency)
        try:
            killed = self._strikes.begin(number, fault, begins)
        except SwitchError as error:
            self._tell(f"{fault.where}: its program could not be pushed: {error}")
            return
        if killed is None:
            self._tell(f"{fault.where} is not running: {fault.kind} has no effect")
            return
        lasts, away = fault.kind in LASTING, f"; it stays away for {fault.seconds:g} s"
        what, then = f"{_STRUCK[fault.kind]}{fault.span if lasts else ''}", ""
        if fault.kind == "kill":
            away = "; it stays away" if math.isinf(fault.seconds) else away
            then = away if fault.seconds else "; started again"
        worker = fault.kind == "kill" and fault.node in self._network.workers_at
        happened = self._begin(fault, begins, what, None if worker else then)
        if not lasts:
            happened.over = begins
            follow = partial(self._strikes.follow, fault, killed, begins)
            self._operator.tasks.thread(follow, f"after fault {number}").start()
            return
        ends = begins + picoseconds(fault.seconds)
        if fault.lasts is not None:
            self._until_chunks(self._chunks + fault.lasts)
            ends = self._operator.now + self._engine.control_latency
        happened.over = self._strikes.end(number, fault, ends)
        self._until(happened.over)

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
        flow = BackgroundFlow(host, target, network.topology.least_mtu, fault.rate, busy, idle)
        self._flows.append((host, flow))
        ends = NEVER
        if fault.lasts is None and fault.seconds < math.inf:
            ends = begins + picoseconds(fault.seconds)
        self._call(host, partial(flow.begin, begins, ends))
        self._until(begins)
        if self._over:
            return
        happened = self._begin(fault, begins, load_words(fault))
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
        """Changes which servers of the first job have slices, and which workers are in it."""
        began, job, workers = self._operator.now, self._jobs[0], changes(fault.workers)
        what: list[str] = []
        try:
            job.check_change(workers)
            if fault.servers:
                done = job.scale(changes(fault.servers))
                what.append(scaled_words(done.slices, done.bytes, done.from_round))
            if fault.workers:
                what.append(job.change_workers(workers))
        except (ClientError, JobError) as error:
            what.append(f"were refused: {error}")
        self._begin(fault, began, "; ".join(what)).over = self._operator.now

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
        if self._impaired or self._ordered:
            self._ordered = True
            self._strikes.order(lambda table: table.outages.impair(worst))
