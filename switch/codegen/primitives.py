# SPDX-License-Identifier: Apache-2.0
"""Generates C for BMv2's action primitives: `PRIMITIVES` maps each name to its writer.

A writer gets the emitter, the primitive and the writer object; it may emit any statements, which
form a block of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from switch.codegen.expressions import Emitter
from switch.codegen.hashes_and_checksums import calculation_name
from switch.codegen.headers import size_of
from switch.codegen.layout import LIMB, Layout, identifier, limbs
from switch.codegen.tracing import c_string, trace_result, trace_statement
from switch.codegen.wide_expressions import UNROLLED
from switch.program import expressions as ex
from switch.program.errors import refused_at
from switch.program.model import Action, MessageParameters, Meter, ObjectName, Primitive
from switch.program.value_ranges import value_range

# Fields of standard metadata that drop a packet, and their values in C.
_DROPPED = (("egress_spec", "SW_DROP_PORT"), ("mcast_grp", "0"))


class PrimitiveWriter:
    """Writes primitives of one program. labels: the jump targets of the current action."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.program = layout.program

    def action(self, action: Action) -> list[str]:
        """Returns the function of an action."""
        out = Emitter(self.layout, action)
        targets = {
            _constant(operand)
            for one in action.primitives
            if one.op in ("_jump", "_jump_if_zero")
            for operand in one.operands[-1:]
        }
        for position, primitive in enumerate(action.primitives):
            if position in targets:
                out.lines.append(f"at{position}:;")
            out.emit("{")
            if self.layout.traced:
                trace_statement(out, primitive)
            self.write(out, primitive)
            if self.layout.traced:
                trace_result(out, primitive)
            out.emit("}")
        if any(target >= len(action.primitives) for target in targets):
            for target in sorted(one for one in targets if one >= len(action.primitives)):
                out.lines.append(f"at{target}:;")
        return [
            # Inlined, so that local fields stay in registers.
            "static inline __attribute__((always_inline))",
            f"void {action_name(action)}(struct sw *sw, struct sw_packet *packet,",
            "                     struct program_context *c, struct program_locals *l,",
            "                     const uint64_t *args) {",
            "    (void)sw, (void)packet, (void)c, (void)l, (void)args;",
            *out.lines,
            "}",
            "",
        ]

    def write(self, out: Emitter, primitive: Primitive) -> None:
        if primitive.op not in PRIMITIVES:
            raise ex.Refused(f"primitive '{primitive.op}'")
        with refused_at(primitive.source, f"'{primitive.op}'"):
            PRIMITIVES[primitive.op](self, out, primitive)

    # Fields and headers

    def assign(self, out: Emitter, one: Primitive) -> None:
        out.assign(_field(one, 0), _data(one, 1))

    def assign_header(self, out: Emitter, one: Primitive) -> None:
        target, source = out.header(_header(one, 0)), out.header(_header(one, 1))
        out.emit(f"if ({out.valid(_header(one, 1))}) {{", f"{target} = {source};")
        self._alone(out, _header(one, 0))
        out.emit("} else {", f"{target}.valid = 0;", "}")
        out.emit(f"{target}.touched = 1;")

    def add_header(self, out: Emitter, one: Primitive) -> None:
        header = _header(one, 0)
        path, size = out.header(header), self._bytes(out, header)
        out.emit(f"if (!{path}.valid) {{", f"memset(&{path}, 0, sizeof {path});")
        out.emit(f"{path}.valid = {path}.touched = 1;")
        out.emit(f"c->state.packet_length += {size};")
        if isinstance(header, ex.HeaderRef):
            for name in sorted(self.layout.usage.idle_checksums.get(header.name, ())):
                out.overwritten(header, name)
        self._alone(out, header)
        out.emit("}")

    @staticmethod
    def _alone(out: Emitter, header: ex.HeaderExpression) -> None:
        if isinstance(header, ex.HeaderRef):
            out.alone(header.name)

    def remove_header(self, out: Emitter, one: Primitive) -> None:
        header = _header(one, 0)
        path, size = out.header(header), self._bytes(out, header)
        out.emit(f"if ({path}.valid) c->state.packet_length -= {size};", f"{path}.valid = 0;")

    def _bytes(self, out: Emitter, header: ex.HeaderExpression) -> str:
        return size_of(self.layout, out.type_of(header), out.header(header))

    def assign_varbit(self, out: Emitter, one: Primitive) -> None:
        to = _varbit(one, 0)
        target, source = out.varbit(to), out.varbit(_varbit(one, 1))
        room = f"sizeof {target}.data"
        out.emit(f"uint32_t count = {source}.bytes < {room} ? {source}.bytes : {room};")
        out.emit(f"memmove({target}.data, {source}.data, count);", f"{target}.bytes = count;")
        out.emit(f"{out.header(to.header)}.touched = 1;")

    # Header stacks (P4-16, 8.18)

    def push(self, out: Emitter, one: Primitive) -> None:
        if _object(one, 0) in self.program.union_stacks:
            self._shift_unions(out, one, push=True)
            return
        path, size, count = self._shift(one)
        out.emit(f"memmove(&{path}.e[{count}], &{path}.e[0], {size - count} * sizeof {path}.e[0]);")
        out.emit(f"for (int i = 0; i < {size}; i++) {path}.e[i].touched = 1;")
        out.emit(f"for (int i = 0; i < {count}; i++) {path}.e[i].valid = 0;")
        out.emit(f"{path}.next = {path}.next + {count} < {size} ? {path}.next + {count} : {size};")

    def pop(self, out: Emitter, one: Primitive) -> None:
        if _object(one, 0) in self.program.union_stacks:
            self._shift_unions(out, one, push=False)
            return
        path, size, count = self._shift(one)
        out.emit(f"memmove(&{path}.e[0], &{path}.e[{count}], {size - count} * sizeof {path}.e[0]);")
        out.emit(f"for (int i = 0; i < {size}; i++) {path}.e[i].touched = 1;")
        out.emit(f"for (int i = {size - count}; i < {size}; i++) {path}.e[i].valid = 0;")
        out.emit(f"{path}.next = {path}.next > {count} ? {path}.next - {count} : 0;")

    def _shift(self, one: Primitive) -> tuple[str, int, int]:
        name = _object(one, 0)
        size = len(self.program.stacks[name].headers)
        return self.layout.stacks[name], size, min(_constant(one.operands[1]), size)

    def assign_header_stack(self, out: Emitter, one: Primitive) -> None:
        target, source = (self.layout.stacks[_object(one, i)] for i in (0, 1))
        size = len(self.program.stacks[_object(one, 0)].headers)
        out.emit(f"{target}.next = {source}.next;", f"for (int i = 0; i < {size}; i++) {{")
        out.emit(f"if ({source}.e[i].valid) {target}.e[i] = {source}.e[i];")
        out.emit(f"else {target}.e[i].valid = 0;", f"{target}.e[i].touched = 1;", "}")

    # Header unions and stacks of them

    def assign_union(self, out: Emitter, one: Primitive) -> None:
        """Emits the copy of a union header by header, as in BMv2. operands: target and source, then
        the headers of both in pairs, which the loader adds."""
        headers = one.operands[2:]
        for pair in zip(headers[::2], headers[1::2], strict=True):
            out.emit("{")
            self.assign_header(out, Primitive("assign_header", pair, one.source))
            out.emit("}")

    def assign_union_stack(self, out: Emitter, one: Primitive) -> None:
        target, source = (self.layout.stacks[_object(one, i)] for i in (0, 1))
        out.emit(f"{target}.next = {source}.next;")
        self.assign_union(out, one)

    def _shift_unions(self, out: Emitter, one: Primitive, push: bool) -> None:
        """Emits the shift of a stack of unions; elements re-enter at the other end, as in BMv2."""
        stack = self.program.union_stacks[_object(one, 0)]
        size, path = len(stack.unions), self.layout.stacks[stack.name]
        count = _constant(one.operands[1])
        if push:
            pairs = [(place, place - count) for place in range(size - 1, count - 1, -1)]
        else:
            pairs = [(place, place + count) for place in range(size - count)]
        for place, other in pairs if count else ():
            self._swap_unions(out, stack.unions[place], stack.unions[other])
        count = min(count, size)
        if push:
            following = f"{path}.next + {count}"
            out.emit(f"{path}.next = {following} < {size} ? {following} : {size};")
        else:
            out.emit(f"{path}.next = {path}.next > {count} ? {path}.next - {count} : 0;")

    def _swap_unions(self, out: Emitter, one: str, other: str) -> None:
        members = zip(self.program.unions[one], self.program.unions[other], strict=True)
        for header, sibling in members:
            first, second = self.layout.paths[header], self.layout.paths[sibling]
            header_type = self.layout.types[self.program.headers[header].type.name]
            out.emit("{", f"{header_type} kept = {first};")
            out.emit(f"{first} = {second};", f"{second} = kept;")
            out.emit(f"{first}.touched = {second}.touched = 1;", "}")

    # State

    def register_read(self, out: Emitter, one: Primitive) -> None:
        target, register = _field(one, 0), self.program.registers[_object(one, 1)]
        index = out.keep(out.narrow_uint(_data(one, 2)))
        size = limbs(register.width)
        out.emit(f"if (sw_index_ok(sw, {index}, {register.size}u)) {{")
        cell = f"(sw->registers[{self.layout.register_index[register.name]}] + {index} * {size})"
        path = out.field(target)
        if register.width == target.width and target.width > LIMB:
            out.emit(*_move(path, cell, size))
        else:
            self._store_args(out, path, target.width, cell, register.width)
        if id(one) in self.layout.usage.cleared_reads:
            out.emit("} else {", f"memset({path}, 0, sizeof {path});")
        out.emit("}")
        self._touch(out, target)

    def register_write(self, out: Emitter, one: Primitive) -> None:
        register = self.program.registers[_object(one, 0)]
        index, value = out.keep(out.narrow_uint(_data(one, 1))), _data(one, 2)
        size = limbs(register.width)
        out.emit(f"if (sw_index_ok(sw, {index}, {register.size}u)) {{")
        cells = f"sw->registers[{self.layout.register_index[register.name]}]"
        out.emit(f"limb *restrict cell = {cells} + {index} * {size};")
        if register.width <= LIMB:
            out.store("cell[0]", register.width, _masked(value, register.width))
        elif isinstance(value, ex.FieldValue) and value.width == register.width:
            out.emit(*_move("cell", out.field(value), size))
        else:
            out.store("cell", register.width, value)
        out.emit("}")

    def count(self, out: Emitter, one: Primitive) -> None:
        index = self.layout.counter_index[_object(one, 0)]
        out.emit(
            f"sw_count(sw, {index}, {out.narrow_uint(_data(one, 1))}, c->state.ingress_length);"
        )

    def execute_meter(self, out: Emitter, one: Primitive) -> None:
        meter = self.program.meters[_object(one, 0)]
        index = out.keep(out.narrow_uint(_data(one, 1)))
        out.emit(f"if (sw_index_ok(sw, {index}, {meter.size}u)) {{")
        cell = f"&sw->meters[{self.layout.meter_index[meter.name]}][{index}]"
        color = out.keep(f"sw_meter_run({cell}, sw->now_us, {meter_tokens(meter)})")
        self.store_limb(out, _field(one, 2), color)
        out.emit("}")

    def generate_digest(self, out: Emitter, one: Primitive) -> None:
        """Emits the request of a digest: the last one in ingress counts, and reads its fields at
        the end."""
        learn_list = _constant(one.operands[1])
        if learn_list not in self.program.learn_lists:
            raise ex.Refused(f"learn list {learn_list}, which is not declared")
        out.emit(f"c->state.learn_list = {learn_list};")

    def _touch(self, out: Emitter, target: ex.FieldValue) -> None:
        header = target.header
        out.overwritten(header, target.field)
        if isinstance(header, ex.HeaderRef) and self.program.headers[header.name].metadata:
            return
        out.emit(f"{out.header(header)}.touched = 1;")

    # Forwarding decisions

    def drop(self, out: Emitter, one: Primitive) -> None:
        """Emits P4-14's drop, on standard metadata."""
        for name, value in _DROPPED:
            found = standard_field(self.layout, name)
            if found:
                out.emit(f"{found[0]} = {value};")

    def mark_to_drop(self, out: Emitter, one: Primitive) -> None:
        """Emits a drop on the struct that is its argument: p4c copies standard metadata where an
        action has it as an inout parameter, and copies it back later."""
        header = _header(one, 0)
        assert isinstance(header, ex.HeaderRef)
        given = self.program.headers[header.name]
        fields = {each.name for each in given.type.fields}
        for name, value in _DROPPED:
            if name in fields:
                out.emit(f"{self.layout.field_path(given, name)} = {value};")

    def clone(self, out: Emitter, one: Primitive) -> None:
        session, kept = out.narrow(_data(one, 0)), out.narrow(_data(one, 1))
        out.emit(f"c->state.clone_session = SW_CLONE_REQUESTED | ((uint32_t)({session}) & 0x7fff);")
        out.emit(f"c->state.clone_list = (uint32_t)({kept}) & 0xffff;")

    def resubmit(self, out: Emitter, one: Primitive) -> None:
        out.emit(f"c->state.resubmit_list = (uint32_t)({out.narrow(_data(one, 0))}) & 0xffff;")

    def recirculate(self, out: Emitter, one: Primitive) -> None:
        out.emit(f"c->state.recirculate_list = (uint32_t)({out.narrow(_data(one, 0))}) & 0xffff;")

    def truncate(self, out: Emitter, one: Primitive) -> None:
        size = out.keep(out.narrow(_data(one, 0)))
        out.emit(f"if ({size} < packet->truncate) packet->truncate = (uint32_t){size};")

    def exit(self, out: Emitter, one: Primitive) -> None:
        out.emit("c->state.exited = 1;")

    # Calculations and messages

    def hash(self, out: Emitter, one: Primitive) -> None:
        base, size = out.keep(out.narrow(_data(one, 1))), out.keep(out.narrow(_data(one, 3)))
        name = calculation_name(self.program, _object(one, 2))
        value = out.keep(f"{name}(sw, packet, c) % ({size} ? {size} : 1) + {base}")
        self.store_limb(out, _field(one, 0), value)

    def random(self, out: Emitter, one: Primitive) -> None:
        low, high = out.keep(out.narrow(_data(one, 1))), out.keep(out.narrow(_data(one, 2)))
        out.emit(f"if ({low} <= {high}) {{")
        value = out.keep(f"sw_random(sw, {low}, {high})")
        self.store_limb(out, _field(one, 0), value)
        out.emit("}")

    def store_limb(self, out: Emitter, target: ex.FieldValue, value: str) -> None:
        """Stores a one-limb C value in a field."""
        out.emit("{")  # a scope for its names
        self._store_args(out, out.field(target), target.width, f"&{value}", LIMB)
        out.emit("}")
        self._touch(out, target)

    def _store_args(self, out: Emitter, path: str, width: int, limbs_: str, bits: int) -> None:
        """Stores `bits` bits at a C pointer to limbs in an lvalue of `width` bits."""
        out.emit(f"const limb *args = {limbs_};")
        inner = Emitter(self.layout)
        inner.offsets, inner.depth = [0], out.depth
        inner.store(path, width, ex.Parameter(0, bits))
        out.lines += inner.lines

    def log_msg(self, out: Emitter, one: Primitive) -> None:
        out.emit("if (sw->log) {")
        parameters = one.operands[1] if len(one.operands) > 1 else MessageParameters(())
        assert isinstance(parameters, MessageParameters)
        items = []
        for value in parameters.values:
            array, count, signed = out.exact(value)
            items.append(f"{{{array}, {count}, {int(signed)}}}")
        values = ", ".join(items) or "{0, 0, 0}"
        out.emit(f"const struct sw_argument values[] = {{{values}}};")
        text = c_string(_object(one, 0))
        out.emit(f"sw_log_message(sw, {text}, values, {len(items)});", "}")

    def check(self, out: Emitter, one: Primitive) -> None:
        """Emits assert or assume: BMv2 aborts the process; here the packet is dropped and
        counted."""
        condition = _condition(out, one)
        place = f"{one.source}: {one.source.fragment}" if one.source else one.op
        text = c_string(f"{one.op} failed: {place}".replace("{", "\\{").replace("}", "\\}"))
        out.emit(f"if (!({condition})) {{", "c->state.failed = 1;")
        out.emit(f"sw_log_message(sw, {text}, 0, 0);", "}")

    def jump(self, out: Emitter, one: Primitive) -> None:
        out.emit(f"goto at{_constant(one.operands[0])};")

    def jump_if_zero(self, out: Emitter, one: Primitive) -> None:
        condition = _condition(out, one)
        out.emit(f"if (!({condition})) goto at{_constant(one.operands[1])};")

    def nothing(self, out: Emitter, one: Primitive) -> None:
        out.emit(";")


