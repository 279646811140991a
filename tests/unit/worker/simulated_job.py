# SPDX-License-Identifier: Apache-2.0
"""Worker transports of a job under root servers, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hosts.data.reports import Completed
from hosts.server.state import ServerState
from hosts.worker.transport import WorkerTransport
from protocol.codecs.codec import Codec
from protocol.codecs.registry import USUAL as USUAL_CODEC
from protocol.exponents import Exponents
from protocol.header import PORT, Flag, Op, decode
from protocol.plan import (
    FIXED,
    Address,
    Child,
    RootStream,
    ServerPlan,
    StreamPlan,
    WorkerPlan,
)
from protocol.propagation import FIFO, Propagation
from protocol.reference import ReferenceSums, reference_round
from protocol.server_pipelines import USUAL, Pipeline
from tests.history import Contacts
from tests.impaired_links import Impairments
from tests.unit.worker.simulated_network import Network, Pair

NODE = 7
SLICE = 2


class WindowRule:
    """Watches that no worker sends `seq` before it has received the result of `seq - W`.

    windows: by epoch, to be added to.
    """

    def __init__(self, workers: Sequence[Pair], windows: dict[int, int], lanes: int) -> None:
        self._workers = set(workers)
        self.windows = windows
        self._lanes = lanes
        self._received: set[tuple[Pair, int, int, int]] = set()
        self.contributions = 0

    def sent(self, source: Pair, _destination: Pair, datagram: bytes) -> None:
        op, flags, epoch, stream, seq = self._read(datagram)
        if source in self._workers and op == Op.CONTRIBUTE:
            self.contributions += 1
            before = seq - self.windows[epoch]
            assert before < 0 or (source, epoch, stream, before) in self._received
            assert flags & Flag.DIRECT or seq < 1 << 31

    def arrived(self, _source: Pair, destination: Pair, datagram: bytes) -> None:
        op, flags, epoch, stream, seq = self._read(datagram)
        flagged = flags & (Flag.OVERFLOW | Flag.NONFINITE) and not flags & Flag.DIRECT
        if destination in self._workers and op == Op.RESULT and not flagged:
            self._received.add((destination, epoch, stream, seq))

    def _read(self, datagram: bytes) -> tuple[int, int, int, int, int]:
        header = decode([datagram], [(0, 0)], self._lanes)[0].headers[0]
        return (
            int(header["version_op"]) & 15,
            int(header["flags"]),
            int(header["epoch"]),
            int(header["stream"]),
            int(header["seq"]),
        )


class Round(NamedTuple):
    """Sums in the order of submission: as of Completed."""

    tickets: np.ndarray
    chunks: np.ndarray
    sums: np.ndarray
    flags: np.ndarray
    workers: np.ndarray

    @classmethod
    def of(cls, completed: Completed) -> Round:
        order = np.argsort(completed.tickets)
        found = (getattr(completed, name) for name in cls._fields)
        return cls(*(one[order] for one in found))


class Job:
    """`world` workers, `servers` servers; each class of urgency has as many streams as servers
    times `streams_per_server`.

    counts: chunks of each key; none: one key has all.
    """

    def __init__(
        self,
        *,
        world: int = 3,
        servers: int = 1,
        streams_per_server: int = 1,
        window: int = 4,
        chunks: int = 8,
        lanes: int = 4,
        seed: int = 0,
        impairments: Impairments | None = None,
        priorities: Sequence[int] | None = None,
        job: int = 1,
        network: Network | None = None,
        states: Sequence[ServerState] | None = None,
        pipeline: Pipeline = USUAL,
        scheduler: str = FIFO,
        propagation: Propagation | None = None,
        counts: Sequence[int] = (),
        congestion: str = FIXED,
        codec: Codec = USUAL_CODEC,
    ) -> None:
        self.pipeline = pipeline
        self.propagation = propagation or Propagation(order=scheduler)
        self.counts = tuple(counts) or (chunks,)
        self.congestion, self.codec = congestion, codec
        self.number, self.chunks, self.lanes, self.world = job, chunks, lanes, world
        self.server_addresses = tuple(Address(1000 + k, PORT) for k in range(servers))
        self.worker_addresses = tuple(Address(100 * job + r, 5000 + r) for r in range(world))
        self.epoch = 1
        self.live = list(range(world))  # workers, by their first rank
        self.network = network or Network(seed, impairments=impairments)
        self.rule = WindowRule([a.pair() for a in self.worker_addresses], {1: window}, lanes)
        if network is None:
            self.network.on_sent = self.rule.sent
            self.network.on_arrived = self.rule.arrived
        self.servers = states or [ServerState() for _ in range(servers)]
        for state, plan in zip(
            self.servers, self.server_plans(window, streams_per_server), strict=True
        ):
            state.install(plan)
            self.network.attach(self.server_addresses[plan.rank].pair(), state)
        self.policies = [Contacts(chunks, world) for _ in range(world)]
        self._reference = Exponents(chunks, world)
        for policy in (*self.policies, self._reference):
            policy.codec = codec
        plans = self.worker_plans(window, streams_per_server, priorities)
        self.workers = [
            WorkerTransport(plan, policy) for plan, policy in zip(plans, self.policies, strict=True)
        ]
        for worker, address in zip(self.workers, self.worker_addresses, strict=True):
            self.network.attach(address.pair(), worker)
        self._submitted = self._due = 0
        self._changes = 0
        self.moved = 0  # results that went from one worker to another

    def worker_plans(
        self, window: int, streams_per_server: int, priorities: Sequence[int] | None = None
    ) -> list[WorkerPlan]:
        """The plans of this epoch's workers."""
        own = len(self.servers) * streams_per_server
        streams = own * self.propagation.classes
        priorities = priorities or [s // own for s in range(streams)]
        return [
            WorkerPlan(
                job=self.number,
                epoch=self.epoch,
                world=len(self.live),
                lanes=self.lanes,
                rank=rank,
                streams=tuple(
                    StreamPlan(s, NODE, rank, window, priorities[s]) for s in range(streams)
                ),
                servers=self.server_addresses,
                counts=self.counts,
                chunks_per_slice=SLICE,
                pipeline=self.pipeline,
                propagation=self.propagation,
                congestion=self.congestion,
                codec=self.codec,
            )
            for rank in range(len(self.live))
        ]

    def server_plans(self, window: int, streams_per_server: int) -> list[ServerPlan]:
        """The plans of this epoch's servers."""
        servers = len(self.server_addresses)
        streams = servers * streams_per_server * self.propagation.classes
        addresses = tuple(self.worker_addresses[member] for member in self.live)
        children = tuple(Child(rank, address, 1, 0) for rank, address in enumerate(addresses))
        return [
            ServerPlan(
                job=self.number,
                epoch=self.epoch,
                world=len(self.live),
                lanes=self.lanes,
                rank=k,
                servers=self.server_addresses,
                workers=addresses,
                windows=dict.fromkeys(range(streams), window),
                counts=self.counts,
                roots=tuple(
                    RootStream(s, NODE, window, children) for s in range(k, streams, servers)
                ),
                chunks_per_slice=SLICE,
                pipeline=self.pipeline,
                propagation=self.propagation,
                codec=self.codec,
            )
            for k in range(servers)
        ]

    def change(
        self,
        window: int,
        streams_per_server: int = 1,
        dead: Sequence[int] = (),
        late: Sequence[float] = (),
    ) -> None:
        """Starts a change to the next epoch, without the workers `dead` (by first rank).

        Each worker halts, and later gets its plan, `late[first rank]` seconds after the others.
        """
        for member in dead:
            self.live.remove(member)
            self.network.detach(self.worker_addresses[member].pair())
        delays = [late[m] if m < len(late) else 0.0 for m in range(self.world)]
        for state in self.servers:
            state.freeze(self.number)
        for member in self.live:
            halted = self.workers[member]
            self.network.at(self.network.now + delays[member], halted.freeze)
        settled = self.network.now + max(delays)
        self._changes += 1
        change = self._changes
        self.network.at(settled, lambda: self._settle(change, window, streams_per_server, delays))

    def _settle(
        self, change: int, window: int, streams_per_server: int, delays: Sequence[float]
    ) -> None:
        """All have halted: results go to those who lack them, then everybody gets its plan.

        Nothing if another change has begun since then.
        """
        if change != self._changes:
            return
        levels = {member: self.workers[member].levels() for member in self.live}
        top = np.max(list(levels.values()), axis=0)
        for member in self.live:
            lacks = np.flatnonzero(levels[member] < top)
            assert (levels[member][lacks] + 1 == top[lacks]).all(), "more than one apart"
            for chunk in lacks.tolist():
                holder = next(m for m in self.live if levels[m][chunk] == top[chunk])
                self.moved += 1
                results = self.workers[holder].results([(chunk, int(top[chunk]))])
                self.workers[member].take_results(results)
        self.epoch += 1
        self.rule.windows[self.epoch] = window
        for state, plan in zip(
            self.servers, self.server_plans(window, streams_per_server), strict=True
        ):
            state.install(plan)
        plans = self.worker_plans(window, streams_per_server)
        for member, plan in zip(self.live, plans, strict=True):
            self.network.at(
                self.network.now + delays[member],
                lambda member=member, plan=plan: self._succeed(change, member, plan),
            )

    def _succeed(self, change: int, member: int, plan: WorkerPlan) -> None:
        if change != self._changes or member not in self.live:
            return
        address = self.worker_addresses[member].pair()
        self.workers[member] = self.workers[member].successor(plan)
        self.network.attach(address, self.workers[member])
        self.network.poke(address)

    @property
    def alive(self) -> list[WorkerTransport]:
        """The transports of live workers, by rank."""
        return [self.workers[member] for member in self.live]

    def submit(self, values: np.ndarray, skew: Sequence[float] = ()) -> None:
        """Every worker submits one round of all chunks, `skew[rank]` seconds from now."""

        def of(rank: int) -> None:
            worker = self.workers[rank]
            worker.submit(np.arange(self.chunks), values[rank], np.full(self.chunks, self.lanes))
            self._submitted += 1
            self.network.poke(self.worker_addresses[rank].pair())

        self._due += self.world
        for rank in range(self.world):
            late = skew[rank] if rank < len(skew) else 0.0
            self.network.at(self.network.now + late, lambda rank=rank: of(rank))

    def finish(self, seconds: float = 300.0) -> list[Round]:
        """Runs until every worker has all sums; returns them by rank, in order of submission."""
        limit = self.network.now + seconds
        done = self.network.run(
            lambda: self._submitted == self._due and all(worker.idle for worker in self.alive),
            limit,
        )
        waiting = [worker.explain(self.network.now) for worker in self.alive]
        assert done, f"hangs: {waiting}"
        completed = [worker.take_completed() for worker in self.alive]
        assert not any(worker.take_failures() for worker in self.alive)
        return [Round.of(one) for one in completed]

    def expected(self, values: np.ndarray) -> ReferenceSums:
        """One round without a network, by a policy that has seen every round so far."""
        return reference_round(values, np.arange(self.chunks), self._reference)

    def round(self, values: np.ndarray, skew: Sequence[float] = ()) -> ReferenceSums:
        """One whole round; asserts that every worker has exactly the reference's sums."""
        self.submit(values, skew)
        reference = self.expected(values)
        for part in self.finish():
            assert part.chunks.tolist() == list(range(self.chunks))
            assert part.sums.tobytes() == reference.sums.tobytes()
            assert ((part.flags & Flag.DIRECT) != 0).tolist() == (reference.flags != 0).tolist()
        return reference

    def random_values(self, seed: int, scale: float = 1.0) -> np.ndarray:
        """(world, chunks, lanes) float32, chunks of very different size."""
        rng = np.random.default_rng(seed)
        sizes = 2.0 ** rng.integers(-20, 20, (1, self.chunks, 1)) * scale
        values = rng.standard_normal((self.world, self.chunks, self.lanes)) * sizes
        return values.astype(np.float32)
