# SPDX-License-Identifier: Apache-2.0
"""Builds P4Runtime messages from the names of tables, actions and fields in a p4info.

Leading parts of a name may be omitted if it stays unique ("aggregation.nodes" for
"Ingress.aggregation.nodes"). Errors for unknown names, missing fields and values out of range list
what is allowed. Values are canonical binary strings (P4Runtime spec, "Bytestrings").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import text_format

from switch.p4runtime.stubs import p4info_pb2, p4runtime_pb2

# A value of a match field: exact int, lpm (value, prefix length), ternary (value, mask),
# range (low, high), optional int.
MatchValue: TypeAlias = int | tuple[int, int]

Update: TypeAlias = p4runtime_pb2.Update
Entity: TypeAlias = p4runtime_pb2.Entity


class EntryError(ValueError):
    """An entry that the program does not allow; the text says what is allowed."""


def packed(value: int, bits: int, what: str = "value") -> bytes:
    """Encodes a number as its shortest byte string; raises EntryError if it exceeds ``bits``."""
    if not 0 <= value < 1 << bits:
        raise EntryError(f"{what}: {value} does not fit bit<{bits}> (0 to {(1 << bits) - 1})")
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def insertion(entity: Entity) -> Update:
    """Builds the update that inserts an entity, or sets a default action, which always exists."""
    if entity.table_entry.is_default_action:
        return modification(entity)
    return Update(type=Update.INSERT, entity=entity)


def modification(entity: Entity) -> Update:
    """Builds the update that replaces an entity."""
    return Update(type=Update.MODIFY, entity=entity)


def deletion(entity: Entity) -> Update:
    """Builds the update that deletes an entity."""
    return Update(type=Update.DELETE, entity=entity)


class P4Info:
    """A program's p4info, looked up by name."""

    def __init__(self, message: p4info_pb2.P4Info) -> None:
        self.message = message
        self._actions = {action.preamble.id: action for action in message.actions}

    @staticmethod
    def load(path: str | Path) -> P4Info:
        """Reads a p4info text file; raises EntryError if it is invalid."""
        message = p4info_pb2.P4Info()
        try:
            text_format.Parse(Path(path).read_text(encoding="utf-8"), message)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise EntryError(f"{path} is not a p4info text file: {error}") from error
        return P4Info(message)

    # --- objects of the program ---

    def table(self, name: str) -> p4info_pb2.Table:
        """Finds a table by name."""
        found: p4info_pb2.Table = _find(self.message.tables, name, "table")
        return found

    def register(self, name: str) -> p4info_pb2.Register:
        """Finds a register by name."""
        found: p4info_pb2.Register = _find(self.message.registers, name, "register")
        return found

    def counter(self, name: str) -> p4info_pb2.Counter:
        """Finds an indexed counter by name."""
        found: p4info_pb2.Counter = _find(self.message.counters, name, "counter")
        return found

    def registers_below(self, name: str) -> list[p4info_pb2.Register]:
        """Finds the registers with ``name`` as an inner part of their full names, such as those of
        all instances in a control."""
        return [
            register
            for register in self.message.registers
            if f".{name}." in f".{register.preamble.name}"
        ]

    # --- table entries ---

    def table_entry(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        action: str | None = None,
        parameters: Mapping[str, int] | None = None,
        priority: int = 0,
    ) -> Entity:
        """Builds a table entry; without an action, one to delete or to read by.

        Don't-care matches (prefix length 0, mask 0) may be omitted.
        """
        found = self.table(table)
        entity = Entity()
        entry = entity.table_entry
        entry.table_id = found.preamble.id
        entry.priority = priority
        entry.match.extend(_matches(found, match))
        if action is not None:
            entry.action.action.CopyFrom(self._action(found, action, parameters or {}))
        return entity

    def default_entry(
        self, table: str, action: str | None = None, parameters: Mapping[str, int] | None = None
    ) -> Entity:
        """Builds the default entry of a table without key; without an action, one to read by."""
        entity = self.table_entry(table, {}, action, parameters)
        entity.table_entry.is_default_action = True
        return entity

    def parameter(self, entity: Entity, name: str) -> int | None:
        """Returns a parameter of an entry's action; None if it has none of that name."""
        given = entity.table_entry.action.action
        action = self._actions.get(given.action_id)
        for param in action.params if action is not None else ():
            for value in given.params:
                if (param.name, param.id) == (name, value.param_id):
                    return int.from_bytes(value.value, "big")
        return None

    def all_entries(self, table: str | None = None) -> Entity:
        """Builds the wildcard that reads all entries of one table, or of all tables."""
        entity = Entity()
        entity.table_entry.table_id = self.table(table).preamble.id if table else 0
        return entity

    def counter_entry(self, name: str) -> Entity:
        """Builds the wildcard that reads all cells of an indexed counter."""
        entity = Entity()
        entity.counter_entry.counter_id = self.counter(name).preamble.id
        return entity

    def _action(
        self, table: p4info_pb2.Table, name: str, parameters: Mapping[str, int]
    ) -> p4runtime_pb2.Action:
        allowed = [
            self._actions[ref.id]
            for ref in table.action_refs
            if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY
        ]
        action: p4info_pb2.Action = _find(allowed, name, f"action of {table.preamble.name}")
        where = f"{table.preamble.name}: {action.preamble.name}"
        _same_names(where, "parameters", [p.name for p in action.params], parameters)
        message = p4runtime_pb2.Action(action_id=action.preamble.id)
        for param in action.params:
            value = packed(parameters[param.name], param.bitwidth, f"{where}.{param.name}")
            message.params.add(param_id=param.id, value=value)
        return message


