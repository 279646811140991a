# SPDX-License-Identifier: Apache-2.0
"""What an aggregation tree is: its kinds, its nodes, and why there may be none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from ipaddress import IPv4Address

__all__ = ["Child", "Parent", "PlanRefusedError", "Tree", "TreeKind", "TreeNode"]


class TreeKind(Enum):
    """Where sums are made; the numbers are those of the job service's ``Tree``."""

    # ToRs under one core (one rack: the ToR alone; more than one core takes: levels of them)
    TWO_LEVEL = 1
    TOR = 2  # ToRs under the server
    CORE = 3  # one core, no ToR
    NONE = 4  # the server alone
    TWO_LEVEL_SERVER = 5  # as two-level, under the server
    CORE_SERVER = 6  # one core under the server, no ToR

    def __str__(self) -> str:
        """As job files spell it: two-level, tor, core, none, two-level-server, core-server."""
        return self.name.lower().replace("_", "-")

    @property
    def ends_at_server(self) -> bool:
        """Whether the root is a server, which can run an optimizer then."""
        return self not in (TreeKind.TWO_LEVEL, TreeKind.CORE)

    @staticmethod
    def of(text: str) -> TreeKind:
        """The kind that a job file spells so; ``KeyError`` when there is none."""
        return TreeKind[text.upper().replace("-", "_")]


class PlanRefusedError(Exception):
    """No such tree can be had; the text says why and what would be possible.

    ``field``: what of the job it is about: tree, streams or workers, then those at ``tor``; or
    what of the topology: cores.
    """

    def __init__(self, text: str, field: str = "tree", tor: str | None = None) -> None:
        super().__init__(text)
        self.field = field
        self.tor = tor


@dataclass(frozen=True)
class Child:
    """A child of a tree node, as its parent sees it."""

    sender: int  # child index
    name: str
    rank: int | None  # a worker's; None for a switch
    node: int  # a switch's node id; 0 for a worker
    workers: int  # below it, or 1
    address: IPv4Address
    port: int  # of the parent switch, towards the child; 0 under a server
    mac: str  # of the next hop there; "" under a server


@dataclass(frozen=True)
class Parent:
    """What is above a switch: the node, the child index there, and the way out."""

    node: int
    sender: int
    port: int
    mac: str


@dataclass(frozen=True)
class TreeNode:
    """An inner node. ``switch`` is None for a server root, which ``servers`` (ranks) then share.

    The servers of one stream share its chunks, each the root for those addressed to it.
    """

    node: int
    switch: str | None
    servers: tuple[int, ...]
    children: tuple[Child, ...]
    parent: Parent | None

    @property
    def workers(self) -> int:
        """Workers below."""
        return sum(child.workers for child in self.children)

    @property
    def full(self) -> int:
        """The bitmap with every child's bit set."""
        return (1 << len(self.children)) - 1


@dataclass(frozen=True)
class Tree:
    """One stream's tree, root first."""

    stream: int
    nodes: tuple[TreeNode, ...]

    @property
    def root(self) -> TreeNode:
        """The node without a parent."""
        return self.nodes[0]

    @property
    def switches(self) -> tuple[TreeNode, ...]:
        """The nodes that are switches."""
        return tuple(node for node in self.nodes if node.switch is not None)

    @cached_property
    def by_number(self) -> dict[int, TreeNode]:
        """Nodes by their ids."""
        return {node.node: node for node in self.nodes}

    @cached_property
    def leaves(self) -> dict[int, tuple[TreeNode, Child]]:
        """Where each worker (by rank) hangs."""
        return {
            child.rank: (node, child)
            for node in self.nodes
            for child in node.children
            if child.rank is not None
        }
