# SPDX-License-Identifier: Apache-2.0
"""Draws values that a program compares with or that its entries match."""

from __future__ import annotations

import random
from collections import defaultdict

from switch.codegen.accesses import Place, mentions
from switch.program import expressions as ex
from switch.program.model import Program
from switch.program.parser_keys import width_of


class Values:
    """Draws values that make a program do something: constants of the program and of its entries
    more often than others."""

    def __init__(self, rng: random.Random, program: Program) -> None:
        self.rng = rng
        self._constants = sorted(_constants(program)) or [0]
        self._matched: dict[Place, list[int]] = defaultdict(list)

    def matched(self, place: Place, value: int) -> None:
        """Notes that an entry matches this value of a field."""
        self._matched[place].append(value)

    def draw(self, width: int, place: Place | None = None) -> int:
        """Returns a value of `width` bits for the field at `place`."""
        rng = self.rng
        if width <= 0:
            return 0
        if place is not None and self._matched[place] and rng.random() < 0.6:
            return rng.choice(self._matched[place]) & (1 << width) - 1
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(self._constants) & (1 << width) - 1
        if kind < 0.6:
            return rng.randrange(min(1 << width, 8))
        if kind < 0.7:
            return (1 << width) - 1 - rng.randrange(min(1 << width, 2))
        if kind < 0.75:
            return 1 << rng.randrange(width)
        return rng.getrandbits(width)


def _constants(program: Program) -> set[int]:
    found = set()
    whole = (
        tuple(program.actions.values()),
        tuple(program.parser_states.values()),
        tuple(program.ingress.conditionals.values()),
        tuple(program.egress.conditionals.values()),
        program.checksums,
    )
    for one in mentions(whole):
        if isinstance(one, ex.Const) and one.value >= 0:
            found |= {one.value, one.value + 1}
    for state in program.parser_states.values():
        for transition in state.transitions:
            if transition.value is None:
                continue
            shift = 0
            for part in reversed(state.key):
                found.add(transition.value >> shift & (1 << width_of(part)) - 1)
                shift += 8 * ((width_of(part) + 7) // 8)
    for table in program.tables.values():
        for entry in table.entries:
            for element in entry.key:
                found |= {element} if isinstance(element, int) else set(element)
    return found
