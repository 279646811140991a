# SPDX-License-Identifier: Apache-2.0
"""Installs and removes a job's entries in the switches, in a safe order.

A switch takes part in a tree as soon as it has an entry in ``nodes``, so this entry is written
after everything that its packets need, and deleted first. Updates of one Write have no guaranteed
order (P4Runtime spec, "Batching and Ordering of Updates"), so each stage is a Write of its own.
Roots are installed before their children.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.p4rt.connection import SwitchError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import Entity, multicast_group
from controller.p4rt.fabric import Fabric, mac_number
from controller.p4rt.program import NodeKey, Uplink
from controller.planning.slots import SlotRange
from controller.planning.tree_planner import Tree, TreeNode
from protocol.header import PORT

__all__ = ["Installation", "SlotRange", "entities_of"]

log = logging.getLogger(__name__)


def entities_of(
    dataplane: DataPlane,
    job: int,
    epoch: int,
    tree: Tree,
    node: TreeNode,
    place: SlotRange,
    window: int,
    worker_ports: Sequence[int],
    address: int,
) -> tuple[list[Entity], Entity]:
    """Builds the entities of one tree node, and the ``nodes`` entry that activates it.

    worker_ports: UDP ports of workers by rank.
    address: the switch's own IPv4 address.
    """
    program = dataplane.program
    key = NodeKey(job, epoch, tree.stream, node.node)
    group = multicast_group(place.group, [(c.port, c.sender + 1) for c in node.children])
    needed = [group]
    for child in node.children:
        source, is_switch = int(child.address), child.rank is None
        port = PORT if child.rank is None else worker_ports[child.rank]
        needed += [
            program.child(key, child.sender, child.port, source, child.workers, is_switch),
            program.receiver(key, child.sender, source, port, mac_number(child.mac), child.node),
        ]
    up = None
    if node.parent is not None:
        way = node.parent
        up = Uplink(way.port, mac_number(way.mac), way.node, way.sender, address)
    return needed, program.node(key, place.base, window, len(node.children), place.group, up)


@dataclass
class Installation:
    """Entries of one job that switches may have: recorded before each Write, until deleted.

    needed, nodes: by switch, the entities that packets need and the ``nodes`` entries.
    """

    fabric: Fabric
    needed: dict[str, list[Entity]] = field(default_factory=dict)
    nodes: dict[str, list[Entity]] = field(default_factory=dict)

    def install(self, switch: str, needed: Sequence[Entity], node: Entity) -> None:
        """Adds one tree node to its switch. After a SwitchError a recorded part may be there."""
        self.needed.setdefault(switch, []).extend(needed)
        self.fabric.insert(switch, needed)
        self.nodes.setdefault(switch, []).append(node)
        self.fabric.insert(switch, [node])

    def entities(self, switch: str) -> list[Entity]:
        """Lists all recorded entities of a switch."""
        return [*self.needed.get(switch, ()), *self.nodes.get(switch, ())]

    def forget(self, switch: str) -> None:
        """Drops the record of a switch that has no entries left."""
        self.needed.pop(switch, None)
        self.nodes.pop(switch, None)

    def remove(self) -> dict[str, SwitchError]:
        """Deletes all recorded entities; returns the errors of switches that did not confirm it.

        Every switch stops processing the job's packets before the entries they need are deleted.
        """
        failed: dict[str, SwitchError] = {}
        for stage in (self.nodes, self.needed):
            for switch in list(stage):
                if switch in failed:
                    continue
                try:
                    self.fabric.remove(switch, stage[switch])
                    del stage[switch]
                except SwitchError as error:
                    log.error("entries of a job could not be deleted: %s", error)
                    failed[switch] = error
        return failed
