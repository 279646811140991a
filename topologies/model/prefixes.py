# SPDX-License-Identifier: Apache-2.0
"""Routes of single addresses as few prefixes, for tables that match the longest one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

__all__ = ["aggregated"]

_BITS = 32
Way = TypeVar("Way")


def aggregated(ways: Mapping[IPv4Address, Way | None]) -> dict[IPv4Network, Way]:
    """Prefixes by which all these addresses go the same ways as by themselves.

    None: an address without a way, which no prefix has. Prefixes do not overlap, each is as long as
    its addresses allow, and no two that lie next to each other could be one. Others than these
    addresses may fall under a prefix. Where ways lead to the next hop of shortest paths, such a
    packet goes round no loop: each hop takes it nearer to all addresses of the prefix used there,
    and of the prefixes that one packet meets the longest has addresses that all of them have.
    """
    known = sorted((int(address), way) for address, way in ways.items())
    if not known:
        return {}
    numbers = [number for number, _ in known]
    ends = [len(known)] * len(known)  # where those that go the same way end
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
