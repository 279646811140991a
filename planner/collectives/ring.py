# SPDX-License-Identifier: Apache-2.0
"""Ring all-reduce (Patarasuk and Yuan, JPDC 2009).

Time: a piece is forwarded as soon as it arrives, so the pieces of a part travel round the ring like
chunks in a window of as many: ``pipeline_seconds`` of 2 (n - 1) parts, with one hop as `fill`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.collectives.collective import Collective, Team
from planner.collectives.streams import Array, Streams, add, pieces, send
from planner.flows import Round, bounds, part_bytes
from planner.network import HOST, WORKER, Network, uplink
from planner.stations import pipeline_seconds

if TYPE_CHECKING:
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel

__all__ = ["Ring"]


@dataclass(frozen=True)
class Ring(Collective):
    """A reduce-scatter, then an all-gather, each of n - 1 steps to the successor."""

    name: str = "ring"

    def reduce(self, member: int, team: Team, values: Array, streams: Streams) -> None:
        """Implements ``Collective.reduce``.

        A piece is forwarded as soon as it arrives: a step does not wait for the one before to end.
        """
        workers = len(team.workers)
        if workers == 1:
            return
        ends = bounds(len(values), workers)
        parts = [values[ends[i] : ends[i + 1]] for i in range(workers)]
        after, before = (member + 1) % workers, (member - 1) % workers
        send(after, parts[member], streams)
        last = 2 * (workers - 1) - 1
        for step in range(last + 1):
            for piece in pieces(parts[(member - step - 1) % workers], streams):
                if step < workers - 1:
                    add(before, piece, streams)
                else:
                    streams.receive(before, piece)
                if step < last:
                    streams.send(after, piece)

    def rounds(self, team: Team, size: int) -> list[Round]:
        """Implements ``Collective.rounds``: one, as all steps are pipelined."""
        workers = len(team.workers)
        if workers == 1:
            return []
        parts = part_bytes(size, workers)
        return [
            {
                (i, (i + 1) % workers): [
                    parts[part % workers]
                    for first in (i, i + 1)
                    for part in range(first, first - workers + 1, -1)
                ]
                for i in range(workers)
            }
        ]

    def loads(self, network: Network) -> dict[str, float]:
        """Implements ``Collective.loads``: 2 (n - 1)/n on every link between two workers."""
        n = network.count
        levels = range(network.top(network.workers))
        return dict.fromkeys([WORKER, *map(uplink, levels)], 2 * (n - 1) / n)

    def predict(self, model: StreamModel) -> Prediction:
        """Implements ``Collective.predict``."""
        network, count = model.network, model.network.count
        if count == 1:
            return model.prediction(self.name, {WORKER: 0.0}, 0.0, {WORKER: 0})
        classes = self.loads(network)
        part = model.message(model.work.data_bytes / count)
        size = model.piece(count)
        parts = max(1, -int(-part.data // size))
        busy = {one: 2 * (count - 1) * model.seconds(one, part) for one in (*classes, HOST)}
        step = max(busy.values()) / (2 * (count - 1) * parts)
        # The first segments of a piece propagate while the others are still being sent.
        segments = min(part.segments, size // model.segment)
        ways = [model.way(levels, part.data) for levels in range(len(network.levels) + 1)]
        hops = [ways[levels] for levels in _crossed(network)]
        once = sum(hops)
        least = min(first + second for first, second in pairwise([*hops, hops[0]]))
        mean = (2 * once - least) / (2 * (count - 1))  # all but two neighbours' a second time
        hop = mean + step * (segments - 1) / segments
        total = pipeline_seconds(2 * (count - 1) * parts, step, hop, parts)
        loads = dict.fromkeys(classes, 2 * (count - 1) * part.bytes)
        return model.prediction(self.name, busy, total, loads)


def _crossed(network: Network) -> list[int]:
    """Counts the levels of uplinks between each worker and its successor, in the order of racks."""
    racks = [rack for rack, count in enumerate(network.workers) if count]
    found = [0] * (network.count - len(racks))
    for rack, other in pairwise([*racks, racks[0]]):
        level = 0
        while rack != other and network.pod(level, rack) != network.pod(level, other):
            level += 1
        found.append(level)
    return found