PRIMITIVES: dict[str, Callable[[PrimitiveWriter, Emitter, Primitive], None]] = {
    "assign": PrimitiveWriter.assign,
    "modify_field": PrimitiveWriter.assign,
    "assign_VL": PrimitiveWriter.assign_varbit,
    "assign_header": PrimitiveWriter.assign_header,
    "copy_header": PrimitiveWriter.assign_header,
    "assign_header_stack": PrimitiveWriter.assign_header_stack,
    "assign_union": PrimitiveWriter.assign_union,
    "assign_union_stack": PrimitiveWriter.assign_union_stack,
    "add_header": PrimitiveWriter.add_header,
    "remove_header": PrimitiveWriter.remove_header,
    "push": PrimitiveWriter.push,
    "pop": PrimitiveWriter.pop,
    "register_read": PrimitiveWriter.register_read,
    "register_write": PrimitiveWriter.register_write,
    "count": PrimitiveWriter.count,
    "execute_meter": PrimitiveWriter.execute_meter,
    "generate_digest": PrimitiveWriter.generate_digest,
    "mark_to_drop": PrimitiveWriter.mark_to_drop,
    "drop": PrimitiveWriter.drop,
    "clone_ingress_pkt_to_egress": PrimitiveWriter.clone,
    "clone_egress_pkt_to_egress": PrimitiveWriter.clone,
    "resubmit": PrimitiveWriter.resubmit,
    "recirculate": PrimitiveWriter.recirculate,
    "truncate": PrimitiveWriter.truncate,
    "exit": PrimitiveWriter.exit,
    "modify_field_with_hash_based_offset": PrimitiveWriter.hash,
    "modify_field_rng_uniform": PrimitiveWriter.random,
    "log_msg": PrimitiveWriter.log_msg,
    "assert": PrimitiveWriter.check,
    "assume": PrimitiveWriter.check,
    "_jump": PrimitiveWriter.jump,
    "_jump_if_zero": PrimitiveWriter.jump_if_zero,
    "no_op": PrimitiveWriter.nothing,
}


