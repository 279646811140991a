# SPDX-License-Identifier: Apache-2.0
"""Finds conditions whose outcome is decided by the path to a node.

P4 programs for wide data test one field repeatedly: `if (kind == ADD) { first.add(); }`, `if (kind
== ADD) { second.add(); }`. Where the first statement is reachable only through such a condition,
the outcome of the later ones is known.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from switch.codegen.accesses import Place
from switch.program import expressions as ex
from switch.program.model import Control

Known = tuple[Place, int]  # a field and its value


def known_at(
    control: Control, name: str, references: Mapping[str | None, int], fields: Container[Place]
) -> Known | None:
    """Returns a field and its value that are certain where node `name` begins, else None.

    references: from how many nodes each node can be reached
    fields: candidates
    """
    if references.get(name) != 1:
        return None
    for one in control.conditionals.values():
        if name == one.true_next != one.false_next:
            known = _equality(one.condition)
            return known if known and known[0] in fields else None
    return None


def beyond(control: Control, name: str | None, known: Known) -> str | None:
    """Returns the node that follows this one, past conditions that are decided."""
    while name is not None and name in control.conditionals:
        one = control.conditionals[name]
        tested = _equality(one.condition)
        if tested is None or tested[0] != known[0]:
            break
        name = one.true_next if tested == known else one.false_next
    return name


def _equality(condition: object) -> Known | None:
    if not isinstance(condition, ex.Compare) or condition.op != "==":
        return None
    field, value = condition.left, condition.right
    if (
        isinstance(field, ex.FieldValue)
        and isinstance(field.header, ex.HeaderRef)
        and not field.signed
        and isinstance(value, ex.Const)
    ):
        return (field.header.name, field.field), value.value
    return None
