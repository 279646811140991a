# SPDX-License-Identifier: Apache-2.0
"""Generates the tracing statements of a traced program (runtime/trace.h): parser states,
conditions, entries and actions that a packet passes, and assignments. Other programs have none."""

from __future__ import annotations

from collections.abc import Iterable

from switch.codegen.accesses import WRITES_FIRST
from switch.codegen.expressions import Emitter
from switch.codegen.layout import LIMB, TableLayout, argument_offsets, limbs
from switch.program import expressions as ex
from switch.program.errors import Source
from switch.program.model import Action, Conditional, Primitive, Program, Table

_MATCHES = {"exact": "SW_EXACT", "lpm": "SW_LPM", "ternary": "SW_TERNARY", "range": "SW_WITHIN"}


def c_string(text: str) -> str:
    """Returns a C string literal of any text."""
    out = []
    for byte in text.encode(errors="replace"):
        char = chr(byte)
        plain = 32 <= byte < 127 and char not in '"\\?'
        out.append(char if plain else f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def _place(source: Source | None, otherwise: str) -> str:
    """Returns `file(line): fragment`, as far as p4c gives them."""
    if source is None:
        return otherwise
    return f"{source}: {source.fragment or otherwise}"


def trace_errors(program: Program) -> list[str]:
    """Returns an array `errors` of the parser's errors by number."""
    names = {number: name for name, number in program.errors.items() if 0 <= number < 1 << 10}
    listed = (f"[{number}] = {c_string(name)}" for number, name in sorted(names.items()))
    return [
        f"    static const char *const errors[] = {{{', '.join(listed) or '0'}}};",
        "    sw_trace_parsed(sw, packet, at, c->state.parser_error, errors,",
        "                    sizeof errors / sizeof *errors);",
    ]


def trace_state(out: Emitter, name: str) -> None:
    out.emit(f"sw_trace_state(sw, {c_string(name)});")


def trace_condition(out: Emitter, one: Conditional, condition: str) -> str:
    """Emits the trace of a condition; returns its C."""
    value = out.keep(f"({condition}) != 0")
    place = c_string(_place(one.source, one.name))
    out.emit(f'sw_trace_tell(sw, packet, "%s: %s", {place}, {value} ? "true" : "false");')
    return value


def _fields(out: Emitter, rows: Iterable[tuple[str, str, int, int, int]]) -> tuple[str, int]:
    """Emits an array of struct sw_trace_field; returns its name and size."""
    lines = [f"{{{c_string(name)}, {', '.join(map(str, rest))}}}," for name, *rest in rows]
    if not lines:
        return "0", 0
    array = out.temporary("told")
    out.emit(f"static const struct sw_trace_field {array}[] = {{", *lines, "};")
    return array, len(lines)


def trace_lookup(out: Emitter, table: Table, layout: TableLayout) -> None:
    """Emits the trace of a lookup: `table`, `key`, `entry`, `hit`."""
    rows = [
        (
            field.name,
            _MATCHES[field.match],
            place.word if place.range_index is None else place.range_index,
            place.shift,
            field.width,
        )
        for place, field in zip(layout.places, table.key, strict=True)
    ]
    array, count = _fields(out, rows)
    key = "key" if table.key else "0"
    out.emit(f"sw_trace_lookup(sw, packet, table, {array}, {count}, {key}, entry, hit);")


def trace_member(out: Emitter) -> None:
    """Emits the trace of a member of an action profile: `entry`, `member`."""
    out.emit('sw_trace_say(sw, "%s", entry->action == SW_GROUP ? ": of its group" : "");')
    out.emit('if (!member) sw_trace_say(sw, ": nothing");')


def trace_action(out: Emitter, action: Action, arguments: str) -> None:
    """Emits the trace of an action that a table chose."""
    offsets = argument_offsets(action)[0]
    out.emit("{")
    array, count = _fields(
        out,
        (
            (one.name, "SW_EXACT", at, 0, one.width)
            for one, at in zip(action.parameters, offsets, strict=True)
        ),
    )
    out.emit(f"sw_trace_action(sw, {c_string(action.name)}, {array}, {count}, {arguments});", "}")


def trace_plain(out: Emitter, table: Table, action: Action) -> None:
    """Emits the trace of a table without key, unless p4c made it of statements, which have
    traces."""
    if "." in table.name:
        text = c_string(f"{table.name}: {action.name}")
        out.emit(f'sw_trace_tell(sw, packet, "table %s", {text});')


def trace_statement(out: Emitter, one: Primitive) -> None:
    """Emits the trace of a statement before it runs."""
    if one.source is not None and not one.op.startswith("_"):
        out.emit(f"sw_trace_begin(sw, packet, {c_string(_place(one.source, one.op))});")
        if _target(one) is None:
            out.emit("sw_trace_end(sw);")


def trace_result(out: Emitter, one: Primitive) -> None:
    """Emits the trace of what a statement has written."""
    target = _target(one)
    if target is None or one.source is None:
        return
    if target.width > LIMB:
        words = out.array(target, limbs(target.width))
    else:
        words = out.temporary("now")
        mask = (1 << target.width) - 1
        out.emit(f"const uint64_t {words}[] = {{{out.narrow(target)} & {mask:#x}ull}};")
    out.emit('sw_trace_say(sw, " -> ");')
    out.emit(f"sw_trace_value(sw, {words}, {target.width});", "sw_trace_end(sw);")


def _target(one: Primitive) -> ex.FieldValue | None:
    first = one.operands[0] if one.op in WRITES_FIRST and one.operands else None
    return first if isinstance(first, ex.FieldValue) else None
