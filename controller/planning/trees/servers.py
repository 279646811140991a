# SPDX-License-Identifier: Apache-2.0
"""Servers as the roots of ToRs, or of workers."""

from __future__ import annotations

from controller.planning.tree import Child, Parent, TreeNode
from controller.planning.trees.parts import Parts, Ranks, ServersDisagreeError


def tors_under_server(parts: Parts, first: int, stream: int, servers: Ranks) -> list[TreeNode]:
    """Plans the ToRs of all workers under the server."""
    parts.check_tors()
    children, below = [], []
    for sender, tor in enumerate(parts.racks):
        ways = {parts.way_from_server(tor, parts.servers[rank]) for rank in servers}
        if len(ways) > 1:
            raise ServersDisagreeError(
                f"stream {stream} has servers {parts.names(servers)}, to which {tor} has"
                " different ways"
            )
        port, mac = ways.pop()
        parent = Parent(first, sender, port, mac)
        node = TreeNode(first + 1 + sender, tor, (), parts.workers_under(tor), parent)
        below.append(node)
        children.append(parts.switch_child(sender, node, 0, ""))
    return [TreeNode(first, None, servers, tuple(children), None), *below]


def server_alone(parts: Parts, first: int, stream: int, servers: Ranks) -> list[TreeNode]:
    """Plans the server with all workers as its children."""
    parts.check_flat("the server")
    children = tuple(
        Child(sender, name, rank, 0, 1, parts.addressing.address(name), 0, "")
        for sender, (rank, name) in enumerate(parts.workers)
    )
    return [TreeNode(first, None, servers, children, None)]
