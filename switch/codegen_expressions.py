# SPDX-License-Identifier: Apache-2.0
"""C for expressions: BMv2's unbounded integers in exactly the limbs that the result needs.

Every operation is asked for its value modulo 2^(64 k), k being what stands around it needs; sums,
products and bitwise operations then need no more of their operands, while comparisons, divisions
and shifts to the right need the operands' whole range. One limb is a plain C expression. Several
are a loop over limbs into which nested operations are fused (class Stream).

Whether a sum can carry from limb to limb is decided here: sums of operands whose limbs have
clear top bits, as masked lanes have, become loops without carry, which compile to vector code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from switch import expressions as ex
from switch.layout import LIMB, Layout, argument_offsets, limbs, words_of
from switch.program import Action

_FULL = (1 << LIMB) - 1


def literal(value: int) -> str:
    """A limb as a C constant."""
    return f"0x{value & _FULL:x}u" if value & _FULL > 9 else f"{value & _FULL}u"


@lru_cache(maxsize=None)
def possible_ones(expression: ex.Data) -> int:
    """Bits that may be set in the value; -1 (all) if it may be negative."""
    low, high = ex.value_range(expression)
    if low < 0:
        return -1
    widest = (1 << high.bit_length()) - 1
    if isinstance(expression, ex.Const):
        return expression.value
    if isinstance(expression, ex.Binary):
        left, right = possible_ones(expression.left), possible_ones(expression.right)
        if expression.op == "&":
            return left & right
        if expression.op in ("|", "^"):
            return left | right
        if expression.op in ("<<", ">>") and isinstance(expression.right, ex.Const):
            by = expression.right.value
            return left << by if expression.op == "<<" else left >> by
    return widest


def natural_limbs(expression: ex.Data) -> tuple[int, bool]:
    """(limbs that hold every value of the expression, whether they are signed)."""
    low, high = ex.value_range(expression)
    if low >= 0:
        return max(limbs(high.bit_length()), 1), False
    return limbs(max(high.bit_length(), (~low).bit_length()) + 1), True


def carries(left: ex.Data, right: ex.Data, count: int) -> bool:
    """Whether a sum's carry can cross from one limb to the next."""
    one, other = possible_ones(left), possible_ones(right)
    if one < 0 or other < 0:
        return True
    pairs = zip(words_of(one, count), words_of(other, count), strict=True)
    return any(a + b > _FULL for a, b in list(pairs)[:-1])


@dataclass
class Stream:
    """Limb i of a value: the C expression `limb` (in terms of i), after the statements `body`.

    array: C name of an array that holds the value, if there is one.
    """

    limb: str
    body: list[str] = field(default_factory=list)
    array: str | None = None


LookaheadReader = Callable[["Emitter", ex.Lookahead], str]


