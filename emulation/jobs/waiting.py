# SPDX-License-Identifier: Apache-2.0
"""Derives what a job waits for from its workers' reports on their oldest chunks."""

from __future__ import annotations

from collections.abc import Sequence

from controller.planning.tree_planner import Tree, TreeNode
from observability.messages.process_reports import WaitingReport
from protocol.header import Phase


class Waits:
    """Keeps the last ``waiting`` report of each worker that waits (``testbed.worker``)."""

    def __init__(self, trees: Sequence[Tree], servers: Sequence[str]) -> None:
        self._nodes: dict[tuple[int, int | None], TreeNode] = {
            (tree.stream, node.node): node for tree in trees for node in tree.nodes
        }
        self._servers = servers
        self._reports: dict[int, WaitingReport] = {}

    def take(self, rank: int, report: WaitingReport) -> None:
        """Takes a worker's report that it waits."""
        self._reports[rank] = report

    def over(self, rank: int) -> None:
        """Drops a worker's report: it no longer waits."""
        self._reports.pop(rank, None)

    @property
    def seconds(self) -> float:
        """The longest time that a worker has waited."""
        return max((report["seconds"] for report in self._reports.values()), default=0.0)

    def missing(self) -> list[str]:
        """Returns missing contributions, as ``w2 at tor1``: those of workers, else of switches.

        A node knows its own children only: a missing sum of a switch says less than the workers
        that this switch itself reports as missing.
        """
        workers: dict[str, None] = {}
        switches: dict[str, None] = {}
        for report in self._reports.values():
            oldest = report["oldest"]
            if oldest is None or oldest.phase != Phase.AGGREGATING.name:
                continue
            node = self._nodes.get((oldest.stream, oldest.node))
            if node is None or oldest.children is None:  # the server that sums a chunk in float32
                continue
            for child in node.children:
                if not oldest.children >> child.sender & 1:
                    place = node.switch or "/".join(self._servers[rank] for rank in node.servers)
                    found = switches if child.rank is None else workers
                    found[f"{child.name} at {place}"] = None
        return list(workers or switches)

    def __str__(self) -> str:
        absent = self.missing()
        if absent:
            return f"missing: {', '.join(absent)}"
        if not self._reports:
            return "no worker reports that it waits"
        return str(self._reports[min(self._reports)]["text"])
