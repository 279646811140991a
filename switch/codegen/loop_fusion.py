# SPDX-License-Identifier: Apache-2.0
"""Fuses runs of statements on wide fields into one loop over vectors of four limbs.

p4c puts plain statements one by one into tables without key. Statements that follow one another,
also past conditions with a known outcome (known_conditions.py), and compute limb by limb (bitwise
operations, sums that cannot carry) on fields and register cells of equal size become one loop: each
operand is read once, each result written once, values that only these statements use are not
written at all, and a header that is still in the frame is read from there.

Indices beyond a register lead to a spare cell, which reads as zero. If a target must stay unchanged
instead, the statements are executed one by one for such an index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from switch.codegen.accesses import Place, uses_of_statements
from switch.codegen.expressions import Emitter
from switch.codegen.known_conditions import beyond, known_at
from switch.codegen.layout import LIMB, Layout, limbs, words_of
from switch.codegen.limbs import carries, literal, unmasked
from switch.codegen.primitives import PrimitiveWriter
from switch.program import expressions as ex
from switch.program.model import Action, Control, ObjectName, Primitive, Table

_VECTOR = 4  # limbs
_LEAST = 8  # limbs that are worth a loop
_SHORT = 12  # variables of a loop's body, of which two are better at a time

_JUMPS = ("_jump", "_jump_if_zero", "exit")


def is_fixed(table: Table) -> bool:
    """Returns True for a table without key whose action never changes: p4c's wrapping of
    statements."""
    return not table.key and table.default_is_const and not table.with_counters


def following(table: Table) -> str | None:
    """Returns the node after a fixed table."""
    if table.by_hit:
        return table.next_on_miss
    if table.default_action_id is not None:
        return table.next_by_action[table.default_action_id]
    return table.base_default_next


class Runs:
    """The chains of fixed tables in a control that can only be entered at their beginning.

    nodes: first table's name -> all tables of the run
    inner: names of all but the first
    after: first table's name -> node that follows

    Where one run always leads to another of the same width, the first includes the statements of
    the second, which remain for other paths to it.
    """

    def __init__(self, layout: Layout, control: Control) -> None:
        self.layout = layout
        self.program = layout.program
        self.control = control
        references: Counter[str | None] = Counter([control.first])
        for name in (*control.tables, *control.conditionals):
            fixed = name in control.tables and is_fixed(control.tables[name])
            references.update(
                {following(control.tables[name])} if fixed else set(control.successors(name))
            )
        continued = {
            following(one): one.name for one in control.tables.values() if self._plain(one)
        }
        self.nodes: dict[str, list[Table]] = {}
        self.inner: set[str] = set()
        for table in control.tables.values():
            if not self._plain(table):
                continue
            if references.get(table.name) == 1 and table.name in continued:
                self.inner.add(table.name)
        for table in control.tables.values():
            if self._plain(table) and table.name not in self.inner:
                run = [table]
                while (after := following(run[-1])) in self.inner:
                    assert after is not None
                    run.append(control.tables[after])
                self.nodes[table.name] = run
        self._drop_narrow()
        self.after: dict[str, str | None] = {}
        self._foresee(references)
        self.users: Counter[int | None] = Counter()  # tables of each action
        for table in self.program.tables.values():
            self.users.update({*table.action_ids, table.default_action_id})

    def _drop_narrow(self) -> None:
        """Drops runs without wide statements."""
        for name, run in list(self.nodes.items()):
            if not any(_size(self.layout, one) for one in self.statements(run)):
                del self.nodes[name]
                self.inner -= {one.name for one in run[1:]}

    def _foresee(self, references: Mapping[str | None, int]) -> None:
        alone, continued = dict(self.nodes), set()
        for name, run in alone.items():
            self.after[name] = following(run[-1])
            known = known_at(self.control, name, references, self.layout.usage.local)
            width = self._width(run)
            if known is None or not width or name in continued:
                continue
            longer, last = list(run), run
            while not self._writes(last, known[0]):
                after = beyond(self.control, following(last[-1]), known)
                self.after[name] = after
                if after not in alone or self._width(alone[after]) != width:
                    break
                last = alone[after]
                longer += last
                continued.add(after)
                self.after[name] = following(last[-1])
            self.nodes[name] = longer

    def _width(self, run: Sequence[Table]) -> int:
        """Returns the limbs of all statements of a run; 0: they differ, or cannot be part of a
        loop."""
        sizes = {_size(self.layout, one) for one in self.statements(run)}
        return sizes.pop() if len(sizes) == 1 else 0

    def _writes(self, run: Sequence[Table], place: Place) -> bool:
        uses = uses_of_statements(self.statements(run))
        return place in uses.written or place[0] in uses.whole

    def _action(self, table: Table) -> Action | None:
        if table.default_action_id is None:
            return None
        return self.program.actions[table.default_action_id]

    def _plain(self, table: Table) -> bool:
        action = self._action(table) if is_fixed(table) else None
        return (
            action is not None
            and not action.parameters
            and not any(one.op in _JUMPS for one in action.primitives)
        )

    def statements(self, run: Sequence[Table]) -> list[Primitive]:
        """Returns the statements of all tables of a run."""
        actions = [self._action(table) for table in run]
        return [one for action in actions if action for one in action.primitives]

    def only_users(self, run: Sequence[Table]) -> bool:
        """Returns True if only these tables execute the run's actions."""
        return all(self.users[one.default_action_id] == 1 for one in run)


