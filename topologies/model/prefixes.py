# SPDX-License-Identifier: Apache-2.0
"""Aggregates routes of single addresses to few prefixes, for longest-prefix-match tables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import TypeVar

_BITS = 32
Way = TypeVar("Way")


def aggregated(
    numbers: Sequence[int], runs: Sequence[tuple[int, Way | None]]
) -> dict[IPv4Network, Way]:
    """Computes prefixes that route all these addresses like the single routes.

    numbers: of the addresses, ascending.
    runs: each with the index of its first address, and the next hop of all up to the next run; no
        prefix covers an address with None. Neighbours differ.

    Prefixes do not overlap, each is as long as its addresses allow, and no two adjacent ones could
    be merged. Other addresses may fall under a prefix. If next hops are those of shortest paths,
    their packets do not loop: each hop is nearer to all addresses of the prefix used there, and the
    longest of the prefixes that a packet meets has addresses that are in all of them.
    """
    starts = [start for start, _ in runs]
    found: dict[IPv4Network, Way] = {}
    parts = [(0, len(numbers))] if numbers else []
    while parts:
        first, end = parts.pop()
        low, high = numbers[first], numbers[end - 1]
        host_bits = (low ^ high).bit_length()
        following = bisect_right(starts, first)
        way = runs[following - 1][1]
        if following < len(starts) and starts[following] < end:
            middle = high >> host_bits - 1 << host_bits - 1
            cut = bisect_left(numbers, middle, first, end)
            parts += [(cut, end), (first, cut)]
        elif way is not None:
            found[IPv4Network((low >> host_bits << host_bits, _BITS - host_bits))] = way
    return found
