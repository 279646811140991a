# SPDX-License-Identifier: Apache-2.0
"""One job of a server in one plan epoch: its packets go to the node of their stream."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from hosts.server.asynchronous_node import AsynchronousNode
from hosts.server.direct_sums import DirectStream
from hosts.server.root_node import RootNode
from hosts.server.shards import Shards
from hosts.server.times import ServerTimes, Watch
from hosts.server.update_pipeline import UpdatePipeline
from protocol import jobs_pb2
from protocol.header import Batch, Flag, Op, distinct, ops, peer_array, peer_keys
from protocol.partition import Moved
from protocol.plan import ServerPlan

# numpy scalars: enumeration members cost a look-up.
_DIRECT = np.uint8(Flag.DIRECT)
_CONTRIBUTE = np.uint8(Op.CONTRIBUTE)
_QUERY = np.uint8(Op.QUERY)


class ServedJob:
    """One job's plan, streams and counters.

    lanes: of the payloads of packets.
    times: None: nobody asks.
    """

    def __init__(
        self, plan: ServerPlan, shards: Shards | None, lanes: int, watch: Watch | None
    ) -> None:
        self.plan = plan
        servers = plan.server_of(np.arange(plan.chunks + 1))
        # By chunk, and of those that the job does not have: this server sums it, or is the backup
        # of the one that does.
        self.mine = servers == plan.rank
        self.backed_up = servers == self.before
        self._remap = 0
        self.times: ServerTimes | None = None
        if plan.measures and watch is not None:
            self.times = ServerTimes(watch, lanes, int(np.count_nonzero(self.mine)))
        self.counters: Counter[str] = Counter()
        self.frozen = False
        self.steps = UpdatePipeline(plan, shards, self.times) if shards is not None else None
        self.roots: dict[int, RootNode] = {}
        self.direct: dict[int, DirectStream | AsynchronousNode]
        self.asynchronous_node: AsynchronousNode | None = None
        if plan.is_asynchronous:
            assert shards is not None
            assert self.steps is not None
            self.asynchronous_node = AsynchronousNode(plan, self.counters, self.steps, shards)
            self.direct = dict.fromkeys(plan.windows, self.asynchronous_node)
        else:
            self.roots = {
                root.stream: RootNode(plan, root, self.counters, self.steps, self.mine)
                for root in plan.roots
            }
            self.direct = {
                stream: DirectStream(plan, stream, window, self.counters, self.steps, self.mine)
                for stream, window in plan.windows.items()
            }
        self.nodes: list[RootNode | AsynchronousNode] = list(self.roots.values())
        if self.asynchronous_node is not None:
            self.nodes.append(self.asynchronous_node)
        keys = peer_keys(peer_array([address.pair() for address in plan.workers]))
        self._ranks = np.argsort(keys)
        self._keys = keys[self._ranks]

    @property
    def before(self) -> int:
        """The rank of the server that has its replica here."""
        return (self.plan.rank - 1) % len(self.plan.servers)

    def own(self, remap: int, before: Moved, moved: Moved) -> None:
        """Takes the next chunk map; see ServerState.own."""
        if remap == self._remap:
            return
        self._remap = remap
        chunks = np.arange(len(self.mine))
        now, then = (replace(self.plan, moved=one).server_of(chunks) for one in (before, moved))
        given = then == self.plan.rank
        self.mine |= given
        if self.times is not None:
            self.times.round_sums = int(np.count_nonzero(given))
        self.backed_up |= then == self.before
        if self.steps is not None:
            self.steps.fetches.own(remap, now[:-1], then[:-1])

    def restate(self, moved: Moved) -> None:
        """Takes the chunk map at hand; see ServerState.restate."""
        if self.asynchronous_node is not None:
            self._remap = -1
            self.own(0, moved, moved)

    def on_packets(self, now: float, batch: Batch) -> list[Batch]:
        """Takes packets of this job that were read at a time; returns packets to send."""
        times, before = self.times, self._apart() if self.times is not None else 0
        found, sums = self._on_packets(batch)
        if times is not None:
            times.took(now, batch, sums + self._apart() - before)
            times.gave(found)
        return found

    def _apart(self) -> int:
        """Returns the sums, or gradients, that no root has completed."""
        return self.counters["direct_completed"] + self.counters["stepped"]

    def _on_packets(self, batch: Batch) -> tuple[list[Batch], int]:
        """Returns packets to send, and the number of sums that roots completed."""
        sums = 0
        if self.frozen:
            self._count("frozen", len(batch))
            return [], 0
        headers = batch.headers
        current = headers["epoch"] == self.plan.epoch
        self._count("other_epoch", int(np.count_nonzero(~current)))
        if not current.all():
            batch = batch.select(current)
            headers = batch.headers
        kind = ops(headers)
        direct = (headers["flags"] & _DIRECT) != 0
        useful = (kind == _CONTRIBUTE) | (kind == _QUERY)
        self._count("unexpected", int(np.count_nonzero(~useful)))
        results: list[Batch] = []
        states: list[Batch] = []
        for stream in distinct(headers["stream"][useful]):
            mine = useful & (headers["stream"] == stream)
            for of_direct in (False, True):
                part = mine & (direct == of_direct)
                if not part.any():
                    continue
                contributions = batch.select(part & (kind == _CONTRIBUTE))
                queries = batch.select(part & (kind == _QUERY))
                if of_direct:
                    self._on_direct(stream, contributions, queries, results, states)
                elif stream not in self.roots:
                    self._count("no_such_node", len(contributions) + len(queries))
                else:
                    if len(contributions):
                        results += self.roots[stream].on_contributions(contributions)
                        if self.times is not None:
                            sums += self.roots[stream].sums()
                    if len(queries):
                        states += self.roots[stream].on_queries(queries)
        # Results first: a worker that gets its result needs no STATE.
        return results + states, sums

    def root_of(self, epoch: int, stream: int) -> RootNode | None:
        """Returns the node that sums a stream in a plan epoch; None if this is another epoch."""
        if epoch != self.plan.epoch or self.frozen:
            return None
        return self.roots.get(stream)

    @property
    def has_reports(self) -> bool:
        """True if `take_reports` would return any."""
        timed = self.times is not None and not self.times.left
        return timed or (self.steps is not None and self.steps.fetches.has_reports)

    def take_reports(self) -> list[jobs_pb2.ResyncRequest]:
        """Returns messages without a sender: the times of a round of sums, and what chunk maps have
        brought here."""
        found = []
        if self.times is not None and not self.times.left:
            most_open = sum(root.take_most_open() for root in self.roots.values())
            measured = self.times.report(most_open)
            found.append(jobs_pb2.ResyncRequest(server_measured=measured))
        if self.steps is not None:
            reports = self.steps.fetches.take_reports()
            found += [jobs_pb2.ResyncRequest(moved_here=one) for one in reports]
        for message in found:
            message.epoch = self.plan.epoch
        return found

    def counted(self) -> Counter[str]:
        """Returns the number of packets (or chunks) of each outcome."""
        for root in self.roots.values():
            root.count()
        return self.counters

    def _on_direct(
        self,
        stream: int,
        contributions: Batch,
        queries: Batch,
        results: list[Batch],
        states: list[Batch],
    ) -> None:
        if stream not in self.direct:
            self._count("no_such_node", len(contributions) + len(queries))
            return
        machine = self.direct[stream]
        for packets, answer, out in (
            (contributions, machine.on_contributions, results),
            (queries, machine.on_queries, states),
        ):
            sources = peer_keys(packets.peers)
            at = np.minimum(np.searchsorted(self._keys, sources), len(self._keys) - 1)
            known = self._keys[at] == sources
            self._count("wrong_source", int(np.count_nonzero(~known)))
            if known.any():
                out += answer(packets.select(known), self._ranks[at[known]])

    def _count(self, outcome: str, n: int) -> None:
        if n:
            self.counters[outcome] += n
