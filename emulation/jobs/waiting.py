# SPDX-License-Identifier: Apache-2.0
"""What a job waits for, by what its workers report of their oldest chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.planning.tree_planner import Tree
from protocol.header import Phase

Message = dict[str, Any]


class Waits:
    """The last report of each worker that waits (``testbed.worker``), by rank."""

    def __init__(self, trees: Sequence[Tree], servers: Sequence[str]) -> None:
        self._nodes = {(tree.stream, node.node): node for tree in trees for node in tree.nodes}
        self._servers = servers
        self._reports: dict[int, Message] = {}

    def take(self, rank: int, report: Message) -> None:
        """A worker says that it waits."""
        self._reports[rank] = report

    def over(self, rank: int) -> None:
        """A worker goes on."""
        self._reports.pop(rank, None)

    @property
    def seconds(self) -> float:
        """The longest that one has waited."""
        return max((report["seconds"] for report in self._reports.values()), default=0.0)

    def missing(self) -> list[str]:
        """Whose contributions are not in, and where: ``w2 at tor1``. Workers before switches.

        A node knows its own children only: that a switch has not sent its sum says less than what
        that switch tells of its workers.
        """
        workers: dict[str, None] = {}
        switches: dict[str, None] = {}
        for report in self._reports.values():
            oldest = report["oldest"]
            if oldest is None or oldest["phase"] != Phase.AGGREGATING.name:
                continue
            node = self._nodes.get((oldest["stream"], oldest["node"]))
            if node is None:  # the server that sums a chunk in float32
                continue
            for child in node.children:
                if not oldest["children"] >> child.sender & 1:
                    place = node.switch or "/".join(self._servers[rank] for rank in node.servers)
                    found = switches if child.rank is None else workers
                    found[f"{child.name} at {place}"] = None
        return list(workers or switches)

    def __str__(self) -> str:
        absent = self.missing()
        if absent:
            return f"missing: {', '.join(absent)}"
        if not self._reports:
            return "nobody says that it waits"
        return str(self._reports[min(self._reports)]["text"])
