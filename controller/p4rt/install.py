# SPDX-License-Identifier: Apache-2.0
"""A job's entries in the switches, and the order in which they come and go.

A switch takes part in a tree from the moment it has an entry in ``nodes``, so everything that a
packet may need then is written before it, and it is the first to be deleted. Writes of one batch
have no promised order (P4Runtime spec, "Batching and Ordering of Updates"), hence one for each
stage. Roots come before what sends to them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.p4rt.connection import SwitchError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import Entity, multicast_group
from controller.p4rt.fabric import Fabric, mac_number
from controller.planning.slots import SlotRange
from controller.planning.tree_planner import Tree, TreeNode
from protocol.header import PORT

__all__ = ["Installation", "Placement", "SlotRange", "entities_of"]

log = logging.getLogger(__name__)


# By (stream, switch).
Placement = Mapping[tuple[int, str], SlotRange]


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
    """What a switch needs for one tree node, and the ``nodes`` entry that turns it on.

    ``worker_ports`` are UDP ports by rank; ``address`` is the switch's own IPv4 address.
    """
    entry = dataplane.p4info.table_entry
    stream = {"job": job, "epoch": epoch, "stream": tree.stream}
    group = multicast_group(place.group, [(c.port, c.sender + 1) for c in node.children])
    needed = [group]
    for child in node.children:
        worker = child.rank is not None
        key = {**stream, "node": node.node, "sender": child.sender, "ingress_port": child.port}
        source = {"source": int(child.address), "workers": child.workers}
        needed.append(entry("aggregation.children", key, "worker" if worker else "subtree", source))
        receiver = {
            "destination": int(child.address),
            "udp_port": PORT if child.rank is None else worker_ports[child.rank],
            "mac": mac_number(child.mac),
            "node": child.node,
        }
        key = {**stream, "child": child.sender}
        needed.append(entry("receivers.children", key, "address", receiver))
    action = "root"
    parameters = {
        "base": place.base,
        "mask": 2 * window - 1,
        "full": node.full,
        "group": place.group,
    }
    if node.parent is not None:
        action = "inner"
        parameters |= {
            "parent_port": node.parent.port,
            "parent_mac": mac_number(node.parent.mac),
            "parent": node.parent.node,
            "sender": node.parent.sender,
            "address": address,
        }
    key = {**stream, "node": node.node}
    return needed, entry("aggregation.nodes", key, action, parameters)


@dataclass
class Installation:
    """Entries of one job that may be in the switches: noted before each Write, until deleted."""

    fabric: Fabric
    needed: dict[str, list[Entity]] = field(default_factory=dict)
    nodes: dict[str, list[Entity]] = field(default_factory=dict)

    def install(self, switch: str, needed: Sequence[Entity], node: Entity) -> None:
        """Add one tree node to its switch; SwitchError may leave a part of it there, noted."""
        self.needed.setdefault(switch, []).extend(needed)
        self.fabric.insert(switch, needed)
        self.nodes.setdefault(switch, []).append(node)
        self.fabric.insert(switch, [node])

    def entities(self, switch: str) -> list[Entity]:
        """Everything noted for a switch."""
        return [*self.needed.get(switch, ()), *self.nodes.get(switch, ())]

    def forget(self, switch: str) -> None:
        """A switch has nothing of it any more."""
        self.needed.pop(switch, None)
        self.nodes.pop(switch, None)

    def remove(self) -> dict[str, SwitchError]:
        """Delete everything noted. Returns the switches where that could not be confirmed.

        Every switch stops taking the job's packets before any entry they rely on goes.
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
