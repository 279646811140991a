# SPDX-License-Identifier: Apache-2.0
"""C for the ingress and egress controls: one label per table or condition, gotos between them."""

from __future__ import annotations

from switch import expressions as ex
from switch.codegen.expressions import Emitter
from switch.codegen.layout import LIMB, Layout, argument_offsets, identifier, limbs, words_of
from switch.codegen.limbs import literal
from switch.codegen.parser import unsigned
from switch.codegen.primitives import action_name
from switch.program import Conditional, Control, Table, refused_at


class ControlWriter:
    def __init__(self, layout: Layout, control: Control) -> None:
        self.layout = layout
        self.program = layout.program
        self.control = control
        names = [*control.tables, *control.conditionals]
        self.labels = {name: f"node{i}_{identifier(name)}" for i, name in enumerate(names)}

    def write(self) -> list[str]:
        """Body of the control's function."""
        out = Emitter(self.layout)
        out.emit(self._go(self.control.first))
        for table in self.control.tables.values():
            out.lines.append(f"{self.labels[table.name]}:")
            out.emit("{")
            self._open_tail(out, table)
            with refused_at(table.source, f"table '{table.name}'"):
                self._table(out, table)
            out.emit("}")
        for conditional in self.control.conditionals.values():
            out.lines.append(f"{self.labels[conditional.name]}:")
            out.emit("{")
            self._open_tail(out, conditional)
            with refused_at(conditional.source, "a condition"):
                self._conditional(out, conditional)
            out.emit("}")
        return out.lines

    def _open_tail(self, out: Emitter, node: Table | Conditional) -> None:
        if self.control is self.program.egress and self.layout.usage.opens_tail(node):
            out.emit("if (c->state.sealed) program_open_tail(packet);")

    def _go(self, node: str | None) -> str:
        return f"goto {self.labels[node]};" if node is not None else "return;"

    def _conditional(self, out: Emitter, one: Conditional) -> None:
        condition = out.boolean(one.condition)
        out.emit(f"if ({condition}) {self._go(one.true_next)}", self._go(one.false_next))

    def _table(self, out: Emitter, table: Table) -> None:
        if not table.key and table.default_is_const and not table.with_counters:
            self._fixed(out, table)
            return
        index, layout = self.layout.table_index[table.name], self.layout.tables[table.name]
        out.emit(f"const struct sw_table *table = &sw->tables[{index}];")
        if table.key:
            self._key(out, table)
            out.emit(
                f"struct sw_entry *entry = sw_lookup(table, key, {layout.words}, {layout.ranges}, "
                f"{layout.arg_words});"
            )
        else:
            out.emit("struct sw_entry *entry = 0;")
        out.emit("int hit = entry != 0;", "(void)hit;")
        if table.with_counters:
            out.emit("if (hit) {", "entry->packets++;")
            out.emit("entry->bytes += c->state.ingress_length;", "}")
        out.emit("if (!hit) entry = table->fallback;")
        arguments = f"entry->words + {layout.words + 2 * layout.ranges}"
        out.emit("switch (entry->action) {")
        for action in table.action_ids:
            out.emit(f"case {action}:")
            name = action_name(self.program.actions[action])
            out.emit(f"    {name}(sw, packet, c, {arguments});")
            self._exit(out, action)
            out.emit(
                "    break;" if table.by_hit else f"    {self._go(table.next_by_action[action])}"
            )
        out.emit("default:", "    break;", "}")
        if table.by_hit:
            out.emit(f"if (hit) {self._go(table.next_on_hit)}", self._go(table.next_on_miss))
        else:
            out.emit(self._go(table.base_default_next))

    def _exit(self, out: Emitter, action: int) -> None:
        if any(one.op == "exit" for one in self.program.actions[action].primitives):
            out.emit("    if (c->state.exited) return;")

    def _fixed(self, out: Emitter, table: Table) -> None:
        """A table without key whose action never changes: p4c's wrapping of plain statements."""
        following = table.next_on_miss if table.by_hit else table.base_default_next
        if table.default_action_id is not None:
            action = self.program.actions[table.default_action_id]
            offsets, count = argument_offsets(action)
            values = [0] * count
            for one, at, value in zip(action.parameters, offsets, table.default_args, strict=True):
                values[at : at + limbs(one.width)] = words_of(value, limbs(one.width))
            if values:
                out.emit(
                    f"static const uint64_t args[] = {{{', '.join(literal(v) for v in values)}}};"
                )
            name = action_name(action)
            out.emit(f"{name}(sw, packet, c, {'args' if values else '0'});")
            self._exit(out, action.id)
            if not table.by_hit:
                following = table.next_by_action[action.id]
        out.emit(self._go(following))

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