def action_name(action: Action) -> str:
    return f"action{action.id}_{identifier(action.name)}"


def meter_tokens(meter: Meter) -> str:
    """Returns C for the tokens that a packet takes from a meter's buckets."""
    return "1" if meter.tokens == "packets" else "c->state.ingress_length"


def standard_field(layout: Layout, name: str) -> tuple[str, int] | None:
    """Returns the C lvalue and the bits of a field of standard_metadata, also by the aliases of
    older architectures."""
    program = layout.program
    for place in (
        ("standard_metadata", name),
        program.aliases.get(f"standard_metadata.{name}"),
        program.aliases.get(f"intrinsic_metadata.{name}"),
        program.aliases.get(f"queueing_metadata.{name}"),
    ):
        if place and place[0] in program.headers:
            header = program.headers[place[0]]
            for one in header.type.fields:
                if one.name == place[1]:
                    return layout.field_path(header, one.name), one.width
    return None


def _move(to: str, source: str, size: int) -> list[str]:
    """Emits a copy of limbs, unrolled as in other statements (wide_expressions.py), so that the
    compiler keeps them in registers and no load spans several stores just before."""
    if size <= UNROLLED:
        return [f"{to}[{i}] = {source}[{i}];" for i in range(size)]
    return [f"memcpy({to}, {source}, {8 * size});"]


