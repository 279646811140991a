# SPDX-License-Identifier: Apache-2.0
"""Sums at parameter servers, each of which sums one shard for all workers.

Time: segment by segment (``planner.segments``). With too many streams for that, the time of the
busiest link; a server's first results wait for a piece of every worker, and pieces from other racks
queue behind the windows of those in its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from planner.collectives.collective import Collective, Team
from planner.collectives.streams import Array, Streams, add, pieces, receive, send
from planner.flows import Round, bounds, part_bytes
from planner.network import HOST, SERVER, Network
from planner.routed import Slicing
from planner.segments import simulate_streams
from planner.traffic import Traffic, server_traffic
from protocol.ethernet import TCP_HEADERS

if TYPE_CHECKING:
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel

__all__ = ["ParameterServers"]


@dataclass(frozen=True)
class ParameterServers(Collective):
    """Parameter servers; central: only the first of them."""

    least_servers: int = 1
    central: bool = False

    def describe(self, servers: int) -> str:
        """Implements ``Collective.describe``."""
        return "1 server" if servers == 1 else f"{servers} server processes"

    def servers(self, team: Team) -> Sequence[int]:
        """Implements ``Collective.servers``."""
        return range(len(team.servers))[: 1 if self.central else None]

    def reduce(self, member: int, team: Team, values: Array, streams: Streams) -> None:
        """Implements ``Collective.reduce``."""
        ends = bounds(len(values), len(team.servers))
        parts = [values[low:high] for low, high in pairwise(ends)]
        for server, part in zip(team.server_members, parts, strict=True):
            send(server, part, streams)
        for server, part in zip(team.server_members, parts, strict=True):
            receive(server, part, streams)

    def serve(self, member: int, team: Team, size: int, streams: Streams) -> None:
        """Implements ``Collective.serve``: returns a piece as soon as all workers have sent it."""
        workers, rank = len(team.workers), team.server_members.index(member)
        ends = bounds(size, len(team.servers))
        shard = ends[rank + 1] - ends[rank]
        for piece in pieces(np.empty(shard, np.float32), streams):
            piece[...] = 0
            for worker in range(workers):
                add(worker, piece, streams)
            for worker in range(workers):
                streams.send(worker, piece)

    def rounds(self, team: Team, size: int) -> list[Round]:
        """Implements ``Collective.rounds``: one, as workers send while they receive sums."""
        found: Round = {}
        parts = part_bytes(size, len(team.servers))
        for worker in range(len(team.workers)):
            for server, part in zip(team.server_members, parts, strict=True):
                found[worker, server] = [part]
                found[server, worker] = [part]
        return [found]

    def loads(self, network: Network) -> dict[str, float]:
        """Implements ``Collective.loads``."""
        return self._traffic(self._served(network)).loads

    def _served(self, network: Network) -> Network:
        """Returns the network with only the servers that are used."""
        if not self.central:
            return network
        return network.served_at(replace(network.ends(SERVER).of_first(1), units=(0,)))

    @staticmethod
    def _traffic(network: Network) -> Traffic:
        return server_traffic(network, network.workers, Slicing())

    def predict(self, model: StreamModel) -> Prediction:
        """Implements ``Collective.predict``."""
        network = self._served(model.network)
        traffic = self._traffic(network)
        shards = len(network.ends(SERVER).units)
        part = model.message(model.work.data_bytes / shards)
        pairs = {one: load * shards for one, load in traffic.loads.items()}
        busy = {one: model.seconds(one, part, count) for one, count in pairs.items()}
        busy[HOST] = model.seconds(HOST, part, shards)
        slowest = max(busy.values())
        piece = model.piece(shards) // model.segment
        last = model.frame - (part.segments * model.segment - math.ceil(part.data))
        loads = {one: count * part.bytes for one, count in pairs.items()}
        followed = simulate_streams(
            network, model.costs, part.segments, max(1, piece), model.frame, last
        )
        if followed is not None:
            return model.prediction(self.name, busy, followed, loads)
        window = min(
            network.lines[one].queue_bytes / (count * (model.frame + TCP_HEADERS))
            for one, count in pairs.items()
        )
        racks = [n for n, here in zip(network.workers, network.servers, strict=True) if here]
        nearer = max(racks) % network.count / network.count  # of all workers; none if all are
        first = min(part.segments, piece) + nearer * int(min(part.segments, window))
        levels = len(traffic.hops) // 2 - 1
        line = slowest * min(1.0, first / part.segments)
        total = slowest + line + 2 * model.way(levels, part.data, SERVER)
        shared = "too many streams to follow, which share links unequally: within 20 %"
        return model.prediction(self.name, busy, total, loads, shared if levels else "")
