# SPDX-License-Identifier: Apache-2.0
"""Load of the single links between switches when slices go to several servers.

Switches take a destination's number modulo their ways up, and down again modulo the cores of the
pod below (``Addressing.route``); the same number selected every switch on the path. The links of a
level therefore divide destinations by two remainders: modulo the cores below and those above.
All sources of a rack send the same, so sums over racks suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.network import SERVER, WORKER, Ends, Network
from protocol.assignment.balanced import partition
from protocol.assignment.registry import BALANCED
from protocol.partition import shares
from protocol.propagation import USUAL, Propagation

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slicing:
    """The division of tensors into slices.

    counts: chunks of each tensor; empty: all servers have equal shares.
    most: chunks of a full slice.
    propagation: says how keys are cut and assigned.
    """

    counts: tuple[int, ...] = ()
    most: int = 1
    propagation: Propagation = USUAL

    def loads_by_process(self, servers: int) -> Counts:
        """Computes (servers,) chunks of each process by rank, as ``protocol.partition`` assigns."""
        if not self.counts:
            return np.ones(servers, np.int64)
        rule = self.propagation
        if rule.parts or rule.assign != BALANCED:
            where = shares(self.counts, self.most, servers, rule.classes, rule)
            held: Counts = where.together().sum(1)
            return held
        full = sum(count // self.most for count in self.counts)
        left = [count % self.most for count in self.counts if count % self.most]
        # Full slices are the largest, so they are assigned first, to all processes in turn.
        loads = np.array([*[self.most] * (full % servers), *left], np.int64)
        last = np.zeros(servers, np.int64)
        np.add.at(last, partition(loads, servers), loads)
        return last + full // servers * self.most


class _Level:
    """A level of uplinks: pods of racks, and the links of each pod by cores below and above."""

    def __init__(self, network: Network, level: int) -> None:
        cores = [1, *(one.cores for one in network.levels)]
        self.level, self.below, self.above = level, cores[level], cores[level + 1]
        self.pods = len(network.pods(level, network.workers))
        self.pod_of = _pods(network, level)

    def sums(self, amounts: Counts) -> Counts:
        """Sums (racks,) amounts into (pods,)."""
        found = np.zeros(self.pods, np.int64)
        np.add.at(found, self.pod_of, amounts)
        return found

    def by_link(self, to: Ends, amounts: Counts) -> Counts:
        """Adds up (pods, links) of the amounts to each end on the links that routing selects."""
        found = np.zeros((self.pods, self.below * self.above), np.int64)
        numbers = np.array(to.numbers, np.int64)
        links = numbers % self.below * self.above + numbers % self.above
        np.add.at(found, (self.pod_of[list(to.racks)], links), amounts)
        return found


def _exchange_loads(
    one: _Level, sources: Counts, to: Ends, amounts: Counts
) -> tuple[Counts, Counts]:
    """Computes (pods, links) loads up and down where every source sends each end its amount.

    sources: (racks,) number of sources.
    amounts: (ends,) copies to each end.
    """
    here, ends = one.sums(sources)[:, None], one.by_link(to, amounts)
    return here * (ends.sum(0) - ends), (here.sum() - here) * ends


def _tor_loads(
    network: Network, one: _Level, tors: Counts, to: Ends, amounts: Counts
) -> tuple[Counts, Counts]:
    """Computes the same for sums of ToRs, which leave by the link that the server's packets to the
    ToR arrive on; from there they are routed to the server."""
    up, down = _exchange_loads(one, tors, to, amounts)
    racks = np.flatnonzero(tors)
    own = Ends(tuple(racks.tolist()), tuple(racks.tolist()))
    if one.level == 0:
        leaving = amounts.sum() - one.sums(_in_racks(network, to, amounts))
        up = one.by_link(own, leaving[racks])
        if network.levels:
            # Within one pod of cores the link up determines the whole path.
            groups = _pods(network, 1)
            ends = one.by_link(to, amounts)
            inside = np.zeros((int(groups.max()) + 1, one.above), np.int64)
            np.add.at(inside, (groups[racks], racks % one.above), 1)
            outside = tors.sum() - inside.sum(1)
            others = inside[groups] - one.by_link(own, np.ones(len(racks), np.int64))
            down = outside[groups][:, None] * ends + others * ends.sum(1)[:, None]
    elif one.level == 1:
        first = np.zeros((one.pods, one.below), np.int64)
        np.add.at(first, (one.pod_of[racks], racks % one.below), 1)
        ends = np.zeros((one.pods, one.above), np.int64)
        np.add.at(ends, (one.pod_of[list(to.racks)], np.array(to.numbers) % one.above), amounts)
        up = (first[:, :, None] * (ends.sum(0) - ends)[:, None, :]).reshape(one.pods, -1)
    return up, down


def _pods(network: Network, level: int) -> npt.NDArray[np.intp]:
    """Returns (racks,) indices of pods at a level."""
    size = 1 if level == 0 else network.levels[level - 1].racks
    return np.arange(len(network.workers)) // size


def _in_racks(network: Network, ends: Ends, amounts: Counts) -> Counts:
    """Sums (ends,) amounts into (racks,)."""
    found = np.zeros(len(network.workers), np.int64)
    np.add.at(found, list(ends.racks), amounts)
    return found


def busiest_load(
    network: Network, level: int, sources: Sequence[int], shares: Counts, *, at_tors: bool
) -> int:
    """Computes the load of the busiest direction of an uplink at a level.

    sources: workers, or ToRs, of each rack; each sends every server link its share and gets it
        back.
    """
    one, servers = _Level(network, level), network.ends(SERVER)
    count = np.array(sources, np.int64)
    if at_tors:
        racks = tuple(np.flatnonzero(count).tolist())
        back_to = Ends(racks, racks)
        there = _tor_loads(network, one, count, servers, shares)
    else:
        back_to = network.ends(WORKER)
        there = _exchange_loads(one, count, servers, shares)
    back = _exchange_loads(
        one, _in_racks(network, servers, shares), back_to, np.ones(len(back_to.racks), np.int64)
    )
    return max(int((a + b).max()) for a, b in zip(there, back, strict=True))


def busiest_pairs(
    network: Network, level: int, source: npt.NDArray[np.intp], to: npt.NDArray[np.intp]
) -> int:
    """Counts the messages on the busiest direction of an uplink at a level.

    source, to: sender and receiver of each message, as workers in the order of racks.
    """
    flows = [(a, b, 1.0) for a, b in zip(source.tolist(), to.tolist(), strict=True)]
    return int(busiest_amount(network, level, network.in_racks, flows))


def busiest_amount(
    network: Network,
    level: int,
    ends: Ends,
    flows: Sequence[tuple[int, int, float]],
) -> float:
    """Computes what the busiest direction of an uplink at a level carries.

    flows: positions in `ends` of a sender and a receiver, and the amount.
    """
    one = _Level(network, level)
    source, to = (np.array([flow[end] for flow in flows], np.intp) for end in (0, 1))
    amounts = np.array([flow[2] for flow in flows])
    racks, numbers = np.array(ends.racks), np.array(ends.numbers)
    links = numbers[to] % one.below * one.above + numbers[to] % one.above
    found = []
    crosses = one.pod_of[racks[source]] != one.pod_of[racks[to]]
    for end in (source, to):
        at = one.pod_of[racks[end]] * (one.below * one.above) + links
        found.append(float(np.bincount(at[crosses], amounts[crosses], minlength=1).max()))
    return max(found)
