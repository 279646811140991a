# SPDX-License-Identifier: Apache-2.0
"""Computes to which servers slices move so that loads are level, with as few moves as possible.

Slices are numbered; `owners` has the server of each, `chunks` its size. Results are deterministic.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Collection, Mapping, Sequence

_GOLDEN = (math.sqrt(5) - 1) / 2


def levelled(
    owners: Sequence[int],
    chunks: Sequence[int],
    servers: Mapping[int, float],
    most: float = math.inf,
) -> tuple[int, ...]:
    """Returns owners with loads in proportion to what `servers` are worth, to within a slice; other
    servers have none. A server keeps its last slice.

    most: chunks that move at most from one of `servers` to another.
    """
    total, worth = sum(chunks), sum(servers.values())
    targets = {server: int(total * one / worth) for server, one in servers.items()}
    return _Slices(owners, chunks, targets).level(most)


def cleared(
    owners: Sequence[int], chunks: Sequence[int], servers: Collection[int]
) -> tuple[int, ...]:
    """Returns owners after the slices of all but `servers` have gone to the least loaded of
    these."""
    return _Slices(owners, chunks, dict.fromkeys(servers, 0)).owners()


def scaled(
    owners: Sequence[int], chunks: Sequence[int], servers: Collection[int], added: Collection[int]
) -> tuple[int, ...]:
    """Returns owners after some servers have been added and others removed; `servers` are left.

    Those added, of which none has slices, get equal shares: the slices of the removed ones, and
    more of the others, in proportion to what these have. If the removed ones have more than that,
    their slices go to the least loaded. Loads keep their differences beyond that, as a balancer may
    have made them.
    """
    loads = {server: 0 for server in servers if server not in added}
    for server, count in zip(owners, chunks, strict=True):
        if server in loads:
            loads[server] += count
    total, held = sum(chunks), sum(loads.values())
    left = total * len(loads) // len(servers)  # for those that are not new
    if held <= left:
        return cleared(owners, chunks, servers)
    targets = {server: load * left // held for server, load in loads.items()}
    targets |= dict.fromkeys(added, total // len(servers))
    return _Slices(owners, chunks, targets).level()


class _Slices:
    """Slices at servers, of which each is to have a load of about its target. Those at other
    servers have moved to the servers that lack most."""

    def __init__(
        self, owners: Sequence[int], chunks: Sequence[int], targets: Mapping[int, int]
    ) -> None:
        self._owners = list(owners)
        self._beyond = {server: -target for server, target in targets.items()}
        # Of each server, in ascending order of chunks; equal ones by turns from all over the keys,
        # as multiples of the golden ratio are spread evenly, however many of them there are: a
        # server would else have much to do in a part of each round.
        self._at: dict[int, list[tuple[int, float, int]]] = {server: [] for server in targets}
        homeless = []
        for one, (server, count) in enumerate(zip(owners, chunks, strict=True)):
            piece = count, one * _GOLDEN % 1, one
            if server in targets:
                self._at[server].append(piece)
                self._beyond[server] += count
            else:
                homeless.append(piece)
        for pieces in self._at.values():
            pieces.sort()
        for piece in sorted(homeless, reverse=True):
            self._give(piece, self._poorest())

    def owners(self) -> tuple[int, ...]:
        """Returns the server of each slice."""
        return tuple(self._owners)

    def level(self, most: float = math.inf) -> tuple[int, ...]:
        """Moves slices from the server that is furthest beyond its target to the one that lacks
        most, as long as they come closer by it, and returns the server of each slice.

        most: chunks that move at most.
        """
        while True:
            beyond = self._beyond
            source = max(beyond, key=lambda server: (beyond[server], -server))
            target = self._poorest()
            pieces, lacks = self._at[source], -beyond[target]
            fitting = bisect_right(pieces, (min(beyond[source], lacks, most), 2.0))
            if len(pieces) < 2 or pieces[max(0, fitting - 1)][0] >= min(
                beyond[source] + lacks, most + 1
            ):
                return self.owners()
            piece = pieces.pop(max(0, fitting - 1))
            most -= piece[0]
            beyond[source] -= piece[0]
            self._give(piece, target)

    def _poorest(self) -> int:
        return min(self._beyond, key=lambda server: (self._beyond[server], server))

    def _give(self, piece: tuple[int, float, int], server: int) -> None:
        insort(self._at[server], piece)
        self._beyond[server] += piece[0]
        self._owners[piece[2]] = server
