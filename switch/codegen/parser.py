# SPDX-License-Identifier: Apache-2.0
"""Generates C for the parser: one label per state, gotos for transitions.

A state that needs more bytes than there are ends parsing with PacketTooShort; the headers extracted
before stay valid, and the packet goes on to ingress with parser_error set, as in BMv2.
"""

from __future__ import annotations

from collections.abc import Callable

from switch.codegen.bits import load_bits
from switch.codegen.expressions import Emitter
from switch.codegen.headers import emit_extract
from switch.codegen.layout import LIMB, Layout, identifier, limbs
from switch.codegen.limbs import literal
from switch.codegen.tracing import trace_state
from switch.program import expressions as ex
from switch.program.errors import refused_at
from switch.program.model import (
    Advance,
    Extract,
    HeaderType,
    ParserState,
    Primitive,
    Set,
    Transition,
    Verify,
)
from switch.program.parser_keys import MOST_RANGE_BITS, width_of
from switch.program.value_ranges import value_range

# Core errors in P4-16's order, for programs whose JSON does not number them.
_CORE_ERRORS = {
    "NoError": 0,
    "PacketTooShort": 1,
    "NoMatch": 2,
    "StackOutOfBounds": 3,
    "HeaderTooShort": 4,
    "ParserTimeout": 5,
    "ParserInvalidArgument": 6,
}

# A parser with loops may visit this many states more than it has consumed bytes, then it ends with
# ParserTimeout. A loop that consumes the packet ends by itself.
IDLE_STATES = 1024

MOST_INT = (1 << 31) - 1

PrimitiveWriter = Callable[[Emitter, Primitive], None]