def multicast_group(group: int, replicas: Iterable[tuple[int, int]]) -> Entity:
    """Builds a multicast group; replicas are (egress port, instance). Group ids start at 1."""
    if not 0 < group < 1 << 16:
        raise EntryError(f"multicast group {group}: ids are 1 to {(1 << 16) - 1}")
    entity = Entity()
    entry = entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = group
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return entity


def clone_session(session: int, replicas: Iterable[tuple[int, int]]) -> Entity:
    """Builds a clone session; replicas are (egress port, instance)."""
    entity = Entity()
    entry = entity.packet_replication_engine_entry.clone_session_entry
    entry.session_id = session
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return entity


def bare(entity: Entity) -> Entity:
    """Reduces an entity to the fields that identify it, for a deletion."""
    result = Entity()
    result.CopyFrom(entity)
    if result.HasField("table_entry"):
        result.table_entry.ClearField("action")
    elif result.packet_replication_engine_entry.HasField("multicast_group_entry"):
        result.packet_replication_engine_entry.multicast_group_entry.ClearField("replicas")
    elif result.packet_replication_engine_entry.HasField("clone_session_entry"):
        result.packet_replication_engine_entry.clone_session_entry.ClearField("replicas")
    return result


def canonical(entity: Entity) -> bytes:
    """Encodes an entry or group independently of a target's representation, for comparison."""
    result = Entity()
    if entity.HasField("table_entry"):
        entry = entity.table_entry
        result.table_entry.table_id = entry.table_id
        result.table_entry.priority = entry.priority
        result.table_entry.is_default_action = entry.is_default_action
        result.table_entry.match.extend(sorted(entry.match, key=lambda field: field.field_id))
        if entry.HasField("action"):
            action = result.table_entry.action.action
            action.action_id = entry.action.action.action_id
            action.params.extend(sorted(entry.action.action.params, key=lambda p: p.param_id))
    else:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        replicas = [(r.egress_port, r.instance) for r in group.replicas]
        if not replicas:
            result = bare(entity)
        else:
            result = multicast_group(group.multicast_group_id, sorted(replicas))
    return result.SerializeToString(deterministic=True)


