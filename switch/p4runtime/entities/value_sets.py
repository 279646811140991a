# SPDX-License-Identifier: Apache-2.0
"""Parser value sets (P4Runtime spec, "ValueSetEntry"). Every set exists from the start, without
members; one MODIFY gives all of them."""

from __future__ import annotations

from collections.abc import Iterator

from switch.p4runtime.entities.checks import check_modifies
from switch.p4runtime.entities.match import Key, decode_key, encode_key
from switch.p4runtime.errors import already_exists, resource_exhausted
from switch.p4runtime.p4info.schema import EXACT, LPM, RANGE, Schema, ValueSet
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline
from switch.pipeline.value_sets import Member, ValueSetState


class ValueSets:
    """The value sets of one program. Not thread safe: the device has a lock."""

    def __init__(self, schema: Schema, pipeline: Pipeline) -> None:
        self._schema = schema
        self._states = {
            number: ValueSetState(pipeline, one.name) for number, one in schema.value_sets.items()
        }
        self._members: dict[int, tuple[Key, ...]] = dict.fromkeys(schema.value_sets, ())

    def write(self, kind: int, message: p4runtime_pb2.ValueSetEntry) -> None:
        """Applies one update. Raises P4RuntimeError with the code of the spec."""
        one = self._schema.value_set(message.value_set_id)
        check_modifies(kind, one.name, "value set")
        if len(message.members) > one.size:
            raise resource_exhausted(
                f"{one.name}: {len(message.members)} members, more than its size, {one.size}"
            )
        members = tuple(decode_key(one, member.match) for member in message.members)
        if len(set(members)) < len(members):
            raise already_exists(f"{one.name}: a member is given twice")
        keys = {_masked(one, key): key for key in (*self._members[one.id], *members)}
        try:
            self._states[one.id].replace([_masked(one, key) for key in members])
        except MemoryError:
            self._members[one.id] = tuple(keys[held] for held in self._states[one.id].members)
            raise
        self._members[one.id] = members

    def read(self, query: p4runtime_pb2.ValueSetEntry) -> Iterator[p4runtime_pb2.ValueSetEntry]:
        """Yields one set, or (value_set_id 0) all."""
        if query.value_set_id:
            sets = [self._schema.value_set(query.value_set_id)]
        else:
            sets = list(self._schema.value_sets.values())
        for one in sets:
            message = p4runtime_pb2.ValueSetEntry(value_set_id=one.id)
            for key in self._members[one.id]:
                message.members.add(match=encode_key(one, key))
            yield message


def _masked(one: ValueSet, key: Key) -> Member:
    """Converts every element to value and mask, or to a range."""
    found: list[tuple[int, int] | range] = []
    for field, element in zip(one.fields, key, strict=True):
        everything = (1 << field.width) - 1
        if field.kind == EXACT:
            assert isinstance(element, int)
            found.append((element, everything))
            continue
        assert not isinstance(element, int)
        value, second = element
        if field.kind == RANGE:
            found.append(range(value, second + 1))
            continue
        mask = everything & ~(everything >> second) if field.kind == LPM else second
        found.append((value, mask))
    return tuple(found)
