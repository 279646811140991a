# SPDX-License-Identifier: Apache-2.0
"""Programs all switches of a topology with their base entries.

These are independent of jobs: the source guard of edge ports, routes, congestion thresholds and the
links' impairments.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from google.rpc import code_pb2

from controller.p4rt.connection import Connection, SwitchError, WriteError
from controller.p4rt.dataplane import DataPlane
from controller.p4rt.entries import (
    Entity,
    Update,
    bare,
    canonical,
    clone_session,
    deletion,
    difference,
    insertion,
)
from protocol.outcomes import Outcome
from topologies.model.addressing import Addressing, SwitchPort
from topologies.model.topology import LinkQuality, Topology

log = logging.getLogger(__name__)

# Updates of one Write: their errors have to fit the 8 KB of metadata that gRPC takes by default.
BATCH = 64


class FabricError(Exception):
    """The program, the topology and the switches do not fit together."""


class Fabric:
    """The switches of a topology under one program.

    connections: one for each switch, by name. Call ``bring_up`` before anything else.
    """

    def __init__(
        self,
        topology: Topology,
        addressing: Addressing,
        dataplane: DataPlane,
        connections: Mapping[str, Connection],
    ) -> None:
        self.topology = topology
        self.addressing = addressing
        self.dataplane = dataplane
        self.connections = dict(connections)
        self.down: set[str] = set()  # switches that cannot be reached now
        self.writes: Counter[str] = Counter()  # begun, by switch: what was read before is old
        self._impaired: dict[frozenset[str], Mapping[str, float]] = {}  # see `impair`
        self._swept: dict[str, set[Hashable]] = {
            name: set() for name in connections
        }  # see `_sweep`
        switches = {node.name for node in topology.switches}
        if set(connections) != switches:
            missing = ", ".join(sorted(switches - set(connections))) or "none"
            unknown = ", ".join(sorted(set(connections) - switches)) or "none"
            raise FabricError(
                f"{topology.name}: a connection for each switch is needed;"
                f" missing: {missing}, unknown: {unknown}"
            )
        self._check_mtu()

    def bring_up(self, keep: bool = False, term: int | None = None) -> None:
        """Connects to every switch, pushes the program and writes the base entries.

        keep: push nothing to a switch that has the program, and count an unreachable one as down.
        term: number of this start of the controller, a part of election ids.

        Raises SwitchError after closing all connections.
        """
        try:
            for name, connection in self.connections.items():
                connection.term = connection.term if term is None else term
                try:
                    connection.open()
                    self.restore(name, keep)
                except SwitchError as error:
                    if not keep:
                        raise
                    log.error("%s is down: %s", name, error)
                    self.down.add(name)
        except BaseException:
            self.close()
            raise

    def restore(self, switch: str, keep: bool = True) -> None:
        """Ensures that a switch has the program and the base entries. Raises SwitchError."""
        connection, dataplane = self.connections[switch], self.dataplane
        if keep and connection.cookie() == dataplane.cookie and self._has_base(switch):
            self.sync(switch)
            return
        # Also if another client pushed the program: then clone sessions, which not every
        # target can list, are gone as well.
        connection.push(dataplane.p4info.message, dataplane.device_config, dataplane.cookie)
        self._swept[switch].clear()
        entities = self.base_entities(switch)
        self.insert(switch, entities)
        log.info("%s is up: program pushed, %d entries", switch, len(entities))

    def sync(self, switch: str) -> None:
        """Corrects the base entries of a switch that has the program. Raises SwitchError."""
        wanted = [e for e in self.base_entities(switch) if e.HasField("table_entry")]
        updates = difference(wanted, self._base(switch))
        if updates:
            self.write(switch, updates)
            log.info("%s: %d entries mended", switch, len(updates))

    def _base(self, switch: str) -> list[Entity]:
        return self.connections[switch].read(self.dataplane.program.base_tables())

    def _has_base(self, switch: str) -> bool:
        """True if a switch has base entries beside default actions."""
        return any(not found.table_entry.is_default_action for found in self._base(switch))

    def reroute(self, missing: Iterable[str]) -> None:
        """Writes routes that avoid these switches to every switch that can be written."""
        self.addressing = self.addressing.without(frozenset(missing))
        for switch in self.connections:
            if switch in self.unwritable:
                continue
            try:
                self.sync(switch)
            except SwitchError as error:  # it is found to be down, and gets its routes on return
                log.error("%s keeps its routes for now: %s", switch, error)

    def impair(self, links: Mapping[frozenset[str], Mapping[str, float]]) -> None:
        """Impairs these links, and no others, beyond the topology's own impairments.

        links: by their ends, probabilities of loss, duplicate, reorder and corrupt, both ways. A
            switch that is restored later gets them, too.

        Raises FabricError for ends without a link; SwitchError, after trying all switches.
        """
        known = {frozenset((link.a, link.b)) for link in self.topology.links}
        for ends in links:
            if ends not in known:
                raise FabricError(f"no link of {self.topology.name} joins {' and '.join(ends)}")
        concerned = {end for ends in (*links, *self._impaired) for end in ends}
        self._impaired = dict(links)
        errors = []
        for switch in sorted(concerned & self.connections.keys() - self.down):
            try:
                self.sync(switch)
            except SwitchError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def lacks(self, switch: str, nodes: Iterable[Entity], seconds: float) -> bool:
        """True if a switch lacks routes or one of these ``nodes`` entries. Raises SwitchError."""
        tables = self.dataplane.program.vital_tables()
        found = {canonical(e) for e in self.connections[switch].read(tables, seconds)}
        return any(canonical(e) not in found for e in (*nodes, *self._routes(switch)))

    def close(self) -> None:
        """Closes all connections; switches continue to forward."""
        for connection in self.connections.values():
            connection.close()

    @property
    def unwritable(self) -> frozenset[str]:
        """Switches that cannot be written: routed around, or unreachable for the controller."""
        return self.addressing.missing | self.down

    def write(self, switch: str, updates: Sequence[Update]) -> None:
        """Writes updates to a switch in batches; stops at the first batch that fails."""
        self.writes[switch] += 1
        for start in range(0, len(updates), BATCH):
            self.connections[switch].write(updates[start : start + BATCH])

    def insert(self, switch: str, entities: Iterable[Entity]) -> None:
        """Inserts entities that must not exist yet."""
        entities = list(entities)
        self._sweep(switch, [e for e in entities if not e.HasField("table_entry")])
        self.write(switch, [insertion(entity) for entity in entities])

    def _sweep(self, switch: str, replicating: Sequence[Entity]) -> None:
        """Clears hidden replicas of multicast groups and clone sessions before their insertion.

        BMv2 keeps the replicas of groups that existed when a program was pushed, without listing
        them, and adds them to a new group of the same number (PI makes a new PreMcMgr for each
        program, and bm's McSimplePre::mc_mgrp_create keeps existing nodes). Deleting the group once
        after each push clears them.
        """
        swept = self._swept[switch]
        empty = [bare(entity) for entity in replicating]
        empty = [entity for entity in empty if canonical(entity) not in swept]
        self.write(switch, [insertion(entity) for entity in empty])
        self.write(switch, [deletion(entity) for entity in empty])
        swept.update(canonical(entity) for entity in empty)

    def remove(self, switch: str, entities: Sequence[Entity]) -> None:
        """Deletes entities, ignoring missing ones. Raises SwitchError after trying all."""
        if switch in self.down:
            raise SwitchError(switch, "cannot be reached")
        errors: list[SwitchError] = []
        self.writes[switch] += 1
        for start in range(0, len(entities), BATCH):
            batch = [deletion(bare(entity)) for entity in entities[start : start + BATCH]]
            try:
                self.connections[switch].write(batch)
            except WriteError as error:
                if any(failure.code != code_pb2.NOT_FOUND for failure in error.failures):
                    errors.append(error)
            except SwitchError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def outcomes(self, switch: str) -> Counter[Outcome]:
        """Reads the packet counts of a switch by outcome."""
        return self.dataplane.program.outcomes_in(
            self.connections[switch].read([self.dataplane.program.outcome_counts()])
        )

    # --- base entries ---

    def base_entities(self, switch: str) -> list[Entity]:
        """Lists the base entries of a switch in the order of writing."""
        return [
            *self._source_guard(switch),
            *self._routes(switch),
            *self._thresholds(switch),
            *self._impairments(switch),
            self._needs(switch),
        ]

    def _needs(self, switch: str) -> Entity:
        """Builds what the links of a switch ask for, of what ``base_entities`` lists."""
        ports = self.addressing.ports(switch)
        return self.dataplane.program.needs(
            impaired=any(self._bad(switch, port) for port in ports),
            guarded=any(port.peer_is_host for port in ports),
            marked_above=min(
                (self._depth(port) for port in ports if port.outgoing.ecn_bytes), default=None
            ),
        )

    def _source_guard(self, switch: str) -> list[Entity]:
        """Builds the source guard: edge ports accept only their host interface's address."""
        rule, entities = self.dataplane.program.source, []
        for port in self.addressing.ports(switch):
            if port.peer_is_host:
                own = int(self.addressing.host_interfaces(port.peer)[port.peer_number].ipv4)
                entities += [rule(port.number, own, 32, True), rule(port.number, 0, 0, False)]
        return entities

    def _routes(self, switch: str) -> list[Entity]:
        route = self.dataplane.program.route
        return [
            route(int(prefix.network_address), prefix.prefixlen, way.port, mac_number(way.mac))
            for prefix, way in self.addressing.prefixes(switch).items()
        ]

    def _thresholds(self, switch: str) -> list[Entity]:
        """Builds the congestion thresholds."""
        return [
            self.dataplane.program.threshold(port.number, self._depth(port))
            for port in self.addressing.ports(switch)
            if port.outgoing.ecn_bytes
        ]

    def _depth(self, port: SwitchPort) -> int:
        """Returns a link's threshold in packets of full contributions."""
        return max(1, port.outgoing.ecn_bytes // self.dataplane.frame_bytes)

    def _impairments(self, switch: str) -> list[Entity]:
        """Builds the impairments, each direction of a link once: at the sending switch, or at the
        one that receives from the host.

        Every port has a clone session for duplicates, as a link may be impaired at any time.
        """
        entities: list[Entity] = []
        for port in self.addressing.ports(switch):
            entities += [
                self._impairment(port, arriving, quality)
                for arriving, quality in self._bad(switch, port)
            ]
            entities.append(clone_session(port.number, [(port.number, 1)]))
        return entities

    def _bad(self, switch: str, port: SwitchPort) -> list[tuple[bool, LinkQuality]]:
        """Lists the impaired directions of a port that this switch impairs: (arriving, quality)."""
        changes: dict[str, Any] = dict(self._impaired.get(frozenset((switch, port.peer)), {}))
        ways = [(False, port.outgoing)] + ([(True, port.incoming)] if port.peer_is_host else [])
        changed = [(arriving, dataclasses.replace(way, **changes)) for arriving, way in ways]
        return [(arriving, quality) for arriving, quality in changed if quality.impaired]

    def _impairment(self, port: SwitchPort, arriving: bool, quality: LinkQuality) -> Entity:
        # The topology's seed and the link determine which packets are hit.
        way = "arrival" if arriving else "departure"
        seed = zlib.crc32(f"{self.topology.seed}/{port.interface}/{way}".encode())
        return self.dataplane.program.impairment(
            port.number,
            arriving,
            seed=seed,
            loss=of_2_32(quality.loss),
            duplicate=of_2_32(quality.duplicate),
            reorder=of_2_32(quality.reorder),
            corrupt=of_2_32(quality.corrupt),
        )

    def _check_mtu(self) -> None:
        needed = self.dataplane.packet_bytes
        for link in self.topology.links:
            least = min(link.forward.mtu, link.backward.mtu)
            if least < needed:
                raise FabricError(
                    f"link {link.a}-{link.b} has MTU {least}, but a chunk of"
                    f" {self.dataplane.lanes} lanes makes packets of {needed} B; raise `mtu` in"
                    f" {self.topology.source} or use a build with smaller chunks"
                )


def mac_number(mac: str) -> int:
    """Converts a MAC address to a number."""
    return int(mac.replace(":", ""), 16)


def of_2_32(probability: float) -> int:
    """Converts a probability to a fraction of 2^32; 1 becomes 2^32 - 1."""
    return min(round(probability * 2**32), 2**32 - 1)
