# SPDX-License-Identifier: Apache-2.0
"""Sums in racks, then between them: a box in each rack, and a collective between boxes.

This is PHub's hierarchical reduction (SoCC'18). A box is what the servers of a rack are to its
workers, and boxes exchange sums of racks (``planner.collectives.schedule``), so that one copy of a
tensor crosses the core in place of one of each worker. With several server processes in a rack each
has a shard, which it exchanges with its counterparts in other racks. Each part of a shard is sent
piece by piece; the pieces of all parts at the same place are a block of the schedule.

Time: the busiest class of links has all its bytes to carry, and a few blocks at once are in all
stages of the schedule: ``pipeline_seconds`` of blocks, with all stages of one as `fill`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from planner import flows
from planner.collectives.collective import Collective, Team, TeamError
from planner.collectives.schedule import (
    RING,
    Do,
    Exchange,
    blocks_at_once,
    in_order,
    most_held,
)
from planner.collectives.streams import Array, Streams, add
from planner.flows import VALUE, Round, bounds, part_bytes
from planner.network import HOST, SERVER, WORKER, Network, uplink
from planner.routed import busiest_amount
from planner.stations import pipeline_seconds

if TYPE_CHECKING:
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel

__all__ = ["Boxes", "Layout", "racks_of"]

_PIECE_BYTES = 1 << 16
_AHEAD = 4  # pieces that a worker has on their way to its box, and back


@dataclass(frozen=True)
class Boxes(Collective):
    """Central sums in racks, and an exchange between them."""

    exchange: Exchange = RING

    def describe(self, servers: int) -> str:
        """Implements ``Collective.describe``."""
        return f"a server sums in each rack, {self.exchange.name} between racks"

    def suits(self, team: Team) -> bool:
        """Implements ``Collective.suits``: in a single rack it is the same as servers."""
        racks = set(team.workers)
        return len(racks) > 1 and racks <= set(team.servers)

    def servers(self, team: Team) -> Sequence[int]:
        """Implements ``Collective.servers``: as many in each rack with workers."""
        racks = racks_of(team)
        found = [[n for n, at in enumerate(team.servers) if at == rack] for rack in racks]
        least = min(map(len, found))
        if not least:
            raise TeamError(
                f"the rack of tor{racks[found.index([])]} has workers and no server; each needs one"
                " that sums for it"
            )
        return sorted(position for here in found for position in here[:least])

    def piece(self, team: Team, size: float, segment: int) -> int:
        """Implements ``Collective.piece``: there are several times as many blocks as are in some
        stage at once, which fill and drain the schedule."""
        boxes = len(racks_of(team))
        parts = len(team.servers) // boxes * self.exchange.parts(boxes)
        at_once = blocks_at_once(self.exchange.program(0, boxes))
        return flows.piece(size, at_once * parts, segment, _PIECE_BYTES // segment)

    def reduce(self, member: int, team: Team, values: Array, streams: Streams) -> None:
        """Implements ``Collective.reduce``.

        A worker is ahead of its box by what this has in hand, and little more: what it sends beyond
        that would be in the way of other boxes.
        """
        layout = Layout(team, self.exchange, len(values), streams.piece)
        box = layout.racks.index(team.workers[member])
        shards = [layout.parts(values[low:high]) for low, high in pairwise(layout.shards)]
        program = self.exchange.program(box, layout.boxes)
        ahead = most_held(program) + _AHEAD
        wanted = list(in_order(program, layout.blocks))
        sums = [(block, one.part) for block, one in wanted if one.do is Do.BROADCAST]
        sent = 0
        for block, operation in wanted:
            if operation.do is not Do.GATHER:
                continue
            for unit, parts in zip(layout.units[box], shards, strict=True):
                streams.send(unit, layout.piece(parts[operation.part], block))
            sent += 1
            for block_, part in sums[max(0, sent - 1 - ahead) : max(0, sent - ahead)]:
                for unit, parts in zip(layout.units[box], shards, strict=True):
                    streams.receive(unit, layout.piece(parts[part], block_))
        for block, part in sums[max(0, sent - ahead) :]:
            for unit, parts in zip(layout.units[box], shards, strict=True):
                streams.receive(unit, layout.piece(parts[part], block))

    def serve(self, member: int, team: Team, size: int, streams: Streams) -> None:
        """Implements ``Collective.serve``."""
        layout = Layout(team, self.exchange, size, streams.piece)
        box, shard = layout.place(member)
        workers = [one for one, rack in enumerate(team.workers) if rack == layout.racks[box]]
        parts = layout.parts(np.empty(layout.shards[shard + 1] - layout.shards[shard], np.float32))
        program = self.exchange.program(box, layout.boxes)
        for block, (do, part, peer) in in_order(program, layout.blocks):
            piece = layout.piece(parts[part], block)
            if do is Do.GATHER:
                streams.receive(workers[0], piece)
                for worker in workers[1:]:
                    add(worker, piece, streams)
            elif do is Do.ADD:
                add(layout.units[peer][shard], piece, streams)
            elif do is Do.TAKE:
                streams.receive(layout.units[peer][shard], piece)
            elif do is Do.SEND:
                streams.send(layout.units[peer][shard], piece)
            elif do is Do.BROADCAST:
                for worker in workers:
                    streams.send(worker, piece)
            # Do.COMPLETE: here a server would take the optimizer's step; this is a sum.

    def rounds(self, team: Team, size: int) -> list[Round]:
        """Implements ``Collective.rounds``: one, as all is pipelined.

        Raises:
            ScheduleError: The exchange is wrong.
        """
        layout = Layout(team, self.exchange, size, size)
        programs = [self.exchange.program(box, layout.boxes) for box in range(layout.boxes)]
        self.exchange.verify(layout.boxes)
        found: Round = {}
        for shard, (low, high) in enumerate(pairwise(layout.shards)):
            parts = part_bytes(high - low, layout.count)
            for worker, rack in enumerate(team.workers):
                unit = layout.units[layout.racks.index(rack)][shard]
                found[worker, unit] = list(parts)
                found[unit, worker] = list(parts)
            for box, program in enumerate(programs):
                for operation in (one for stage in program for one in stage):
                    if operation.do is Do.SEND and operation.box < layout.boxes:  # to no switch
                        pair = layout.units[box][shard], layout.units[operation.box][shard]
                        found.setdefault(pair, []).append(parts[operation.part])
        return [found]

    def loads(self, network: Network) -> dict[str, float]:
        """Implements ``Collective.loads``."""
        team, ends = Team.of(network), network.ends(SERVER)
        used = self.servers(team)
        racks = racks_of(team)
        boxes = [[ends.units[n] for n in used if team.servers[n] == rack] for rack in racks]
        shards = len(boxes[0])
        parts = self.exchange.parts(len(boxes))
        pairs = {
            pair: count / parts / shards for pair, count in self.exchange.pairs(len(boxes)).items()
        }
        out, into = (np.zeros(len(boxes)) for _ in range(2))
        for (source, to), copies in pairs.items():
            out[source] += copies
            into[to] += copies
        links = np.zeros(len(ends.racks))
        for box, rack in enumerate(racks):
            for link in boxes[box]:
                links[link] += network.workers[rack] / shards + max(out[box], into[box])
        loads = {WORKER: 1.0, SERVER: float(links.max())}
        flows = [
            (boxes[source][shard], boxes[to][shard], copies)
            for (source, to), copies in pairs.items()
            for shard in range(shards)
        ]
        for level in range(network.top(network.workers)):
            loads[uplink(level)] = busiest_amount(network, level, ends, flows)
        return loads

    def predict(self, model: StreamModel) -> Prediction:
        """Implements ``Collective.predict``."""
        network = model.network
        loads = self.loads(network)
        team = Team.of(network)
        boxes = len(racks_of(team))
        used = team.with_servers(self.servers(team))
        shards = len(used.servers) // boxes
        cut = shards * self.exchange.parts(boxes)
        part = model.message(model.work.data_bytes / cut)
        busy = {one: model.seconds(one, part, cut * load) for one, load in loads.items()}
        busy[HOST] = model.seconds(HOST, part, cut)
        values = self.piece(used, model.work.data_bytes / VALUE, model.segment)
        piece = min(part.data, VALUE * values)
        blocks = max(1, -int(-part.data // piece))
        program = self.exchange.program(0, boxes)
        one = model.message(piece)
        own = max(
            model.seconds(WORKER, one), model.seconds(SERVER, one, max(network.workers))
        )  # of a rack's piece
        levels = network.top(network.workers)
        between = max(model.seconds(name, one) for name in (SERVER, *map(uplink, range(levels))))
        hop = between * (1 - 1 / one.segments) + model.way(levels, piece, SERVER, SERVER)
        fill = 2 * (own + model.way(0, piece, SERVER)) + (len(program) - 1) * hop
        total = pipeline_seconds(blocks, max(busy.values()) / blocks, fill, blocks_at_once(program))
        carried = {one: load * cut * part.bytes for one, load in loads.items()}
        rough = "queues between boxes are not followed: up to 20 % longer"
        return model.prediction(self.name, busy, total, carried, rough)


class Layout:
    """How a tensor is cut, and who has what.

    racks: of the boxes. units: the members of each box, one a shard.
    shards: boundaries of shards in the tensor. count: parts of a shard. blocks: of all parts.
    """

    def __init__(self, team: Team, exchange: Exchange, size: int, piece: int) -> None:
        self.racks = racks_of(team)
        self.boxes = len(self.racks)
        members = list(zip(team.server_members, team.servers, strict=True))
        self.units = [[one for one, at in members if at == rack] for rack in self.racks]
        shards = len(self.units[0])
        self.shards, self.count = bounds(size, shards), exchange.parts(self.boxes)
        longest = math.ceil(math.ceil(size / shards) / self.count)
        self._piece, self.blocks = piece, math.ceil(longest / piece)

    def place(self, member: int) -> tuple[int, int]:
        """Returns the box of a server, and its shard."""
        box = next(box for box, units in enumerate(self.units) if member in units)
        return box, self.units[box].index(member)

    def parts(self, shard: Array) -> list[Array]:
        """Returns the parts of a shard."""
        return [shard[low:high] for low, high in pairwise(bounds(len(shard), self.count))]

    def piece(self, part: Array, block: int) -> Array:
        """Returns a part's piece of a block; the last may be empty."""
        return part[block * self._piece : (block + 1) * self._piece]


def racks_of(team: Team) -> list[int]:
    """Returns the racks with workers."""
    return sorted(set(team.workers))
