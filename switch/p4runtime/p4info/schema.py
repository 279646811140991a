# SPDX-License-Identifier: Apache-2.0
"""Indexes the declarations of a P4Info message by id (P4Runtime spec, "The P4Info Message")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from switch.p4runtime.errors import P4RuntimeError, invalid_argument, unimplemented
from switch.p4runtime.p4info.values import DataCodec, MessageCodec
from switch.p4runtime.stubs import p4info_pb2
from switch.program.parser_keys import MOST_RANGE_BITS

EXACT, LPM, TERNARY, RANGE, OPTIONAL = "exact", "lpm", "ternary", "range", "optional"
_KINDS = {
    p4info_pb2.MatchField.EXACT: EXACT,
    p4info_pb2.MatchField.LPM: LPM,
    p4info_pb2.MatchField.TERNARY: TERNARY,
    p4info_pb2.MatchField.RANGE: RANGE,
    p4info_pb2.MatchField.OPTIONAL: OPTIONAL,
}
MOST = (1 << 31) - 1  # largest int32
_WITH_PRIORITY = (TERNARY, RANGE, OPTIONAL)

T = TypeVar("T")
C = TypeVar("C", DataCodec, MessageCodec)


@dataclass(frozen=True)
class Field:
    """A named value: a match field, an action parameter, packet metadata.

    width: in bits; 0: P4Info leaves it to the program
    translated: the width is the control plane's (@p4runtime_translation), and the program may have
        another
    text: its values are strings in the control plane, which this target cannot translate: no entry
        can give one
    """

    id: int
    name: str
    width: int
    translated: bool = field(default=False, kw_only=True)
    text: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class MatchField(Field):
    """A match field. kind: EXACT, LPM, TERNARY, RANGE or OPTIONAL."""

    kind: str


@dataclass(frozen=True)
class Action:
    """An action.

    name: full name in the P4 program
    params: in the order of the source
    taken: positions of the params that the compiled program has, in its order (p4c drops unused
        ones); None = all
    """

    id: int
    name: str
    params: tuple[Field, ...]
    taken: tuple[int, ...] | None = None

    def arguments(self, given: Sequence[int]) -> tuple[int, ...]:
        """Selects the arguments that the program takes from values for all params."""
        return tuple(given) if self.taken is None else tuple(given[i] for i in self.taken)

    def values(self, arguments: Sequence[int]) -> tuple[int, ...]:
        """Returns values for all params from the program's arguments, 0 for dropped params."""
        if self.taken is None:
            return tuple(arguments)
        found = dict(zip(self.taken, arguments, strict=True))
        return tuple(found.get(i, 0) for i in range(len(self.params)))


@dataclass(frozen=True)
class Table:
    """A table. fields: in the order of the program's key. allowed: action id -> (may be an entry's,
    may be the default)."""

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
        """True if entries carry a non-zero priority (spec, "TableEntry")."""
        return any(field.kind in _WITH_PRIORITY for field in self.fields)


@dataclass(frozen=True)
class ActionProfile:
    """An action profile.

    size: sum of all weights, or members without a selector; 0 = unspecified
    max_group_size: of one group's weights; 0 = unspecified
    most_weight: of a member where sizes count members, not weights, else 0
    actions: ids of the actions that members may have
    """

    id: int
    name: str
    with_selector: bool
    size: int
    max_group_size: int
    most_weight: int
    actions: tuple[int, ...]


@dataclass(frozen=True)
class ValueSet:
    """A parser value set: its members are keys of these fields."""

    id: int
    name: str
    fields: tuple[MatchField, ...]
    size: int


@dataclass(frozen=True)
class Counter:
    """An indexed counter array."""

    id: int
    name: str
    size: int


@dataclass(frozen=True)
class Meter:
    """An array of indexed meters. kind: MeterSpec.Type."""

    id: int
    name: str
    size: int
    kind: int


@dataclass(frozen=True)
class Register:
    """A register array. codec: None if P4Data of its type is unsupported; `reason` says why
    then."""

    id: int
    name: str
    size: int
    codec: DataCodec | None
    reason: str


@dataclass(frozen=True)
class Digest:
    """A digest. codec: None if P4Data of its type is unsupported; `reason` says why then."""

    id: int
    name: str
    codec: MessageCodec | None
    reason: str


