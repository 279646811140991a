# SPDX-License-Identifier: Apache-2.0
"""What a P4Info message declares, indexed by id, for the handling of requests (P4Runtime spec,
"The P4Info Message")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from p4.config.v1 import p4info_pb2

from .errors import P4RuntimeError, invalid_argument, unimplemented
from .values import DataCodec

EXACT, LPM, TERNARY, RANGE, OPTIONAL = "exact", "lpm", "ternary", "range", "optional"
_KINDS = {
    p4info_pb2.MatchField.EXACT: EXACT,
    p4info_pb2.MatchField.LPM: LPM,
    p4info_pb2.MatchField.TERNARY: TERNARY,
    p4info_pb2.MatchField.RANGE: RANGE,
    p4info_pb2.MatchField.OPTIONAL: OPTIONAL,
}
_WITH_PRIORITY = (TERNARY, RANGE, OPTIONAL)

T = TypeVar("T")


@dataclass(frozen=True)
class Field:
    """A named value of `width` bits: a match field, an action parameter, packet metadata."""

    id: int
    name: str
    width: int


@dataclass(frozen=True)
class MatchField(Field):
    """kind: EXACT, LPM, TERNARY, RANGE or OPTIONAL."""

    kind: str


@dataclass(frozen=True)
class Action:
    """name: full name in the P4 program. params in the order of the program."""

    id: int
    name: str
    params: tuple[Field, ...]


@dataclass(frozen=True)
class Table:
    """fields in the order of the program's key. allowed: action id -> may it be an entry's, may
    it be the default."""

    id: int
    name: str
    fields: tuple[MatchField, ...]
    allowed: Mapping[int, tuple[bool, bool]]
    size: int
    is_const: bool
    has_initial_entries: bool
    const_default: bool
    ages: bool
    action_profile: int
    direct_counter: int
    direct_meter: int

    @property
    def needs_priority(self) -> bool:
        """Whether entries carry a non-zero priority (spec, "TableEntry")."""
        return any(field.kind in _WITH_PRIORITY for field in self.fields)


@dataclass(frozen=True)
class Counter:
    """An indexed counter array."""

    id: int
    name: str
    size: int


@dataclass(frozen=True)
class Register:
    """codec is None if P4Data of its type is not supported; then `reason` says why."""

    id: int
    name: str
    size: int
    codec: DataCodec | None
    reason: str


@dataclass(frozen=True)
class Schema:
    """Everything of one P4Info that requests may name, by id.

    others: id -> what it is, of objects that are declared but cannot be had here.
    """

    tables: Mapping[int, Table]
    actions: Mapping[int, Action]
    counters: Mapping[int, Counter]
    registers: Mapping[int, Register]
    packet_in: tuple[Field, ...] | None
    packet_out: tuple[Field, ...] | None
    others: Mapping[int, str]

    @classmethod
    def of(cls, info: p4info_pb2.P4Info) -> Schema:
        """Raises INVALID_ARGUMENT if the message contradicts itself, UNIMPLEMENTED for match
        kinds and translations that this target does not have."""
        actions = _by_id(
            Action(p.id, p.name, tuple(_field(param, p.name) for param in action.params))
            for action in info.actions
            for p in [_preamble(action)]
        )
        direct = {counter.preamble.id: "counter" for counter in info.direct_counters}
        direct.update({meter.preamble.id: "meter" for meter in info.direct_meters})
        tables = _by_id(_table(table, actions, direct) for table in info.tables)
        counters = _by_id(
            Counter(p.id, p.name, int(counter.size))
            for counter in info.counters
            for p in [_preamble(counter)]
        )
        registers = _by_id(_register(register, info) for register in info.registers)
        packet: dict[str, tuple[Field, ...]] = {}
        for header in info.controller_packet_metadata:
            name = header.preamble.name
            packet[name] = tuple(_field(metadata, name) for metadata in header.metadata)
        others = {
            item.preamble.id: f"{kind} {item.preamble.name}"
            for kind in ("action_profiles", "meters", "direct_meters", "value_sets", "digests")
            for item in getattr(info, kind)
        }
        return cls(
            tables,
            actions,
            counters,
            registers,
            packet.get("packet_in"),
            packet.get("packet_out"),
            others,
        )

    def table(self, table_id: int) -> Table:
        """Raises INVALID_ARGUMENT for an id that is not a table's."""
        return self._get(self.tables, table_id, "table_id")

    def counter(self, counter_id: int) -> Counter:
        """Raises INVALID_ARGUMENT for an id that is not an indexed counter's."""
        return self._get(self.counters, counter_id, "counter_id")

    def register(self, register_id: int) -> Register:
        """Raises INVALID_ARGUMENT for an id that is not a register's."""
        return self._get(self.registers, register_id, "register_id")

    def _get(self, items: Mapping[int, T], key: int, what: str) -> T:
        if key == 0:
            raise invalid_argument(f"{what} is not set")
        if key in items:
            return items[key]
        if key in self.others:
            raise unimplemented(f"{what} {key}: {self.others[key]} is not supported here")
        raise invalid_argument(f"{what} {key} (0x{key:08x}) is not in the P4Info")


