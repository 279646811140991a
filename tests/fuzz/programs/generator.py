# SPDX-License-Identifier: Apache-2.0
"""Random v1model programs: statements over all widths, casts, slices, stacks, nested actions.

Every program parses a first header, some optional ones (one with a varbit field, a union) and a
stack, computes in its parser, in ingress and in egress, and sends its metadata behind the headers,
so that what it computed can be seen. It reads no field of a header that may be invalid (P4-16
leaves that value open), and applies a table once.
"""

from __future__ import annotations

import random

from tests.fuzz.programs.statements import STACK_SIZE, Statements
from tests.fuzz.programs.terms import Block, Callee, Type, Variable


def source(rng: random.Random) -> str:
    """The text of a program."""
    return _Generator(rng).program()


class _Generator(Statements):
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
        self.ragged = rng.choice([4, 8, 8, 13])  # bits of a header before its varbit field
        rest = -self.ragged % 8 or 8
        vary = [("kind", Type(self.ragged)), ("value", Type(rest))]
        self.optional = {
            "hdr.second": second, "hdr.twin": second, "hdr.third": third,
            "hdr.pick.left": second, "hdr.pick.right": third,
            **{f"hdr.labels[{i}]": [("last", Type(8)), ("value", Type(24))]
               for i in range(STACK_SIZE)},
        }  # fmt: skip
        lines = ["#include <core.p4>", "#include <v1model.p4>", "error { Odd }"]
        for name, fields in (
            ("first_t", [("way", Type(8)), ("sum", Type(16)), *first]), ("second_t", second),
            ("third_t", third), ("label_t", self.optional["hdr.labels[0]"]), ("seen_t", seen),
            ("vary_t", [vary[0], ("text", "varbit<64>"), vary[1]]),
        ):  # fmt: skip
            lines += [f"header {name} {{", *(f"    {t} {n};" for n, t in fields), "}"]
        lines += ["header_union pick_t {", "    second_t left;", "    third_t right;", "}"]
        lines += ["struct metadata {", *(f"    {t} {n};" for n, t in meta), "}"]
        lines += [
            "struct headers {", "    first_t first;", "    second_t second;", "    second_t twin;",
            "    third_t third;", f"    label_t[{STACK_SIZE}] labels;", "    pick_t pick;",
            "    vary_t vary;", "    vary_t other;", "    seen_t seen;", "}",
        ]  # fmt: skip
        always = [Variable("hdr.first.way", Type(8)), Variable("hdr.first.sum", Type(16))]
        always += [Variable(f"hdr.first.{n}", t) for n, t in first]
        always += [Variable(f"meta.{n}", t) for n, t in meta]
        lines += self.parser(always)
        functions: list[Callee] = []
        for _ in self.some(0, 2):
            lines += self.function(functions)
        lines += self.control("Enter", always, functions)
        lines += self.control("Leave", always, functions)
        lines += [
            "control Verify(inout headers hdr, inout metadata meta) { apply { } }",
            *self.checksum(always),
            "control Deparse(packet_out packet, in headers hdr) {", "    apply {",
            *(f"        packet.emit(hdr.{n});"
              for n in ("first", "second", "twin", "third", "labels", "pick", "vary", "other",
                        "seen")),
            "    }", "}",
            "V1Switch(Parse(), Verify(), Enter(), Leave(), Compute(), Deparse()) main;",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def parser(self, always: list[Variable]) -> list[str]:
        rng = self.rng
        keys = [f"{rng.randrange(256)}", f"{rng.randrange(256)} &&& {rng.randrange(256)}",
                *(f"{rng.randrange(256)}" for _ in range(4))]  # fmt: skip
        following = ["second", "third", "labels", "left", "right", "vary"]
        rng.shuffle(following)
        ends = [rng.choice(["accept", "third", "vary"]), rng.choice(["accept", "vary"])]
        size = "((bit<32>)hdr.first.way[3:0]) << 3"
        return [
            "parser Parse(packet_in packet, out headers hdr, inout metadata meta,",
            "             inout standard_metadata_t standard_metadata) {",
            "    state start {", "        packet.extract(hdr.first);",
            *self.parsing(always),
            "        transition select(hdr.first.way) {",
            *(f"            {k}: {s};" for k, s in zip(keys, following, strict=True)),
            "            default: accept;", "        }", "    }",
            "    state second {", "        packet.extract(hdr.second);",
            f"        transition {ends[0]};", "    }",
            "    state third {", "        packet.extract(hdr.third);",
            f"        transition {ends[1]};", "    }",
            "    state left {", "        packet.extract(hdr.pick.left);",
            "        transition labels;", "    }",
            "    state right {", "        packet.extract(hdr.pick.right);",
            *self.parsing(always), "        transition accept;", "    }",
            "    state vary {", f"        packet.extract(hdr.vary, {size});",
            "        transition accept;", "    }",
            "    state labels {", "        packet.extract(hdr.labels.next);",
            "        transition select(hdr.labels.last.last) {",
            f"            0 &&& {rng.choice([1, 3, 128])}: labels;",
            "            default: accept;", "        }", "    }", "}",
        ]  # fmt: skip

    def parsing(self, always: list[Variable]) -> list[str]:
        """Statements of a parser state."""
        block, rng = Block(list(always), plain=True, depth=2), self.rng
        for _ in self.some(0, 2):
            kind = rng.random()
            name, of = rng.choice(self.meta)
            if kind < 0.5:
                block.add(f"meta.{name} = {self.value(block, of, 2)};")
            elif kind < 0.7 and not of.signed:
                block.add(f"meta.{name} = packet.lookahead<{of}>();")
            elif kind < 0.85:
                wrong = rng.choice(["Odd", "NoMatch", "ParserInvalidArgument"])
                block.add(f"verify({self.truth(block, 1)}, error.{wrong});")
            else:
                block.add(f"packet.advance({rng.choice([8, 16])});")
        return block.lines

    def checksum(self, always: list[Variable]) -> list[str]:
        """The control that computes checksums, perhaps of a header with a varbit field."""
        rng, words = self.rng, []
        summed = [one.text for one in always if one.text.startswith("hdr") and not one.type.signed]
        summed.remove("hdr.first.sum")
        inputs = rng.sample(summed, rng.randint(1, len(summed)))
        if rng.random() < 0.5:
            inputs += ["hdr.vary.kind", "hdr.vary.text", "hdr.vary.value"]
        if rng.random() < 0.6:
            name = rng.choice(["update_checksum", "update_checksum_with_payload"])
            algorithm = rng.choice(["csum16", "csum16", "crc16", "crc32", "xor16"])
            asked = f"hdr.first.isValid() && hdr.first.way < {rng.randrange(256)}"
            words.append(
                f"{name}({asked}, {{ {', '.join(inputs)} }}, "
                f"hdr.first.sum, HashAlgorithm.{algorithm});"
            )
        return [
            "control Compute(inout headers hdr, inout metadata meta) {",
            f"    apply {{ {' '.join(words)} }}", "}",
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
        tables: list[tuple[str, list[str]]] = []
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
            if rng.random() < 0.15:
                block.add(f"if ({self.truth(block, 1)}) {{ clone(CloneType.I2E, 32w5); }}")
            if rng.random() < 0.15:
                block.add(f"if ({self.truth(block, 1)}) {{ standard_metadata.mcast_grp = 1; }}")
        lines += ["        if (hdr.first.isValid()) {", *block.lines, "        }"]
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

    def table(
        self, tables: list[tuple[str, list[str]]], actions: list[Callee], always: list[Variable]
    ) -> list[str]:
        rng, name = self.rng, self.name("table")
        usable = [one for one in actions if all(d == "" for d, _ in one.parameters)]
        usable = [one for one in usable if not one.drops]
        if not usable:
            return []
        keys = rng.sample(always, min(len(always), rng.randint(1, 3)))
        kinds = [
            rng.choice(["exact", "exact", "ternary", "lpm", "range", "optional"]) for _ in keys
        ]
        if kinds.count("lpm") > 1 or ("lpm" in kinds and set(kinds) - {"lpm", "exact"}):
            kinds = ["exact"] * len(kinds)
        for i, key in enumerate(keys):
            if kinds[i] == "range" and (key.type.width > 64 or key.type.signed):
                kinds[i] = "ternary"
        chosen = rng.sample(usable, rng.randint(1, len(usable)))
        entries: list[str] = []
        if rng.random() < 0.2 and not any(one.type.signed or not one.type.width for one in keys):
            entries = self.entries(keys, kinds)
        tables.append((name, [one.name for one in chosen]))
        return [
            f"    table {name} {{",
            "        key = {",
            *(f"            {k.text}: {m};" for k, m in zip(keys, kinds, strict=True)),
            "        }",
            f"        actions = {{ {''.join(one.name + '; ' for one in chosen)}NoAction; }}",
            "        default_action = NoAction();",
            *entries,
            "    }",
        ]

    def entries(self, keys: list[Variable], kinds: list[str]) -> list[str]:
        """Const entries that do nothing: whether they are hit is seen by who asks."""
        made = {}
        for _ in self.some(1, 4):
            parts = []
            for key, kind in zip(keys, kinds, strict=True):
                value = self.literal(key.type)
                if kind == "ternary" and self.rng.random() < 0.5:
                    value = f"{value} &&& {self.literal(key.type)}"
                elif kind == "lpm":
                    everything = (1 << key.type.width) - 1
                    length = self.rng.randint(1, key.type.width)
                    mask = everything & ~(everything >> length)
                    value = f"{self.rng.getrandbits(key.type.width) & mask} &&& {mask}"
                elif kind == "range":
                    low, high = sorted(self.rng.getrandbits(key.type.width) for _ in "ab")
                    value = f"{low} .. {high}"
                parts.append(value)
            made[tuple(parts)] = f"            ({', '.join(parts)}): NoAction();"
        return ["        const entries = {", *made.values(), "        }"]
