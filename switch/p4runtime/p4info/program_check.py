# SPDX-License-Identifier: Apache-2.0
"""Compares the two halves of a ForwardingPipelineConfig: does the P4Info describe the program?

Both come out of one run of the compiler, but are pushed as two files. With a P4Info of another
program, or of another version of it, keys and arguments would land in the wrong bits.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from switch.p4runtime.errors import invalid_argument
from switch.p4runtime.p4info.schema import (
    EXACT,
    LPM,
    OPTIONAL,
    RANGE,
    TERNARY,
    Action,
    Field,
    Schema,
    Table,
)
from switch.program import model as p4
from switch.program.parser_keys import widths

log = logging.getLogger(__name__)

# Match kinds of P4Info -> the program's kinds that implement them.
_KINDS: dict[str, tuple[str, ...]] = {
    EXACT: ("exact",),
    LPM: ("lpm",),
    TERNARY: ("ternary",),
    RANGE: ("range",),
    OPTIONAL: ("ternary", "optional"),
}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)
F = TypeVar("F", bound=Field)


def bind(schema: Schema, program: p4.Program) -> Schema:
    """Returns the schema as far as the program implements it.

    Objects that the compiler optimised away are only in the P4Info: they are dropped with a
    warning, and requests for them give UNIMPLEMENTED. Raises INVALID_ARGUMENT where the two
    contradict each other.
    """
    program_tables = program.tables
    actions = _named_actions(schema, program)
    missing: dict[int, str] = {}
    tables = _present(schema.tables, program_tables, "table", missing)
    counters = _present(schema.counters, program.counters, "counter", missing)
    profiles = _present(schema.profiles, program.profiles, "action profile", missing)
    value_sets = _present(schema.value_sets, program.value_sets, "value set", missing)
    registers = _present(schema.registers, program.registers, "register", missing)
    meters = _present(schema.meters, program.meters, "meter", missing)
    learned = {one.name: one for one in program.learn_lists.values()}
    digests = _present(schema.digests, learned, "digest", missing)
    shared = {one.name for one in schema.actions.values()} & set(actions) - {"NoAction"}
    if schema.tables and not tables and not shared:
        raise invalid_argument(
            f"the P4Info is of another program: it has tables "
            f"{_names(schema.tables.values())}, the device config has "
            f"{', '.join(sorted(program_tables)) or 'none'}"
        )
    declared_actions = {
        i: _bound(one, actions[one.name]) if one.name in actions else one
        for i, one in schema.actions.items()
    }
    for action in declared_actions.values():
        if action.name in actions:
            _check_action(action, actions[action.name])
    tables = {
        i: dataclasses.replace(
            one, fields=_sized(one.fields, [key.width for key in program_tables[one.name].key])
        )
        for i, one in tables.items()
    }
    value_sets = {
        i: dataclasses.replace(one, fields=_sized(one.fields, widths(program.value_sets[one.name])))
        for i, one in value_sets.items()
    }
    for table in tables.values():
        _check_table(schema, table, program, program_tables[table.name])
    for counter in counters.values():
        _same("counter", counter.name, "size", counter.size, program.counters[counter.name].size)
    for profile in profiles.values():
        selects = program.profiles[profile.name].selector is not None
        _same("action profile", profile.name, "selector", profile.with_selector, selects)
    for one in value_sets.values():
        key = widths(program.value_sets[one.name])
        _same("value set", one.name, "key widths", [field.width for field in one.fields], key)
        _same("value set", one.name, "size", one.size, program.value_sets[one.name].max_size)
    for register in registers.values():
        found = program.registers[register.name]
        _same("register", register.name, "size", register.size, found.size)
        if register.codec is not None:
            _same("register", register.name, "width", register.codec.width, found.width)
    for what in missing.values():
        log.warning("%s is in the P4Info, but the compiler left it out of the program", what)
    for meter in meters.values():
        _same("meter", meter.name, "size", meter.size, program.meters[meter.name].size)
    for digest in digests.values():
        if digest.codec is not None:
            actual = [one.width for one in learned[digest.name].elements]
            _same("digest", digest.name, "widths of fields", digest.codec.widths, actual)
    left_out = {i: f"{what}, which the compiler left out," for i, what in missing.items()}
    return dataclasses.replace(
        schema,
        actions=declared_actions,
        tables={i: _immutable(table, program_tables[table.name]) for i, table in tables.items()},
        counters=counters,
        registers=registers,
        profiles=profiles,
        value_sets=value_sets,
        meters=meters,
        digests=digests,
        others={**schema.others, **left_out},
    )


def _sized(fields: tuple[F, ...], actual: Sequence[int]) -> tuple[F, ...]:
    """Returns fields with the program's width where P4Info leaves it open (type `error` or an
    enum), and with the smaller of the two where P4Info has the control plane's."""
    if len(fields) != len(actual):
        return fields
    return tuple(
        dataclasses.replace(one, width=min(one.width or width, width))
        if not one.width or one.translated
        else one
        for one, width in zip(fields, actual, strict=True)
    )