class Emitter:
    """Writes the statements of one C function in which `c` is the packet's context.

    action: whose parameters `args` holds. lookahead: emits a parser's lookahead and returns the
    name of the array of limbs.
    """

    def __init__(
        self, layout: Layout, action: Action | None = None, lookahead: LookaheadReader | None = None
    ) -> None:
        self.layout = layout
        self.lines: list[str] = []
        self.depth = 1
        self.offsets = argument_offsets(action)[0] if action else []
        self.lookahead = lookahead
        self._temporaries = 0

    # Statements

    def emit(self, *lines: str) -> None:
        for line in lines:
            if line.startswith("}"):
                self.depth -= 1
            self.lines.append("    " * self.depth + line)
            if line.endswith("{"):
                self.depth += 1

    def temporary(self, kind: str = "t") -> str:
        self._temporaries += 1
        return f"{kind}{self._temporaries}"

    def keep(self, value: str) -> str:
        """The name of a one-limb variable with this value."""
        name = self.temporary()
        self.emit(f"limb {name} = {value};")
        return name

    # Headers

    def header(self, header: ex.HeaderExpression) -> str:
        """C lvalue of a header; one that does not exist is the stack's spare element."""
        if isinstance(header, ex.HeaderRef):
            return self.layout.paths[header.name]
        path = self.layout.stacks[header.stack]
        size = len(self.layout.program.stacks[header.stack].headers)
        if isinstance(header, ex.StackLast):
            return f"{path}.e[{path}.next ? {path}.next - 1 : {size}]"
        index = self.keep(self.narrow(header.index))
        return f"{path}.e[{index} < {size} ? {index} : {size}]"

    def header_type(self, header: ex.HeaderExpression) -> str:
        program = self.layout.program
        if isinstance(header, ex.HeaderRef):
            return program.headers[header.name].type.name
        return program.stacks[header.stack].type.name

    def field(self, value: ex.FieldValue) -> str:
        """C lvalue of a field."""
        program = self.layout.program
        if isinstance(value.header, ex.HeaderRef):
            header_type = program.headers[value.header.name].type
        else:
            header_type = program.stacks[value.header.stack].type
        return f"{self.header(value.header)}.{self.layout.member(header_type, value.field)}"

    def valid(self, header: ex.HeaderExpression) -> str:
        if isinstance(header, ex.HeaderRef) and self.layout.program.headers[header.name].metadata:
            return "1"
        return f"{self.header(header)}.valid"

    # One limb

    def narrow(self, e: ex.Data) -> str:
        """C expression (uint64_t, no side effects): the value modulo 2^64."""
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

    def _look(self, e: ex.Lookahead) -> str:
        if self.lookahead is None:
            raise ex.Refused("lookahead outside a parser")
        return self.lookahead(self, e)

    def _narrow_binary(self, e: ex.Binary) -> str:
        op = e.op
        if op == "&":
            for one, mask in ((e.left, e.right), (e.right, e.left)):
                if isinstance(mask, ex.Const):
                    ones = possible_ones(one) & _FULL if possible_ones(one) >= 0 else _FULL
                    if ones & ~mask.value & _FULL == 0:
                        return self.narrow(one)
        if op in ("+", "-", "*", "&", "|", "^"):
            return f"({self.narrow(e.left)} {op} {self.narrow(e.right)})"
        if op == "<<":
            return self._narrow_left(e)
        if op == ">>":
            return self._narrow_right(e)
        if op == "two_comp_mod":
            width = ex.value_range(e.right)[0]
            value = self.narrow(e.left)
            return f"wide_signed({value}, {width})" if width < LIMB else value
        fits = natural_limbs(e.left)[0] == 1
        if op in ("/", "%") and fits and natural_limbs(e.right)[0] == 1:
            return self._narrow_division(e)
        if op in ("usat_cast", "sat_cast") and fits:
            return self._narrow_saturation(e)
        return f"{self._wide_binary(e, 1).array}[0]"

    def _narrow_left(self, e: ex.Binary) -> str:
        value = self.narrow(e.left)
        if isinstance(e.right, ex.Const):
            by = e.right.value
            return f"({value} << {by})" if by < LIMB else "0u"
        by_name = self._amount(e.right)
        return f"({by_name} < 64 ? {value} << {by_name} : 0u)"

    def _narrow_right(self, e: ex.Binary) -> str:
        count, signed = natural_limbs(e.left)
        if not isinstance(e.right, ex.Const):
            if count > 1:
                return f"{self._wide_binary(e, 1).array}[0]"
            value, by_name = self.keep(self.narrow(e.left)), self._amount(e.right)
            if signed:
                return f"(limb)((int64_t){value} >> ({by_name} < 64 ? {by_name} : 63))"
            return f"({by_name} < 64 ? {value} >> {by_name} : 0u)"
        whole, bits = divmod(e.right.value, LIMB)
        if whole >= count:
            if not signed:
                return "0u"
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

    def _amount(self, e: ex.Data) -> str:
        if natural_limbs(e)[0] > 1:
            raise ex.Refused("a shift by a value of more than 64 bits")
        return self.keep(self.narrow(e))

    def _narrow_division(self, e: ex.Binary) -> str:
        left, right = self.keep(self.narrow(e.left)), self.keep(self.narrow(e.right))
        bad = [f"!{right}"]
        if natural_limbs(e.left)[1]:
            bad.append(f"(int64_t){left} < 0")
        if natural_limbs(e.right)[1]:
            bad.append(f"(int64_t){right} < 0")
        return f"({' || '.join(bad)} ? 0u : {left} {e.op} {right})"

    def _narrow_saturation(self, e: ex.Binary) -> str:
        width = ex.value_range(e.right)[0]
        low, high = ex.value_range(e.left)
        least, most = ex.value_range(e)
        value = self.keep(self.narrow(e.left))
        if width > LIMB:
            return f"((int64_t){value} < 0 ? 0u : {value})" if least == 0 and low < 0 else value
        result = value
        cast = "(int64_t)" if low < 0 else ""
        if high > most:
            result = f"({cast}{value} > {cast}{literal(most)} ? {literal(most)} : {result})"
        if low < least:
            result = f"((int64_t){value} < (int64_t){literal(least)} ? {literal(least)} : {result})"
        return result

    # Several limbs

    def array(self, e: ex.Data, count: int) -> str:
        """C name of an array whose first `count` limbs are the value modulo 2^(64 count)."""
        stream = self.wide(e, count)
        if stream.array is not None:
            return stream.array
        name = self.temporary()
        self.emit(f"limb {name}[{count}];")
        self.fill(name, stream, count)
        return name

    def exact(self, e: ex.Data) -> tuple[str, int, bool]:
        """(array, limbs, signed) of the whole value."""
        count, signed = natural_limbs(e)
        return self.array(e, count), count, signed

    def fill(self, target: str, stream: Stream, count: int) -> None:
        """target[0..count) = the stream; target may be what the stream reads."""
        if stream.array == target:
            return
        if count == 1:
            self.emit(*(line.replace("[i]", "[0]") for line in stream.body))
            self.emit(f"{target}[0] = {stream.limb.replace('[i]', '[0]')};")
            return
        self.emit(f"for (int i = 0; i < {count}; i++) {{", *stream.body)
        self.emit(f"{target}[i] = {stream.limb};", "}")

    def wide(self, e: ex.Data, count: int) -> Stream:
        """The value modulo 2^(64 count)."""
        if isinstance(e, ex.Const):
            return self._constant(e.value, count)
        natural, signed = natural_limbs(e)
        if natural < count:
            return self._extended(e, natural, signed, count)
        if count == 1:
            if self._is_array(e):
                return self._named(self._array_of(e))
            name = self.temporary()
            self.emit(f"limb {name}[1] = {{{self.narrow(e)}}};")
            return self._named(name)
        if isinstance(e, ex.FieldValue):
            return self._wide_field(e, count)
        if isinstance(e, (ex.Parameter, ex.Lookahead)):
            return self._named(self._array_of(e))
        if isinstance(e, ex.Unary):
            inner = self.wide(e.operand, count)
            return Stream(f"~{inner.limb}", inner.body)
        if isinstance(e, ex.Choice):
            return self._wide_choice(e, count)
        if isinstance(e, ex.Binary):
            return self._wide_binary(e, count)
        raise ex.Refused(f"a wide {type(e).__name__}")

    def _is_array(self, e: ex.Data) -> bool:
        return isinstance(e, (ex.FieldValue, ex.Parameter)) and e.width > LIMB

    def _array_of(self, e: ex.Data) -> str:
        if isinstance(e, ex.FieldValue):
            return self.field(e)
        if isinstance(e, ex.Lookahead):
            return self._look(e)
        assert isinstance(e, ex.Parameter)
        return f"(args + {self.offsets[e.index]})"

    def _named(self, array: str) -> Stream:
        return Stream(f"{array}[i]", [], array)

    def _constant(self, value: int, count: int) -> Stream:
        words = words_of(value, count)
        if len(set(words)) == 1 and count > 1:
            return Stream(literal(words[0]))
        name = self.temporary("k")
        self.emit(
            f"static const limb {name}[{count}] = {{{', '.join(literal(one) for one in words)}}};"
        )
        return self._named(name)

    def _extended(self, e: ex.Data, natural: int, signed: bool, count: int) -> Stream:
        array = self.array(e, natural)
        name = self.temporary()
        fill = f"wide_sign({array}, {natural})" if signed else "0"
        self.emit(f"limb {name}[{count}];")
        self.emit(f"wide_extend({name}, {count}, {array}, {natural}, {fill});")
        return self._named(name)

    def _wide_field(self, e: ex.FieldValue, count: int) -> Stream:
        path = self.field(e)
        if not e.signed or count * LIMB <= e.width:
            return self._named(path)
        name = self.temporary()
        self.emit(f"limb {name}[{count}];")
        self.fill(name, self._named(path), count)
        self.emit(f"wide_sign_at({name}, {count}, {e.width});")
        return self._named(name)

    def _wide_choice(self, e: ex.Choice, count: int) -> Stream:
        name, condition = self.temporary(), self.boolean(e.condition)
        self.emit(f"limb {name}[{count}];", f"if ({condition}) {{")
        self.fill(name, self.wide(e.true, count), count)
        self.emit("} else {")
        self.fill(name, self.wide(e.false, count), count)
        self.emit("}")
        return self._named(name)

    def _wide_binary(self, e: ex.Binary, count: int) -> Stream:
        op = e.op
        if op == "&":
            for one, mask in ((e.left, e.right), (e.right, e.left)):
                if isinstance(mask, ex.Const) and possible_ones(one) >= 0:
                    everything = (1 << (LIMB * count)) - 1
                    if possible_ones(one) & ~mask.value & everything == 0:
                        return self.wide(one, count)
        if op in ("&", "|", "^"):
            left, right = self.wide(e.left, count), self.wide(e.right, count)
            return Stream(f"({left.limb} {op} {right.limb})", left.body + right.body)
        if op in ("+", "-"):
            return self._wide_sum(e, count)
        if op == "*":
            return self._wide_product(e, count)
        if op in ("<<", ">>"):
            return self._wide_shift(e, count)
        if op in ("/", "%"):
            return self._wide_division(e, count)
        if op == "two_comp_mod":
            width = ex.value_range(e.right)[0]
            name, size = self.temporary(), limbs(width)
            self.emit(f"limb {name}[{size}];")
            self.fill(name, self.wide(e.left, size), size)
            self.emit(f"wide_sign_at({name}, {size}, {width});")
            return self._named(name)
        return self._wide_saturation(e)

    def _wide_sum(self, e: ex.Binary, count: int) -> Stream:
        left, right = self.wide(e.left, count), self.wide(e.right, count)
        body = left.body + right.body
        if e.op == "+" and not carries(e.left, e.right, count):
            return Stream(f"({left.limb} + {right.limb})", body)
        carry, result = self.temporary("carry"), self.temporary()
        builtin = "add" if e.op == "+" else "sub"
        self.emit(f"limb {carry} = 0;")
        first, second = self.temporary(), self.temporary()
        body = [
            *body,
            f"limb {first}, {result};",
            f"limb {second} = __builtin_{builtin}_overflow({left.limb}, {right.limb}, &{first});",
            f"{carry} = {second} | __builtin_{builtin}_overflow({first}, {carry}, &{result});",
        ]
        return Stream(result, body)

    def _operand(self, e: ex.Data, count: int) -> tuple[str, int]:
        """Array and limbs of an operand modulo 2^(64 count), shorter if it is small."""
        natural, signed = natural_limbs(e)
        size = count if signed else min(count, natural)
        return self.array(e, size), size

    def _wide_product(self, e: ex.Binary, count: int) -> Stream:
        left, left_size = self._operand(e.left, count)
        right, right_size = self._operand(e.right, count)
        name = self.temporary()
        self.emit(f"limb {name}[{count}];")
        self.emit(f"wide_multiply({name}, {count}, {left}, {left_size}, {right}, {right_size});")
        return self._named(name)

    def _wide_shift(self, e: ex.Binary, count: int) -> Stream:
        name = self.temporary()
        by = literal(e.right.value) if isinstance(e.right, ex.Const) else self._amount(e.right)
        if e.op == "<<":
            left, size = self._operand(e.left, count)
            self.emit(f"limb {name}[{count}];")
            self.emit(f"wide_shift_left({name}, {count}, {left}, {size}, {by});")
            return self._named(name)
        left, size, signed = self.exact(e.left)
        fill = f"wide_sign({left}, {size})" if signed else "0"
        self.emit(f"limb {name}[{count}];")
        self.emit(f"wide_shift_right({name}, {count}, {left}, {size}, {by}, {fill});")
        return self._named(name)

    def _wide_division(self, e: ex.Binary, count: int) -> Stream:
        left, left_size, left_signed = self.exact(e.left)
        right, right_size, right_signed = self.exact(e.right)
        quotient, remainder = self.temporary(), self.temporary()
        self.emit(f"limb {quotient}[{left_size}], {remainder}[{right_size}];")
        self.emit(
            f"wide_divide({quotient}, {remainder}, {left}, {left_size}, {right}, {right_size});"
        )
        bad = [f"wide_sign({left}, {left_size})"] if left_signed else []
        bad += [f"wide_sign({right}, {right_size})"] if right_signed else []
        result, size = (quotient, left_size) if e.op == "/" else (remainder, right_size)
        if bad:
            self.emit(f"if ({' || '.join(bad)}) memset({result}, 0, sizeof {result});")
        if size >= count:
            return self._named(result)
        name = self.temporary()
        self.emit(f"limb {name}[{count}];", f"wide_extend({name}, {count}, {result}, {size}, 0);")
        return self._named(name)

    def _wide_saturation(self, e: ex.Binary) -> Stream:
        """The whole result, at least one limb more than it needs so that it has a sign."""
        least, most = ex.value_range(e)
        size = max(natural_limbs(e.left)[0], limbs(most.bit_length() + 1)) + 1
        value, name = self.array(e.left, size), self.temporary()
        self.emit(f"limb {name}[{size}];")
        self.fill(name, self._named(value), size)
        for bound, relation in ((most, ">"), (least, "<")):
            limit = self.array(ex.Const(bound), size)
            self.emit(
                f"if (wide_compare_signed({name}, {limit}, {size}) {relation} 0) "
                f"memcpy({name}, {limit}, sizeof {name});"
            )
        return self._named(name)

    # Truth values

    def boolean(self, e: ex.Boolean) -> str:
        """C expression that is 0 or 1."""
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
        (low, high), (other_low, other_high) = ex.value_range(e.left), ex.value_range(e.right)
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
                stream = self._named(name)
            names.append(stream.array)
        return f"({compare}({names[0]}, {names[1]}, {count}) {e.op} 0)"

    def _headers_equal(self, e: ex.CompareHeaders) -> str:
        left, right = self.header(e.left), self.header(e.right)
        header_type = next(
            one.type for one in self.layout.program.headers.values()
            if one.type.name == self.header_type(e.left)
        )
        name, equal = self.temporary("equal"), []
        for one in header_type.fields:
            member = self.layout.member(header_type, one.name)
            if one.width <= LIMB:
                equal.append(f"{left}.{member} == {right}.{member}")
            else:
                equal.append(f"!memcmp({left}.{member}, {right}.{member}, {8 * limbs(one.width)})")
        self.emit(
            f"int {name} = {self.valid(e.left)} == {self.valid(e.right)} && "
            f"(!{self.valid(e.left)} || ({' && '.join(equal) or '1'}));"
        )
        return name if e.op == "==" else f"!{name}"

    # Assignment

    def assign(self, target: ex.FieldValue, value: ex.Data) -> None:
        """Stores a value in a field, cut to the field's width."""
        self.store(self.field(target), target.width, value)
        if not isinstance(target.header, ex.HeaderRef) or not (
            self.layout.program.headers[target.header.name].metadata
        ):
            self.emit(f"{self.header(target.header)}.touched = 1;")

    def store(self, path: str, width: int, value: ex.Data) -> None:
        """The same for any C lvalue: an integer of up to 64 bits or an array of limbs."""
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
