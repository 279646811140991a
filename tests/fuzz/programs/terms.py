# SPDX-License-Identifier: Apache-2.0
"""Random P4 expressions over all widths: arithmetic, casts, slices, calls of functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTHS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 72, 100, 128)


@dataclass(frozen=True)
class Type:
    """bit<width>, int<width>, or bool (width 0)."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        if not self.width:
            return "bool"
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass(frozen=True)
class Variable:
    """Something that has a value; writable: may be assigned."""

    text: str
    type: Type
    writable: bool = True


@dataclass(frozen=True)
class Callee:
    """An action or function. parameters: (direction, type); result: a function's, else None."""

    name: str
    parameters: tuple[tuple[str, Type], ...]
    result: Type | None = None
    drops: bool = False


@dataclass
class Block:
    """Statements of one body, and what they may name."""

    variables: list[Variable]
    headers: list[str] = field(default_factory=list)  # may be made valid and invalid
    callees: list[Callee] = field(default_factory=list)
    # Not applied yet, and their actions.
    tables: list[tuple[str, list[str]]] = field(default_factory=list)
    plain: bool = False  # a function: no externs, no headers
    flat: bool = False  # an action: BMv2 has no conditions in them but around assignments
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)


class Terms:
    """Draws expressions of a type from what a block may name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = 0

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def type(self, widths: Sequence[int] = WIDTHS) -> Type:
        width = self.rng.choice(widths)
        return Type(width, width > 1 and self.rng.random() < 0.3)

    def some(self, low: int, high: int) -> range:
        return range(self.rng.randint(low, high))

    def target(self, block: Block) -> Variable | None:
        found = [one for one in block.variables if one.writable and one.type.width]
        return self.rng.choice(found) if found else None

    def literal(self, kind: Type) -> str:
        if not kind.width:
            return self.rng.choice(["true", "false"])
        value = self.rng.choice([0, 1, (1 << kind.width) - 1, self.rng.getrandbits(kind.width)])
        if kind.signed:
            value = (value & (1 << kind.width) - 1) - (1 << kind.width - 1)
            return (
                f"({kind.width}s{value})"
                if value >= 0
                else f"(-{kind.width}s{-value})"
                if -value < 1 << kind.width - 1
                else f"{kind.width}s0"
            )
        return f"{kind.width}w{value}"

    def value(self, block: Block, kind: Type, depth: int) -> str:
        """An expression of a numeric type."""
        rng = self.rng
        if depth <= 0:
            return self.leaf(block, kind)
        choices = [self.leaf, self.unary, self.binary, self.binary, self.by_shift, self.choice,
                   self.cast]  # fmt: skip
        if not kind.signed:
            choices += [self.slice, self.concatenation]
        if any(one.result == kind for one in block.callees):
            choices.append(self.result)
        chosen = rng.choice(choices)
        if chosen == self.leaf:
            return self.leaf(block, kind)
        return chosen(block, kind, depth - 1)  # type: ignore[call-arg, operator]

    def leaf(self, block: Block, kind: Type) -> str:
        same = [one.text for one in block.variables if one.type == kind]
        if same and self.rng.random() < 0.7:
            return self.rng.choice(same)
        wider = [
            one for one in block.variables
            if not one.type.signed and one.type.width > kind.width
        ]  # fmt: skip
        if wider and not kind.signed and self.rng.random() < 0.5:
            one = self.rng.choice(wider)
            low = self.rng.randint(0, one.type.width - kind.width)
            return f"{one.text}[{low + kind.width - 1}:{low}]"
        return self.literal(kind)

    def unary(self, block: Block, kind: Type, depth: int) -> str:
        return f"({self.rng.choice('~-')}{self.value(block, kind, depth)})"

    def binary(self, block: Block, kind: Type, depth: int) -> str:
        op = self.rng.choice(["+", "-", "*", "&", "|", "^", "|+|", "|-|"])
        return f"({self.value(block, kind, depth)} {op} {self.value(block, kind, depth)})"

    def by_shift(self, block: Block, kind: Type, depth: int) -> str:
        amount = self.value(block, Type(self.rng.choice([2, 3, 4, 8])), depth - 1)
        if self.rng.random() < 0.4:
            amount = str(self.rng.randint(0, kind.width + 2))
        return f"({self.value(block, kind, depth)} {self.rng.choice(['<<', '>>'])} {amount})"

    def choice(self, block: Block, kind: Type, depth: int) -> str:
        true, false = self.value(block, kind, depth), self.value(block, kind, depth)
        return f"({self.truth(block, depth)} ? {true} : {false})"

    def cast(self, block: Block, kind: Type, depth: int) -> str:
        if kind.width == 1 and not kind.signed and self.rng.random() < 0.5:
            return f"(bit<1>)({self.truth(block, depth)})"
        if kind.width > 1 and self.rng.random() < 0.4:  # the other signedness, the same width
            other = Type(kind.width, not kind.signed)
        else:
            other = Type(self.rng.choice([w for w in WIDTHS if w > 1]), kind.signed)
        return f"({kind})({self.value(block, other, depth)})"

    def slice(self, block: Block, kind: Type, depth: int) -> str:
        wide = kind.width + self.rng.randint(0, 40)
        low = self.rng.randint(0, wide - kind.width)
        return f"({self.value(block, Type(wide), depth)})[{low + kind.width - 1}:{low}]"

    def concatenation(self, block: Block, kind: Type, depth: int) -> str:
        if kind.width < 2:
            return self.leaf(block, kind)
        left = self.rng.randint(1, kind.width - 1)
        parts = [self.value(block, Type(w), depth) for w in (left, kind.width - left)]
        return f"({parts[0]} ++ {parts[1]})"

    def result(self, block: Block, kind: Type, depth: int) -> str:
        one = self.rng.choice([each for each in block.callees if each.result == kind])
        arguments = []
        for direction, each in one.parameters:
            if direction == "in":
                arguments.append(self.value(block, each, depth - 1))
                continue
            found = [v.text for v in block.variables if v.writable and v.type == each]
            fresh = [text for text in found if text not in arguments]
            if not fresh:
                return self.leaf(block, kind)
            arguments.append(self.rng.choice(fresh))
        return f"{one.name}({', '.join(arguments)})"

    def truth(self, block: Block, depth: int) -> str:
        """A Boolean expression."""
        rng = self.rng
        kind = rng.random()
        if depth > 0 and kind < 0.25:
            op = rng.choice(["&&", "||", "==", "!="])
            return f"({self.truth(block, depth - 1)} {op} {self.truth(block, depth - 1)})"
        if depth > 0 and kind < 0.33:
            return f"(!{self.truth(block, depth - 1)})"
        if not block.plain and kind < 0.45 and block.headers:
            return f"{rng.choice(block.headers)}.isValid()"
        flags = [one.text for one in block.variables if not one.type.width]
        if flags and kind < 0.55:
            return rng.choice(flags)
        of = rng.choice([one.type for one in block.variables if one.type.width] or [Type(8)])
        op = rng.choice(["==", "!=", "<", "<=", ">", ">="])
        return f"({self.value(block, of, depth - 1)} {op} {self.value(block, of, depth - 1)})"
