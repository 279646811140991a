# SPDX-License-Identifier: Apache-2.0
"""Recursive halving, then doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005).

In each round a worker keeps half of its values, sends the other half to the worker 1, 2, 4.. places
away and adds what arrives from there; then all rounds run backwards. The number of places is a
power of two: in the first pairs of workers, one sends all its values to the other and receives the
sum at the end (a fold).

Time: each round takes the time of the slowest class of links plus the latency of a segment. Rounds
do not begin everywhere at once: with a fold, workers without a partner to fold with share links
with others, and the formula is too optimistic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.collectives.collective import Collective, Team
from planner.collectives.streams import Array, Streams, add_all, receive, send
from planner.flows import VALUE, Round, bounds
from planner.network import HOST, WORKER, Network, uplink
from planner.routed import busiest_pairs

if TYPE_CHECKING:
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel

__all__ = ["HalvingDoubling", "Step"]


@dataclass(frozen=True)
class Step:
    """A round, over classes of links.

    share: fraction of the tensor that each worker sends; 1: a fold.
    flows: messages on the busiest link of a class.
    levels: levels of uplinks on the longest path.
    """

    share: float
    flows: dict[str, int]
    levels: int


@dataclass(frozen=True)
class HalvingDoubling(Collective):
    """Recursive halving and doubling."""

    name: str = "halving-doubling"

    def describe(self, servers: int) -> str:
        """Implements ``Collective.describe``."""
        return "recursive halving and doubling"

    def reduce(self, member: int, team: Team, values: Array, streams: Streams) -> None:
        """Implements ``Collective.reduce``."""
        places, extra = _places(len(team.workers))
        folded = member < 2 * extra
        if folded and member % 2:
            send(member - 1, values, streams)
            receive(member - 1, values, streams)
            return
        if folded:
            add_all(member + 1, values, streams)
        place = member // 2 if folded else member - extra
        ends = bounds(len(values), places)
        low, high, distance = 0, places, 1
        rounds: list[tuple[int, Array, Array]] = []
        while distance < places:
            other = place ^ distance
            peer = 2 * other if other < extra else other + extra
            middle = (low + high) // 2
            lower, upper = values[ends[low] : ends[middle]], values[ends[middle] : ends[high]]
            kept, given = (upper, lower) if place & distance else (lower, upper)
            low, high = (middle, high) if place & distance else (low, middle)
            send(peer, given, streams)
            add_all(peer, kept, streams)
            rounds.append((peer, kept, given))
            distance *= 2
        for peer, kept, given in reversed(rounds):
            send(peer, kept, streams)
            receive(peer, given, streams)
        if folded:
            send(member + 1, values, streams)

    def rounds(self, team: Team, size: int) -> list[Round]:
        """Implements ``Collective.rounds``: in round k, places that differ only in bit k exchange
        halves."""
        places, extra = _places(len(team.workers))
        members = [2 * place if place < extra else place + extra for place in range(places)]
        ends = bounds(size, places)
        halving: list[Round] = []
        doubling: list[Round] = []
        for k in range(places.bit_length() - 1):
            there, back = Round(), Round()
            width = places >> (k + 1)
            for place, member in enumerate(members):
                low = sum((place >> j & 1) * (places >> (j + 1)) for j in range(k))
                kept = low + (place >> k & 1) * width
                given = low + (~place >> k & 1) * width
                pair = member, members[place ^ 1 << k]
                there[pair] = [VALUE * (ends[given + width] - ends[given])]
                back[pair] = [VALUE * (ends[kept + width] - ends[kept])]
            halving.append(there)
            doubling.insert(0, back)
        if extra:
            halving.insert(0, {(2 * i + 1, 2 * i): [VALUE * size] for i in range(extra)})
            doubling.append({(2 * i, 2 * i + 1): [VALUE * size] for i in range(extra)})
        return [*halving, *doubling]

    def steps(self, network: Network) -> list[Step]:
        """Returns the rounds over classes of links; workers rank in the order of racks."""
        core, extra = _places(network.count)
        top = network.top(network.workers)
        # Of the first pairs, 2i acts for 2i + 1 as well.
        ranks = np.concatenate([np.arange(0, 2 * extra, 2), np.arange(2 * extra, network.count)])
        steps: list[Step] = []
        if extra:
            fold = np.arange(0, 2 * extra, 2)
            steps.append(_step(network, fold + 1, fold, 1.0, top))
        share, distance = 0.5, 1
        while distance < core:
            partners = ranks[np.arange(core) ^ distance]
            steps.append(_step(network, ranks, partners, share, top))
            share, distance = share / 2, distance * 2
        return [*steps, *reversed(steps)]

    def loads(self, network: Network) -> dict[str, float]:
        """Implements ``Collective.loads``."""
        return self._loads(network, self.steps(network))

    def _loads(self, network: Network, steps: list[Step]) -> dict[str, float]:
        core, extra = _places(network.count)
        loads = {WORKER: 2 * (core - 1) / core}
        if extra:  # a fold adds one tensor in, and the result out
            loads[WORKER] += 1.0
        for level in range(network.top(network.workers)):
            name = uplink(level)
            loads[name] = sum(step.share * step.flows.get(name, 0) for step in steps)
        return loads

    def predict(self, model: StreamModel) -> Prediction:
        """Implements ``Collective.predict``."""
        steps = self.steps(model.network)
        classes = self._loads(model.network, steps)
        busy: dict[str, float] = dict.fromkeys([*classes, HOST], 0.0)
        loads: dict[str, float] = dict.fromkeys(classes, 0.0)
        total = 0.0
        for step in steps:
            message = model.message(model.work.data_bytes * step.share)
            # A fold has one direction, and the other at the end; all other rounds are exchanges.
            fold = step.share == 1
            on_wire = replace(message, acks=0) if fold else message
            took = {one: model.seconds(one, on_wire, flows) for one, flows in step.flows.items()}
            took[HOST] = model.seconds(HOST, message)
            for one, seconds in took.items():
                busy[one] += seconds
            for one, flows in step.flows.items():
                loads[one] += flows * message.bytes / (2 if fold else 1)
            total += max(took.values()) * (1 - 1 / message.segments) + model.way(
                step.levels, message.data
            )
        folds = bool(steps) and steps[0].share == 1
        rough = "workers are no power of two: up to 20 % longer" if folds else ""
        return model.prediction(self.name, busy, total, loads, rough)


def _places(workers: int) -> tuple[int, int]:
    """Returns the largest power of two, and the number of workers beyond it."""
    places = 1 << (workers.bit_length() - 1)
    return places, workers - places


def _step(
    network: Network, source: npt.NDArray[np.intp], to: npt.NDArray[np.intp], share: float, top: int
) -> Step:
    """Builds the round in which each of `source` sends `share` to its peer in `to`."""
    flows = {WORKER: 1}
    levels = 0
    for level in range(top):
        most = busiest_pairs(network, level, source, to)
        if not most:
            break
        flows[uplink(level)], levels = most, level + 1
    return Step(share, flows, levels)