class ParserWriter:
    """Writes the body of the parse function: `frame`, `length`, `at` (bytes consumed), `c`."""

    def __init__(self, layout: Layout, primitive: PrimitiveWriter) -> None:
        self.layout = layout
        self.program = layout.program
        self.primitive = primitive
        self.out = Emitter(layout, lookahead=self._lookahead)
        self.labels = {
            name: f"state{i}_{identifier(name)}"
            for i, name in enumerate(self.program.parser_states)
        }

    def write(self) -> list[str]:
        out = self.out
        out.emit("size_t at = 0;")
        if self._loops():
            out.emit("size_t states = 0;")
        first = self.program.first_state
        out.emit(f"goto {self.labels[first] if first else 'end'};")
        for state in self.program.parser_states.values():
            out.lines.append(f"{self.labels[state.name]}:")
            out.emit("{")
            with refused_at(state.source, f"parser state '{state.name}'"):
                self._state(state)
            out.emit("}")
        out.lines.append("end:")
        return out.lines

    def error(self, name: str) -> str:
        """Returns a statement that ends parsing with a core error."""
        code = self.program.errors.get(name, _CORE_ERRORS[name])
        count = "sw->stats.parser_timeouts++; " if name == "ParserTimeout" else ""
        return f"{{ {count}c->state.parser_error = {code}; goto end; }}"

    def _loops(self) -> bool:
        """Returns True if a state can be reached from itself."""
        states = self.program.parser_states
        following = {
            name: {one.state for one in state.transitions if one.state}
            for name, state in states.items()
        }
        done: set[str] = set()

        def visit(name: str, path: frozenset[str]) -> bool:
            if name in path:
                return True
            if name in done:
                return False
            done.add(name)
            return any(visit(one, path | {name}) for one in following[name])

        return any(visit(name, frozenset()) for name in states)

    def _state(self, state: ParserState) -> None:
        out = self.out
        if self.layout.traced:
            trace_state(out, state.name)
        if self._loops():
            out.emit(f"if (++states > {IDLE_STATES} + at) {self.error('ParserTimeout')}")
        for operation in state.operations:
            out.emit("{")
            if isinstance(operation, Extract):
                self._extract(operation)
            elif isinstance(operation, Set):
                assert isinstance(operation.target, ex.FieldValue)
                out.assign(operation.target, operation.value)
            elif isinstance(operation, Verify):
                code = out.narrow(operation.error)
                out.emit(f"if (!({out.boolean(operation.condition)})) {{")
                out.emit(f"c->state.parser_error = (uint32_t){code};", "goto end;", "}")
            elif isinstance(operation, Advance):
                self._advance(operation)
            else:
                self.primitive(out, operation)
            out.emit("}")
        self._transitions(state)

    def _extract(self, operation: Extract) -> None:
        out = self.out
        if operation.choices:
            self._extract_union(operation)
            return
        if operation.stack is not None:
            stack = self.program.stacks[operation.stack]
            path = self.layout.stacks[stack.name]
            out.emit(f"if ({path}.next >= {len(stack.headers)}) {self.error('StackOutOfBounds')}")
            header, header_type = f"{path}.e[{path}.next]", stack.type
        else:
            assert operation.header is not None
            header = self.layout.paths[operation.header]
            header_type = self.program.headers[operation.header].type
        size, count = str(header_type.bits // 8), "0"
        if operation.bits is not None:
            count = self._varbit_bytes(operation.bits, header_type)
            size = f"{size} + {count}"
        else:
            self._need(size)
        self._complete(operation.header, header_type, size)
        if operation.header in self.layout.usage.framed:
            assert operation.header is not None
            out.emit(f"{self.layout.framed_path(operation.header)} = frame + at;")
            out.emit(f"{header}.valid = {header}.touched = 1;", f"at += {size};")
        else:
            self._fill(header, header_type, count, size)
        if operation.header is not None:
            out.alone(operation.header)
        if operation.stack is not None:
            out.emit(f"{path}.next++;")

    def _extract_union(self, operation: Extract) -> None:
        """Emits the extraction of a header of the next union of a stack."""
        assert operation.stack is not None
        out, path = self.out, self.layout.stacks[operation.stack]
        out.emit(f"if ({path}.next >= {len(operation.choices)}) {self.error('StackOutOfBounds')}")
        for number, header in enumerate(operation.choices):
            out.emit(f"{'else ' if number else ''}if ({path}.next == {number}) {{")
            self._extract(Extract(header, None, operation.bits))
            out.emit("}")
        out.emit(f"{path}.next++;")

    def _varbit_bytes(self, bits: ex.Data, header_type: HeaderType) -> str:
        """Returns the C name of the varbit field's length in bytes; emits checks in BMv2's
        order."""
        out, varbit = self.out, header_type.varbit
        assert varbit is not None
        wanted = out.keep(out.narrow(bits))
        invalid = f"{wanted} % 8"
        if value_range(bits)[1] > MOST_INT:  # BMv2 takes larger values for MOST_INT
            invalid = f"{invalid} || {wanted} > {literal(MOST_INT)}"
        out.emit(f"if ({invalid}) {self.error('ParserInvalidArgument')}")
        count = out.keep(f"{wanted} / 8")
        self._need(f"{header_type.bits // 8}")
        out.emit(
            f"if (length - at - {header_type.bits // 8} < {count}) {self.error('PacketTooShort')}",
            f"if ({count} > {varbit.width // 8}) {self.error('HeaderTooShort')}",
        )
        return count

    def _complete(self, header: str | None, header_type: HeaderType, size: str) -> None:
        """Emits the completion of a checksum that the sender left open, if it lies in the header;
        or notes it as pending, if the program never reads it."""
        reads = f"sw_reads(packet, frame, length, at, at + {size});"
        offset = 0
        for one in header_type.fields:
            number = self.layout.pending(header, one.name) if header else None
            if number:
                condition = f"packet->sum_field == at + {offset // 8}"
                reads = f"if ({condition}) c->state.pending = {number}; else {reads}"
            offset += one.width
        self.out.emit(reads)

    def _fill(self, header: str, header_type: HeaderType, count: str, size: str) -> None:
        out = self.out
        name = out.temporary("header")
        out.emit(f"{self.layout.types[header_type.name]} *{name} = &{header};")
        out.emit("const uint8_t *from = frame + at;")
        emit_extract(out, self.layout, header_type, f"(*{name})", count)
        out.emit(f"{name}->valid = {name}->touched = 1;", f"at += {size};")

    def _need(self, count: str) -> None:
        self.out.emit(f"if (length - at < {count}) {self.error('PacketTooShort')}")

    def _advance(self, operation: Advance) -> None:
        out = self.out
        count = out.keep(out.narrow(operation.bits))
        out.emit(f"if ({count} % 8) {self.error('ParserInvalidArgument')}")
        self._need(f"{count} / 8")
        out.emit(f"at += {count} / 8;")

    def _lookahead(self, out: Emitter, e: ex.Lookahead) -> str:
        end = (e.offset + e.width + 7) // 8
        self._need(str(end))
        out.emit(f"sw_reads(packet, frame, length, at, at + {end});")
        name, count = out.temporary("ahead"), limbs(e.width)
        out.emit(f"limb {name}[{count}];")
        for i in range(count):
            bits = min(LIMB, e.width - LIMB * i)
            place = e.offset + e.width - LIMB * i - bits
            out.emit(f"{name}[{i}] = {load_bits('(frame + at)', place, bits, end)};")
        return name

    # Transitions

    def _transitions(self, state: ParserState) -> None:
        out = self.out
        words = [] if all(one.always for one in state.transitions) else self._key(state)
        for transition in state.transitions:
            target = self.labels[transition.state] if transition.state else "end"
            if transition.always:
                continue
            if transition.value_set is not None:
                tests = [self._contained(transition.value_set, state, words)]
            else:
                tests = self._tests(transition, words)
            out.emit(f"if ({' && '.join(tests) or '1'}) goto {target};")
        # The last of several counts, as in BMv2, where p4c writes one for any mask of 0.
        default = next((one.state for one in reversed(state.transitions) if one.always), None)
        out.emit(f"goto {self.labels[default] if default else 'end'};")

    def _key(self, state: ParserState) -> list[tuple[str, int, int]]:
        """Returns (C name, bits, shift within the transition's value) of each word of the key."""
        out, words = self.out, []
        shift = sum(8 * ((width_of(part) + 7) // 8) for part in state.key)
        for part in state.key:
            width = width_of(part)
            shift -= 8 * ((width + 7) // 8)
            if width <= LIMB:
                name = out.keep(out.narrow(unsigned(part)))
                words.append((name, width, shift))
                continue
            array = out.array(unsigned(part), limbs(width))
            for i in range(limbs(width)):
                bits = min(LIMB, width - LIMB * i)
                words.append((f"{array}[{i}]", bits, shift + LIMB * i))
        return words

    def _contained(self, name: str, state: ParserState, words: list[tuple[str, int, int]]) -> str:
        """Returns a C expression that is true if a value set contains the key."""
        layout, items = self.layout.tables[name], iter(words)
        packed: list[list[str]] = [[] for _ in range(layout.words)]
        ranges: list[str] = []
        for place, part in zip(layout.places, state.key):  # noqa: B905  # then those of the ranges
            for i in range(limbs(width_of(part))):
                shift = f" << {place.shift}" if place.shift else ""
                word = next(items)[0]
                packed[place.word + i].append(f"{word}{shift}")
            if width_of(part) <= MOST_RANGE_BITS:
                ranges.append(word)
        key = self.out.temporary("key")
        values = ", ".join([*(" | ".join(one) or "0" for one in packed), *ranges])
        self.out.emit(f"const uint64_t {key}[] = {{{values}}};")
        table = f"&sw->tables[{self.layout.table_index[name]}]"
        return f"sw_lookup({table}, {key}, {layout.words}, {layout.ranges}, 0, 0, 0) != 0"

    def _tests(self, transition: Transition, words: list[tuple[str, int, int]]) -> list[str]:
        assert transition.value is not None
        tests = []
        for name, bits, shift in words:
            everything = (1 << bits) - 1
            mask = everything
            if transition.mask is not None:
                mask = (transition.mask >> shift) & everything
            value = (transition.value >> shift) & mask
            if mask == everything:
                tests.append(f"{name} == {literal(value)}")
            elif mask:
                tests.append(f"({name} & {literal(mask)}) == {literal(value)}")
        return tests


def unsigned(value: ex.Data) -> ex.Data:
    """Returns the same bits without sign, as keys compare them."""
    if isinstance(value, ex.FieldValue) and value.signed:
        return ex.FieldValue(value.header, value.field, value.width, False)
    return value
