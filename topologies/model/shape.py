# SPDX-License-Identifier: Apache-2.0
"""Generates a topology's switches and their links from its racks and levels of cores.

Racks count from 0 and are divided into pods, level by level: a pod consists of whole pods of the
level below, and the last one may be smaller. Each core of a pod is linked to all switches of the
level below in the pod: to ToRs, or to the cores of smaller pods. If a level has a single pod, it is
fully meshed with the level below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topologies.model.topology import Node


@dataclass(frozen=True)
class Rack:
    """Numbers of hosts in a rack; ``processors`` as in Node."""

    workers: int
    servers: int
    processors: int = 1


@dataclass(frozen=True)
class Level:
    """A level of cores: racks of a pod, and cores of a pod."""

    racks: int
    cores: int


@dataclass(frozen=True)
class Shape:
    """Racks and levels of cores, lowest first; the last level has one pod."""

    racks: Sequence[Rack]
    levels: Sequence[Level]

    @property
    def cores(self) -> int:
        """Number of cores over all levels."""
        return sum(self._pods(level) * level.cores for level in self.levels)

    def most_ports(self) -> tuple[str, int]:
        """Returns the switch with the most ports and their number, without links added later."""
        hosts, first = max((r.workers + r.servers, -i) for i, r in enumerate(self.racks))
        found = [(f"tor{-first}", hosts + (self.levels[0].cores if self.levels else 0))]
        number = 0
        for i, level in enumerate(self.levels):
            here = min(level.racks, len(self.racks))  # of the first pod, which is the largest
            below = self.levels[i - 1] if i else Level(1, 1)
            above = self.levels[i + 1].cores if i + 1 < len(self.levels) else 0
            ports = -(-here // below.racks) * below.cores + above
            found.append((f"core{number}", ports))
            number += self._pods(level) * level.cores
        return max(found, key=lambda one: one[1])

    def nodes(self) -> list[Node]:
        """Lists workers, servers, ToRs, then cores level by level and pod by pod."""
        workers: list[Node] = []
        servers: list[Node] = []
        tors: list[Node] = []
        cores: list[Node] = []
        for rack, counts in enumerate(self.racks):
            tors.append(Node(f"tor{rack}", "switch", rack, 1, rack))
            for _ in range(counts.workers):
                workers.append(Node(f"w{len(workers)}", "worker", rack, 0, len(workers)))
            for _ in range(counts.servers):
                index = len(servers)
                servers.append(Node(f"s{index}", "server", rack, 0, index, counts.processors))
        for number, level in enumerate(self.levels):
            for _ in range(self._pods(level) * level.cores):
                cores.append(Node(f"core{len(cores)}", "switch", None, 2 + number, len(cores)))
        return workers + servers + tors + cores

    def uplinks(self) -> Iterator[tuple[str, str]]:
        """Yields links between switches: the lower end's name, and the upper's."""
        below = [(f"tor{rack}", rack) for rack in range(len(self.racks))]
        number = 0
        for level in self.levels:
            here = [
                (f"core{number + i}", i // level.cores * level.racks)
                for i in range(self._pods(level) * level.cores)
            ]
            number += len(here)
            for name, rack in below:
                first = rack // level.racks * level.cores
                for upper, _ in here[first : first + level.cores]:
                    yield name, upper
            below = here

    def _pods(self, level: Level) -> int:
        return -(-len(self.racks) // level.racks)