def _by_id(items: Iterable[Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for item in items:
        if item.id in found:
            raise invalid_argument(
                f"P4Info: id {item.id} is given to both {found[item.id].name} and {item.name}"
            )
        found[item.id] = item
    return found


def _preamble(item: Any) -> Any:
    preamble = item.preamble
    if preamble.id == 0:
        raise invalid_argument(f"P4Info: {preamble.name or 'an object'} has id 0")
    return preamble


def _field(message: Any, owner: str) -> Field:
    if message.id == 0:
        raise invalid_argument(f"P4Info: {owner}.{message.name} has id 0")
    if message.bitwidth <= 0:
        raise unimplemented(
            f"P4Info: {owner}.{message.name} has no bit width (a string translated by "
            f"@p4runtime_translation?); this target knows numbers only"
        )
    return Field(int(message.id), str(message.name), int(message.bitwidth))


def _table(message: Any, actions: Mapping[int, Action], direct: Mapping[int, str]) -> Table:
    preamble = _preamble(message)
    fields = []
    for match in message.match_fields:
        base = _field(match, preamble.name)
        kind = _KINDS.get(match.match_type)
        if kind is None:
            raise unimplemented(
                f"P4Info: {preamble.name}.{match.name} has match kind "
                f"{match.other_match_type or match.match_type}; this target knows "
                f"{', '.join(_KINDS.values())}"
            )
        fields.append(MatchField(base.id, base.name, base.width, kind))
    allowed = {}
    for ref in message.action_refs:
        if ref.id not in actions:
            raise invalid_argument(f"P4Info: {preamble.name} refers to action {ref.id}: no such id")
        allowed[int(ref.id)] = (
            ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY,
            ref.scope != p4info_pb2.ActionRef.TABLE_ONLY,
        )
    resources = {direct[i]: int(i) for i in message.direct_resource_ids if i in direct}
    return Table(
        id=int(preamble.id),
        name=str(preamble.name),
        fields=tuple(fields),
        allowed=allowed,
        size=int(message.size),
        is_const=bool(message.is_const_table),
        has_initial_entries=bool(message.has_initial_entries),
        const_default=message.const_default_action_id != 0,
        ages=message.idle_timeout_behavior != p4info_pb2.Table.NO_TIMEOUT,
        action_profile=int(message.implementation_id),
        direct_counter=resources.get("counter", 0),
        direct_meter=resources.get("meter", 0),
    )


def _register(message: Any, info: p4info_pb2.P4Info) -> Register:
    preamble = _preamble(message)
    codec: DataCodec | None = None
    reason = ""
    try:
        codec = DataCodec(message.type_spec, info.type_info, preamble.name)
    except P4RuntimeError as error:
        reason = error.message
    return Register(int(preamble.id), str(preamble.name), int(message.size), codec, reason)
