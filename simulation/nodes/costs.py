# SPDX-License-Identifier: Apache-2.0
"""What it costs a node's processors to handle packets, where that is not nothing."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from simulation.links.trains import SECOND, Lengths, Times, picoseconds
from topologies.model.topology import Costs

_PARTS = 10**6  # of a picosecond, that a byte's cost is rounded to


@dataclass(frozen=True)
class ProcessingCost:
    """per_packet: ps. A byte takes parts / whole ps more."""

    per_packet: int
    parts: int = 0
    whole: int = 1

    def of(self, lengths: Lengths) -> Times:
        """(n,) ps that packets of these bytes take, each rounded down."""
        took: Times = lengths * self.parts // self.whole + self.per_packet
        return took


def of_hosts(costs: Costs) -> ProcessingCost | None:
    """What a worker's host spends on a frame, each way; None: nothing."""
    if not (costs.host_per_packet or costs.host_per_byte):
        return None
    byte = Fraction(round(costs.host_per_byte * SECOND * _PARTS), _PARTS)
    return ProcessingCost(picoseconds(costs.host_per_packet), byte.numerator, byte.denominator)


def of_servers(costs: Costs) -> ProcessingCost | None:
    """What a server process spends on a payload that it gets; None: nothing."""
    if costs.server_rate is None:
        return None
    byte = Fraction(8 * SECOND, costs.server_rate)
    return ProcessingCost(0, byte.numerator, byte.denominator)


class Core:
    """A processor that handles packets one after the other, in the order in which they come.

    cost: of each. free: when it is done with those that came (ps).
    """

    def __init__(self, cost: ProcessingCost) -> None:
        self.cost = cost
        self.free = 0

    def ends(self, times: Times, lengths: Lengths) -> Times:
        """When it is done with packets that come at these times, none before the last of before;
        for each what it would be, came they one by one."""
        took = np.cumsum(self.cost.of(lengths))
        before = np.concatenate(([0], took[:-1]))
        # A packet ends as late as those from any one on take together, after that one came.
        ends: Times = took + np.maximum.accumulate(np.maximum(times - before, self.free))
        if len(ends):
            self.free = int(ends[-1])
        return ends