def _size(layout: Layout, one: Primitive) -> int:
    """Returns the limbs of a statement that can be part of a loop, else 0."""
    if one.op in ("assign", "modify_field"):
        target, value = one.operands
        if _wide(target) and isinstance(target, ex.FieldValue) and isinstance(value, ex.Data):
            return limbs(target.width) if _by_limbs(value, target.width) else 0
    elif one.op == "register_read":
        target, array, index = one.operands
        if _wide(target) and isinstance(target, ex.FieldValue) and _simple(index):
            return limbs(target.width) if _cells(layout, array) == target.width else 0
    elif one.op == "register_write":
        array, index, value = one.operands
        width = _cells(layout, array)
        if _worth(width) and _simple(index) and isinstance(value, ex.Data):
            return limbs(width) if _by_limbs(value, width) else 0
    return 0


def _worth(width: int) -> bool:
    return width % (LIMB * _VECTOR) == 0 and width > LIMB * _LEAST


def _wide(target: object) -> bool:
    return (
        isinstance(target, ex.FieldValue)
        and isinstance(target.header, ex.HeaderRef)
        and not target.signed
        and _worth(target.width)
    )


def _simple(index: object) -> bool:
    if isinstance(index, ex.FieldValue):
        return isinstance(index.header, ex.HeaderRef) and index.width <= LIMB and not index.signed
    return isinstance(index, ex.Const)


def _cells(layout: Layout, array: object) -> int:
    """Returns the bits of a register's cell."""
    assert isinstance(array, ObjectName)
    return layout.program.registers[array.name].width


def _by_limbs(e: ex.Data, width: int) -> bool:
    """Returns True if a limb of the value modulo 2^width needs only the same limb of each
    operand."""
    if isinstance(e, ex.Const):
        return True
    if isinstance(e, ex.FieldValue):
        return _wide(e) and e.width == width
    if isinstance(e, ex.Unary):
        return e.op == "~" and _by_limbs(e.operand, width)
    if isinstance(e, ex.Binary) and e.op in ("&", "|", "^", "+"):
        if e.op == "+" and carries(e.left, e.right, limbs(width)):
            return False
        return _by_limbs(e.left, width) and _by_limbs(e.right, width)
    return False


@dataclass
class _Loop:
    """The state of one loop while it is written.

    values: C name of a place -> variable with its present value
    indices: C expression -> its variable
    cells: C expression -> pointer
    places: pointer -> register's number, index, size, number of statements that use it
    ranges: conditions
    before, body: statements
    written: places to be stored, in order
    """

    values: dict[str, str] = field(default_factory=dict)
    indices: dict[str, str] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    places: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, None] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    written: dict[str, None] = field(default_factory=dict)


