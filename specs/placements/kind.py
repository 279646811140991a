# SPDX-License-Identifier: Apache-2.0
"""A placement: decides a job's servers, its trees, and where optimizer steps are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from topologies.model.topology import Topology


class Hosts(NamedTuple):
    """Hosts that may be servers of a job, and those that are by default."""

    allowed: tuple[str, ...]
    default: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A placement. A subclass may override its methods.

    name: word of job files.
    copies: gradient copies that one server host sends plus receives in an iteration, as a function
        of the numbers of workers and servers.
    formula: `copies` in words, for documents: of N workers and S servers.
    trees: names that a job file may use -> the tree meant (``protocol.trees``); the first is the
        default.
    colocated: servers run on hosts of workers.
    central: there is exactly one server.
    single: there is one server unless the file names more.
    steps: where optimizer steps are taken; "": as the file says.
    """

    name: str
    meaning: str
    copies: Callable[[int, int], float]
    formula: str
    trees: Mapping[str, str]
    colocated: bool = False
    central: bool = False
    single: bool = False
    steps: Literal["workers", "servers", ""] = ""

    def servers(self, workers: int) -> int:
        """Returns the default number of servers, given enough hosts."""
        return 1 if self.central or self.single else workers

    def hosts(self, topology: Topology, workers: Sequence[str]) -> Hosts:
        """Returns the possible server hosts of a job with these workers."""
        allowed = tuple(workers) if self.colocated else of_topology(topology)
        return Hosts(allowed, allowed[:1] if self.central or self.single else allowed)


def of_topology(topology: Topology) -> tuple[str, ...]:
    """Returns the hosts of a topology that are servers."""
    return tuple(node.name for node in topology.servers)