@dataclass(frozen=True)
class Schema:
    """All objects of one P4Info that requests may name, by id.

    direct_meters: id -> MeterSpec.Type
    others: id -> description, of objects that are declared but unsupported
    """

    tables: Mapping[int, Table]
    actions: Mapping[int, Action]
    counters: Mapping[int, Counter]
    registers: Mapping[int, Register]
    meters: Mapping[int, Meter]
    direct_meters: Mapping[int, int]
    digests: Mapping[int, Digest]
    packet_in: tuple[Field, ...] | None
    packet_out: tuple[Field, ...] | None
    others: Mapping[int, str]
    profiles: Mapping[int, ActionProfile] = field(default_factory=dict)
    value_sets: Mapping[int, ValueSet] = field(default_factory=dict)

    @classmethod
    def of(cls, info: p4info_pb2.P4Info) -> Schema:
        """Builds a schema. Raises INVALID_ARGUMENT if the message contradicts itself, UNIMPLEMENTED
        for unsupported match kinds and translations."""
        types = {
            name: one.translated_type
            for name, one in info.type_info.new_types.items()
            if one.HasField("translated_type")
        }
        actions = _by_id(
            Action(p.id, p.name, tuple(_field(param, p.name, types) for param in action.params))
            for action in info.actions
            for p in [_preamble(action)]
        )
        direct = {counter.preamble.id: "counter" for counter in info.direct_counters}
        direct.update({meter.preamble.id: "meter" for meter in info.direct_meters})
        tables = _by_id(_table(table, actions, direct, types) for table in info.tables)
        counters = _by_id(
            Counter(p.id, p.name, int(counter.size))
            for counter in info.counters
            for p in [_preamble(counter)]
        )
        registers = _by_id(_register(register, info) for register in info.registers)
        meters = _by_id(_meter(meter) for meter in info.meters)
        direct_meters = {one.preamble.id: _meter_kind(one) for one in info.direct_meters}
        digests = _by_id(_digest(digest, info) for digest in info.digests)
        packet: dict[str, tuple[Field, ...]] = {}
        for header in info.controller_packet_metadata:
            name = header.preamble.name
            packet[name] = tuple(_field(metadata, name, types) for metadata in header.metadata)
        return cls(
            tables,
            actions,
            counters,
            registers,
            meters,
            direct_meters,
            digests,
            packet.get("packet_in"),
            packet.get("packet_out"),
            {},
            _by_id(_profile(profile, tables) for profile in info.action_profiles),
            _by_id(_value_set(one, types) for one in info.value_sets),
        )

    def profile(self, profile_id: int) -> ActionProfile:
        """Returns an action profile. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.profiles, profile_id, "action_profile_id")

    def value_set(self, value_set_id: int) -> ValueSet:
        """Returns a value set. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.value_sets, value_set_id, "value_set_id")

    def table(self, table_id: int) -> Table:
        """Returns a table. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.tables, table_id, "table_id")

    def tables_with(self, resource: str, table_id: int) -> list[Table]:
        """Returns the table with this id, or all (0), that have a direct "counter" or "meter".

        Raises INVALID_ARGUMENT for an unknown id, or a table without it.
        """
        if table_id == 0:
            return [one for one in self.tables.values() if getattr(one, f"direct_{resource}")]
        table = self.table(table_id)
        if not getattr(table, f"direct_{resource}"):
            raise invalid_argument(f"{table.name} has no direct {resource}")
        return [table]

    def counter(self, counter_id: int) -> Counter:
        """Returns an indexed counter. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.counters, counter_id, "counter_id")

    def register(self, register_id: int) -> Register:
        """Returns a register. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.registers, register_id, "register_id")

    def meter(self, meter_id: int) -> Meter:
        """Returns an indexed meter. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.meters, meter_id, "meter_id")

    def digest(self, digest_id: int) -> Digest:
        """Returns a digest. Raises INVALID_ARGUMENT for an unknown id."""
        return self._get(self.digests, digest_id, "digest_id")

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


