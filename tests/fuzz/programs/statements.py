# SPDX-License-Identifier: Apache-2.0
"""Random P4 statements of controls, actions and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fuzz.programs.terms import Block, Terms, Type, Variable

STACK_SIZE = 3
MOST_DEPTH = 4


class Statements(Terms):
    """Appends statements to blocks."""

    optional: dict[str, list[tuple[str, Type]]]  # headers that may be invalid, and their fields
    registers: list[tuple[str, Type]]
    counters: list[str]

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
                        (0.8, self.state), (0.4, self.hash)]  # fmt: skip
        if not block.plain and not block.flat:
            choices += [(1, self.guarded), (0.1, self.leave)]
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
        asked = self.truth(block, 2)
        if "hdr.second" in block.headers and self.rng.random() < 0.1:
            asked = f"hdr.second {self.rng.choice(['==', '!='])} hdr.twin"
        with self.inner(block, f"if ({asked}) {{"):
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
            for whole in ("labels", "pick"):  # a push would move it, its sibling replace it
                if whole in header:
                    block.headers = [one for one in block.headers if whole not in one]
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
            ("hdr.pick.left", "hdr.second"),
            ("hdr.third", "hdr.pick.right"),
            ("hdr.other", "hdr.vary"),
        ]
        to, source = self.rng.choice(pairs)
        if to in block.headers or to == "hdr.other":
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

    def hash(self, block: Block, depth: int) -> None:
        found = [one for one in block.variables if one.writable and one.type.width > 1]
        found = [one for one in found if not one.type.signed and one.type.width <= 64]
        if not found:
            return
        to, one = self.rng.choice(found), self.rng.choice(found)
        algorithm = self.rng.choice(["crc16", "crc32", "csum16", "xor16", "identity"])
        data = ", ".join([one.text, *(each.text for each in self.rng.sample(found, 1))])
        block.add(
            f"hash({to.text}, HashAlgorithm.{algorithm}, {self.literal(to.type)}, "
            f"{{ {data} }}, {self.literal(Type(min(to.type.width, 32)))});"
        )

    def leave(self, block: Block, depth: int) -> None:
        """exit, on a condition."""
        block.add(f"if ({self.truth(block, 1)}) {{ exit; }}")

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
        table, actions = block.tables.pop()
        kind = self.rng.random()
        if kind < 0.3:
            block.add(f"{table}.apply();")
            return
        if kind < 0.5:
            block.add(f"switch ({table}.apply().action_run) {{")
            for one in [*self.rng.sample(actions, min(2, len(actions))), "default"]:
                with self.inner(block, f"    {one}: {{"):
                    self.statements(block, self.rng.randint(1, 2), 2)
                block.add("    }")
            block.add("}")
            return
        way = "hit" if kind < 0.8 else "miss"
        with self.inner(block, f"if ({table}.apply().{way}) {{"):
            self.statements(block, self.rng.randint(1, 2), 2)
        block.add("}")