def _named_actions(schema: Schema, program: p4.Program) -> dict[str, p4.Action]:
    """Returns the program's actions by name. If the compiler made several of one, as of an action
    that is also called directly, it is the one that entries refer to."""
    tables = (program.tables.get(one.name) for one in schema.tables.values())
    chosen = (program.actions[i] for table in tables if table for i in table.action_ids)
    return {one.name: one for one in (*program.actions.values(), *chosen)}


def _bound(action: Action, found: p4.Action) -> Action:
    """Returns the action with the parameters that the program has."""
    places = {one.name: i for i, one in enumerate(action.params)}
    taken = tuple(places[one.name] for one in found.parameters if one.name in places)
    if len(taken) < len(found.parameters):
        return action
    widths = [one.width for one in action.params]
    for i, one in zip(taken, found.parameters, strict=True):
        widths[i] = one.width
    return dataclasses.replace(action, params=_sized(action.params, widths), taken=taken)


def _immutable(table: Table, program_table: p4.Table) -> Table:
    # BMv2's JSON does not tell `entries` from `const entries`, and BMv2 takes both as const.
    return dataclasses.replace(table, is_const=table.is_const or program_table.entries_are_const)


def _present(
    declared: Mapping[int, N], found: Mapping[str, object], what: str, missing: dict[int, str]
) -> dict[int, N]:
    missing.update({i: f"{what} {d.name}" for i, d in declared.items() if d.name not in found})
    return {i: d for i, d in declared.items() if d.name in found}


def _names(items: Iterable[_Named]) -> str:
    return ", ".join(sorted(item.name for item in items))


def _same(kind: str, name: str, what: str, declared: object, found: object) -> None:
    if declared != found:
        raise invalid_argument(
            f"{kind} {name}: {what} is {declared} in the P4Info and {found} in the device config; "
            f"push the two files of one compilation"
        )


def _check_action(action: Action, found: p4.Action) -> None:
    taken = range(len(action.params)) if action.taken is None else action.taken
    params = [action.params[i] for i in taken]
    names = [one.name for one in found.parameters]
    _same("action", action.name, "parameters", [one.name for one in params], names)
    for one, actual in zip(params, found.parameters, strict=True):
        if not one.translated:
            name = f"{action.name}, parameter {one.name}"
            _same("action", name, "width", one.width, actual.width)


def _check_table(schema: Schema, table: Table, program: p4.Program, found: p4.Table) -> None:
    _same("table", table.name, "number of key fields", len(table.fields), len(found.key))
    for field, actual in zip(table.fields, found.key, strict=True):
        name = f"{table.name}, key {field.name}"
        whole = field.kind in (EXACT, OPTIONAL, TERNARY)  # others count bits from the left, or all
        if not (field.translated and whole):
            _same("table", name, "width", field.width, actual.width)
        if actual.match not in _KINDS[field.kind]:
            _same("table", name, "match kind", field.kind, actual.match)
    names = {program.actions[action_id].name for action_id in found.action_ids}
    for action_id in table.allowed:
        name = schema.actions[action_id].name
        if name not in names:
            _same("table", table.name, "action", name, "missing")
    declared = schema.profiles.get(table.action_profile)
    profile = declared.name if declared else None
    _same("table", table.name, "action profile", profile, found.profile)
    if table.direct_counter:
        _same("table", table.name, "direct counter", True, found.with_counters)
    if table.direct_meter:
        _same("table", table.name, "direct meter", True, found.meter is not None)
    if table.ages:
        _same("table", table.name, "idle timeout", True, found.ages)
