# SPDX-License-Identifier: Apache-2.0
"""Generates C for expressions: BMv2's unbounded integers in exactly the limbs that the result
needs.

Every operation computes its value modulo 2^(64 k), where k is what the enclosing expression needs.
Sums, products and bitwise operations then need no more limbs of their operands; comparisons,
divisions and right shifts need the operands' whole range. One limb is a plain C expression. Several
are a loop over limbs into which nested operations are fused (class Stream).
"""

from __future__ import annotations

from collections.abc import Callable

from switch.codegen.layout import LIMB, Layout, argument_offsets, limbs
from switch.codegen.limbs import FULL_LIMB, Stream, literal, natural_limbs, possible_ones
from switch.codegen.wide_expressions import WideEmitter
from switch.program import expressions as ex
from switch.program.model import Action, HeaderType
from switch.program.value_ranges import value_range

LookaheadReader = Callable[["Emitter", ex.Lookahead], str]


class Emitter(WideEmitter):
    """Writes the statements of one C function in which `c` is the packet's context.

    action: the action whose parameters `args` holds
    lookahead: emits a parser's lookahead and returns the name of the array of limbs
    """

    def __init__(
        self, layout: Layout, action: Action | None = None, lookahead: LookaheadReader | None = None
    ) -> None:
        super().__init__()
        self.layout = layout
        self.offsets = argument_offsets(action)[0] if action else []
        self.lookahead = lookahead

    # Headers

    def header(self, header: ex.HeaderExpression) -> str:
        """Returns the C lvalue of a header; an index out of range yields the stack's spare
        element."""
        if isinstance(header, ex.HeaderRef):
            return self.layout.paths[header.name]
        if isinstance(header, ex.HeaderChoice):
            condition = self.keep(self.boolean(header.condition))
            return f"(*({condition} ? &{self.header(header.true)} : &{self.header(header.false)}))"
        path = self.layout.stacks[header.stack]
        size = len(self.layout.program.stacks[header.stack].headers)
        if isinstance(header, ex.StackLast):
            return f"{path}.e[{path}.next ? {path}.next - 1 : {size}]"
        index = self.keep(self.narrow(header.index))
        return f"{path}.e[{index} < {size} ? {index} : {size}]"

    def type_of(self, header: ex.HeaderExpression) -> HeaderType:
        program = self.layout.program
        while isinstance(header, ex.HeaderChoice):
            header = header.true  # both are of one type
        if isinstance(header, ex.HeaderRef):
            return program.headers[header.name].type
        return program.stacks[header.stack].type

    def field(self, value: ex.FieldValue) -> str:
        """Returns the C lvalue of a field."""
        program = self.layout.program
        if isinstance(value.header, ex.HeaderRef):
            return self.layout.field_path(program.headers[value.header.name], value.field)
        member = self.layout.member(self.type_of(value.header), value.field)
        return f"{self.header(value.header)}.{member}"

    def varbit(self, value: ex.VarbitField) -> str:
        """Returns the C lvalue of a varbit field: a struct of `bytes` and `data`."""
        member = self.layout.member(self.type_of(value.header), value.field)
        return f"{self.header(value.header)}.{member}"

    def valid(self, header: ex.HeaderExpression) -> str:
        if isinstance(header, ex.HeaderRef) and self.layout.program.headers[header.name].metadata:
            return "1"
        return f"{self.header(header)}.valid"

    def own_array(self, e: ex.Data) -> str | None:
        if isinstance(e, ex.Lookahead):
            return self._look(e)
        if isinstance(e, ex.FieldValue) and e.width > LIMB:
            return self.field(e)
        if isinstance(e, ex.Parameter) and e.width > LIMB:
            return f"(args + {self.offsets[e.index]})"
        return None

    # One limb

    def narrow(self, e: ex.Data) -> str:
        """Returns a C expression (uint64_t, no side effects): the value modulo 2^64."""
        if isinstance(e, ex.Const):
            return literal(e.value)
        if isinstance(e, ex.FieldValue):
            path = self.field(e)
            if e.width > LIMB:
                return f"{path}[0]"
            return f"wide_signed({path}, {e.width})" if e.signed else f"(uint64_t){path}"
        if isinstance(e, ex.ValidBit):
            return f"(uint64_t){self.valid(e.header)}"
        if isinstance(e, ex.Parameter):
            return f"args[{self.offsets[e.index]}]"
        if isinstance(e, ex.Unary):
            return f"~{self.narrow(e.operand)}"
        if isinstance(e, ex.BoolToData):
            return f"(uint64_t)({self.boolean(e.operand)})"
        if isinstance(e, ex.Choice):
            condition = self.boolean(e.condition)
            return f"({condition} ? {self.narrow(e.true)} : {self.narrow(e.false)})"
        if isinstance(e, ex.StackSize):
            count = f"(uint64_t){self.layout.stacks[e.stack]}.next"
            return f"({count} - 1)" if e.last else count
        if isinstance(e, ex.Lookahead):
            return f"{self._look(e)}[0]"
        return self._narrow_binary(e)

    def narrow_uint(self, e: ex.Data) -> str:
        """Returns as `narrow` what BMv2 takes as a C unsigned int: the value modulo 2^32."""
        low, high = value_range(e)
        return self.narrow(e) if low >= 0 and high < 1 << 32 else f"(uint32_t)({self.narrow(e)})"

    def _look(self, e: ex.Lookahead) -> str:
        if self.lookahead is None:
            raise ex.Refused("lookahead outside a parser")
        return self.lookahead(self, e)

    def _narrow_binary(self, e: ex.Binary) -> str:
        op = e.op
        if op == "&":
            for one, mask in ((e.left, e.right), (e.right, e.left)):
                if isinstance(mask, ex.Const):
                    ones = possible_ones(one) & FULL_LIMB if possible_ones(one) >= 0 else FULL_LIMB
                    if ones & ~mask.value & FULL_LIMB == 0:
                        return self.narrow(one)
        if op in ("+", "-", "*", "&", "|", "^"):
            return f"({self.narrow(e.left)} {op} {self.narrow(e.right)})"
        if op == "<<":
            return self._narrow_left(e)
        if op == ">>":
            return self._narrow_right(e)
        if op == "two_comp_mod":
            width = value_range(e.right)[0]
            value = self.narrow(e.left)
            return f"wide_signed({value}, {width})" if width < LIMB else value
        fits = natural_limbs(e.left)[0] == 1
        if op in ("/", "%") and fits and natural_limbs(e.right)[0] == 1:
            return self._narrow_division(e)
        if op in ("usat_cast", "sat_cast") and fits:
            return self._narrow_saturation(e)
        return f"{self.wide_binary(e, 1).array}[0]"

    def _narrow_left(self, e: ex.Binary) -> str:
        value = self.narrow(e.left)
        if isinstance(e.right, ex.Const):
            by = e.right.value
            return f"({value} << {by})" if by < LIMB else "0ull"
        by_name = self.amount(e.right)
        return f"({by_name} < 64 ? {value} << {by_name} : 0ull)"

    def _narrow_right(self, e: ex.Binary) -> str:
        count, signed = natural_limbs(e.left)
        if not isinstance(e.right, ex.Const):
            if count > 1:
                return f"{self.wide_binary(e, 1).array}[0]"
            value, by_name = self.keep(self.narrow(e.left)), self.amount(e.right)
            if signed:
                return f"(limb)((int64_t){value} >> ({by_name} < 64 ? {by_name} : 63))"
            return f"({by_name} < 64 ? {value} >> {by_name} : 0ull)"
        whole, bits = divmod(e.right.value, LIMB)
        if whole >= count:
            if not signed:
                return "0ull"
            return f"wide_sign({self.array(e.left, count)}, {count})"
        if count == 1:
            value = self.narrow(e.left)
            return f"(limb)((int64_t){value} >> {bits})" if signed else f"({value} >> {bits})"
        array = self.array(e.left, min(count, whole + 2))
        if whole == count - 1:
            top = f"{array}[{whole}]"
            return f"(limb)((int64_t){top} >> {bits})" if signed else f"({top} >> {bits})"
        if bits == 0:
            return f"{array}[{whole}]"
        return f"({array}[{whole}] >> {bits} | {array}[{whole + 1}] << {LIMB - bits})"

    def _narrow_division(self, e: ex.Binary) -> str:
        left, right = self.keep(self.narrow(e.left)), self.keep(self.narrow(e.right))
        bad = [f"!{right}"]
        if natural_limbs(e.left)[1]:
            bad.append(f"(int64_t){left} < 0")
        if natural_limbs(e.right)[1]:
            bad.append(f"(int64_t){right} < 0")
        return f"({' || '.join(bad)} ? 0ull : {left} {e.op} {right})"

    def _narrow_saturation(self, e: ex.Binary) -> str:
        width = value_range(e.right)[0]
        low, high = value_range(e.left)
        least, most = value_range(e)
        value = self.keep(self.narrow(e.left))
        if width > LIMB:
            return f"((int64_t){value} < 0 ? 0ull : {value})" if least == 0 and low < 0 else value
        result = value
        cast = "(int64_t)" if low < 0 else ""
        if high > most:
            result = f"({cast}{value} > {cast}{literal(most)} ? {literal(most)} : {result})"
        if low < least:
            result = f"((int64_t){value} < (int64_t){literal(least)} ? {literal(least)} : {result})"
        return result

    # Truth values

    def boolean(self, e: ex.Boolean) -> str:
        """Returns a C expression that is 0 or 1."""
        if isinstance(e, ex.BoolConst):
            return str(int(e.value))
        if isinstance(e, ex.Not):
            return f"!({self.boolean(e.operand)})"
        if isinstance(e, ex.Logic):
            op = "&&" if e.op == "and" else "||"
            return f"({self.boolean(e.left)} {op} {self.boolean(e.right)})"
        if isinstance(e, ex.CompareBooleans):
            return f"(({self.boolean(e.left)}) {e.op} ({self.boolean(e.right)}))"
        if isinstance(e, ex.Valid):
            return self.valid(e.header)
        if isinstance(e, ex.DataToBool):
            return self._truth(e.operand)
        if isinstance(e, ex.CompareHeaders):
            return self._headers_equal(e)
        if isinstance(e, ex.CompareVarbits):
            equal = self._varbits_equal(self.varbit(e.left), self.varbit(e.right))
            return equal if e.op == "==" else f"!{equal}"
        return self._comparison(e)

    def _truth(self, e: ex.Data) -> str:
        if isinstance(e, ex.BoolToData):
            return self.boolean(e.operand)
        count, _ = natural_limbs(e)
        if count == 1:
            return f"({self.narrow(e)} != 0)"
        return f"({self._any(self.wide(e, count), count)} != 0)"

    def _any(self, stream: Stream, count: int) -> str:
        name = self.temporary()
        self.emit(f"limb {name} = 0;", f"for (int i = 0; i < {count}; i++) {{", *stream.body)
        self.emit(f"{name} |= {stream.limb};", "}")
        return name

    def _comparison(self, e: ex.Compare) -> str:
        (low, high), (other_low, other_high) = value_range(e.left), value_range(e.right)
        signed = low < 0 or other_low < 0
        bits = max(max(abs(low), abs(other_low), high, other_high).bit_length(), 1)
        count = limbs(bits + 1 if signed else bits)
        if count == 1:
            cast = "(int64_t)" if signed else ""
            return f"({cast}{self.narrow(e.left)} {e.op} {cast}{self.narrow(e.right)})"
        left, right = self.wide(e.left, count), self.wide(e.right, count)
        if e.op in ("==", "!="):
            difference = Stream(f"({left.limb} ^ {right.limb})", left.body + right.body)
            return f"({self._any(difference, count)} {e.op} 0)"
        compare = "wide_compare_signed" if signed else "wide_compare"
        names = []
        for stream in (left, right):
            if stream.array is None:
                name = self.temporary()
                self.emit(f"limb {name}[{count}];")
                self.fill(name, stream, count)
                stream = self.named(name)
            names.append(stream.array)
        return f"({compare}({names[0]}, {names[1]}, {count}) {e.op} 0)"

    def _headers_equal(self, e: ex.CompareHeaders) -> str:
        left, right = self.header(e.left), self.header(e.right)
        header_type = self.type_of(e.left)
        name, equal = self.temporary("equal"), []
        for one in header_type.fields:
            member = self.layout.member(header_type, one.name)
            if one.varbit:
                equal.append(self._varbits_equal(f"{left}.{member}", f"{right}.{member}"))
            elif one.width <= LIMB:
                equal.append(f"{left}.{member} == {right}.{member}")
            else:
                equal.append(f"!memcmp({left}.{member}, {right}.{member}, {8 * limbs(one.width)})")
        self.emit(
            f"int {name} = {self.valid(e.left)} == {self.valid(e.right)} && "
            f"(!{self.valid(e.left)} || ({' && '.join(equal) or '1'}));"
        )
        return name if e.op == "==" else f"!{name}"

    @staticmethod
    def _varbits_equal(left: str, right: str) -> str:
        arguments = ", ".join(f"{one}.data, {one}.bytes" for one in (left, right))
        return f"equal_numbers({arguments})"

    # Assignment

    def assign(self, target: ex.FieldValue, value: ex.Data) -> None:
        """Stores a value in a field, truncated to the field's width."""
        self.store(self.field(target), target.width, value)
        if not isinstance(target.header, ex.HeaderRef) or not (
            self.layout.program.headers[target.header.name].metadata
        ):
            self.emit(f"{self.header(target.header)}.touched = 1;")
        self.overwritten(target.header, target.field)
        self._fetch(target)

    def _fetch(self, target: ex.FieldValue) -> None:
        """Prefetches the cells that the field just assigned is the index of."""
        if not isinstance(target.header, ex.HeaderRef):
            return
        path, layout = self.field(target), self.layout
        for name in layout.usage.indices.get((target.header.name, target.field), ()):
            size, count = layout.program.registers[name].size, layout.register_index[name]
            width = limbs(layout.program.registers[name].width)
            self.emit(f"sw_fetch(sw, {count}, {path}, {size}u, {width});")

    def alone(self, header: str) -> None:
        """Invalidates the other headers of a union when a header becomes valid."""
        for one in self.layout.program.siblings(header):
            self.emit(f"{self.layout.paths[one]}.valid = 0;")

    def overwritten(self, header: ex.HeaderExpression, name: str) -> None:
        """Notes that a pending checksum has been assigned, so that it is not completed when the
        packet leaves."""
        number = isinstance(header, ex.HeaderRef) and self.layout.pending(header.name, name)
        if number:
            self.emit(f"if (c->state.pending == {number}) {{", "c->state.pending = 0;")
            self.emit("packet->sum_field = SW_COMPLETE;", "}")

    def store(self, path: str, width: int, value: ex.Data) -> None:
        """Stores a value in any C lvalue: an integer of up to 64 bits or an array of limbs."""
        ones = possible_ones(value)
        fits = ones >= 0 and ones.bit_length() <= width
        if width <= LIMB:
            result = self.narrow(value)
            if not fits and width not in (8, 16, 32, 64):
                result = f"{result} & {literal((1 << width) - 1)}"
            self.emit(f"{path} = {result};")
            return
        count = limbs(width)
        self.fill(path, self.wide(value, count), count)
        if width % LIMB and not fits:
            self.emit(f"{path}[{count - 1}] &= {literal((1 << (width % LIMB)) - 1)};")