def _field(message: Any, owner: str, types: Mapping[str, Any]) -> Field:
    """Reads a match field. types: those that are translated for the control plane."""
    if message.id == 0:
        raise invalid_argument(f"P4Info: {owner}.{message.name} has id 0")
    translated = types.get(message.type_name.name)
    if message.bitwidth < 0:
        raise invalid_argument(f"P4Info: {owner}.{message.name} has {message.bitwidth} bits")
    return Field(
        message.id,
        message.name,
        message.bitwidth,
        translated=translated is not None,
        text=translated is not None and translated.HasField("sdn_string"),
    )


def _match_fields(
    messages: Iterable[Any], owner: str, types: Mapping[str, Any]
) -> tuple[MatchField, ...]:
    fields = []
    for match in messages:
        base = _field(match, owner, types)
        kind = _KINDS.get(match.match_type)
        if kind is None:
            raise unimplemented(
                f"P4Info: {owner}.{match.name} has match kind "
                f"{match.other_match_type or match.match_type}; this target knows "
                f"{', '.join(_KINDS.values())}"
            )
        fields.append(
            MatchField(
                base.id, base.name, base.width, kind, translated=base.translated, text=base.text
            )
        )
    return tuple(fields)


def _value_set(message: Any, types: Mapping[str, Any]) -> ValueSet:
    preamble = _preamble(message)
    fields = _match_fields(message.match, preamble.name, types)
    if any(one.kind == RANGE and one.width > MOST_RANGE_BITS for one in fields):
        raise unimplemented(f"P4Info: {preamble.name}: a range of more than {MOST_RANGE_BITS} bits")
    return ValueSet(preamble.id, preamble.name, fields, message.size)


def _table(
    message: Any,
    actions: Mapping[int, Action],
    direct: Mapping[int, str],
    types: Mapping[str, Any],
) -> Table:
    preamble = _preamble(message)
    fields = _match_fields(message.match_fields, preamble.name, types)
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
        id=preamble.id,
        name=preamble.name,
        fields=fields,
        allowed=allowed,
        size=message.size,
        is_const=bool(message.is_const_table),
        has_initial_entries=bool(message.has_initial_entries),
        const_default=message.const_default_action_id != 0,
        ages=message.idle_timeout_behavior != p4info_pb2.Table.NO_TIMEOUT,
        action_profile=message.implementation_id,
        direct_counter=resources.get("counter", 0),
        direct_meter=resources.get("meter", 0),
    )


def _profile(message: Any, tables: Mapping[int, Table]) -> ActionProfile:
    preamble = _preamble(message)
    users = [table for table in tables.values() if table.action_profile == preamble.id]
    counts_members = message.HasField("sum_of_members")
    return ActionProfile(
        id=preamble.id,
        name=preamble.name,
        with_selector=bool(message.with_selector),
        size=message.size,
        max_group_size=message.max_group_size,
        most_weight=(message.sum_of_members.max_member_weight or MOST) if counts_members else 0,
        actions=tuple(
            dict.fromkeys(
                number for user in users for number, (entry, _) in user.allowed.items() if entry
            )
        ),
    )


def _codec(kind: type[C], message: Any, info: p4info_pb2.P4Info) -> tuple[C | None, str]:
    """Returns the codec of an object's type, or the reason why there is none."""
    try:
        return kind(message.type_spec, info.type_info, message.preamble.name), ""
    except P4RuntimeError as error:
        return None, error.message


def _register(message: Any, info: p4info_pb2.P4Info) -> Register:
    preamble = _preamble(message)
    codec, reason = _codec(DataCodec, message, info)
    return Register(preamble.id, preamble.name, message.size, codec, reason)


def _meter(message: Any) -> Meter:
    preamble = _preamble(message)
    return Meter(preamble.id, preamble.name, message.size, _meter_kind(message))


def _meter_kind(message: Any) -> int:
    """Returns the MeterSpec.Type. Raises UNIMPLEMENTED for the type that v1model's meters cannot
    have."""
    kind = int(message.spec.type)
    if kind == p4info_pb2.MeterSpec.SINGLE_RATE_THREE_COLOR:
        raise unimplemented(
            f"P4Info: {message.preamble.name} is a single rate three color meter; this target has "
            f"those of two rates (RFC 2698)"
        )
    return kind


def _digest(message: Any, info: p4info_pb2.P4Info) -> Digest:
    preamble = _preamble(message)
    codec, reason = _codec(MessageCodec, message, info)
    return Digest(preamble.id, preamble.name, codec, reason)
