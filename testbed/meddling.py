# SPDX-License-Identifier: Apache-2.0
"""What is done to switches behind the controller's back, by another P4Runtime client.

A push needs the primary's place, so it takes it, and the controller loses it (P4Runtime 1.3,
section 5). Impairing a link must not disturb the controller: it is done under a role of its
own, which BMv2's server does not know.
"""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from controller.connection import GrpcConnection
from controller.dataplane import DataPlane
from controller.entries import Entity, Update, bare, deletion, insertion, modification
from controller.fabric import Fabric
from testbed.faults import EVERY_LINK
from testbed.targets import DEVICE_ID, SwitchProcess
from topologies.addressing import Addressing
from topologies.topology import Link, LinkQuality, Topology

# Above any election id of the controller, which then outbids it.
_TERM = 1 << 32
_ROLE = "faults"
_SECONDS = 10.0


def push(switch: SwitchProcess, dataplane: DataPlane) -> None:
    """Pushes the program anew: all entries and registers are gone. Raises ``SwitchError``."""
    connection = GrpcConnection(switch.name, switch.address, DEVICE_ID)
    connection.term = _TERM
    connection.open()
    try:
        connection.push(dataplane.p4info.message, dataplane.device_config)
    finally:
        connection.close()


class Impairment:
    """A link of which both directions lose, duplicate, reorder or corrupt packets for a while."""

    def __init__(
        self,
        topology: Topology,
        dataplane: DataPlane,
        ends: Sequence[str],
        quality: dict[str, float],
    ) -> None:
        links = tuple(_impaired(link, ends, quality) for link in topology.links)
        changed = dataclasses.replace(topology, links=links)
        before, after = (_entities(one, dataplane, ends) for one in (topology, changed))
        self.begin = {name: _updates(before[name], after[name]) for name in after}
        self.end = {name: _updates(after[name], before[name]) for name in after}

    def write(self, switch: SwitchProcess, updates: Sequence[Update]) -> None:
        """Writes updates of one of its ends; raises ``grpc.RpcError``, ``queue.Empty``."""
        requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        first = p4runtime_pb2.StreamMessageRequest()
        first.arbitration.device_id = DEVICE_ID
        first.arbitration.role.name = _ROLE
        first.arbitration.election_id.low = 1
        requests.put(first)
        options = [("grpc.enable_http_proxy", 0)]
        with grpc.insecure_channel(switch.address, options=options) as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            stream = stub.StreamChannel(iter(requests.get, None), timeout=_SECONDS)
            next(_answers(stream))
            request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID, role=_ROLE, updates=updates)
            request.election_id.low = 1
            stub.Write(request, timeout=_SECONDS)
            requests.put(None)


def _answers(stream: Iterator[p4runtime_pb2.StreamMessageResponse]) -> Iterator[object]:
    return (answer for answer in stream if answer.HasField("arbitration"))


def _impaired(link: Link, ends: Sequence[str], quality: dict[str, float]) -> Link:
    if tuple(ends) != EVERY_LINK and {link.a, link.b} != set(ends):
        return link
    return dataclasses.replace(
        link,
        forward=_worse(link.forward, quality),
        backward=_worse(link.backward, quality),
    )


def _worse(direction: LinkQuality, quality: dict[str, float]) -> LinkQuality:
    changed: dict[str, Any] = dict(quality)
    return dataclasses.replace(direction, **changed)


def _entities(
    topology: Topology, dataplane: DataPlane, ends: Sequence[str]
) -> dict[str, list[Entity]]:
    """What the switches among the ends have before any job."""
    # To nowhere: they are never opened.
    connections = {s.name: GrpcConnection(s.name, "", DEVICE_ID) for s in topology.switches}
    fabric = Fabric(topology, Addressing(topology), dataplane, connections)
    chosen = connections if tuple(ends) == EVERY_LINK else ends
    return {name: fabric.base_entities(name) for name in chosen if name in connections}


def _updates(before: Sequence[Entity], after: Sequence[Entity]) -> list[Update]:
    """What makes the ones the others."""
    had = {bare(entity).SerializeToString(deterministic=True): entity for entity in before}
    updates = []
    for entity in after:
        old = had.pop(bare(entity).SerializeToString(deterministic=True), None)
        if old is None:
            updates.append(insertion(entity))
        elif old != entity:
            updates.append(modification(entity))
    return [*updates, *(deletion(bare(entity)) for entity in had.values())]
