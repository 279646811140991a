# SPDX-License-Identifier: Apache-2.0
"""A collective in one file, as CONTRIBUTING.md describes: the first worker sums for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.collectives.collective import Collective, Team
from planner.collectives.streams import Array, Streams, add_all, receive, send
from planner.flows import VALUE, Round
from planner.network import HOST, WORKER, Network

if TYPE_CHECKING:
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel


@dataclass(frozen=True)
class GatherBroadcast(Collective):
    """Every worker sends all values to the first, which returns the sums to all."""

    name: str = "gather-broadcast"

    def reduce(self, member: int, team: Team, values: Array, streams: Streams) -> None:
        if member:
            send(0, values, streams)
            receive(0, values, streams)
            return
        for peer in range(1, len(team.workers)):
            add_all(peer, values, streams)
        for peer in range(1, len(team.workers)):
            send(peer, values, streams)

    def rounds(self, team: Team, size: int) -> list[Round]:
        there = {(member, 0): [VALUE * size] for member in range(1, len(team.workers))}
        return [there, {(to, source): sizes for (source, to), sizes in there.items()}]

    def loads(self, network: Network) -> dict[str, float]:
        return {WORKER: network.count - 1}

    def predict(self, model: StreamModel) -> Prediction:
        message = model.message(model.work.data_bytes)
        copies = model.network.count - 1
        busy = {one: model.seconds(one, message, 2 * copies) for one in (WORKER, HOST)}
        seconds = max(busy.values()) + 2 * model.way(0, message.data)
        return model.prediction(self.name, busy, seconds, {WORKER: copies * message.bytes})
