# SPDX-License-Identifier: Apache-2.0
"""Multicast groups and clone sessions (P4Runtime spec, "PacketReplicationEngineEntry")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from switch.p4runtime.entities.checks import Update, check_existence, select
from switch.p4runtime.errors import invalid_argument, out_of_range
from switch.p4runtime.p4info.values import decode_unsigned, encode_unsigned
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline

# v1model: standard_metadata.mcast_grp and egress_rid are bit<16>, ports bit<9> of which 511 is
# the default drop port. The session id is BMv2's, whose mirror sessions are 15 bits.
MAX_GROUP = 0xFFFF
MAX_INSTANCE = 0xFFFF
MAX_PORT = 510
MAX_SESSION = 0x7FFF
MAX_PRIORITY = 7


class Replication:
    """The packet replication engine of one program's switch. Keeps the messages as written, so that
    they read back the same. Not thread safe: the device has a lock."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._groups: dict[int, p4runtime_pb2.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4runtime_pb2.CloneSessionEntry] = {}

    def write(self, kind: int, message: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
        """Applies one update. Raises P4RuntimeError with the code of the spec."""
        which = message.WhichOneof("type")
        if which == "multicast_group_entry":
            self._write_group(kind, message.multicast_group_entry)
        elif which == "clone_session_entry":
            self._write_session(kind, message.clone_session_entry)
        else:
            raise invalid_argument("packet_replication_engine_entry holds no entry")

    def read(
        self, query: p4runtime_pb2.PacketReplicationEngineEntry
    ) -> Iterator[p4runtime_pb2.PacketReplicationEngineEntry]:
        """Yields one group or session, or all (id 0). Raises NOT_FOUND for an id that is not
        set."""
        which = query.WhichOneof("type")
        if which == "multicast_group_entry":
            group = query.multicast_group_entry.multicast_group_id
            for entry in select(self._groups, group, "multicast group"):
                yield p4runtime_pb2.PacketReplicationEngineEntry(multicast_group_entry=entry)
        elif which == "clone_session_entry":
            session = query.clone_session_entry.session_id
            for one in select(self._sessions, session, "clone session"):
                yield p4runtime_pb2.PacketReplicationEngineEntry(clone_session_entry=one)
        else:
            raise invalid_argument("packet_replication_engine_entry holds no entry")

    def _write_group(self, kind: int, message: p4runtime_pb2.MulticastGroupEntry) -> None:
        group = message.multicast_group_id
        what = f"multicast group {group}"
        if group == 0:
            raise invalid_argument("multicast_group_id is not set (0 is no group)")
        if group > MAX_GROUP:
            raise out_of_range(f"{what}: the highest group is {MAX_GROUP}")
        check_existence(kind, group in self._groups, what)
        if kind == Update.DELETE:
            self._pipeline.delete_multicast_group(group)
            del self._groups[group]
            return
        replicas, canonical = _replicas(message.replicas, what)
        self._pipeline.set_multicast_group(group, replicas)
        stored = p4runtime_pb2.MulticastGroupEntry(
            multicast_group_id=group, replicas=canonical, metadata=message.metadata
        )
        self._groups[group] = stored

    def _write_session(self, kind: int, message: p4runtime_pb2.CloneSessionEntry) -> None:
        session = message.session_id
        what = f"clone session {session}"
        if not 0 < session <= MAX_SESSION:
            raise invalid_argument(f"{what}: sessions are numbered 1..{MAX_SESSION}")
        check_existence(kind, session in self._sessions, what)
        if kind == Update.DELETE:
            self._pipeline.delete_clone_session(session)
            del self._sessions[session]
            return
        length = message.packet_length_bytes
        if length < 0:
            raise invalid_argument(f"{what}: packet_length_bytes is negative")
        priority = message.class_of_service
        if priority > MAX_PRIORITY:
            raise invalid_argument(f"{what}: class_of_service is not in 0..{MAX_PRIORITY}")
        replicas, canonical = _replicas(message.replicas, what)
        self._pipeline.set_clone_session(session, replicas, truncate=length, priority=priority)
        self._sessions[session] = p4runtime_pb2.CloneSessionEntry(
            session_id=session,
            replicas=canonical,
            class_of_service=priority,
            packet_length_bytes=length,
        )


def _replicas(
    messages: Iterable[p4runtime_pb2.Replica], what: str
) -> tuple[list[tuple[int, int]], list[p4runtime_pb2.Replica]]:
    """Returns (port, instance) pairs and the messages with canonical ports, both in the given
    order.

    Raises INVALID_ARGUMENT for a port or instance that v1model does not have, or a repeated pair.
    """
    pairs: list[tuple[int, int]] = []
    canonical = []
    for message in messages:
        kind = message.WhichOneof("port_kind")
        replica = p4runtime_pb2.Replica(instance=message.instance)
        if kind == "port":
            port = decode_unsigned(message.port, 32, f"{what}: port of a replica")
            replica.port = encode_unsigned(port)
        elif kind == "egress_port":  # deprecated since 1.4, and what p4runtime-shell sends
            port = message.egress_port
            replica.egress_port = port
        else:
            raise invalid_argument(f"{what}: a replica has no port")
        if port > MAX_PORT:
            raise invalid_argument(f"{what}: port {port} is above {MAX_PORT}")
        if message.instance > MAX_INSTANCE:
            raise invalid_argument(f"{what}: instance {message.instance} is above {MAX_INSTANCE}")
        if (port, message.instance) in pairs:
            raise invalid_argument(
                f"{what}: port {port} with instance {message.instance} is given twice"
            )
        pairs.append((port, message.instance))
        canonical.append(replica)
    return pairs, canonical
