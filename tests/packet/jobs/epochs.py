# SPDX-License-Identifier: Apache-2.0
"""Seeded random runs with concurrent changes of epoch and failures.

    python -m tests.packet.jobs.epochs SEED [--chunk N]

repeats one, and prints the packets of a chunk: of the one that went wrong, or of N.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from controller.p4rt.connection import SwitchError
from controller.planning.tree_planner import TreeKind
from protocol.frames import OVERHEAD
from protocol.header import HEADER, Flag, Op, Phase, decode
from protocol.optimizer_plan import OptimizerPlan
from tests.impaired_links import Impairments
from tests.packet.jobs.protocol_run import (
    LIMIT,
    TOPOLOGIES,
    WORKERS,
    ChunkError,
    Run,
    kinds_of,
    network_of,
    start,
    streams_of,
)
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import Seen

ROUNDS = 3
# Of a round, in most runs and in a few: more runs find more than long ones, which use slots again
# and again. A quarter of the latter where packets are lost.
MOST_CONTRIBUTIONS, MOST_OF_LARGE = 1000, 4000
LARGE = 0.1
OPTIMIZER = OptimizerPlan("momentum", 0.1, 0.9)


@dataclass
class Outcome:
    """The result of a run."""

    seed: int
    what: str  # the run in words
    error: str = ""
    chunk: int | None = None  # the one that the error is about
    chunks: int = 0  # sums asked for
    epochs: int = 0
    worlds: int = 0
    moved: int = 0  # results that went from worker to worker
    joined: int = 0  # workers that came back
    restored: int = 0  # how often a server came to hold chunks when plans changed
    events: list[str] = field(default_factory=list)
    trace: list[Seen] | None = None

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.what}", *self.events]
        if self.error:
            lines += [self.error, f"repeat it: {self.command}"]
        return "\n".join(lines)

    @property
    def command(self) -> str:
        return f"python -m tests.packet.jobs.epochs {self.seed}"


class Scenario:
    """Faults and changes of one run, drawn from its seed."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.draw = draw = random.Random(seed)
        self.topology = draw.choice([*TOPOLOGIES][:4] * 5 + ["four by four"])
        # From a source of their own, so that other runs stay as they were.
        self.servers = random.Random(f"servers {seed}")
        self.optimizer = OPTIMIZER if self.servers.random() < 0.3 else None
        if self.topology == "server rack" and random.Random(f"levels {seed}").random() < 0.3:
            self.topology = "three levels"  # which has room for the same trees
        kind = draw.choice(self._kinds())
        # Under heavy fire a chunk takes long, in virtual and in real time.
        heavy = draw.random() < 0.05
        faults = Impairments(
            loss=0.3 if heavy else draw.choice([0.0, 0.001, 0.01, 0.05]),
            duplicate=draw.choice([0.0, 0.0, 0.01, 0.3]),
            jitter=draw.choice([0.0, 0.002, 0.02, 0.1]),
        )
        window = draw.choice([1, 2, 4, 8] if heavy else [2, 8, 32, 64, 128])
        # What goes in few large batches goes quickly.
        self.limit = LIMIT if heavy else LIMIT / 10
        chunks = draw.randint(1, 4) if heavy else draw.randint(10, 20 + 6 * window)
        # What is sent again, by many workers, takes most of the time: others have more chunks.
        large = faults.loss < 0.01 and random.Random(f"large {seed}").random() < LARGE
        most = MOST_OF_LARGE if large else MOST_CONTRIBUTIONS
        chunks = min(chunks, most // WORKERS[self.topology])
        self.windows = [w for w in (window // 8, window // 2, window, 2 * window) if 1 <= w <= 128]
        options = {
            "window": window,
            "streams": streams_of(self.topology, kind, draw.randint(1, 3)),
        }
        delay = draw.choice([0.002, 0.02, 0.2])
        odd = draw.random() < 0.3
        self.skew = draw.choice([0.0, 0.01, 0.2])
        self.outcome = Outcome(
            seed,
            f"{self.topology}, {kind.name}, {options}, {chunks} chunks, {faults}, "
            f"control {delay} s, skew {self.skew} s, odd {odd}, {self.optimizer or 'sums'}",
        )
        self.network = network_of(self.topology, seed, faults)
        if trace:
            self.network.trace = self.outcome.trace = []
        self.started: StartedJob = start(
            self.network,
            self.topology,
            kind,
            chunks,
            delay=delay,
            optimizer=self.optimizer,
            **options,
        )
        world = WORKERS[self.topology]
        leaving = {}
        if draw.random() < 0.2:
            leaving[draw.randrange(world)] = draw.randint(1, ROUNDS)
        self.run = Run(self.started, ROUNDS, seed % 1000, odd, leaving)
        self.survivor = next(rank for rank in range(world) if rank not in leaving)

    def play(self) -> Outcome:
        """Runs it and checks everything."""
        network, outcome = self.network, self.outcome
        began = network.now
        self.run.submit(self.skew, outcome.seed)
        at = network.now
        span = self.draw.choice([0.02, 0.1, 0.5])
        for _ in range(self.draw.randint(2, 7)):
            at += self.draw.random() * span
            self._plan_event(at)
            if self.optimizer is not None:
                network.at(at + self.servers.random() * span, self._kill_server)
        try:
            if not network.run(lambda: self.run.done, began + self.limit):
                raise self.run.waiting()
            self.run.check()
            assert self.started.reported == 0, "a sum failed its check"
        except Exception as error:  # any failure must be reported with the seed
            outcome.error = f"{type(error).__name__}: {error}"
            outcome.chunk = error.chunk if isinstance(error, ChunkError) else None
        finally:
            network.close()
        outcome.chunks = self.run.values.shape[0] * self.run.chunks
        outcome.epochs = self.started.job.epoch
        outcome.worlds = len(self.started.worlds)
        outcome.moved = self.started.moved
        outcome.joined = self.started.joined
        outcome.restored = len(self.started.job.restored)
        outcome.events.append(f"{network.now - began:.3f} s, {outcome.epochs} epochs")
        return outcome

    def _kinds(self) -> list[TreeKind]:
        kinds = kinds_of(self.topology)
        if self.optimizer is None:
            return kinds
        return [kind for kind in kinds if kind.ends_at_server]

    # -- what may happen --------------------------------------------------------------------------

    def _plan_event(self, at: float) -> None:
        event = self.draw.choice(
            [self._replan, self._twice, self._restart, self._push, self._cut, self._kill]
        )
        self.network.at(at, event)

    def _say(self, text: str) -> None:
        self.outcome.events.append(f"{self.network.now:9.4f} {text}")

    def _later(self, most: float, action: Callable[[], None]) -> None:
        self.network.at(self.network.now + self.draw.random() * most, action)

    def _replan(self) -> None:
        kind = self.draw.choice(self._kinds())
        options = {
            "kind": kind,
            "window": self.draw.choice(self.windows),
            "streams": streams_of(self.topology, kind, self.draw.randint(1, 3)),
        }
        self._say(f"replan {options}")
        self.started.replan("test", **options)

    def _twice(self) -> None:
        self._replan()
        self._later(2 * self.started.delay, self._replan)

    def _restart(self) -> None:
        """Restarts a switch; the controller notices before or after it is back."""
        switch = self._switch()
        self._say(f"{switch} dies")
        self.network.break_switch(switch)
        if self.draw.random() < 0.5:
            self._later(0.1, lambda: self.started.replan(f"{switch} is gone", avoid=[switch]))
        self._later(0.3, lambda: self.network.call(self.network.now, lambda: self._back(switch)))

    def _back(self, switch: str) -> None:
        if self.network.connections[switch].cut:  # else it was broken twice, and is back already
            self._equip(switch, self.network.repair_switch)

    def _push(self) -> None:
        """Pushes a switch's program again, which empties registers and tables."""
        switch = self._switch()
        if not self.network.connections[switch].cut:
            push = self.network.push_program
            self.network.call(self.network.now, lambda: self._equip(switch, push))

    def _equip(self, switch: str, equip: Callable[[str], None]) -> None:
        self._say(f"{switch} gets its program")
        try:
            equip(switch)
        except SwitchError:  # it broke, or was cut off, in the middle
            again = self.network.repair_switch
            retry = self.network.now + 0.1
            self.network.call(retry, lambda: self._equip(switch, again))
            return
        self._later(0.1, lambda: self.started.replan(f"{switch} has restarted"))

    def _cut(self) -> None:
        """Disconnects a switch from the controller during a replan; it keeps forwarding."""
        switch = self._switch()
        connection = self.network.connections[switch]
        if connection.cut:
            return
        self._say(f"{switch} cannot be written")
        connection.cut = True
        self._replan()

        def restore() -> None:
            if self.network.devices[switch].pipeline is not None:
                self._say(f"{switch} can be written again")
                connection.cut = False

        self._later(0.5, restore)

    def _kill(self) -> None:
        staying = [rank for rank in self.started.staying if rank != self.survivor]
        if not staying:
            return
        rank = self.draw.choice(staying)
        self._say(f"worker {rank} dies")
        self.started.kill(rank)
        if self.draw.random() < 0.5:  # its lease tells, or a process in its place, if not this
            self.started.tell_gone(rank)
        if rank not in self.run.leaving and self.draw.random() < 0.7:
            self._later(self.draw.choice([0.05, 1.0, 10.0]), lambda: self._come_back(rank))

    def _come_back(self, rank: int) -> None:
        if self.started.members[rank].gone and not self.run.done:
            self._say(f"worker {rank} comes back")
            self.run.restart(rank)

    def _kill_server(self, tries: int = 10) -> None:
        """Kills a server, whose replica has all of its state; it may come back."""
        started = self.started
        job, members = started.job, started.server_members
        whole = job.change is None and all(
            not member.gone and member.follower.epoch == job.epoch for member in members
        )
        if len(members) < 2 or not job.started:
            return
        if not whole:  # with another one away, no member might have it
            if tries:
                self.network.at(self.network.now + 0.2, lambda: self._kill_server(tries - 1))
            return
        rank = self.servers.randrange(len(members))
        self._say(f"server {rank} dies")
        started.kill_server(rank, reported=self.servers.random() < 0.5)
        if self.servers.random() < 0.7:
            back = self.network.now + self.servers.choice([0.1, 1.0, 10.0])
            self.network.at(back, lambda: self._return_server(rank))

    def _return_server(self, rank: int) -> None:
        self._say(f"server {rank} is there again")
        self.started.restart_server(rank)

    def _switch(self) -> str:
        return self.draw.choice([node.name for node in self.network.topology.switches])


def play(seed: int, trace: bool = False) -> Outcome:
    """One run."""
    return Scenario(seed, trace).play()


def play_all(seeds: Iterable[int]) -> Iterator[Outcome]:
    """Runs one after the other, in order, on all processors."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn)
    try:
        yield from pool.map(play, seeds)
    finally:
        pool.shutdown(cancel_futures=True)


def line(seen: Seen, chunk: int) -> str | None:
    """Describes a frame if it belongs to a chunk."""
    batch, malformed = decode([seen.frame[OVERHEAD:]], [(0, 0)], LANES)
    if malformed or int(batch.headers["chunk"][0]) != chunk:
        return None
    header = batch.headers[0]
    flags = int(header["flags"])
    names = [f.name for f in Flag if f is not Flag.PHASE and flags & f]
    kind = Op(int(header["version_op"]) & 15)
    if kind is Op.STATE:
        names.append(Phase((flags & Flag.PHASE) >> 4).name)
    fields = " ".join(
        f"{name}={int(header[name])}"
        for name in HEADER.names or ()
        if name not in ("version_op", "flags", "job", "chunk", "checksum")
    )
    return (
        f"{seen.time:9.4f} {seen.link:>14} {kind.name:10} {fields} {' '.join(names)}: {seen.fate}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeats one run."""
    parser = argparse.ArgumentParser(prog="python -m tests.packet.jobs.epochs", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--chunk", type=int, help="print its packets, whatever happens")
    options = parser.parse_args(arguments)
    outcome = play(options.seed, trace=True)
    chunk = options.chunk
    if chunk is None:
        chunk = outcome.chunk
    if chunk is not None and outcome.trace is not None:
        for seen in outcome.trace:
            text = line(seen, chunk)
            if text is not None:
                print(text)
    print(outcome)
    return 1 if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main())
