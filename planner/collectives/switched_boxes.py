# SPDX-License-Identifier: Apache-2.0
"""Sums in racks by boxes, then of boxes by switches: the core switch adds up what boxes send.

A box gathers its rack's sum from its workers, piece by piece, and adds each key (whole chunks, at
most a piece) to those of the other boxes by the protocol of in-network sums. So one copy of the
tensor goes up from each rack, and one comes down. The sum of a key is complete at the core, and all
boxes get it at once: each takes the optimizer's step for its own rack's parameters, once for every
chunk, and as all take the same, parameters stay the same everywhere. Then it sends to its workers.
Keys are in all stages at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from planner.collectives.boxes import Boxes, Layout, racks_of
from planner.collectives.collective import Team
from planner.collectives.schedule import SWITCH, Exchange
from planner.collectives.streams import Array, Streams, add
from planner.flows import VALUE
from planner.network import HOST, SERVER, WORKER, Network, uplink
from planner.stations import link_stations, pipeline_seconds, traversal_seconds, wire_bits

if TYPE_CHECKING:
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel


@dataclass(frozen=True)
class SwitchedBoxes(Boxes):
    """Central sums in racks, and sums of these by switches."""

    exchange: Exchange = SWITCH
    switched: bool = True

    def describe(self, servers: int) -> str:
        """Implements ``Collective.describe``."""
        return "a server sums in each rack, the core between racks"

    def servers(self, team: Team) -> Sequence[int]:
        """Implements ``Collective.servers``: the first in each rack with workers."""
        every = super().servers(team)
        found = {team.servers[one]: one for one in reversed(every)}
        return sorted(found.values())

    def serve(self, member: int, team: Team, size: int, streams: Streams) -> None:
        """Implements ``Collective.serve``."""
        layout = Layout(team, self.exchange, size, streams.piece)
        box, _ = layout.place(member)
        workers = [one for one, rack in enumerate(team.workers) if rack == layout.racks[box]]
        values = np.empty(size, np.float32)
        switches = streams.switches
        keys = list(pairwise(switches.bounds)) if switches is not None else []
        sent = 0

        def broadcast(until: int) -> None:
            """Sends the pieces before there, whose sums are complete, to the workers. Here a server
            would take the optimizer's step; this is a sum."""
            nonlocal sent
            while sent < until and (until == size or sent + streams.piece <= until):
                piece = values[sent : sent + streams.piece]
                for worker in workers:
                    streams.send(worker, piece)
                sent += len(piece)

        def then(low: int, high: int, sums: Array) -> None:
            values[low:high] = sums
            broadcast(high)

        added = 0
        for block in range(layout.blocks):
            piece = layout.piece(values, block)
            streams.receive(workers[0], piece)
            for worker in workers[1:]:
                add(worker, piece, streams)
            gathered = min(size, (block + 1) * streams.piece)
            if switches is None:
                broadcast(gathered)
                continue
            while added < len(keys) and keys[added][1] <= gathered:
                low, high = keys[added]
                switches.add(added, values[low:high], partial(then, low, high))
                added += 1
        if switches is not None:
            switches.wait()

    def loads(self, network: Network) -> dict[str, float]:
        """Implements ``Collective.loads``: of these, one copy from and to each box, and all of
        uplinks, are packets of in-network sums."""
        team = Team.of(network)
        racks = racks_of(team)
        between = 1.0 if len(racks) > 1 else 0.0
        most = max(network.workers[rack] for rack in racks)
        loads = {WORKER: 1.0, SERVER: most + between}
        return loads | {uplink(n): between for n in range(network.top(network.workers))}

    def predict(self, model: StreamModel) -> Prediction:
        """Implements ``Collective.predict``."""
        network, work = model.network, model.work
        team = Team.of(network)
        racks = racks_of(team)
        used = team.with_servers(self.servers(team))
        most = max(network.workers[rack] for rack in racks)
        levels = network.top(network.workers) if len(racks) > 1 else 0
        whole = model.message(work.data_bytes)
        piece = min(whole.data, VALUE * self.piece(used, work.data_bytes / VALUE, model.segment))
        one = model.message(piece)
        bits = wire_bits(work.frame_bytes, model.costs)
        chunks = -int(-work.data_bytes // work.payload_bytes)  # of all tensors as one
        names = [SERVER, *map(uplink, range(levels))] if levels else []

        def summed(name: str, count: float) -> float:
            line = network.lines[name]
            return count * bits / (line.rate * (1 - line.loss))

        busy = {WORKER: model.seconds(WORKER, whole), HOST: model.seconds(HOST, whole)}
        busy[SERVER] = model.seconds(SERVER, whole, most)
        for name in names:
            busy[name] = busy.get(name, 0.0) + summed(name, chunks)
        carried = {WORKER: whole.bytes, SERVER: most * whole.bytes}
        for name in names:
            carried[name] = carried.get(name, 0.0) + chunks * work.frame_bytes
        blocks = max(1, -int(-whole.data // piece))
        own = max(model.seconds(WORKER, one), model.seconds(SERVER, one, most))
        fill = 2 * (own + model.way(0, piece, SERVER))
        if names:
            hops = [(name, 1.0) for name in (*names, *reversed(names))]
            stations = link_stations(network, hops, work.frame_bytes, model.costs)
            of_piece = max(1.0, piece / work.payload_bytes)
            slowest = max(summed(name, 1.0) for name in names)
            fill += traversal_seconds(stations) + (of_piece - 1) * slowest
        total = pipeline_seconds(blocks, max(busy.values()) / blocks, fill, None)
        rough = "queues at boxes are not followed: up to 20 % longer"
        return model.prediction(self.name, busy, total, carried, rough)
