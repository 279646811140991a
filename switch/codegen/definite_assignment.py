# SPDX-License-Identifier: Apache-2.0
"""Finds the local variables of a control that are assigned on every path before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from switch.codegen.accesses import WRITES_FIRST, Place, uses_of
from switch.program.model import Action, Control, Table


class Assignments:
    """Definite and possible assignment of candidates along the paths of one control (a DAG).

    actions: those that a table may run. ``cleared_reads`` is complete after ``transient``.
    """

    def __init__(
        self,
        control: Control,
        actions: Callable[[Table], list[Action]],
        candidates: set[Place],
    ) -> None:
        self.control = control
        self.actions = actions
        self.cleared_reads: set[int] = set()  # see Usage
        self.good = set(candidates)
        # For each register_read: (its target was certainly written before, it was possibly written
        # before).
        self.reads: dict[int, tuple[Place, set[bool], set[bool]]] = {}

    def transient(self) -> set[Place]:
        """Returns the candidates that are written before they are read on every path."""
        state: dict[str, tuple[set[Place], set[Place]]] = {}
        if self.good and self.control.first is not None:
            state[self.control.first] = (set(), set())
            for name in self._order():
                must, may = state[name]
                for following, after_must, after_may in self._node(name, must, may):
                    if following is None:
                        continue
                    if following in state:
                        old_must, old_may = state[following]
                        state[following] = (old_must & after_must, old_may | after_may)
                    else:
                        state[following] = (after_must, after_may)
        for place, certain, possible in self.reads.values():
            if certain != {True} and possible != {False}:
                self.good.discard(place)
        for number, (place, certain, _) in self.reads.items():
            if place in self.good and certain != {True}:
                self.cleared_reads.add(number)
        return self.good

    def _order(self) -> list[str]:
        """Returns the reachable nodes in topological order."""
        done: dict[str, None] = {}
        assert self.control.first is not None
        stack: list[tuple[str, bool]] = [(self.control.first, False)]
        while stack:
            name, finished = stack.pop()
            if finished:
                done[name] = None
            elif name not in done:
                stack.append((name, True))
                after = self.control.successors(name)
                stack += [(one, False) for one in after if one and one not in done]
        return list(reversed(done))

    def _node(
        self, name: str, must: set[Place], may: set[Place]
    ) -> Iterator[tuple[str | None, set[Place], set[Place]]]:
        if name in self.control.conditionals:
            one = self.control.conditionals[name]
            self._read([one.condition], must)
            for following in self.control.successors(name):
                yield following, must, may
            return
        table = self.control.tables[name]
        self._read([key.value for key in table.key], must)
        fixed = not table.key and table.default_is_const and table.default_action_id is not None
        outcomes = [] if fixed else [(must, may)]
        for action in self.actions(table):
            if not fixed or action.id == table.default_action_id:
                outcomes.append(self._action(action, must, may))
        after_must = set.intersection(*(one for one, _ in outcomes))
        after_may = set().union(*(one for _, one in outcomes))
        for following in self.control.successors(name):
            yield following, after_must, after_may

    def _action(
        self, action: Action, must: set[Place], may: set[Place]
    ) -> tuple[set[Place], set[Place]]:
        must, may = set(must), set(may)
        jumps = any(one.op in ("_jump", "_jump_if_zero") for one in action.primitives)
        for one in action.primitives:
            if one.op not in WRITES_FIRST:
                self._read(one.operands, must)
                continue
            self._read(one.operands[1:], must)
            for place in uses_of(one.operands[:1]).read & self.good:
                if one.op in ("modify_field_with_hash_based_offset", "modify_field_rng_uniform"):
                    self.good.discard(place)
                if one.op == "register_read":
                    _, certain, possible = self.reads.setdefault(id(one), (place, set(), set()))
                    certain.add(place in must)
                    possible.add(place in may or jumps)
                may.add(place)
                if not jumps:
                    must.add(place)
        return must, may

    def _read(self, things: Iterable[object], must: set[Place]) -> None:
        self.good -= uses_of(things).read - must
