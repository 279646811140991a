# SPDX-License-Identifier: Apache-2.0
"""Random v1model programs: statements over all widths, casts, slices, stacks, nested actions.

Every program parses a first header, up to two optional ones and a stack, computes in ingress and in
egress, and sends its metadata behind the headers, so that what it computed can be seen. It reads no
field of a header that may be invalid (P4-16 leaves that value open), and applies a table once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

WIDTHS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 72, 100, 128)
STACK_SIZE = 3
MOST_DEPTH = 4


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
    tables: list[str] = field(default_factory=list)  # not applied yet
    plain: bool = False  # a function: no externs, no headers
    flat: bool = False  # an action: BMv2 has no conditions in them but around assignments
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)


def source(rng: random.Random) -> str:
    """The text of a program."""
    return _Generator(rng).program()


class _Generator:
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

    # Types

    def fields(self, prefix: str, count: int) -> list[tuple[str, Type]]:
        """Of a header: whole bytes in all."""
        made = [(f"{prefix}{i}", self.type()) for i in range(count)]
        if rest := -sum(one.width for _, one in made) % 8:
            made.append((f"{prefix}_rest", Type(rest)))
        return made

    def program(self) -> str:
        rng = self.rng
        first, second, third = (self.fields(p, rng.randint(1, 5)) for p in ("a", "b", "c"))
        meta = [(f"m{i}", self.type()) for i in range(rng.randint(3, 8))]
        seen = [(f"s{i}", Type(one.width)) for i, (_, one) in enumerate(meta)]
        if rest := -sum(one.width for _, one in seen) % 8:
            seen.append(("s_rest", Type(rest)))
        self.meta = meta
        lines = ["#include <core.p4>", "#include <v1model.p4>"]
        for name, fields in (
            ("first_t", [("way", Type(8)), *first]), ("second_t", second), ("third_t", third),
            ("label_t", [("last", Type(8)), ("value", Type(24))]), ("seen_t", seen),
        ):  # fmt: skip
            lines += [f"header {name} {{", *(f"    {t} {n};" for n, t in fields), "}"]
        lines += ["struct metadata {", *(f"    {t} {n};" for n, t in meta), "}"]
        lines += [
            "struct headers {", "    first_t first;", "    second_t second;", "    second_t twin;",
            "    third_t third;", f"    label_t[{STACK_SIZE}] labels;", "    seen_t seen;", "}",
        ]  # fmt: skip
        lines += self.parser()
        self.optional = {
            "hdr.second": second, "hdr.twin": second, "hdr.third": third,
            **{f"hdr.labels[{i}]": [("last", Type(8)), ("value", Type(24))]
               for i in range(STACK_SIZE)},
        }  # fmt: skip
        always = [Variable("hdr.first.way", Type(8))]
        always += [Variable(f"hdr.first.{n}", t) for n, t in first]
        always += [Variable(f"meta.{n}", t) for n, t in meta]
        functions: list[Callee] = []
        for _ in self.some(0, 2):
            lines += self.function(functions)
        lines += self.control("Enter", always, functions)
        lines += self.control("Leave", always, functions)
        lines += [
            "control Verify(inout headers hdr, inout metadata meta) { apply { } }",
            "control Compute(inout headers hdr, inout metadata meta) { apply { } }",
            "control Deparse(packet_out packet, in headers hdr) {", "    apply {",
            *(f"        packet.emit(hdr.{n});"
              for n in ("first", "second", "twin", "third", "labels", "seen")),
            "    }", "}",
            "V1Switch(Parse(), Verify(), Enter(), Leave(), Compute(), Deparse()) main;",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def parser(self) -> list[str]:
        rng = self.rng
        keys = [f"{rng.randrange(256)}", f"{rng.randrange(256)} &&& {rng.randrange(256)}",
                f"{rng.randrange(256)}"]  # fmt: skip
        following = ["second", "third", "labels"]
        rng.shuffle(following)
        end = rng.choice(["accept", "third"])
        return [
            "parser Parse(packet_in packet, out headers hdr, inout metadata meta,",
            "             inout standard_metadata_t standard_metadata) {",
            "    state start {", "        packet.extract(hdr.first);",
            "        transition select(hdr.first.way) {",
            *(f"            {k}: {s};" for k, s in zip(keys, following, strict=True)),
            "            default: accept;", "        }", "    }",
            "    state second {", "        packet.extract(hdr.second);",
            f"        transition {end};", "    }",
            "    state third {", "        packet.extract(hdr.third);",
            "        transition accept;", "    }",
            "    state labels {", "        packet.extract(hdr.labels.next);",
            "        transition select(hdr.labels.last.last) {",
            f"            0 &&& {rng.choice([1, 3, 128])}: labels;",
            "            default: accept;", "        }", "    }", "}",
        ]  # fmt: skip

    # Controls

    def control(self, name: str, always: list[Variable], functions: list[Callee]) -> list[str]:
        rng, ingress = self.rng, name == "Enter"
        lines = [
            f"control {name}(inout headers hdr, inout metadata meta,",
            "        inout standard_metadata_t standard_metadata) {",
        ]
        self.registers = [(self.name("register"), self.type()) for _ in self.some(0, 2)]
        self.counters = [self.name("counter") for _ in self.some(0, 1)]
        for one, kind in self.registers:
            lines.append(f"    register<{kind}>(8) {one};")
        for one in self.counters:
            lines.append(f"    counter(8, CounterType.packets_and_bytes) {one};")
        outer = list(always)
        for _ in self.some(0, 3):
            kind = self.type()
            made = Variable(self.name("outer"), kind)
            lines.append(f"    {kind} {made.text} = {self.literal(kind)};")
            outer.append(made)
        actions: list[Callee] = []
        for _ in self.some(1, 4):
            lines += self.action(actions, outer, functions, ingress)
        tables = []
        for _ in self.some(0, 3):
            lines += self.table(tables, actions, always)
        block = Block(outer, list(self.optional), [*actions, *functions], tables, depth=2)
        self.statements(block, rng.randint(3, 10), 0)
        lines.append("    apply {")
        if ingress:
            lines += [
                "        standard_metadata.egress_spec = 1;",
                "        if (standard_metadata.ingress_port == 1) {",
                "            standard_metadata.egress_spec = 2;",
                "        }",
            ]
        lines += block.lines
        if not ingress:
            lines.append("        hdr.seen.setValid();")
            for i, (field_name, kind) in enumerate(self.meta):
                lines.append(f"        hdr.seen.s{i} = (bit<{kind.width}>)meta.{field_name};")
        return [*lines, "    }", "}"]

    def function(self, functions: list[Callee]) -> list[str]:
        result, name = self.type(), self.name("function")
        parameters = tuple((self.rng.choice(["in", "inout"]), self.type()) for _ in self.some(1, 3))
        block = self.body(parameters, [], plain=True)
        block.callees = list(functions)
        self.statements(block, self.rng.randint(1, 4), 1)
        block.add(f"return {self.value(block, result, 2)};")
        functions.append(Callee(name, parameters, result))
        return [f"{result} {name}({self.declared(parameters)}) {{", *block.lines, "}"]

    def action(
        self, actions: list[Callee], outer: list[Variable], functions: list[Callee], ingress: bool
    ) -> list[str]:
        name = self.name("action")
        parameters = tuple(
            (self.rng.choice(["in", "out", "inout", ""]), self.type()) for _ in self.some(0, 3)
        )
        # Those that the control plane gives come last.
        parameters = tuple(sorted(parameters, key=lambda one: one[0] == ""))
        drops = ingress and self.rng.random() < 0.2
        block = self.body(parameters, outer)
        block.depth, block.flat = 2, True
        block.callees = [*(one for one in actions if not one.drops), *functions]
        block.headers = list(self.optional)
        for i, (direction, kind) in enumerate(parameters):
            if direction == "out":
                block.add(f"p{i} = {self.literal(kind)};")
        self.statements(block, self.rng.randint(1, 5), 2)
        declared = self.declared(parameters)
        if drops:
            block.add("bit<9> before = own.egress_spec;")
            block.add("mark_to_drop(own);")
            block.add("if (own.packet_length < 60) { own.egress_spec = before; }")
            own = "inout standard_metadata_t own"
            declared = f"{own}, {declared}" if declared else own
        actions.append(Callee(name, parameters, None, drops))
        return [f"    action {name}({declared}) {{", *block.lines, "    }"]

    def body(
        self,
        parameters: tuple[tuple[str, Type], ...],
        outer: list[Variable],
        plain: bool = False,
    ) -> Block:
        own = [
            Variable(f"p{i}", kind, direction in ("out", "inout"))
            for i, (direction, kind) in enumerate(parameters)
        ]
        return Block([*outer, *own], plain=plain)

    @staticmethod
    def declared(parameters: tuple[tuple[str, Type], ...]) -> str:
        return ", ".join(
            f"{direction} {kind} p{i}".strip() for i, (direction, kind) in enumerate(parameters)
        )

    def table(self, tables: list[str], actions: list[Callee], always: list[Variable]) -> list[str]:
        rng, name = self.rng, self.name("table")
        usable = [one for one in actions if all(d == "" for d, _ in one.parameters)]
        usable = [one for one in usable if not one.drops]
        if not usable:
            return []
        keys = rng.sample(always, min(len(always), rng.randint(1, 3)))
        kinds = [rng.choice(["exact", "ternary", "exact", "lpm"]) for _ in keys]
        if kinds.count("lpm") > 1 or ("lpm" in kinds and "ternary" in kinds):
            kinds = ["exact"] * len(kinds)
        chosen = rng.sample(usable, rng.randint(1, len(usable)))
        tables.append(name)
        return [
            f"    table {name} {{",
            "        key = {",
            *(f"            {k.text}: {m};" for k, m in zip(keys, kinds, strict=True)),
            "        }",
            f"        actions = {{ {''.join(one.name + '; ' for one in chosen)}NoAction; }}",
            "        default_action = NoAction();",
            "    }",
        ]

    # Statements

    def statements(self, block: Block, count: int, depth: int) -> None:
        for _ in range(count):
            self.statement(block, depth)

    def statement(self, block: Block, depth: int) -> None:
        choices: list[tuple[float, Callable[[Block, int], None]]] = [
            (5, self.assignment), (1, self.slice_assignment), (1, self.local),
        ]  # fmt: skip
        if block.flat and depth > 2:
            self.assignment(block, depth)
            return
        if depth < (3 if block.flat else MOST_DEPTH):
            choices.append((2, self.condition))
        if block.callees:
            choices.append((1.5, self.call))
        if not block.plain:
            choices += [(1, self.validity), (0.6, self.shift), (0.7, self.header_copy),
                        (0.8, self.state)]  # fmt: skip
        if not block.plain and not block.flat:
            choices.append((1, self.guarded))
        if block.tables and depth < 2:
            choices.append((2, self.apply))
        weights = [weight for weight, _ in choices]
        self.rng.choices([one for _, one in choices], weights)[0](block, depth)

    @contextmanager
    def inner(self, block: Block, opening: str) -> Iterator[None]:
        """A block in braces; what is declared in it ends with it."""
        block.add(opening)
        variables, headers = list(block.variables), list(block.headers)
        block.depth += 1
        yield
        block.depth -= 1
        block.variables, block.headers = variables, headers

    def assignment(self, block: Block, depth: int) -> None:
        target = self.target(block)
        if target is not None:
            block.add(f"{target.text} = {self.value(block, target.type, 3)};")

    def slice_assignment(self, block: Block, depth: int) -> None:
        target = self.target(block)
        if target is None or target.type.width < 2 or target.type.signed:
            return
        low = self.rng.randrange(target.type.width)
        high = self.rng.randrange(low, target.type.width)
        value = self.value(block, Type(high - low + 1), 2)
        block.add(f"{target.text}[{high}:{low}] = {value};")

    def local(self, block: Block, depth: int) -> None:
        kind = Type(0) if self.rng.random() < 0.2 else self.type()
        name = self.name("local")
        value = self.truth(block, 2) if not kind.width else self.value(block, kind, 2)
        block.add(f"{kind} {name} = {value};")
        block.variables.append(Variable(name, kind))

    def condition(self, block: Block, depth: int) -> None:
        with self.inner(block, f"if ({self.truth(block, 2)}) {{"):
            self.statements(block, self.rng.randint(1, 3), depth + 1)
        if self.rng.random() < 0.5:
            with self.inner(block, "} else {"):
                self.statements(block, self.rng.randint(1, 3), depth + 1)
        block.add("}")

    def guarded(self, block: Block, depth: int) -> None:
        """Statements on the fields of a header that is valid."""
        if not block.headers or depth >= MOST_DEPTH:
            return
        header = self.rng.choice(block.headers)
        with self.inner(block, f"if ({header}.isValid()) {{"):
            block.headers.remove(header)
            if "labels" in header:  # a push or pop would move it
                block.headers = [one for one in block.headers if "labels" not in one]
            block.variables += [Variable(f"{header}.{n}", t) for n, t in self.optional[header]]
            callees, block.callees = block.callees, [c for c in block.callees if c.result]
            self.statements(block, self.rng.randint(1, 3), depth + 1)
            block.callees = callees
        block.add("}")

    def validity(self, block: Block, depth: int) -> None:
        if not block.headers:
            return
        header = self.rng.choice(block.headers)
        if self.rng.random() < 0.4:
            block.add(f"{header}.setInvalid();")
            return
        block.add(f"{header}.setValid();")
        for name, kind in self.optional[header]:
            block.add(f"{header}.{name} = {self.value(block, kind, 1)};")

    def shift(self, block: Block, depth: int) -> None:
        if all(f"hdr.labels[{i}]" in block.headers for i in range(STACK_SIZE)):
            way = self.rng.choice(["push", "pop"])
            block.add(f"hdr.labels.{way}_front({self.rng.randint(1, STACK_SIZE)});")

    def header_copy(self, block: Block, depth: int) -> None:
        pairs = [
            ("hdr.second", "hdr.twin"),
            ("hdr.twin", "hdr.second"),
            ("hdr.labels[0]", "hdr.labels[1]"),
            ("hdr.labels[2]", "hdr.labels[0]"),
        ]
        to, source = self.rng.choice(pairs)
        if to in block.headers:
            block.add(f"{to} = {source};")

    def state(self, block: Block, depth: int) -> None:
        index = f"(bit<32>)({self.value(block, Type(3), 1)})"
        if self.counters and self.rng.random() < 0.4:
            block.add(f"{self.rng.choice(self.counters)}.count({index});")
            return
        if not self.registers:
            return
        name, kind = self.rng.choice(self.registers)
        if self.rng.random() < 0.5:
            block.add(f"{name}.write({index}, {self.value(block, kind, 2)});")
            return
        local = self.name("local")
        block.add(f"{kind} {local} = {self.literal(kind)};")
        block.add(f"{name}.read({local}, {index});")
        block.variables.append(Variable(local, kind))

    def call(self, block: Block, depth: int) -> None:
        callees = [one for one in block.callees if one.result is None]
        if not callees or block.plain:
            return
        one = self.rng.choice(callees)
        arguments = ["standard_metadata"] if one.drops else []
        for direction, kind in one.parameters:
            if direction in ("out", "inout"):
                found = [v for v in block.variables if v.writable and v.type == kind]
                fresh = [v for v in found if v.text not in arguments]
                if not fresh:
                    name = self.name("local")
                    block.add(f"{kind} {name} = {self.literal(kind)};")
                    fresh = [Variable(name, kind)]
                    block.variables += fresh
                arguments.append(self.rng.choice(fresh).text)
            else:
                arguments.append(self.value(block, kind, 2))
        block.add(f"{one.name}({', '.join(arguments)});")

    def apply(self, block: Block, depth: int) -> None:
        table = block.tables.pop()
        kind = self.rng.random()
        if kind < 0.5:
            block.add(f"{table}.apply();")
            return
        way = "hit" if kind < 0.8 else "miss"
        with self.inner(block, f"if ({table}.apply().{way}) {{"):
            self.statements(block, self.rng.randint(1, 2), 2)
        block.add("}")

    # Expressions

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
