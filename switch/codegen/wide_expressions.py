# SPDX-License-Identifier: Apache-2.0
"""Generates C for values of several limbs: loops over limbs into which nested operations are
fused."""

from __future__ import annotations

from abc import ABC, abstractmethod

from switch.codegen.layout import LIMB, limbs, words_of
from switch.codegen.limbs import Stream, carries, literal, natural_limbs, unmasked
from switch.program import expressions as ex
from switch.program.value_ranges import value_range

# Loops over so few limbs are unrolled, so that the compiler sees which limbs an assignment to some
# bits of a field leaves unchanged, and keeps the field in registers.
UNROLLED = 8


class WideEmitter(ABC):
    """Writes statements, and values as arrays of limbs. A subclass writes values of one limb."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self._temporaries = 0

    @abstractmethod
    def narrow(self, e: ex.Data) -> str:
        """Returns a C expression (uint64_t, no side effects): the value modulo 2^64."""

    @abstractmethod
    def boolean(self, e: ex.Boolean) -> str:
        """Returns a C expression that is 0 or 1."""

    @abstractmethod
    def own_array(self, e: ex.Data) -> str | None:
        """Returns the C name of the array that already holds the value, if there is one."""

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
        """Emits a one-limb variable with this value; returns its name."""
        name = self.temporary()
        self.emit(f"limb {name} = {value};")
        return name

    # Several limbs

    def array(self, e: ex.Data, count: int) -> str:
        """Returns the C name of an array whose first `count` limbs are the value modulo 2^(64
        count)."""
        stream = self.wide(e, count)
        if stream.array is not None:
            return stream.array
        name = self.temporary()
        self.emit(f"limb {name}[{count}];")
        self.fill(name, stream, count)
        return name

    def exact(self, e: ex.Data) -> tuple[str, int, bool]:
        """Returns (array, limbs, signed) of the whole value."""
        count, signed = natural_limbs(e)
        return self.array(e, count), count, signed

    def fill(self, target: str, stream: Stream, count: int) -> None:
        """Emits target[0..count) = the stream. The stream may read from target."""
        if stream.array == target:
            return
        if count == 1:
            self.emit(*(line.replace("[i]", "[0]") for line in stream.body))
            self.emit(f"{target}[0] = {stream.limb.replace('[i]', '[0]')};")
            return
        if count <= UNROLLED:
            for limb in range(count):
                self.emit("{", *(line.replace("[i]", f"[{limb}]") for line in stream.body))
                self.emit(f"{target}[{limb}] = {stream.limb.replace('[i]', f'[{limb}]')};", "}")
            return
        self.emit(f"for (int i = 0; i < {count}; i++) {{", *stream.body)
        self.emit(f"{target}[i] = {stream.limb};", "}")

    def wide(self, e: ex.Data, count: int) -> Stream:
        """Returns the value modulo 2^(64 count) as a stream."""
        if isinstance(e, ex.Const):
            return self._constant(e.value, count)
        natural, signed = natural_limbs(e)
        if natural < count:
            return self._extended(e, natural, signed, count)
        own = self.own_array(e)
        if own is not None:
            return self._own(e, own, count)
        if count == 1:
            name = self.temporary()
            self.emit(f"limb {name}[1] = {{{self.narrow(e)}}};")
            return self.named(name)
        if isinstance(e, ex.Unary):
            inner = self.wide(e.operand, count)
            return Stream(f"~{inner.limb}", inner.body)
        if isinstance(e, ex.Choice):
            return self._wide_choice(e, count)
        if isinstance(e, ex.Binary):
            return self.wide_binary(e, count)
        raise ex.Refused(f"a wide {type(e).__name__}")

    @staticmethod
    def named(array: str) -> Stream:
        return Stream(f"{array}[i]", [], array)

    def _constant(self, value: int, count: int) -> Stream:
        words = words_of(value, count)
        if len(set(words)) == 1 and count > 1:
            return Stream(literal(words[0]))
        name = self.temporary("k")
        self.emit(
            f"static const limb {name}[{count}] = {{{', '.join(literal(one) for one in words)}}};"
        )
        return self.named(name)

    def _extended(self, e: ex.Data, natural: int, signed: bool, count: int) -> Stream:
        array = self.array(e, natural)
        name = self.temporary()
        fill = f"wide_sign({array}, {natural})" if signed else "0"
        self.emit(f"limb {name}[{count}];")
        self.emit(f"wide_extend({name}, {count}, {array}, {natural}, {fill});")
        return self.named(name)

    def _own(self, e: ex.Data, array: str, count: int) -> Stream:
        """Returns an array as it is, or with the sign of a signed field extended to its last
        limb."""
        if not isinstance(e, ex.FieldValue) or not e.signed or count * LIMB <= e.width:
            return self.named(array)
        name = self.temporary()
        self.emit(f"limb {name}[{count}];")
        self.fill(name, self.named(array), count)
        self.emit(f"wide_sign_at({name}, {count}, {e.width});")
        return self.named(name)

    def _wide_choice(self, e: ex.Choice, count: int) -> Stream:
        name, condition = self.temporary(), self.boolean(e.condition)
        self.emit(f"limb {name}[{count}];", f"if ({condition}) {{")
        self.fill(name, self.wide(e.true, count), count)
        self.emit("} else {")
        self.fill(name, self.wide(e.false, count), count)
        self.emit("}")
        return self.named(name)

    def wide_binary(self, e: ex.Binary, count: int) -> Stream:
        op = e.op
        whole = unmasked(e, count) if op == "&" else None
        if whole is not None:
            return self.wide(whole, count)
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
            width = value_range(e.right)[0]
            name, size = self.temporary(), limbs(width)
            self.emit(f"limb {name}[{size}];")
            self.fill(name, self.wide(e.left, size), size)
            self.emit(f"wide_sign_at({name}, {size}, {width});")
            return self.named(name)
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
        """Returns the array and limbs of an operand modulo 2^(64 count), shorter if its value is
        small."""
        natural, signed = natural_limbs(e)
        size = count if signed else min(count, natural)
        return self.array(e, size), size

    def _wide_product(self, e: ex.Binary, count: int) -> Stream:
        left, left_size = self._operand(e.left, count)
        right, right_size = self._operand(e.right, count)
        name = self.temporary()
        self.emit(f"limb {name}[{count}];")
        self.emit(f"wide_multiply({name}, {count}, {left}, {left_size}, {right}, {right_size});")
        return self.named(name)

    def _wide_shift(self, e: ex.Binary, count: int) -> Stream:
        name = self.temporary()
        by = literal(e.right.value) if isinstance(e.right, ex.Const) else self.amount(e.right)
        if e.op == "<<":
            left, size = self._operand(e.left, count)
            self.emit(f"limb {name}[{count}];")
            self.emit(f"wide_shift_left({name}, {count}, {left}, {size}, {by});")
            return self.named(name)
        left, size, signed = self.exact(e.left)
        fill = f"wide_sign({left}, {size})" if signed else "0"
        self.emit(f"limb {name}[{count}];")
        self.emit(f"wide_shift_right({name}, {count}, {left}, {size}, {by}, {fill});")
        return self.named(name)

    def amount(self, e: ex.Data) -> str:
        """Returns the C name of a shift amount that is not constant."""
        if natural_limbs(e)[0] > 1:
            raise ex.Refused("a shift by a value of more than 64 bits")
        return self.keep(self.narrow(e))

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
            return self.named(result)
        name = self.temporary()
        self.emit(f"limb {name}[{count}];", f"wide_extend({name}, {count}, {result}, {size}, 0);")
        return self.named(name)

    def _wide_saturation(self, e: ex.Binary) -> Stream:
        """Returns the whole result, with at least one limb more than it needs so that it has a
        sign."""
        least, most = value_range(e)
        size = max(natural_limbs(e.left)[0], limbs(most.bit_length() + 1)) + 1
        value, name = self.array(e.left, size), self.temporary()
        self.emit(f"limb {name}[{size}];")
        self.fill(name, self.named(value), size)
        for bound, relation in ((most, ">"), (least, "<")):
            limit = self.array(ex.Const(bound), size)
            self.emit(
                f"if (wide_compare_signed({name}, {limit}, {size}) {relation} 0) "
                f"memcpy({name}, {limit}, sizeof {name});"
            )
        return self.named(name)
