# SPDX-License-Identifier: Apache-2.0
"""Aggregation trees: nodes and the error for refused plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address


class PlanRefusedError(Exception):
    """The tree is impossible; the text says why and what would be possible.

    field: the field concerned: tree, streams or workers of the job, or cores of the topology.
    tor: the ToR of the workers concerned, if `field` is workers.
    """

    def __init__(self, text: str, field: str = "tree", tor: str | None = None) -> None:
        super().__init__(text)
        self.field = field
        self.tor = tor


@dataclass(frozen=True)
class Child:
    """A child of a tree node, from the parent's point of view."""

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
    """A switch's parent node, the child index there, and the port and next hop towards it."""

    node: int
    sender: int
    port: int
    mac: str


@dataclass(frozen=True)
class TreeNode:
    """An inner node: a switch, or a root (``switch`` is None) that ``servers`` (ranks) share.

    Each server of a stream is the root for the chunks that are addressed to it.
    """

    node: int
    switch: str | None
    servers: tuple[int, ...]
    children: tuple[Child, ...]
    parent: Parent | None

    @property
    def workers(self) -> int:
        """Number of workers below."""
        return sum(child.workers for child in self.children)

    @property
    def full(self) -> int:
        """The bitmap with every child's bit set."""
        return (1 << len(self.children)) - 1


@dataclass(frozen=True)
class Tree:
    """One stream's tree, root first.

    stream: the stream's number.
    urgency: the class of its chunks; the most urgent has the highest.
    """

    stream: int
    nodes: tuple[TreeNode, ...]
    urgency: int = 0

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
        """The parent and child entry of each worker, by rank."""
        return {
            child.rank: (node, child)
            for node in self.nodes
            for child in node.children
            if child.rank is not None
        }
