# SPDX-License-Identifier: Apache-2.0
"""Builds P4Runtime messages from the names of tables, actions and fields in a p4info.

Leading parts of a name may be omitted if it stays unique ("aggregation.nodes" for
"Ingress.aggregation.nodes"). Errors for unknown names, missing fields and values out of range list
what is allowed. Values are canonical binary strings (P4Runtime spec, "Bytestrings").
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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
        self._tables: dict[str, _Table] = {}  # by the names they were asked for by

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
        return self._table(name).message

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
        found = self._table(table)
        entity = Entity()
        entry = entity.table_entry
        entry.table_id = found.message.preamble.id
        entry.priority = priority
        _add_matches(entry, found, match)
        if action is not None:
            _set_action(entry, found.action(action), parameters or {})
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

    def _table(self, name: str) -> _Table:
        if name not in self._tables:
            self._tables[name] = _Table(_find(self.message.tables, name, "table"), self._actions)
        return self._tables[name]


class _Field(NamedTuple):
    """A match field, or a parameter of an action, which has no `kind`. what: its name in errors."""

    id: int
    name: str
    bits: int
    what: str
    kind: int = 0


class _Action(NamedTuple):
    id: int
    where: str  # its name in errors
    parameters: dict[str, _Field]


class _Table:
    """The fields and the actions of a table, by name.

    They are read from its message once, as reading them for each of thousands of entries would take
    most of the time.
    """

    def __init__(self, message: p4info_pb2.Table, actions: Mapping[int, p4info_pb2.Action]) -> None:
        self.message = message
        self.where = where = message.preamble.name
        self.fields = {
            f.name: _Field(f.id, f.name, f.bitwidth, f"{where}.{f.name}", f.match_type)
            for f in message.match_fields
        }
        exact = p4info_pb2.MatchField.EXACT
        self.needed = {name for name, field in self.fields.items() if field.kind == exact}
        self._all_actions = actions
        self._actions: dict[str, _Action] = {}

    def action(self, name: str) -> _Action:
        """Finds an action of its entries by name."""
        if name not in self._actions:
            allowed = [
                self._all_actions[ref.id]
                for ref in self.message.action_refs
                if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY
            ]
            found: p4info_pb2.Action = _find(allowed, name, f"action of {self.where}")
            where = f"{self.where}: {found.preamble.name}"
            parameters = {
                p.name: _Field(p.id, p.name, p.bitwidth, f"{where}.{p.name}") for p in found.params
            }
            self._actions[name] = _Action(found.preamble.id, where, parameters)
        return self._actions[name]


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


def canonical(entity: Entity) -> Hashable:
    """Returns what identifies an entry or group with its action or replicas, independently of a
    target's representation, for comparison."""
    if entity.HasField("table_entry"):
        entry = entity.table_entry
        action = entry.action.action
        return (
            (entry.table_id, entry.priority, entry.is_default_action),
            tuple(sorted([field.SerializeToString() for field in entry.match])),
            action.action_id,
            tuple(sorted([param.SerializeToString() for param in action.params])),
        )
    group = entity.packet_replication_engine_entry.multicast_group_entry
    replicas = sorted((r.egress_port, r.instance) for r in group.replicas)
    entity = multicast_group(group.multicast_group_id, replicas) if replicas else bare(entity)
    data: bytes = entity.SerializeToString(deterministic=True)
    return data


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


def _set_action(
    entry: p4runtime_pb2.TableEntry, action: _Action, parameters: Mapping[str, int]
) -> None:
    known = action.parameters
    _check_names(action.where, "parameters", known, known.keys(), parameters)
    message = entry.action.action
    message.action_id = action.id
    for field in known.values():
        value = packed(parameters[field.name], field.bits, field.what)
        message.params.add(param_id=field.id, value=value)


def _add_matches(
    entry: p4runtime_pb2.TableEntry, table: _Table, match: Mapping[str, MatchValue]
) -> None:
    kinds = p4info_pb2.MatchField
    _check_names(table.where, "match fields", table.fields, table.needed, match)
    for field in table.fields.values():
        if field.name not in match:
            continue
        value, bits, what = match[field.name], field.bits, field.what
        if field.kind in (kinds.EXACT, kinds.OPTIONAL):
            if isinstance(value, tuple):
                raise EntryError(f"{what}: one number, not {value!r}")
            message = entry.match.add(field_id=field.id)
            kind = message.exact if field.kind == kinds.EXACT else message.optional
            kind.value = packed(value, bits, what)
            continue
        first, second = _pair(value, what)
        # The spec wants a don't-care match left out.
        if field.kind == kinds.LPM:
            if not 0 <= second <= bits:
                raise EntryError(f"{what}: prefix length {second}, allowed 0 to {bits}")
            if first & ((1 << (bits - second)) - 1):
                raise EntryError(f"{what}: {first:#x}/{second} has bits set outside of the prefix")
            prefix = packed(first, bits, what)
            if second:
                lpm = entry.match.add(field_id=field.id).lpm
                lpm.value, lpm.prefix_len = prefix, second
        elif field.kind == kinds.TERNARY:
            if first & ~second:
                raise EntryError(f"{what}: {first:#x} has bits set outside of mask {second:#x}")
            bytes_and_mask = packed(first, bits, what), packed(second, bits, what)
            if second:
                ternary = entry.match.add(field_id=field.id).ternary
                ternary.value, ternary.mask = bytes_and_mask
        elif field.kind == kinds.RANGE:
            if first > second:
                raise EntryError(f"{what}: {first}..{second} is empty")
            ends = packed(first, bits, what), packed(second, bits, what)
            if first or second != (1 << bits) - 1:
                found = entry.match.add(field_id=field.id).range
                found.low, found.high = ends
        else:
            raise EntryError(f"{what}: match kind {field.kind} is not supported")


def _pair(value: MatchValue, what: str) -> tuple[int, int]:
    if not isinstance(value, tuple):
        raise EntryError(f"{what}: a pair of numbers, not {value!r}")
    return value


def _check_names(
    where: str,
    what: str,
    known: Mapping[str, _Field],
    needed: Set[str],
    given: Mapping[str, Any],
) -> None:
    if needed <= given.keys() <= known.keys():
        return
    missing = [name for name in known if name in needed and name not in given]
    unknown = [name for name in given if name not in known]
    problems = [f"missing {', '.join(missing)}"] if missing else []
    problems += [f"unknown {', '.join(unknown)}"] if unknown else []
    raise EntryError(f"{where}: {'; '.join(problems)}; {what} are {', '.join(known)}")


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
