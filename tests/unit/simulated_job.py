# SPDX-License-Identifier: Apache-2.0
"""A job of worker transports under servers that are the roots of its streams, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from simulated_network import Impairments, Network, Pair

from hosts.reports import Completed
from hosts.server import ServerState
from hosts.transport import WorkerTransport
from protocol.exponents import Exponents, reference_round
from protocol.fixed_point import ReferenceSums
from protocol.header import PORT, Flag, Op, decode
from protocol.plan import Address, Child, RootStream, ServerPlan, StreamPlan, WorkerPlan

NODE = 7
SLICE = 2


class WindowRule:
    """Watches that no worker sends `seq` before it has received the result of `seq - W`."""

    def __init__(self, workers: Sequence[Pair], window: int, lanes: int) -> None:
        self._workers = set(workers)
        self._window = window
        self._lanes = lanes
        self._received: set[tuple[Pair, int, int]] = set()
        self.contributions = 0

    def sent(self, source: Pair, _destination: Pair, datagram: bytes) -> None:
        op, flags, stream, seq = self._read(datagram)
        if source in self._workers and op == Op.CONTRIBUTE:
            self.contributions += 1
            before = seq - self._window
            assert before < 0 or (source, stream, before) in self._received
            assert flags & Flag.DIRECT or seq < 1 << 31

    def arrived(self, _source: Pair, destination: Pair, datagram: bytes) -> None:
        op, flags, stream, seq = self._read(datagram)
        flagged = flags & (Flag.OVERFLOW | Flag.NONFINITE) and not flags & Flag.DIRECT
        if destination in self._workers and op == Op.RESULT and not flagged:
            self._received.add((destination, stream, seq))

    def _read(self, datagram: bytes) -> tuple[int, int, int, int]:
        header = decode([datagram], [(0, 0)], self._lanes)[0].headers[0]
        return (
            int(header["version_op"]) & 15,
            int(header["flags"]),
            int(header["stream"]),
            int(header["seq"]),
        )


class Job:
    """`world` workers, `servers` servers, as many streams as servers times `streams_per_server`."""

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
    ) -> None:
        self.chunks, self.lanes, self.world = chunks, lanes, world
        self.server_addresses = tuple(Address(1000 + k, PORT) for k in range(servers))
        self.worker_addresses = tuple(Address(100 * job + r, 5000 + r) for r in range(world))
        streams = servers * streams_per_server
        priorities = priorities or [0] * streams
        self.worker_plans = [
            WorkerPlan(
                job=job,
                epoch=1,
                world=world,
                lanes=lanes,
                rank=rank,
                streams=tuple(
                    StreamPlan(s, NODE, rank, window, priorities[s]) for s in range(streams)
                ),
                servers=self.server_addresses,
                chunks_per_slice=SLICE,
            )
            for rank in range(world)
        ]
        children = tuple(Child(r, self.worker_addresses[r], 1, 0) for r in range(world))
        self.server_plans = [
            ServerPlan(
                job=job,
                epoch=1,
                world=world,
                lanes=lanes,
                rank=k,
                servers=self.server_addresses,
                workers=self.worker_addresses,
                windows=dict.fromkeys(range(streams), window),
                roots=tuple(
                    RootStream(s, NODE, window, children) for s in range(k, streams, servers)
                ),
                chunks_per_slice=SLICE,
            )
            for k in range(servers)
        ]
        self.network = network or Network(seed, impairments=impairments)
        self.rule = WindowRule([a.pair() for a in self.worker_addresses], window, lanes)
        if network is None:
            self.network.on_sent = self.rule.sent
            self.network.on_arrived = self.rule.arrived
        self.servers = states or [ServerState() for _ in range(servers)]
        for state, plan in zip(self.servers, self.server_plans, strict=True):
            state.install(plan)
            self.network.attach(self.server_addresses[plan.rank].pair(), state)
        self.workers = [
            WorkerTransport(plan, Exponents(chunks, world)) for plan in self.worker_plans
        ]
        for worker, address in zip(self.workers, self.worker_addresses, strict=True):
            self.network.attach(address.pair(), worker)
        self._reference = Exponents(chunks, world)
        self._submitted = 0

    def submit(self, values: np.ndarray, skew: Sequence[float] = ()) -> None:
        """Every worker submits one round of all chunks, `skew[rank]` seconds from now."""

        def of(rank: int) -> None:
            worker = self.workers[rank]
            worker.submit(np.arange(self.chunks), values[rank], np.full(self.chunks, self.lanes))
            self._submitted += 1
            self.network.poke(self.worker_addresses[rank].pair())

        for rank in range(self.world):
            late = skew[rank] if rank < len(skew) else 0.0
            self.network.at(self.network.now + late, lambda rank=rank: of(rank))

    def finish(self, seconds: float = 300.0) -> list[Completed]:
        """Runs until every worker has everything; its sums by rank, in order of chunks."""
        limit = self.network.now + seconds
        target = -(-max(1, self._submitted) // self.world) * self.world
        done = self.network.run(
            lambda: self._submitted >= target and all(worker.idle for worker in self.workers),
            limit,
        )
        waiting = [worker.explain(self.network.now) for worker in self.workers]
        assert done, f"hangs: {waiting}"
        completed = [worker.take_completed() for worker in self.workers]
        for part in completed:
            order = np.argsort(part.tickets)
            part.tickets, part.chunks = part.tickets[order], part.chunks[order]
            part.sums, part.flags = part.sums[order], part.flags[order]
        assert not any(worker.take_failures() for worker in self.workers)
        return completed

    def expected(self, values: np.ndarray) -> ReferenceSums:
        """One round without a network, by a policy that has seen every round so far."""
        return reference_round(values, np.arange(self.chunks), self._reference)

    def round(self, values: np.ndarray, skew: Sequence[float] = ()) -> ReferenceSums:
        """One whole round; asserts that every worker has exactly the reference's sums."""
        self._submitted = 0
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
