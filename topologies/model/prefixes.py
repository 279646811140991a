# SPDX-License-Identifier: Apache-2.0
"""Aggregates routes of single addresses to few prefixes, for longest-prefix-match tables."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

_BITS = 32
Way = TypeVar("Way")


def aggregated(ways: Mapping[IPv4Address, Way | None]) -> dict[IPv4Network, Way]:
    """Computes prefixes that route all these addresses like the single routes.

    ways: next hop by address; no prefix covers an address with None.

    Prefixes do not overlap, each is as long as its addresses allow, and no two adjacent ones could
    be merged. Other addresses may fall under a prefix. If next hops are those of shortest paths,
    their packets do not loop: each hop is nearer to all addresses of the prefix used there, and the
    longest of the prefixes that a packet meets has addresses that are in all of them.
    """
    known = sorted((int(address), way) for address, way in ways.items())
    if not known:
        return {}
    numbers = [number for number, _ in known]
    ends = [len(known)] * len(known)  # end of the run with the same next hop
    for at in range(len(known) - 2, -1, -1):
        ends[at] = ends[at + 1] if known[at][1] == known[at + 1][1] else at + 1
    found: dict[IPv4Network, Way] = {}
    parts = [(0, len(known))]
    while parts:
        first, end = parts.pop()
        low, high = numbers[first], numbers[end - 1]
        host_bits = (low ^ high).bit_length()
        way = known[first][1]
        if ends[first] < end:
            middle = high >> host_bits - 1 << host_bits - 1
            cut = bisect_left(numbers, middle, first, end)
            parts += [(cut, end), (first, cut)]
        elif way is not None:
            found[IPv4Network((low >> host_bits << host_bits, _BITS - host_bits))] = way
    return found
