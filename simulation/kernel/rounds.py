# SPDX-License-Identifier: Apache-2.0
"""Computes which nodes of a network run in a round, and until when.

The work is done in C (native/rounds.c), from the state of links and of nodes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int64, c_uint8, c_uint64, sizeof
from ctypes import c_void_p as pointer
from functools import cache
from itertools import accumulate

from hosts.native.loader import check_constants
from simulation.links.link import Link
from simulation.links.native import load_native
from simulation.links.trains import NEVER


class NodeState(ctypes.Structure):
    """struct node: the state of a node between rounds.

    next: the time of its first own event; NEVER without one.
    calls: the time before which it calls no other node, unless a packet leads it to.
    now: its local time.
    eager, answered, patient, hears: see Node.
    earliest, horizon: results of a round: its first event, at least, and until when it may run.
    """

    next: int
    calls: int
    now: int
    earliest: int
    horizon: int
    eager: int
    answered: int
    patient: int
    hears: int

    _fields_ = (
        *((name, c_int64) for name in ("next", "calls", "now", "due", "called", "earliest")),
        *((name, c_int64) for name in ("horizon", "affects")),
        *((name, c_uint8) for name in ("eager", "answered", "patient", "hears", "chosen")),
    )


class _Way(ctypes.Structure):
    """struct way: a link, and the numbers of its ends."""

    _fields_ = (("link", pointer), ("sender", c_uint64), ("receiver", c_uint64))


class _Network(ctypes.Structure):
    """struct network: the arguments of the functions in C, and the number of a late way."""

    _fields_ = (
        ("nodes", pointer), ("ways", pointer), ("firsts", pointer), ("node_count", c_uint64),
        ("way_count", c_uint64), ("latency", c_int64), ("span", c_int64), ("patience", c_int64),
        ("late", c_uint64),
    )  # fmt: skip


@cache
def _library() -> ctypes.CDLL:
    network = POINTER(_Network)
    library = load_native(
        {
            "rounds_due": (c_int64, [network]),
            "rounds_begin": (None, [network]),
            "rounds_choose": (c_uint64, [network, pointer]),
        }
    )
    mirrored: dict[str, type[ctypes.Structure]]
    mirrored = {"link": Link, "way": _Way, "node": NodeState, "network": _Network}
    check_constants(library, {f"{name}_bytes": sizeof(one) for name, one in mirrored.items()})
    return library


class Rounds:
    """The rounds of a network of `count` nodes, whose states are `nodes`.

    links: each with the numbers of its sender and receiver.
    latency: ps of a call between any two nodes.
    span: the most ps that a node runs at once.
    patience: patient nodes run with those that could affect others up to so many ps earlier.

    Raises VirtualError without a compiler.
    """

    def __init__(
        self,
        count: int,
        links: Sequence[tuple[Link, int, int]],
        latency: int,
        span: int,
        patience: int,
    ) -> None:
        self._native = _library()
        self._states = (NodeState * count)()
        self.nodes = list(self._states)
        for node in self.nodes:
            node.next = node.calls = NEVER
        self._links = sorted(links, key=lambda one: one[1])
        self._ways = (_Way * len(links))(
            *(_Way(ctypes.addressof(link), sender, to) for link, sender, to in self._links)
        )
        counts = [0] * (count + 1)
        for _, sender, _ in links:
            counts[sender + 1] += 1
        self._firsts = (c_uint64 * (count + 1))(*accumulate(counts))
        self._turns = (c_int64 * (3 * count))()
        self._network = _Network(
            *(ctypes.addressof(one) for one in (self._states, self._ways, self._firsts)),
            *(count, len(links), latency, span, patience),
        )
        self._given = byref(self._network)

    def due(self) -> int:
        """Returns the time of the first known event (ps)."""
        return int(self._native.rounds_due(self._given))

    def begin(self) -> Link | None:
        """Begins a round. Returns a link by which a packet arrives in its receiver's past, if there
        is any."""
        self._native.rounds_begin(self._given)
        late = self._network.late
        return self._links[late][0] if late < len(self._links) else None

    def choose(self) -> list[tuple[int, int, int]]:
        """Returns which nodes run: each one's number, first known event, and until when it may."""
        count = self._native.rounds_choose(self._given, self._turns)
        found = iter(self._turns[: 3 * count])
        return list(zip(found, found, found, strict=True))
