# SPDX-License-Identifier: Apache-2.0
"""ToRs under one core, or under as many levels of cores as they need."""

from __future__ import annotations

from controller.planning.levels import MOST_CHILDREN, NotJoinedError
from controller.planning.tree import Parent, PlanRefusedError, TreeNode
from controller.planning.trees.parts import Parts, Ranks
from controller.planning.trees.servers import tors_under_server


def two_level(parts: Parts, first: int, stream: int, servers: Ranks) -> list[TreeNode]:
    """Plans ToRs under a switch; with one rack, the ToR alone."""
    parts.check_tors()
    try:
        levels = parts.joined(parts.rotation + stream)
    except NotJoinedError as error:
        other = len(parts.racks) <= MOST_CHILDREN and not error.crowded
        text = f"{error}; try tree tor" if other else str(error)
        raise PlanRefusedError(text, "cores" if error.crowded else "tree") from error
    below = {name: names for level in levels for name, names in level.items()}
    (root,) = levels[-1] if levels else parts.racks
    order = [root]
    for name in order:
        order += below.get(name, ())
    numbers = {name: first + position for position, name in enumerate(order)}
    parents = {
        name: (core, sender) for core, names in below.items() for sender, name in enumerate(names)
    }
    nodes: dict[str, TreeNode] = {}
    for name in reversed(order):
        children = parts.switches_under(name, [nodes[one] for one in below.get(name, ())])
        parent = None
        if name in parents:
            core, sender = parents[name]
            up = parts.addressing.ports_between(name, core)[0]
            parent = Parent(numbers[core], sender, up.number, up.peer_mac)
        children = children or parts.workers_under(name)
        nodes[name] = TreeNode(numbers[name], name, (), children, parent)
    return [nodes[name] for name in order]


def two_level_under_server(parts: Parts, first: int, stream: int, servers: Ranks) -> list[TreeNode]:
    """Plans ToRs under a switch under the server; with one rack, the ToR under the server."""
    if len(parts.racks) == 1:
        return tors_under_server(parts, first, stream, servers)
    return parts.under_server(two_level(parts, first + 1, stream, servers), first, servers)
