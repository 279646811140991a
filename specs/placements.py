# SPDX-License-Identifier: Apache-2.0
"""Placements: one word for the servers of a job, its trees, and who takes the optimizer's steps.

PHub's four (SoCC'18, section 2.3) have servers on hosts of their own or on those of workers, one or
many; two more have switches sum, up to a switch or up to a server. Everything that a word decides
is told here: a ``Kind`` for a job file, ``hosts`` for a topology.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from topologies.model.topology import Topology

__all__ = ["KINDS", "Hosts", "Kind", "Tree", "Word", "hosts", "kind_of"]

Word = Literal["cc", "cs", "ncc", "ncs", "inc", "inc-server"]
Tree = Literal["two-level", "tor", "core", "none", "two-level-server", "core-server"]

_NO_SWITCH: Mapping[str, Tree] = {"none": "none"}
_TO_A_SWITCH: Mapping[str, Tree] = {"two-level": "two-level", "core": "core"}
_TO_A_SERVER: Mapping[str, Tree] = {
    "two-level": "two-level-server",
    "tor": "tor",
    "core": "core-server",
    "two-level-server": "two-level-server",
    "core-server": "core-server",
}


@dataclass(frozen=True)
class Kind:
    """A placement.

    copies: of the gradients that one server host sends and receives in an iteration, both together,
    for so many workers and servers. trees: what a job file may call them, and which that is; the
    first if it does not say. colocated: servers are on hosts of workers. central: there is one.
    single: there is one unless the file names more. steps: who takes them; "": as the file says.
    """

    name: Word
    meaning: str
    copies: Callable[[int, int], float]
    trees: Mapping[str, Tree]
    colocated: bool = False
    central: bool = False
    single: bool = False
    steps: Literal["workers", "servers", ""] = ""

    def servers(self, workers: int) -> int:
        """How many there are where nothing else is said, and hosts enough."""
        return 1 if self.central or self.single else workers


# A host that is worker and server exchanges nothing with itself: as a worker it misses its own of
# n shards, as a server its own of N workers.
def _colocated(workers: int, servers: int) -> float:
    return 2 * (workers + servers - 2) / servers


def _apart(workers: int, servers: int) -> float:
    return 2 * workers / servers


KINDS = (
    Kind("cc", "colocated, central", _colocated, _NO_SWITCH, colocated=True, central=True),
    Kind("cs", "colocated, sharded", _colocated, _NO_SWITCH, colocated=True),
    Kind("ncc", "non-colocated, central", _apart, _NO_SWITCH, central=True),
    Kind("ncs", "non-colocated, sharded", _apart, _NO_SWITCH),
    Kind("inc", "a switch is the root", lambda workers, servers: 0, _TO_A_SWITCH, steps="workers"),
    Kind(
        "inc-server",
        "a server under aggregating switches",
        lambda workers, servers: 2 / servers,
        _TO_A_SERVER,
        single=True,
        steps="servers",
    ),
)
_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(word: str | None) -> Kind | None:
    """What a word stands for; None for none. ``KeyError`` if it is no placement."""
    return None if word is None else _BY_NAME[word]  # type: ignore[index]


@dataclass(frozen=True)
class Hosts:
    """Names of the hosts that may be servers of a job, and of those that are if it names none."""

    allowed: tuple[str, ...]
    default: tuple[str, ...]


def hosts(kind: Kind | None, topology: Topology, workers: Sequence[str]) -> Hosts:
    """For a job with these workers."""
    allowed = tuple(node.name for node in topology.servers)
    if kind is None:
        return Hosts(allowed, allowed)
    if kind.colocated:
        allowed = tuple(workers)
    return Hosts(allowed, allowed[:1] if kind.central or kind.single else allowed)
