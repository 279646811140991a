# SPDX-License-Identifier: Apache-2.0
"""Draws frames along the paths of a program's parser, with values its selects match; some are
truncated or have flipped bits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from switch.codegen.accesses import Place
from switch.program import expressions as ex
from switch.program.model import Advance, Extract, HeaderType, ParserState, Program, Transition
from switch.program.parser_keys import width_of
from tests.fuzz.programs.values import Values
from tests.packet.differential.case import PORTS

MOST_STATES = 40
MOST_BITS = 8 * 600
MOST_PAYLOAD = 40
_PORT = ("standard_metadata", "ingress_port")


@dataclass
class _Frame:
    """bits: what is laid out so far, of `size` bits. at: what the parser has consumed of it.
    places: (offset, width) of each field that was extracted. nexts: elements of each stack."""

    bits: int = 0
    size: int = 0
    at: int = 0
    places: dict[Place, tuple[int, int]] = field(default_factory=dict)
    nexts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def append(self, value: int, width: int) -> None:
        self.bits = self.bits << width | value
        self.size += width

    def get(self, offset: int, width: int) -> int:
        return self.bits >> self.size - offset - width & (1 << width) - 1

    def set(self, offset: int, width: int, value: int) -> None:
        shift = self.size - offset - width
        self.bits = self.bits & ~(((1 << width) - 1) << shift) | value << shift

    def to_bytes(self) -> bytes:
        spare = -self.size % 8
        return (self.bits << spare).to_bytes((self.size + spare) // 8, "big")


class Frames:
    """Draws frames for one program."""

    def __init__(self, values: Values, program: Program) -> None:
        self._values, self._rng = values, values.rng
        self._program = program

    def draw(self, count: int) -> list[tuple[int, bytes]]:
        """Returns (port, frame) of `count` arrivals."""
        return [(self._port(), self._mutated(self._walk())) for _ in range(count)]

    def _port(self) -> int:
        port = self._values.draw(9, _PORT)
        return port if port in PORTS else self._rng.choice(PORTS)

    def _mutated(self, frame: bytes) -> bytes:
        kind = self._rng.random()
        if kind < 0.12:
            return frame[: self._rng.randrange(len(frame))] or b"\0"
        if kind < 0.2:
            changed = bytearray(frame)
            for _ in range(self._rng.randint(1, 3)):
                changed[self._rng.randrange(len(frame))] ^= 1 << self._rng.randrange(8)
            return bytes(changed)
        return frame

    def _walk(self) -> bytes:
        frame, name = _Frame(), self._program.first_state
        for _ in range(MOST_STATES):
            if name is None or frame.size > MOST_BITS:
                break
            name = self._visit(frame, self._program.parser_states[name])
        payload = self._rng.randbytes(self._rng.randint(0, MOST_PAYLOAD))
        return (frame.to_bytes() + payload) or b"\0"

    def _visit(self, frame: _Frame, state: ParserState) -> str | None:
        """Lays out what a state consumes; returns the state that the frame goes to."""
        for one in state.operations:
            if isinstance(one, Extract):
                self._extract(frame, one)
            elif isinstance(one, Advance):
                bits = min(max(self._evaluate(frame, one.bits) or 0, 0), MOST_BITS)
                self._fill(frame, frame.at + bits)
                frame.at += bits
        if not state.transitions:
            return None
        chosen = self._rng.choice(state.transitions)
        self._steer(frame, state, chosen)
        return chosen.state

    def _extract(self, frame: _Frame, one: Extract) -> None:
        if one.stack is not None:
            elements = one.choices or self._program.stacks[one.stack].headers
            name = elements[min(frame.nexts[one.stack], len(elements) - 1)]
            frame.nexts[one.stack] += 1
        else:
            assert one.header is not None
            name = one.header
        self._lay_out(frame, name, self._program.headers[name].type, one.bits)

    def _lay_out(
        self, frame: _Frame, name: str, header_type: HeaderType, bits: ex.Data | None
    ) -> None:
        for each in header_type.fields:
            width, place = each.width, (name, each.name)
            if each.varbit:
                # From a field that is already there, as in IPv4's options.
                wanted = self._evaluate(frame, bits) if bits is not None else None
                if wanted is None or not 0 <= wanted <= each.width:
                    wanted = 8 * self._rng.randint(0, each.width // 8)
                width = wanted
            missing = frame.at + width - frame.size  # a lookahead may have laid out some of it
            if missing > 0:
                frame.append(self._values.draw(width, place) & (1 << missing) - 1, missing)
            frame.places[place] = (frame.at, width)
            frame.at += width

    def _fill(self, frame: _Frame, end: int) -> None:
        if end > frame.size:
            frame.append(self._values.draw(end - frame.size), end - frame.size)

    def _steer(self, frame: _Frame, state: ParserState, chosen: Transition) -> None:
        """Gives the fields of a state's key the values for which it takes a transition."""
        if chosen.value is None:
            return
        shift = 0
        for part in reversed(state.key):
            width = width_of(part)
            everything = (1 << width) - 1
            value = chosen.value >> shift & everything
            mask = everything if chosen.mask is None else chosen.mask >> shift & everything
            shift += 8 * ((width + 7) // 8)
            place = self._place_of(frame, part)
            if place is not None:
                offset, size = place
                kept = frame.get(offset, size) & ~mask
                frame.set(offset, size, (kept | value & mask) & (1 << size) - 1)

    def _place_of(self, frame: _Frame, part: ex.Data) -> tuple[int, int] | None:
        """Where in the frame a part of a key lies."""
        if isinstance(part, ex.Lookahead):
            offset = frame.at + part.offset
            self._fill(frame, offset + part.width)
            return offset, part.width
        if not isinstance(part, ex.FieldValue):
            return None
        if isinstance(part.header, ex.HeaderRef):
            return frame.places.get((part.header.name, part.field))
        if isinstance(part.header, ex.StackLast):
            stack = self._program.stacks[part.header.stack]
            number = min(frame.nexts[stack.name], len(stack.headers)) - 1
            return frame.places.get((stack.headers[number], part.field)) if number >= 0 else None
        return None

    def _evaluate(self, frame: _Frame, value: ex.Data) -> int | None:
        """The value of an expression of constants and extracted fields; None of others."""
        if isinstance(value, ex.Const):
            return value.value
        if isinstance(value, (ex.FieldValue, ex.Lookahead)):
            place = self._place_of(frame, value)
            return None if place is None else frame.get(*place)
        if not isinstance(value, ex.Binary):
            return None
        left, right = self._evaluate(frame, value.left), self._evaluate(frame, value.right)
        if left is None or right is None or right > MOST_BITS:
            return None
        results = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "&": left & right,
            "|": left | right,
            "<<": left << right if right >= 0 else 0,
            ">>": left >> right if right >= 0 else 0,
        }
        return results.get(value.op)
