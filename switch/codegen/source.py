# SPDX-License-Identifier: Apache-2.0
"""Assembles a program's C source: what runtime/program.h asks of the generated half."""

from __future__ import annotations

from collections.abc import Sequence

from switch.codegen.bits import emit_load
from switch.codegen.controls import ControlWriter
from switch.codegen.expressions import Emitter
from switch.codegen.hashes_and_checksums import CalculationWriter, custom_crcs
from switch.codegen.headers import emit_header, size_of
from switch.codegen.layout import Layout, argument_words, limbs
from switch.codegen.limbs import literal
from switch.codegen.meters_and_digests import learn_function, state_declarations
from switch.codegen.parser import ParserWriter
from switch.codegen.primitives import PrimitiveWriter, standard_field
from switch.codegen.tracing import c_string, trace_errors
from switch.program.errors import consistent, refused_at
from switch.program.model import Control, FieldList, Header, Program, Table


def generate(program: Program, traced: bool = False) -> str:
    """Returns the whole source file. traced: the code traces packets.

    Raises UnsupportedConstruct for constructs without C, ProgramError for inconsistencies that the
    loader did not find.
    """
    with refused_at(None), consistent(program.name):
        return _Writer(program, traced).source()


class _Writer:
    """Writes the source file of one program, function by function."""

    def __init__(self, program: Program, traced: bool) -> None:
        self.program = program
        self.layout = Layout(program, traced)
        self.primitives = PrimitiveWriter(self.layout)
        self.calculations = CalculationWriter(self.layout)
        self.lines: list[str] = []

    def source(self) -> str:
        self.lines += [
            "// Generated from a P4 program; see switch/codegen.",
            '#include "program.h"',
            '#include "table_lookup.h"',
            *(['#include "trace.h"'] if self.layout.traced else []),
            "",
            *self.layout.declarations(),
        ]
        self._objects()
        for calculation in self.program.calculations.values():
            self.lines += self.calculations.function(calculation)
        self._actions()
        self._standard()
        self._parse()
        self._tail_opening()
        self._look_ahead()
        self._control("program_ingress", self.program.ingress)
        self._control("program_egress", self.program.egress)
        self._deparse()
        self._lifecycle()
        self._lists()
        self.lines += learn_function(self.layout)
        # Compiled together with the packet path, which calls all of the above.
        self.lines.append('#include "packet_path.c"')
        return "\n".join(self.lines) + "\n"

    def function(self, head: str, body: list[str]) -> None:
        self.lines += [f"{head} {{", *body, "}", ""]

    # Tables, counters, registers

    def _objects(self) -> None:
        program = self.program
        tables = [*program.tables.values(), *program.value_sets.values()]
        for i, table in enumerate(tables):
            words = self._default_args(table)
            values = ", ".join(literal(one) for one in words) or "0"
            self.lines.append(f"static const uint64_t default{i}[] = {{{values}}};")
        ahead = ControlWriter(self.layout, program.ingress, self.primitives).ahead
        self.lines.append("const struct sw_table_spec program_tables[] = {")
        for i, table in enumerate(tables):
            layout = self.layout.tables[table.name]
            action = 0xFFFFFFFF if table.default_action_id is None else table.default_action_id
            self.lines.append(
                f"    {{{c_string(table.name)}, "
                f"{layout.words}, {layout.ranges}, {layout.arg_words}, "
                f"{int(table.with_counters)}, {int(table.name in ahead)}, {table.max_size}, "
                f"{action}u, default{i}, {int(table.meter is not None)}, {int(table.ages)}}},"
            )
        self.lines += ["    {0}", "};", "const struct sw_profile_spec program_profiles[] = {"]
        self.lines += [f"    {{{words}}}," for words in self.layout.profile_words.values()]
        self.lines += ["    {0}", "};", "const uint32_t program_crc_widths[] = {"]
        self.lines += [f"    {width}," for width in custom_crcs(program).values()]
        self.lines += ["    0", "};", "const uint64_t program_counter_sizes[] = {"]
        self.lines += [f"    {one.size}u," for one in program.counters.values()]
        self.lines += ["    0", "};", "const struct program_register program_registers[] = {"]
        self.lines += [
            f"    {{{one.size}u, {limbs(one.width)}}}," for one in program.registers.values()
        ]
        self.lines += ["    {0, 0}", "};", *state_declarations(self.layout)]
        for kind, count in (
            ("table", len(tables)),
            ("profile", len(program.profiles)),
            ("crc", len(custom_crcs(program))),
            ("counter", len(program.counters)),
            ("register", len(program.registers)),
        ):
            self.lines.append(f"const uint32_t program_{kind}_count = {count};")
        self.lines += [
            f"const int program_reads_payload = {int(self.layout.usage.reads_payload)};",
            f"const int program_keeps_headers = {int(self.layout.usage.keeps_headers)};",
            "const size_t program_lasts_size = sizeof(struct program_lasts);",
            "const size_t program_context_size = sizeof(struct program_context);",
            "",
        ]

    def _default_args(self, table: Table) -> list[int]:
        words = self.layout.tables[table.name].arg_words
        if table.default_action_id is None:
            return [0] * words
        action = self.program.actions[table.default_action_id]
        return argument_words(action, table.default_args, words)

    def _actions(self) -> None:
        used = {one for table in self.program.tables.values() for one in table.action_ids}
        for action in self.program.actions.values():
            if action.id not in used:
                continue
            with refused_at(action.source, f"action '{action.name}'"):
                self.lines += self.primitives.action(action)

    # Standard metadata

    def _standard(self) -> None:
        now = "uint64_t now_us"
        for name, parameters, fields in (
            (
                "arrive",
                f"uint32_t port, uint32_t length, {now}",
                {
                    "ingress_port": "port",
                    "packet_length": "length",
                    "instance_type": "SW_NORMAL",
                    "ingress_global_timestamp": "now_us",
                },
            ),
            ("set_kind", "uint32_t kind", {"instance_type": "kind"}),
            ("set_length", "uint32_t length", {"packet_length": "length"}),
            ("set_port", "uint32_t port", {"ingress_port": "port"}),
            ("set_instance", "uint32_t egress_rid", {"egress_rid": "egress_rid"}),
            (
                "depart",
                f"const struct sw_packet *packet, {now}",
                {
                    "egress_global_timestamp": "now_us",
                    "enq_timestamp": "packet->enq_us",
                    "enq_qdepth": "packet->enq_qdepth",
                    "deq_timedelta": "now_us - packet->enq_us",
                    "deq_qdepth": "packet->deq_qdepth",
                    "qid": "packet->priority",
                    "egress_port": "packet->port",
                    "egress_spec": "SW_DROP_PORT + 1",
                    "packet_length": "c->state.packet_length",
                },
            ),
        ):
            self._setter(f"program_{name}(struct program_context *c, {parameters})", fields)
        for function, name in (
            ("program_egress_spec", "egress_spec"),
            ("program_group", "mcast_grp"),
            ("program_priority", "priority"),
        ):
            path, _ = standard_field(self.layout, name) or ("0", 0)
            self.function(
                f"uint32_t {function}(const struct program_context *c)",
                ["    (void)c;", f"    return (uint32_t){path};"],
            )

    def _setter(self, head: str, fields: dict[str, str]) -> None:
        names = [one.split()[-1].lstrip("*") for one in head[head.index("(") + 1 : -1].split(", ")]
        body = [f"    {', '.join(f'(void){one}' for one in names)};"]
        for name, value in fields.items():
            found = standard_field(self.layout, name)
            if found:
                path, width = found
                body.append(f"    {path} = (uint64_t)({value}) & {literal((1 << width) - 1)};")
        self.function(f"void {head}", body)

    # Parser, controls, deparser

    def _parse(self) -> None:
        body = ParserWriter(self.layout, self.primitives.write).write()
        for checksum in self.program.checksums:
            if checksum.verify:
                body += self.calculations.verify(checksum)
        for name in ("parser_error", "checksum_error"):
            found = standard_field(self.layout, name)
            if found:
                body.append(f"    {found[0]} = c->state.{name};")
        late = [
            self.layout.paths[one.name]
            for one in self.program.headers.values()
            if not one.metadata and self._late(one)
        ]
        self.function(
            "size_t program_parse(struct sw *sw, struct sw_packet *packet, const uint8_t *frame,\n"
            "                     size_t length)",
            [
                "    struct program_context *c = (struct program_context *)packet->context;",
                "    (void)sw, (void)frame, (void)length;",
                "    c->state.parser_error = c->state.checksum_error = 0;",
                *body[: body.index("end:") + 1],
                "    packet->payload = (uint8_t *)frame + at;",
                "    packet->payload_length = (uint32_t)(length - at);",
                *(trace_errors(self.program) if self.layout.traced else []),
                *(
                    f"    if ({one}.touched && !{one}.valid) memset(&{one}, 0, sizeof {one});"
                    for one in late
                ),
                *body[body.index("end:") + 1 :],
                "    return at;",
            ],
        )

    def _control(self, name: str, control: Control) -> None:
        self.function(
            f"void {name}(struct sw *sw, struct sw_packet *packet)",
            [
                "    struct program_context *c = (struct program_context *)packet->context;",
                "    struct program_locals locals = {0}, *l = &locals;",
                "    (void)sw, (void)c, (void)l;",
                *ControlWriter(self.layout, control, self.primitives).write(),
            ],
        )

    def _look_ahead(self) -> None:
        writer = ControlWriter(self.layout, self.program.ingress, self.primitives)
        for name, body in (("ahead", writer.look_ahead()), ("up", writer.look_up())):
            self.function(
                f"void program_look_{name}(struct sw *sw, struct sw_packet *packet)",
                [
                    "    struct program_context *c = (struct program_context *)packet->context;",
                    "    struct program_locals locals = {0}, *l = &locals;",
                    "    (void)sw, (void)c, (void)l;",
                    *body,
                ],
            )

    def _deparse(self) -> None:
        head = "void program_update_checksums(struct sw *sw, struct sw_packet *packet)"
        body = [
            "    struct program_context *c = (struct program_context *)packet->context;",
            "    (void)sw, (void)c;",
        ]
        for checksum in self.program.checksums:
            if checksum.update:
                body += self.calculations.update(checksum)
        out = Emitter(self.layout)
        for primitive in self.program.deparser_primitives:
            out.emit("{")
            self.primitives.write(out, primitive)
            out.emit("}")
        self.function(head, body + out.lines)

        framed = sorted(self.layout.usage.framed)
        self.function(
            "void program_load_framed(struct program_context *c)",
            ["    (void)c;", *(f"    {self.layout.load_framed(one)}" for one in framed)],
        )
        self._emission("program_header_length", "program_emit", self.program.deparse_order)
        tail = self.layout.usage.tail
        self._emission("program_tail_length", "program_emit_tail", tail)
        sealed = [
            f"    if ({self.layout.paths[one]}.valid) c->state.sealed |= 1u << {i};"
            for i, one in enumerate(tail)
        ]
        invalid = [f"    {self.layout.paths[one]}.valid = 0;" for one in tail]
        invalid += [f"    {self.layout.framed_path(one)} = 0;" for one in framed]
        self.function(
            "void program_drop_tail(struct program_context *c)",
            ["    c->state.sealed = 0;", *sealed, *invalid],
        )

        cases = []
        for header, names in self.layout.usage.idle_checksums.items():
            for name in sorted(names):
                path = self.layout.field_path(self.program.headers[header], name)
                number = self.layout.pending(header, name)
                cases.append(f"    if (c->state.pending == {number}) {path} = checksum;")
        self.function(
            "void program_settle(struct program_context *c, uint16_t checksum)",
            ["    (void)c, (void)checksum;", *cases],
        )

    def _tail_opening(self) -> None:
        """Writes the function that turns the tail into headers again."""
        out = Emitter(self.layout)
        for i, name in enumerate(self.layout.usage.tail):
            header, path = self.program.headers[name], self.layout.paths[name]
            out.emit(f"if (c->state.sealed >> {i} & 1) {{")
            parts = [
                (self.layout.field_path(header, one.name), one.width) for one in header.type.fields
            ]
            emit_load(out, "packet->payload", parts)
            out.emit(f"{path}.valid = {path}.touched = 1;")
            out.emit(f"sw_payload_less(packet, {header.type.bits // 8});", "}")
            out.emit(f"else if (c->state.sealed & SW_COPIED && {path}.touched)")
            out.emit(f"    memset(&{path}, 0, sizeof {path});")
        self.function(
            "void program_open_tail(struct sw_packet *packet)",
            [
                "    struct program_context *c = (struct program_context *)packet->context;",
                *out.lines,
                "    c->state.sealed = 0;",
            ],
        )

    def _emission(self, length_name: str, emit_name: str, headers: Sequence[str]) -> None:
        """Writes the functions for the bytes of valid headers: their count, and their output."""
        length, emit = [], Emitter(self.layout)
        tail = emit_name == "program_emit_tail"
        if tail:
            self._settle_framed(emit, headers)
        for name in headers:
            header, path = self.program.headers[name], self.layout.paths[name]
            size = size_of(self.layout, header.type, path)
            length.append(f"    if ({path}.valid) length += {size};")
            emit.emit(f"if ({path}.valid) {{")
            if tail and name in self.layout.usage.framed:
                emit.emit(f"if ({self.layout.framed_path(name)}) {{", f"out += {size};", "} else {")
                emit_header(emit, self.layout, header.type, path)
                emit.emit("}")
            else:
                emit_header(emit, self.layout, header.type, path)
            emit.emit("}")
        self.function(
            f"size_t {length_name}(const struct program_context *c)",
            ["    (void)c;", "    size_t length = 0;", *length, "    return length;"],
        )
        self.function(
            f"void {emit_name}({'' if tail else 'const '}struct program_context *c, uint8_t *out)",
            ["    (void)c, (void)out;", *emit.lines],
        )

    def _settle_framed(self, emit: Emitter, headers: Sequence[str]) -> None:
        """Reads framed headers into the context unless all of them are just where they are to be
        written: writing one could overwrite another."""
        if not self.layout.usage.framed:
            return
        emit.emit("const uint8_t *end = out;", "int apart = 0;")
        for name in headers:
            path, at = self.layout.paths[name], self.layout.framed_path(name)
            emit.emit(f"if ({path}.valid) {{")
            if name in self.layout.usage.framed:
                emit.emit(f"apart |= {at} && {at} != end;")
            emit.emit(f"end += {self.program.headers[name].type.bits // 8};", "}")
        emit.emit("if (apart) program_load_framed(c);")

    # Contexts

    def _lifecycle(self) -> None:
        metadata = "offsetof(struct program_context, end_of_metadata)"
        early: list[str] = []
        copied: list[str] = []
        tail: list[str] = []
        for header in self.program.headers.values():
            path = self.layout.paths[header.name]
            if header.metadata:
                continue
            (tail if header.name in self.layout.usage.tail else copied).append(path)
            if not self._late(header):
                early.append(path)
        # Indices out of range write to the spare element of each stack.
        spare = [
            f"{self.layout.stacks[name]}.e[{len(stack.headers)}]"
            for name, stack in self.program.stacks.items()
        ]
        stacks = [f"{path}.next" for path in self.layout.stacks.values()]
        self.function(
            "void program_reset(struct program_context *c)",
            [
                f"    sw_clear(c, {metadata});",
                *(f"    {one}.valid = 0;" for one in (*copied, *tail) if one not in early),
                *(f"    if ({one}.touched) memset(&{one}, 0, sizeof {one});" for one in early),
                *(f"    memset(&{one}, 0, sizeof {one});" for one in spare),
                *(f"    {one} = 0;" for one in stacks),
            ],
        )
        self.function(
            "void program_copy(struct program_context *to, const struct program_context *c)",
            [
                f"    memcpy(to, c, {metadata});",
                *(
                    f"    if ({one}.touched) {self._to(one)} = {one}; "
                    f"else if ({self._to(one)}.touched) memset(&{self._to(one)}, 0, sizeof {one});"
                    for one in copied
                ),
                *(["    to->state.sealed |= SW_COPIED;"] if tail else []),
                *(f"    {self._to(one)}.valid = 0;" for one in tail),
                *(f"    memset(&{self._to(one)}, 0, sizeof {one});" for one in spare),
                *(f"    {self._to(one)} = {one};" for one in stacks),
            ],
        )
        first = next((one for one in self.program.headers.values() if one.metadata), None)
        start = self.layout.paths[first.name].removeprefix("c->") if first else "end_of_metadata"
        self.function(
            "void program_reset_metadata(struct program_context *c)",
            [
                f"    size_t from = offsetof(struct program_context, {start});",
                f"    memset((uint8_t *)c + from, 0, {metadata} - from);",
            ],
        )

    def _late(self, header: Header) -> bool:
        """Returns True if clearing what an earlier packet left in a header can wait until after the
        parser."""
        return header.stack is None and header.name not in self.layout.usage.early

    def _to(self, path: str) -> str:
        return path.replace("c->", "to->", 1)

    def _lists(self) -> None:
        body = ["    (void)to, (void)c;", "    switch (list) {"]
        for one in self.program.field_lists.values():
            body.append(f"    case {one.id}:")
            body += [f"        {line}" for line in self._copies(one)]
            body.append("        break;")
        self.function(
            "void program_copy_list(struct program_context *to, const struct program_context *c,\n"
            "                       uint32_t list)",
            [*body, "    default:", "        break;", "    }"],
        )

    def _copies(self, one: FieldList) -> list[str]:
        lines = []
        for header_name, name in one.elements:
            header: Header = self.program.headers[header_name]
            path = self.layout.field_path(header, name)
            lines.append(f"memcpy(&{self._to(path)}, &{path}, sizeof {path});")
        return lines
