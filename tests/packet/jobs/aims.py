# SPDX-License-Identifier: Apache-2.0
"""Kills a party of a move of chunks between servers at one of its stages, again and again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import product

from hosts.server.chunk_fetches import MoveTask
from tests.packet.jobs.switched_job import StartedJob
from tests.packet.jobs.switched_network import Host

VICTIMS = ("old owner", "new owner", "backup", "controller", "switch")
# Of a move: servers are being told the map; workers are; the new owner's request is on its way, the
# answer is, and some of the chunks have come.
STAGES = ("proposed", "decided", "asked", "given", "partly")
AIMS = tuple(product(VICTIMS, STAGES))


class Aim:
    """The kills of a run; what dies comes back.

    over: tells whether the run is over.
    dies: called with a server that is about to die.
    """

    def __init__(
        self,
        started: StartedJob,
        draw: random.Random,
        over: Callable[[], bool],
        dies: Callable[[int], None] = lambda _rank: None,
    ) -> None:
        self.started, self.network, self.draw = started, started.network, draw
        self.kills = self.restarts = 0
        self._over, self._dies = over, dies
        self._aim, self._most = ("", ""), 0.0
        self._since = 0.0  # when the next victim may die
        self._broken = False  # the switch is

    def at(self, victim: str, stage: str, most: float = math.inf) -> None:
        """Kills this victim when a move is at this stage and all is well, so often at most."""
        self._aim, self._most = (victim, stage), most
        self.network.on_move = self._on_move
        self.network.watchers.append(self._on_change)

    @property
    def whole(self) -> bool:
        """True if nothing is away: a server's replica is elsewhere then."""
        job, members = self.started.job, self.started.server_members
        present = all(not one.gone and one.follower.epoch == job.epoch for one in members)
        return job.change is None and job.started and present and not self._broken

    def kill_server(self, rank: int) -> None:
        """Kills a server, which comes back."""
        self.kills += 1
        self._dies(rank)
        self.started.kill_server(rank, reported=True)
        self._later(0.5, lambda: self.started.restart_server(rank))

    def _later(self, most: float, action: Callable[[], None]) -> None:
        self.network.at(
            self.network.now + self.draw.random() * most,
            lambda: None if self._over() else action(),
        )

    def _on_change(self) -> None:
        """The job table has changed."""
        job, deployment = self.started.job, self.network.jobs.deployment
        if job.remap is None or (job.remap.holds and job.in_step):
            return
        if self._due("decided" if job.remap.from_round or job.remap.holds else "proposed"):
            after = deployment.owners(job, job.remapped[0])
            # Where workers have rounds of their own the map holds already.
            before = after if job.remap.holds else deployment.owners(job)
            pairs = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
            others = [rank for rank in job.scheme.servers if rank != after[0]]
            self._strike(*self.draw.choice(pairs or [(others[0], after[0])]))

    def _on_move(self, stage: str, host: Host, task: MoveTask) -> None:
        """A server gets chunks that a map gives it."""
        job, names = self.started.job, self.started.servers
        (new,) = (n for n, name in enumerate(names) if self.network.server_host(name) is host)
        if stage == "taken":
            steps = host.machine._jobs[job.number].steps
            custody = steps.custody
            if not (steps.moves.expected or (custody and (custody.to_me & ~custody.held).any())):
                return  # all have come
            stage = "partly"
        if task.epoch == job.epoch and self._due(stage):
            self._strike(job.scheme.servers[task.rank], new)

    def _due(self, stage: str) -> bool:
        due = stage == self._aim[1] and self.whole and self.network.now >= self._since
        return due and self.kills + self.restarts < self._most and not self._over()

    def _strike(self, old: int, new: int) -> None:
        """Kills the victim of a move from a server to another."""
        # The next one once moves have gone on for a while.
        self._since = self.network.now + 0.5 + self.draw.random()
        victim = self._aim[0]
        if victim == "controller":
            self.restarts += 1
            self.started.restart_controller()
        elif victim == "switch":
            self._break_switch()
        else:
            ring = self.started.job.scheme.servers
            backup = ring[(ring.index(new) + 1) % len(ring)]
            self.kill_server({"old owner": old, "new owner": new, "backup": backup}[victim])

    def _break_switch(self) -> None:
        self.kills += 1
        self._broken = True
        self.network.break_switch("tor0")

        def repair() -> None:
            self.network.repair_switch("tor0")
            self._broken = False
            self.started.replan("tor0 has restarted")

        self._later(0.3, lambda: self.network.call(self.network.now, repair))
