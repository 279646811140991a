# SPDX-License-Identifier: Apache-2.0
"""The P4 program as the control plane sees it: each name that p4src/ declares for it, once.

Everything else builds and reads entries through ``Program``. A data plane with other names or
tables is a subclass in a file of its own, listed in ``controller.p4rt.dataplane.PROGRAMS``. The
indices of the outcome counter are in ``protocol.outcomes``, the packet header in
``protocol.header``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from controller.p4rt.entries import Entity, EntryError, MatchValue, P4Info
from protocol.outcomes import Outcome

MOST_PACKETS = 2**19 - 1  # that a queue can have


class NodeKey(NamedTuple):
    """The header fields by which a switch recognises packets of a tree node."""

    job: int
    epoch: int
    stream: int
    node: int

    @property
    def of_stream(self) -> dict[str, int]:
        """The match fields of all nodes of the stream."""
        return {"job": self.job, "epoch": self.epoch, "stream": self.stream}


@dataclass(frozen=True)
class Uplink:
    """A node's link to its parent.

    port: egress port.
    mac: of the next hop, as a number.
    parent: the parent's node id.
    sender: the node's child index there.
    address: the switch's own IPv4 address.
    """

    port: int
    mac: int
    parent: int
    sender: int
    address: int


class Program:
    """The program p4src/aggregation.p4. Methods raise EntryError for values out of range.

    info: of a build of it.
    """

    name: ClassVar[str] = "p4src/aggregation.p4"
    # Tables: those of every switch, those of jobs.
    gate: ClassVar[str] = "gate.links"
    guard: ClassVar[str] = "source_guard.sources"
    routes: ClassVar[str] = "forwarding.routes"
    thresholds: ClassVar[str] = "congestion.thresholds"
    arrivals: ClassVar[str] = "arrival.impairments"
    departures: ClassVar[str] = "departure.impairments"
    nodes: ClassVar[str] = "aggregation.nodes"
    children: ClassVar[str] = "aggregation.children"
    receivers: ClassVar[str] = "receivers.children"
    # Counter of packets by outcome; register array with one cell for each slot; part of the names
    # of the register arrays that hold payloads.
    outcomes: ClassVar[str] = "outcomes"
    slot_state: ClassVar[str] = "aggregation.slots.state"
    blocks: ClassVar[str] = "aggregation.blocks"

    def __init__(self, info: P4Info) -> None:
        self.info = info

    def check(self) -> None:
        """Builds an entry of each kind; raises EntryError for a name that the p4info lacks."""
        key = NodeKey(job=1, epoch=1, stream=0, node=1)
        for permitted in (True, False):
            self.source(port=1, address=0, length=0, permitted=permitted)
        self.route(address=0, length=32, port=1, mac=0)
        self.threshold(port=1, depth=1)
        for arriving in (True, False):
            self.impairment(1, arriving, seed=0, loss=0, duplicate=0, reorder=0, corrupt=0)
        self.needs(impaired=True, guarded=True, marked_above=0)
        for is_switch in (True, False):
            self.child(key, sender=0, port=1, address=0, workers=1, is_switch=is_switch)
        self.receiver(key, sender=0, address=0, udp_port=0, mac=0, node=0)
        for up in (None, Uplink(port=1, mac=0, parent=1, sender=0, address=0)):
            node = self.node(key, base=0, window=1, children=1, group=1, up=up)
            if self.group_of(node) != 1:
                raise EntryError(f"no parameter of {self.nodes} is its multicast group")
        self.outcome_counts()
        assert self.slots >= 0

    # --- sizes ---

    @cached_property
    def lanes(self) -> int:
        """Number of int32 lanes that a switch sums: a register array for each block; 0 in a build
        without payload."""
        blocks = self.info.registers_below(self.blocks)
        return sum(one.type_spec.bitstring.bit.bitwidth for one in blocks) // 32

    @cached_property
    def slots(self) -> int:
        """Number of slots of a switch."""
        return int(self.info.register(self.slot_state).size)

    @property
    def most_routes(self) -> int:
        """Number of routes that a switch holds."""
        return int(self.info.table(self.routes).size)

    # --- entities to read by ---

    def base_tables(self) -> list[Entity]:
        """Builds the wildcards of the tables whose entries depend on the topology alone."""
        names = (self.guard, self.routes, self.thresholds, self.arrivals, self.departures)
        return [
            *(self.info.all_entries(name) for name in names),
            self.info.default_entry(self.gate),
        ]

    def job_tables(self) -> list[Entity]:
        """Builds the wildcards of the tables with entries of jobs."""
        names = (self.nodes, self.children, self.receivers)
        return [self.info.all_entries(name) for name in names]

    def vital_tables(self) -> list[Entity]:
        """Builds the wildcards of nodes and routes, which tell if a switch has lost its entries."""
        return [self.info.all_entries(name) for name in (self.nodes, self.routes)]

    def outcome_counts(self) -> Entity:
        """Builds the wildcard of all cells of the outcome counter."""
        return self.info.counter_entry(self.outcomes)

    @staticmethod
    def outcomes_in(cells: Iterable[Entity]) -> Counter[Outcome]:
        """Decodes cells of the outcome counter as packets by outcome."""
        counts = {
            cell.counter_entry.index.index: int(cell.counter_entry.data.packet_count)
            for cell in cells
        }
        return Counter({outcome: counts.get(outcome, 0) for outcome in Outcome})

    def is_node(self, entity: Entity) -> bool:
        """Returns true for an entry that activates a node."""
        return bool(entity.table_entry.table_id == self.info.table(self.nodes).preamble.id)

    def group_of(self, entity: Entity) -> int | None:
        """Returns the multicast group of a node's entry; None for other entries."""
        return self.info.parameter(entity, "group")

    # --- entries of every switch ---

    def needs(self, impaired: bool, guarded: bool, marked_above: int | None) -> Entity:
        """Builds what links ask for: without it a switch looks up for each packet whether they do.

        impaired: a port has impairments.
        guarded: a port has rules for source addresses.
        marked_above: least congestion threshold of all ports, None without any.
        """
        values = {
            "unimpaired": int(not impaired),
            "unguarded": int(not guarded),
            "unmarked": MOST_PACKETS if marked_above is None else marked_above,
        }
        return self.info.default_entry(self.gate, "gate.pass", values)

    def source(self, port: int, address: int, length: int, permitted: bool) -> Entity:
        """Builds the rule for packets from an edge port with a source address in this prefix."""
        match: dict[str, MatchValue] = {"ingress_port": port, "source": (address, length)}
        return self.info.table_entry(self.guard, match, "permit" if permitted else "deny")

    def route(self, address: int, length: int, port: int, mac: int) -> Entity:
        """Builds the route to a prefix, by a port and the next hop's MAC address there."""
        match = {"destination": (address, length)}
        return self.info.table_entry(self.routes, match, "forward", {"port": port, "mac": mac})

    def threshold(self, port: int, depth: int) -> Entity:
        """Builds the congestion threshold of a port: packets that find more in its queue are
        marked."""
        match = {"egress_port": port}
        return self.info.table_entry(self.thresholds, match, "mark_above", {"depth": depth})

    def impairment(
        self,
        port: int,
        arriving: bool,
        *,
        seed: int,
        loss: int,
        duplicate: int,
        reorder: int,
        corrupt: int,
    ) -> Entity:
        """Builds the impairments of packets that arrive at, or depart from, a port.

        Probabilities are fractions of 2^32; the seed determines which packets they hit.
        """
        match = {"ingress_port" if arriving else "egress_port": port}
        return self.info.table_entry(
            self.arrivals if arriving else self.departures,
            match,
            "arrival.impair" if arriving else "departure.impair",
            {
                "seed": seed,
                "loss": loss,
                "duplicate": duplicate,
                "reorder": reorder,
                "corrupt": corrupt,
            },
        )

    # --- entries of jobs ---

    def child(
        self, key: NodeKey, sender: int, port: int, address: int, workers: int, is_switch: bool
    ) -> Entity:
        """Builds the entry that accepts a child's contributions, from its port and address."""
        match = {**key.of_stream, "node": key.node, "sender": sender, "ingress_port": port}
        values = {"source": address, "workers": workers}
        action = "subtree" if is_switch else "worker"
        return self.info.table_entry(self.children, match, action, values)

    def receiver(
        self, key: NodeKey, sender: int, address: int, udp_port: int, mac: int, node: int
    ) -> Entity:
        """Builds the entry that addresses results to a child; `node`: its id, 0 for a worker."""
        match = {**key.of_stream, "child": sender + 1}  # the instance in its multicast group
        values = {"destination": address, "udp_port": udp_port, "mac": mac, "node": node}
        return self.info.table_entry(self.receivers, match, "address", values)

    def node(
        self, key: NodeKey, base: int, window: int, children: int, group: int, up: Uplink | None
    ) -> Entity:
        """Builds the entry that activates a node, with 2 x `window` slots from `base` on.

        group: multicast group of its children.
        up: None for a root.
        """
        values = {"base": base, "mask": 2 * window - 1, "full": (1 << children) - 1, "group": group}
        if up is not None:
            values |= {
                "parent_port": up.port,
                "parent_mac": up.mac,
                "parent": up.parent,
                "sender": up.sender,
                "address": up.address,
            }
        match = {**key.of_stream, "node": key.node}
        return self.info.table_entry(self.nodes, match, "root" if up is None else "inner", values)
