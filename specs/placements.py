# SPDX-License-Identifier: Apache-2.0
"""Placements: words that set the servers of a job, its trees, and where optimizer steps are taken.

PHub's four (SoCC'18, section 2.3) have one or many servers, on hosts of their own or on those of
workers; in two more, switches sum, with a switch or a server as root. ``Kind`` has what a word
means for a job file, ``hosts`` what it means on a topology.
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

    copies: gradient copies that one server host sends plus receives in an iteration, as a function
    of the numbers of workers and servers.
    trees: names that a job file may use -> the tree meant; the first is the default.
    colocated: servers run on hosts of workers.
    central: there is exactly one server.
    single: there is one server unless the file names more.
    steps: where optimizer steps are taken; "": as the file says.
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
        """Returns the default number of servers, given enough hosts."""
        return 1 if self.central or self.single else workers


# A host that is worker and server exchanges nothing with itself: as a worker, it skips its own of n
# shards; as a server, its own of N workers.
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
    """Returns the placement of a word, None for None. Raises ``KeyError``."""
    return None if word is None else _BY_NAME[word]  # type: ignore[index]


@dataclass(frozen=True)
class Hosts:
    """Hosts that may be servers of a job, and those that are by default."""

    allowed: tuple[str, ...]
    default: tuple[str, ...]


def hosts(kind: Kind | None, topology: Topology, workers: Sequence[str]) -> Hosts:
    """Returns the possible server hosts of a job with these workers."""
    allowed = tuple(node.name for node in topology.servers)
    if kind is None:
        return Hosts(allowed, allowed)
    if kind.colocated:
        allowed = tuple(workers)
    return Hosts(allowed, allowed[:1] if kind.central or kind.single else allowed)