def _masked(value: ex.Data, width: int) -> ex.Data:
    """Returns a value truncated to a register cell's width, which is held in a whole limb."""
    low, high = value_range(value)
    if low >= 0 and high < 1 << width:
        return value
    return ex.Binary("&", value, ex.Const((1 << width) - 1))


def _constant(operand: object) -> int:
    if isinstance(operand, ex.Const):
        return operand.value
    raise ex.Refused("a count or jump that is not constant")


def _data(one: Primitive, position: int) -> ex.Data:
    operand = one.operands[position]
    if isinstance(operand, ex.Data):
        return operand
    if isinstance(operand, (ObjectName, MessageParameters)) or not isinstance(operand, ex.Boolean):
        raise ex.Refused(f"operand {position + 1} of '{one.op}'")
    return ex.BoolToData(operand)


def _condition(out: Emitter, one: Primitive) -> str:
    """Returns C for the truth of the first operand."""
    operand = one.operands[0]
    if isinstance(operand, ex.Data):
        return out.boolean(ex.DataToBool(operand))
    return out.boolean(operand)  # type: ignore[arg-type]


def _field(one: Primitive, position: int) -> ex.FieldValue:
    operand = one.operands[position]
    if isinstance(operand, ex.FieldValue):
        return operand
    raise ex.Refused(f"operand {position + 1} of '{one.op}' that is not a field")


def _header(one: Primitive, position: int) -> ex.HeaderExpression:
    operand = one.operands[position]
    if isinstance(operand, ex.HeaderExpression):
        return operand
    raise ex.Refused(f"operand {position + 1} of '{one.op}' that is not a header")


def _varbit(one: Primitive, position: int) -> ex.VarbitField:
    operand = one.operands[position]
    if isinstance(operand, ex.VarbitField):
        return operand
    raise ex.Refused(f"operand {position + 1} of '{one.op}' that is not a varbit field")


def _object(one: Primitive, position: int) -> str:
    operand = one.operands[position]
    if isinstance(operand, ObjectName):
        return operand.name
    raise ex.Refused(f"operand {position + 1} of '{one.op}'")