def difference(wanted: Iterable[Entity], found: Iterable[Entity]) -> list[Update]:
    """Computes the updates that turn the entries found into those wanted.

    Insertions come first, so a prefix exists before those that it replaces are deleted.
    """
    there = {canonical(bare(entity)): entity for entity in found}
    updates = []
    for entity in wanted:
        other = there.pop(canonical(bare(entity)), None)
        if other is None:
            updates.append(insertion(entity))
        elif canonical(other) != canonical(entity):
            updates.append(modification(entity))
    return updates + [deletion(bare(entity)) for entity in there.values()]


def _matches(
    table: p4info_pb2.Table, match: Mapping[str, MatchValue]
) -> list[p4runtime_pb2.FieldMatch]:
    where = table.preamble.name
    kinds = p4info_pb2.MatchField
    optional = [f.name for f in table.match_fields if f.match_type != kinds.EXACT]
    names = [field.name for field in table.match_fields]
    _same_names(where, "match fields", names, match, optional)
    result = []
    for field in table.match_fields:
        if field.name not in match:
            continue
        value = match[field.name]
        what = f"{where}.{field.name}"
        message = p4runtime_pb2.FieldMatch(field_id=field.id)
        if field.match_type in (kinds.EXACT, kinds.OPTIONAL):
            if isinstance(value, tuple):
                raise EntryError(f"{what}: one number, not {value!r}")
            kind = message.exact if field.match_type == kinds.EXACT else message.optional
            kind.value = packed(value, field.bitwidth, what)
            result.append(message)
            continue
        first, second = _pair(value, what)
        if field.match_type == kinds.LPM:
            if not 0 <= second <= field.bitwidth:
                raise EntryError(f"{what}: prefix length {second}, allowed 0 to {field.bitwidth}")
            if first & ((1 << (field.bitwidth - second)) - 1):
                raise EntryError(f"{what}: {first:#x}/{second} has bits set outside of the prefix")
            message.lpm.value = packed(first, field.bitwidth, what)
            message.lpm.prefix_len = second
            wildcard = second == 0
        elif field.match_type == kinds.TERNARY:
            if first & ~second:
                raise EntryError(f"{what}: {first:#x} has bits set outside of mask {second:#x}")
            message.ternary.value = packed(first, field.bitwidth, what)
            message.ternary.mask = packed(second, field.bitwidth, what)
            wildcard = second == 0
        elif field.match_type == kinds.RANGE:
            if first > second:
                raise EntryError(f"{what}: {first}..{second} is empty")
            message.range.low = packed(first, field.bitwidth, what)
            message.range.high = packed(second, field.bitwidth, what)
            wildcard = first == 0 and second == (1 << field.bitwidth) - 1
        else:
            raise EntryError(f"{what}: match kind {field.match_type} is not supported")
        if not wildcard:  # the spec wants a don't-care match left out
            result.append(message)
    return result


def _pair(value: MatchValue, what: str) -> tuple[int, int]:
    if not isinstance(value, tuple):
        raise EntryError(f"{what}: a pair of numbers, not {value!r}")
    return value


def _same_names(
    where: str,
    what: str,
    wanted: Sequence[str],
    given: Mapping[str, Any],
    optional: Sequence[str] = (),
) -> None:
    missing = [name for name in wanted if name not in given and name not in optional]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        problems = [f"missing {', '.join(missing)}"] if missing else []
        problems += [f"unknown {', '.join(unknown)}"] if unknown else []
        raise EntryError(f"{where}: {'; '.join(problems)}; {what} are {', '.join(wanted)}")


def _find(objects: Iterable[Any], name: str, kind: str) -> Any:
    """Finds the object with the full name ``name``, or the only one that ends in ``.name``."""
    objects = list(objects)
    exact = [o for o in objects if o.preamble.name == name]
    found = exact or [o for o in objects if o.preamble.name.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(o.preamble.name for o in (found or objects))) or "none"
    if found:
        raise EntryError(f"{kind} {name!r} could be any of {names}")
    raise EntryError(f"no {kind} {name!r}; there are {names}")
