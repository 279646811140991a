# SPDX-License-Identifier: Apache-2.0
"""Generates C for the ingress and egress controls: one label per table or condition, gotos between
them."""

from __future__ import annotations

from switch.codegen.expressions import Emitter
from switch.codegen.hashes_and_checksums import calculation_name
from switch.codegen.layout import LASTS, LIMB, Layout, argument_words, identifier, limbs
from switch.codegen.limbs import literal
from switch.codegen.loop_fusion import FusedWriter, Runs, following, is_fixed
from switch.codegen.parser import unsigned
from switch.codegen.primitives import PrimitiveWriter, action_name, meter_tokens
from switch.codegen.tracing import (
    trace_action,
    trace_condition,
    trace_lookup,
    trace_member,
    trace_plain,
)
from switch.program import expressions as ex
from switch.program.errors import refused_at
from switch.program.model import Conditional, Control, Meter, Table


class ControlWriter:
    """Writes the function of one control, and those that look up its first tables ahead."""

    def __init__(self, layout: Layout, control: Control, primitives: PrimitiveWriter) -> None:
        self.layout = layout
        self.program = layout.program
        self.primitives = primitives
        self.control = control
        names = [*control.tables, *control.conditionals]
        self.labels = {name: f"node{i}_{identifier(name)}" for i, name in enumerate(names)}
        # Tables that can be looked up as soon as a packet is parsed: no table has written anything
        # before.
        tables = (control.tables.get(name) for name in self._first_nodes())
        self.ahead = {one.name for one in tables if one and one.key}
        self.framed = layout.usage.framed if control is self.program.ingress else set()
        self.runs = Runs(layout, control)
        if layout.traced:  # traced statement by statement
            self.runs.nodes.clear()
            self.runs.inner.clear()
        self.fused = FusedWriter(layout, self.runs, primitives, self.framed)

    def write(self) -> list[str]:
        """Returns the body of the control's function."""
        out = Emitter(self.layout)
        out.emit(self._go(self.control.first))
        for table in self.control.tables.values():
            if table.name in self.runs.inner:
                continue
            out.lines.append(f"{self.labels[table.name]}:")
            out.emit("{")
            with refused_at(table.source, f"table '{table.name}'"):
                if table.name in self.runs.nodes:
                    self._run(out, table.name)
                else:
                    self._open(out, table)
                    self._table(out, table)
            out.emit("}")
        for conditional in self.control.conditionals.values():
            out.lines.append(f"{self.labels[conditional.name]}:")
            out.emit("{")
            self._open(out, conditional)
            with refused_at(conditional.source, "a condition"):
                self._conditional(out, conditional, self.layout.traced)
            out.emit("}")
        return out.lines

    def look_ahead(self) -> list[str]:
        """Returns the body of the function that looks up the control's first table, or finds the
        tuples to search."""
        out = Emitter(self.layout)
        if not self.ahead:
            return out.lines
        out.emit(self._go(self.control.first))
        for name in self._first_nodes():
            out.lines.append(f"{self.labels[name]}:")
            out.emit("{")
            self._open(out, self.control.tables.get(name) or self.control.conditionals[name])
            if name in self.control.conditionals:
                self._conditional(out, self.control.conditionals[name])
            elif name in self.ahead:
                self._ahead(out, self.control.tables[name])
            out.emit("return;", "}")
        return out.lines

    def _ahead(self, out: Emitter, table: Table) -> None:
        index, words = self.layout.table_index[table.name], self.layout.tables[table.name].words
        out.emit(f"const struct sw_table *table = packet->hint.table = &sw->tables[{index}];")
        self._key(out, table)
        if not _is_exact(table):
            out.emit(
                "if (table->filtered) {",
                f"packet->hint.waits = {index + 1};",
                f"packet->hint.maybe = sw_candidates(table, key, 0, {words});",
                "} else",
            )
        out.emit(f"packet->hint.entry = {self._found(table)};")

    def look_up(self) -> list[str]:
        """Returns the body of the function that searches those tuples."""
        out = Emitter(self.layout)
        out.emit("switch (packet->hint.waits) {")
        for name in sorted(self.ahead):
            table = self.control.tables[name]
            if _is_exact(table):
                continue
            out.emit(f"case {self.layout.table_index[name] + 1}: {{")
            out.emit("const struct sw_table *table = packet->hint.table;")
            self._key(out, table)
            found = f"sw_search(table, key, {self._sizes(table)}, packet->hint.maybe)"
            out.emit(f"packet->hint.entry = {found};", "break;", "}")
        out.emit("}")
        return out.lines

    def _first_nodes(self) -> list[str]:
        """Returns the nodes that a packet can reach without passing a table."""
        found: list[str] = []
        waiting = [self.control.first]
        while waiting:
            name = waiting.pop()
            if name is None or name in found:
                continue
            found.append(name)
            if name in self.control.conditionals:
                one = self.control.conditionals[name]
                waiting += [one.true_next, one.false_next]
        return found

    def _run(self, out: Emitter, first: str) -> None:
        run = self.runs.nodes[first]
        for table in run:
            self._open_tail(out, table)
        self.fused.write(out, run)
        out.emit(self._go(self.runs.after[first]))

    def _open(self, out: Emitter, node: Table | Conditional) -> None:
        self._open_tail(out, node)
        for name in sorted(self.layout.usage.headers_of(node) & self.framed):
            out.emit(self.layout.load_framed(name))

    def _open_tail(self, out: Emitter, node: Table | Conditional) -> None:
        if self.control is self.program.egress and self.layout.usage.opens_tail(node):
            out.emit("if (c->state.sealed) program_open_tail(packet);")

    def _go(self, node: str | None) -> str:
        return f"goto {self.labels[node]};" if node is not None else "return;"

    def _conditional(self, out: Emitter, one: Conditional, traced: bool = False) -> None:
        condition = out.boolean(one.condition)
        if traced:
            condition = trace_condition(out, one, condition)
        out.emit(f"if ({condition}) {self._go(one.true_next)}", self._go(one.false_next))

    def _table(self, out: Emitter, table: Table) -> None:
        if is_fixed(table):
            self._fixed(out, table)
            return
        index, layout = self.layout.table_index[table.name], self.layout.tables[table.name]
        out.emit(f"const struct sw_table *table = &sw->tables[{index}];")
        if table.key:
            self._key(out, table)
            self._lookup(out, table)
        else:
            out.emit("struct sw_entry *entry = 0;")
        out.emit("int hit = entry != 0;", "(void)hit;")
        first = layout.words + 2 * layout.ranges
        if table.with_counters:
            counters = first + layout.arg_words
            out.emit("if (hit) {", f"entry->words[{counters}]++;")
            out.emit(f"entry->words[{counters + 1}] += c->state.ingress_length;", "}")
        if table.ages:
            out.emit(f"if (hit) table->hit_us[{self._number(table)}] = sw->now_us;")
        if table.meter is not None:
            self._meter(out, table, self.program.meters[table.meter])
        out.emit("if (!hit) entry = table->fallback;")
        if self.layout.traced:
            trace_lookup(out, table, layout)
        if table.profile is not None:
            self._member(out, table)
        else:
            self._action(out, table)
        if table.by_hit:
            out.emit(f"if (hit) {self._go(table.next_on_hit)}", self._go(table.next_on_miss))
        else:
            out.emit(self._go(table.base_default_next))

    def _action(self, out: Emitter, table: Table) -> None:
        layout = self.layout.tables[table.name]
        arguments = f"entry->words + {layout.words + 2 * layout.ranges}"
        out.emit("switch (entry->action) {")
        for action in table.action_ids:
            self._case(out, table, action, action, arguments)
        out.emit("default:", "    break;", "}")

    def _case(self, out: Emitter, table: Table, number: int, action: int, arguments: str) -> None:
        out.emit(f"case {number}:")
        if self.layout.traced:
            trace_action(out, self.program.actions[action], arguments)
        name = action_name(self.program.actions[action])
        out.emit(f"    {name}(sw, packet, c, l, {arguments});")
        self._exit(out, action)
        out.emit("    break;" if table.by_hit else f"    {self._go(table.next_by_action[action])}")

    def _member(self, out: Emitter, table: Table) -> None:
        """Emits the action of the member that the entry names, or that its group chooses."""
        assert table.profile is not None
        layout, profile = self.layout.tables[table.name], self.program.profiles[table.profile]
        words = self.layout.profile_words[profile.name]
        out.emit(f"uint64_t number = entry->words[{layout.words + 2 * layout.ranges}];")
        out.emit(
            f"const struct sw_profile *profile = "
            f"&sw->profiles[{self.layout.profile_index[profile.name]}];",
            "const struct sw_member *member = 0;",
            f"if (entry->action == SW_MEMBER) member = sw_member_at(profile, number, {words});",
        )
        if profile.selector is not None:
            # BMv2 takes the hash's low 32 bits.
            selector = calculation_name(self.program, profile.selector)
            out.emit(
                "if (entry->action == SW_GROUP)",
                f"    member = sw_member_of(profile, number, (uint32_t){selector}(sw, packet, c), "
                f"{words});",
            )
        if self.layout.traced:
            trace_member(out)
        out.emit("if (member) {", "switch (member->action) {")
        numbers = self.layout.member_actions[profile.name]
        for action in table.action_ids:
            number = numbers[self.program.actions[action].name]
            self._case(out, table, number, action, "member->args")
        out.emit("default:", "    break;", "}", "}")

    def _meter(self, out: Emitter, table: Table, meter: Meter) -> None:
        """Emits a direct meter, which runs at each hit before the action."""
        assert meter.target is not None
        out.emit("if (hit) {")
        tokens = meter_tokens(meter)
        place = f"&table->meters[{self._number(table)}]"
        color = out.keep(f"sw_meter_run({place}, sw->now_us, {tokens})")
        self.primitives.store_limb(out, meter.target, color)
        out.emit("}")

    def _lookup(self, out: Emitter, table: Table) -> None:
        """Emits a lookup that first tries the result of looking ahead, and then the last packet's
        key, as packets of a flow have equal keys. In egress that is the last packet to a port like
        this one, as copies for several ports alternate."""
        index, layout = self.layout.table_index[table.name], self.layout.tables[table.name]
        last, words = f"sw->lasts->t{index}", layout.words + layout.ranges
        if self.control is self.program.egress:
            last += f"[packet->port % {LASTS}]"
        same = "".join(f" && {last}.key[{i}] == key[{i}]" for i in range(words))
        out.emit("struct sw_entry *entry = 0;")
        if table.name in self.ahead:
            out.emit("if (packet->hint.table == table) {", "entry = packet->hint.entry;", "} else")
        out.emit("if (!table->tuple_count) {", "} else", f"if ({last}.epoch == sw->epoch{same}) {{")
        out.emit(f"entry = {last}.entry;", "} else {")
        out.emit(f"entry = {self._found(table)};")
        out.emit(f"{last}.epoch = sw->epoch;", f"{last}.entry = entry;")
        out.emit(*(f"{last}.key[{i}] = key[{i}];" for i in range(words)), "}")

    def _found(self, table: Table) -> str:
        return f"sw_lookup(table, key, {self._sizes(table)}, {int(_is_exact(table))})"

    def _number(self, table: Table) -> str:
        return f"sw_number(table, entry, sw_entry_stride({self._sizes(table)}))"

    def _sizes(self, table: Table) -> str:
        """Returns the arguments that determine the size of an entry."""
        layout = self.layout.tables[table.name]
        return f"{layout.words}, {layout.ranges}, {layout.arg_words}, {int(table.with_counters)}"

    def _exit(self, out: Emitter, action: int) -> None:
        if any(one.op == "exit" for one in self.program.actions[action].primitives):
            out.emit("    if (c->state.exited) return;")

    def _fixed(self, out: Emitter, table: Table) -> None:
        """Emits a table without key whose action never changes: p4c's wrapping of plain
        statements."""
        if table.default_action_id is not None:
            action = self.program.actions[table.default_action_id]
            values = argument_words(action, table.default_args)
            if values:
                out.emit(
                    f"static const uint64_t args[] = {{{', '.join(literal(v) for v in values)}}};"
                )
            if self.layout.traced:
                trace_plain(out, table, action)
            name = action_name(action)
            out.emit(f"{name}(sw, packet, c, l, {'args' if values else '0'});")
            self._exit(out, action.id)
        out.emit(self._go(following(table)))

    def _key(self, out: Emitter, table: Table) -> None:
        layout = self.layout.tables[table.name]
        words: list[list[str]] = [[] for _ in range(layout.words)]
        ranges: list[str] = []
        for place, field in zip(layout.places, table.key, strict=True):
            value = unsigned(field.value)
            if field.mask is not None:
                value = ex.Binary("&", value, ex.Const(field.mask))
            if place.range_index is not None:
                ranges.append(out.narrow(value))
            elif field.width <= LIMB:
                shift = f" << {place.shift}" if place.shift else ""
                words[place.word].append(f"{out.narrow(value)}{shift}")
            else:
                array = out.array(value, limbs(field.width))
                for i in range(limbs(field.width)):
                    words[place.word + i].append(f"{array}[{i}]")
        items = [" | ".join(one) or "0" for one in words] + ranges
        out.emit("const uint64_t key[] = {", *(f"{item}," for item in items), "};")


def _is_exact(table: Table) -> bool:
    return all(one.match == "exact" for one in table.key)