class FusedWriter:
    """Writes the statements of runs. framed: headers that may still be in the frame."""

    def __init__(
        self, layout: Layout, runs: Runs, primitives: PrimitiveWriter, framed: Set[str]
    ) -> None:
        self.layout = layout
        self.runs = runs
        self.primitives = primitives
        self.framed = framed

    def write(self, out: Emitter, run: Sequence[Table]) -> None:
        group: list[Primitive] = []
        alone = self.runs.only_users(run)
        for one in [*self.runs.statements(run), None]:
            size = _size(self.layout, one) if one else 0
            if group and (
                not one or size != _size(self.layout, group[0]) or self._may_alias(group, one)
            ):
                self._loop(out, group, alone)
                group = []
            if size and one:
                group.append(one)
            elif one:
                self._plainly(out, one)

    def _may_alias(self, group: Sequence[Primitive], one: Primitive) -> bool:
        """Returns True if one register would have two indices in the loop: they may be the same
        cell."""
        places: dict[object, set[object]] = {}
        for each in [*group, one]:
            if each.op.startswith("register"):
                array, index = _cell(each)
                places.setdefault(array, set()).add(index)
        return any(len(indices) > 1 for indices in places.values())

    def _plainly(self, out: Emitter, one: Primitive) -> None:
        for name in sorted(uses_of_statements([one]).headers() & self.framed):
            out.emit(self.layout.load_framed(name))
        out.emit("{")
        self.primitives.write(out, one)
        out.emit("}")

    def _loop(self, out: Emitter, group: Sequence[Primitive], alone: bool) -> None:
        size, loop = _size(self.layout, group[0]), _Loop()
        for one in group:
            self._statement(out, loop, one, size)
        spare = self._can_spare(group)
        conditions = "" if spare else " && ".join(loop.ranges)
        dead = self._dead(group) if alone else set()
        out.emit("{", *(f"limb {name} = {text};" for text, name in loop.indices.items()))
        if conditions:
            out.emit(f"if (__builtin_expect({conditions}, 1)) {{")
        for text, name in loop.cells.items():
            array, at, limit, uses = loop.places[name]
            beyond = f"{at} < {limit}u ? {text} : sw_beyond(sw, {array}, {uses})"
            out.emit(f"limb *{name} = {beyond if spare else text};")
        out.emit(*loop.before)
        times = 2 if len(loop.body) <= _SHORT else 1
        out.emit(f"#pragma GCC unroll {times}")
        out.emit(f"for (int i = 0; i < {size}; i += {_VECTOR}) {{")
        out.emit(*loop.body)
        for place in loop.written:
            if place not in dead:
                out.emit(f"sw_store4({place} + i, {loop.values[place]});")
        out.emit("}")
        for one in group:
            self._finish(out, one)
        if conditions:
            out.emit("} else {")
            for one in group:
                self._plainly(out, one)
            out.emit("}")
        out.emit("}")

    def _statement(self, out: Emitter, loop: _Loop, one: Primitive, size: int) -> None:
        if one.op == "register_read":
            target, array, index = one.operands
            value = self._value(out, loop, self._cell(out, loop, array, index, size), size)
        elif one.op == "register_write":
            array, index, source = one.operands
            target = None
            value = self._keep(out, loop, source, size)
        else:
            target, source = one.operands
            value = self._keep(out, loop, source, size)
        if target is None:
            place = self._cell(out, loop, array, index, size)
        else:
            assert isinstance(target, ex.FieldValue)
            place = out.field(target)
        loop.values[place] = value
        loop.written[place] = None

    def _keep(self, out: Emitter, loop: _Loop, source: object, size: int) -> str:
        assert isinstance(source, ex.Data)
        name, text = out.temporary("v"), self._expression(out, loop, source, size)
        loop.body.append(f"const sw_limbs4 {name} = {text};")
        return name

    def _expression(self, out: Emitter, loop: _Loop, e: ex.Data, size: int) -> str:
        if isinstance(e, ex.Const):
            return self._constant(out, loop, e.value, size)
        if isinstance(e, ex.FieldValue):
            return self._value(out, loop, out.field(e), size, e)
        if isinstance(e, ex.Unary):
            return f"~{self._expression(out, loop, e.operand, size)}"
        assert isinstance(e, ex.Binary)
        whole = unmasked(e, size) if e.op == "&" else None
        if whole is not None:
            return self._expression(out, loop, whole, size)
        left = self._expression(out, loop, e.left, size)
        right = self._expression(out, loop, e.right, size)
        return f"({left} {e.op} {right})"

    def _constant(self, out: Emitter, loop: _Loop, value: int, size: int) -> str:
        words = words_of(value, size)
        if len(set(words)) == 1:
            one = literal(words[0])
            return f"(sw_limbs4){{{one}, {one}, {one}, {one}}}"
        name = out.temporary("k")
        loop.before.append(
            f"static const limb {name}[{size}] = {{{', '.join(map(literal, words))}}};"
        )
        return f"sw_load4({name} + i)"

    def _value(
        self, out: Emitter, loop: _Loop, place: str, size: int, e: ex.FieldValue | None = None
    ) -> str:
        """Returns the variable with a place's present value; emits its load on first use."""
        if place in loop.values:
            return loop.values[place]
        name = loop.values[place] = out.temporary("v")
        text = f"sw_load4({place} + i)"
        header = e.header.name if e and isinstance(e.header, ex.HeaderRef) else ""
        if header in self.framed:
            source, spare = out.temporary("from"), out.temporary("spare")
            loop.before += [
                f"uint8_t {spare}[{8 * size}];",
                f"const uint8_t *{source} = {self.layout.framed_path(header)};",
                f"if (__builtin_expect(!{source}, 0)) {{",
                f"store_limbs({spare}, {place}, {size});",
                f"{source} = {spare};",
                "}",
            ]
            text = f"sw_reversed4({source} + 8 * ({size - _VECTOR} - i))"
        loop.body.append(f"const sw_limbs4 {name} = {text};")
        return name

    def _cell(self, out: Emitter, loop: _Loop, array: object, index: object, size: int) -> str:
        assert isinstance(array, ObjectName)
        assert isinstance(index, ex.Data)
        text = out.narrow_uint(index)
        at = loop.indices.get(text) or loop.indices.setdefault(text, out.temporary("at"))
        limit = self.layout.program.registers[array.name].size
        loop.ranges[f"{at} < {limit}u"] = None
        number = self.layout.register_index[array.name]
        text = f"sw->registers[{number}] + {at} * {size}"
        name = loop.cells.get(text) or loop.cells.setdefault(text, out.temporary("cell"))
        loop.places.setdefault(name, [number, at, limit, 0])[3] += 1
        return name

    def _can_spare(self, group: Sequence[Primitive]) -> bool:
        """Returns True if a register's spare cell gives the right result for an index out of
        range."""
        written: set[object] = set()
        for one in group:
            if one.op == "register_write":
                written.add(one.operands[0])
            elif one.op == "register_read":
                cleared = id(one) in self.layout.usage.cleared_reads
                if not cleared or one.operands[1] in written:
                    return False
        return True

    def _finish(self, out: Emitter, one: Primitive) -> None:
        """Emits the side effects of an assignment."""
        if one.op == "register_write":
            return
        target = one.operands[0]
        assert isinstance(target, ex.FieldValue)
        assert isinstance(target.header, ex.HeaderRef)
        name = target.header.name
        if not self.layout.program.headers[name].metadata:
            out.emit(f"{out.header(target.header)}.touched = 1;")
        if name in self.framed:
            out.emit(f"{self.layout.framed_path(name)} = 0;")

    def _dead(self, group: Sequence[Primitive]) -> set[str]:
        """Returns the places of transient fields that only these statements use."""
        here = Counter(place for one in group for place in uses_of_statements([one]).places())
        found: set[str] = set()
        for place in here.keys() & self.layout.usage.transient:
            if here[place] == self.layout.usage.mentioned[place]:
                header = self.layout.program.headers[place[0]]
                found.add(self.layout.field_path(header, place[1]))
        return found


def _cell(one: Primitive) -> tuple[object, object]:
    return one.operands[1:] if one.op == "register_read" else one.operands[:2]  # type: ignore[return-value]
