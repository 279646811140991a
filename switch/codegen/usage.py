# SPDX-License-Identifier: Apache-2.0
"""Finds which part of a program uses which header and field, and so what the generated code may
skip.

Facts, each found by static analysis and each on the safe side:

- *transient* fields: very wide local variables (p4c makes metadata of them) of one control that
  are written before they are read on every path. They need no zeroing and travel with no packet.
- *local* fields: other metadata that only one control uses. They are variables of its function,
  which the compiler can track, and travel with no packet either.
- *parsed early*: headers that the parser itself may read or write without having extracted them in
  the same state. They must be clean before parsing; all others can wait until after it.
- *tail*: the last headers of the deparser, from a large one on, that nothing after ingress uses or
  that are large and used for few packets. They leave ingress as bytes in front of the payload, once
  for all copies of the packet, and become headers again when egress reaches a node that uses them.
- *framed*: headers of the tail that are one large field. They stay in the frame, where they were
  parsed, until something uses them; if they just pass through nothing is read or written.
- *indices*: fields that index registers. As soon as one is assigned, the memory of its cells can be
  prefetched.
- *idle checksums*: 16-bit fields at the position of the TCP or UDP checksum, which the program may
  overwrite but never reads: they need the right value only in packets that leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from switch.codegen.accesses import (
    COPIES_HEADERS,
    Place,
    Uses,
    mentions,
    note,
    note_primitive,
    uses_of,
    uses_of_statements,
)
from switch.codegen.definite_assignment import Assignments
from switch.program import expressions as ex
from switch.program.model import (
    Action,
    Conditional,
    Control,
    Extract,
    ObjectName,
    Primitive,
    Program,
    Table,
)

WIDE = 64  # from this many bits on a field is an array of limbs
FOLLOWED = 512  # fields of up to this many bits stay in registers
LARGE = 128  # headers of at least this many bytes are worth keeping as bytes
VECTOR = 256  # bits that the generated code handles at a time
MOST_TAIL = 31  # headers: bits of sw_state.sealed, below SW_COPIED
CHECKSUM_OFFSETS = (6 * 8, 16 * 8)  # bits before the checksum in UDP and in TCP

# Operations that may change a header's validity.
_CHANGE_HEADERS = COPIES_HEADERS | {
    "add_header",
    "remove_header",
    "assign_header_stack",
    "push",
    "pop",
}


class Usage:
    """The facts about one program.

    transient, local: fields
    cleared_reads: ids of register_read primitives whose target must become 0 when the index is out
        of range
    early, framed: headers
    tail: headers in the deparser's order
    idle_checksums: header -> fields
    indices: field -> registers
    reads_payload: some calculation includes the payload
    keeps_headers: nothing after ingress adds or removes a header
    mentioned: field -> number of statements, keys and conditions that use it
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.keeps_headers = self._keeps_headers()
        self.reads_payload = any(
            one.payload for calc in program.calculations.values() for one in calc.inputs
        )
        self.parser = self._parser()
        self.ingress = self._control(program.ingress)
        self.egress = self._control(program.egress)
        self.calculated = self._calculated()
        self.kept = {place for one in program.field_lists.values() for place in one.elements}
        self.kept |= self._learned()
        self.early = self._early()
        self.tail = self._tail()
        self.framed = self._framed()
        self.idle_checksums = self._idle_checksums()
        self.indices = self._indices()
        self.cleared_reads: set[int] = set()
        self.transient = self._transient(program.ingress, self.ingress, self.egress)
        self.transient |= self._transient(program.egress, self.egress, self.ingress)
        self.local = self._local(self.ingress, self.egress) | self._local(self.egress, self.ingress)
        self.mentioned = self._mentioned()

    # Who uses what

    def _actions(self, table: Table) -> list[Action]:
        numbers = dict.fromkeys(table.action_ids)
        if table.default_action_id is not None:
            numbers.setdefault(table.default_action_id)
        return [self.program.actions[one] for one in numbers]

    def _metered(self, table: Table) -> ex.FieldValue | None:
        """Returns the field that the table's direct meter writes."""
        return None if table.meter is None else self.program.meters[table.meter].target

    def _control(self, control: Control) -> Uses:
        uses = Uses()
        for table in control.tables.values():
            note(uses, (key.value for key in table.key))
            note(uses, [self._metered(table)])
            for action in self._actions(table):
                for one in action.primitives:
                    note_primitive(uses, one)
        note(uses, (one.condition for one in control.conditionals.values()))
        return uses

    def _parser(self) -> Uses:
        uses = Uses()
        for state in self.program.parser_states.values():
            note(uses, state.operations)
            note(uses, state.key)
            for one in state.operations:
                if isinstance(one, Extract):
                    uses.whole |= {one.header} if one.header else set()
                    uses.stacks |= {one.stack} if one.stack else set()
                    uses.whole |= set(one.choices)
        return uses

    def _calculated(self) -> Uses:
        """Returns what calculations, checksums and the deparser's own statements use."""
        uses = Uses()
        for calculation in self.program.calculations.values():
            note(uses, (one.value for one in calculation.inputs if one.value is not None))
            uses.whole |= {one.header for one in calculation.inputs if one.header is not None}
            note(uses, (one.varbit for one in calculation.inputs))
        for checksum in self.program.checksums:
            note(uses, [checksum.condition])
            if checksum.verify:
                uses.read.add((checksum.header, checksum.field))
            uses.written.add((checksum.header, checksum.field))
        for one in self.program.deparser_primitives:
            note_primitive(uses, one)
        return uses

    def _learned(self) -> set[Place]:
        """Returns what digests read at the end of ingress."""
        return uses_of(one.elements for one in self.program.learn_lists.values()).read

    # Headers

    def _keeps_headers(self) -> bool:
        tables = self.program.egress.tables.values()
        actions = [action for table in tables for action in self._actions(table)]
        statements = [*(one.primitives for one in actions), self.program.deparser_primitives]
        return not any(one.op in _CHANGE_HEADERS for part in statements for one in part)

    def _early(self) -> set[str]:
        early: set[str] = set()
        for state in self.program.parser_states.values():
            here: set[str] = set()
            for one in state.operations:
                if isinstance(one, Extract):
                    early |= uses_of([one.bits]).headers() - here
                    if one.header:
                        here.add(one.header)
                    continue
                early |= (uses_of([one]).headers() | self._moved([one])) - here
            early |= uses_of(state.key).headers() - here
        return early

    def _moved(self, things: object) -> set[str]:
        """Returns the headers of stacks of unions that statements shift."""
        found: set[str] = set()
        for one in mentions(things):
            if isinstance(one, ObjectName) and one.name in self.program.union_stacks:
                for union in self.program.union_stacks[one.name].unions:
                    found |= set(self.program.unions[union])
        return found

    def _tail(self) -> tuple[str, ...]:
        truncates = any(
            one.op == "truncate"
            for action in self.program.actions.values()
            for one in action.primitives
        )
        if truncates or self.reads_payload:
            return ()
        used = self.calculated.headers() | {one for one, _ in self.kept}
        for name in self.egress.headers():
            if self.program.headers[name].type.bits < 8 * LARGE:
                used.add(name)
        tail: list[str] = []
        for name in reversed(self.program.deparse_order):
            stacked = self.program.headers[name].stack is not None
            special = self.program.siblings(name) or self.program.headers[name].type.varbit
            if name in used or stacked or special or len(tail) == MOST_TAIL:
                break
            tail.append(name)
        # Small headers in front of it are not worth it.
        while tail and self.program.headers[tail[-1]].type.bits < 8 * LARGE:
            tail.pop()
        # A header that the deparser lists twice would be written only once.
        if len(set(self.program.deparse_order)) != len(self.program.deparse_order):
            return ()
        return tuple(reversed(tail))

    def _framed(self) -> set[str]:
        uses = Uses()
        for state in self.program.parser_states.values():
            note(uses, (one for one in state.operations if not isinstance(one, Extract)))
            note(uses, state.key)
        found = set()
        for name in self.tail:
            header_type = self.program.headers[name].type
            single = len(header_type.fields) == 1 and header_type.bits % VECTOR == 0
            if single and header_type.bits >= 8 * LARGE and name not in uses.headers():
                found.add(name)
        return found

    def _mentioned(self) -> Counter[Place]:
        found: Counter[Place] = Counter()
        controls = (self.program.ingress, self.program.egress)
        for action in self.program.actions.values():
            for one in action.primitives:
                found.update(uses_of_statements([one]).places())
        for control in controls:
            for thing in (
                *(key.value for table in control.tables.values() for key in table.key),
                *(self._metered(table) for table in control.tables.values()),
                *(one.condition for one in control.conditionals.values()),
            ):
                found.update(uses_of([thing]).places())
        return found

    def _indices(self) -> dict[Place, list[str]]:
        """Returns the index fields of registers whose cells are worth prefetching."""
        found: dict[Place, list[str]] = {}
        for action in self.program.actions.values():
            for one in action.primitives:
                if one.op not in ("register_read", "register_write"):
                    continue
                array, index = one.operands[1:] if one.op == "register_read" else one.operands[:2]
                if not isinstance(array, ObjectName) or not isinstance(index, ex.FieldValue):
                    continue
                wide = self.program.registers[array.name].width > WIDE
                if wide and isinstance(index.header, ex.HeaderRef):
                    arrays = found.setdefault((index.header.name, index.field), [])
                    if array.name not in arrays:
                        arrays.append(array.name)
        return found

    def opens_tail(self, node: Table | Conditional) -> bool:
        """Returns True if a node of egress uses a header of the tail."""
        return not self.headers_of(node).isdisjoint(self.tail)

    def headers_of(self, node: Table | Conditional) -> set[str]:
        """Returns the headers that a node uses."""
        if isinstance(node, Conditional):
            return uses_of([node.condition]).headers()
        values = (key.value for key in node.key)
        statements = (one.primitives for one in self._actions(node))
        return uses_of([*values, self._metered(node), *statements]).headers()

    def _idle_checksums(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        everything = (self.parser, self.ingress, self.egress, self.calculated)
        whole = {one for uses in (self.ingress, self.egress, self.calculated) for one in uses.whole}
        read = {place for uses in everything for place in uses.read} | self.kept
        compared = self._compared(whole)
        for header in self.program.headers.values():
            if header.metadata or header.stack is not None or header.name in compared:
                continue
            offset = 0
            for one in header.type.fields:
                if one.varbit:
                    break
                place = (header.name, one.name)
                if one.width == 16 and offset in CHECKSUM_OFFSETS and place not in read:
                    found.setdefault(header.name, set()).add(one.name)
                offset += one.width
        return found

    def _compared(self, whole: set[str]) -> set[str]:
        """Returns the headers that are used as a whole, not only by their validity: compared,
        copied, summed."""
        found: set[str] = set()
        for one in mentions(self._everything()):
            if isinstance(one, ex.CompareHeaders):
                found |= uses_of([one]).whole
            elif isinstance(one, Primitive) and one.op in COPIES_HEADERS:
                found |= uses_of(one.operands).whole
        found |= {
            one.header
            for calc in self.program.calculations.values()
            for one in calc.inputs
            if one.header is not None
        }
        return found & whole | self._moved(self._everything())

    def _everything(self) -> list[object]:
        program = self.program
        return [
            *(one.primitives for one in program.actions.values()),
            *program.ingress.conditionals.values(),
            *program.egress.conditionals.values(),
            *program.deparser_primitives,
            *(one.condition for one in program.checksums),
        ]

    # Local variables: assigned on every path before they are read

    def _transient(self, control: Control, own: Uses, other: Uses) -> set[Place]:
        wide = {
            (name, one.name)
            for name, one in self._of_one_control(own, other)
            if one.width > FOLLOWED
        }
        assignments = Assignments(control, self._actions, wide)
        transient = assignments.transient()
        self.cleared_reads |= assignments.cleared_reads
        return transient

    def _local(self, own: Uses, other: Uses) -> set[Place]:
        known = {"standard_metadata", *(header for header, _ in self.program.aliases.values())}
        return {
            (name, one.name)
            for name, one in self._of_one_control(own, other)
            if one.width <= FOLLOWED and name not in known
        }

    def _of_one_control(self, own: Uses, other: Uses) -> Iterator[tuple[str, ex.Field]]:
        """Returns the metadata (header, field) that only one control uses."""
        elsewhere = (self.parser, other, self.calculated)
        excluded = {place for uses in elsewhere for place in uses.places()} | self.kept
        whole = {name for uses in (*elsewhere, own) for name in uses.whole}
        types = [one.type.name for one in self.program.headers.values()]
        mentioned = own.places() - excluded
        for header in self.program.headers.values():
            if header.metadata and header.name not in whole and types.count(header.type.name) == 1:
                for one in header.type.fields:
                    if (header.name, one.name) in mentioned:
                        yield header.name, one
