# SPDX-License-Identifier: Apache-2.0
"""Carries the state of one program over to another (P4Runtime spec, "SetForwardingPipelineConfig
RPC", RECONCILE_AND_COMMIT).

The state is: entries and their counters, default actions, groups, sessions, counters and registers,
meters (with full buckets), digests and idle timeouts (which restart). All of it must fit by name,
or none is carried over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from switch.p4runtime.errors import P4RuntimeError, invalid_argument
from switch.p4runtime.pushed_program import Forwarding
from switch.p4runtime.stubs import p4runtime_pb2
from switch.pipeline import Pipeline

Update = p4runtime_pb2.Update

# Lists of P4Info -> the lists of fields of their members.
_FIELDS = {"tables": "match_fields", "value_sets": "match", "actions": "params"}


def carry(old: Forwarding, new: Forwarding) -> None:
    """Writes the old program's state into the new one, which has none yet.

    Raises INVALID_ARGUMENT with what does not fit. The old program is unchanged; changes that
    packets make in it meanwhile are not carried over.
    """
    try:
        for entity in _entities(old):
            _check_shapes(old, new, entity)
            if entity.HasField("meter_entry"):
                _check_same(old, new, "meters", entity.meter_entry.meter_id)
            elif entity.HasField("digest_entry"):
                _check_same(old, new, "digests", entity.digest_entry.digest_id)
            there = (
                entity.table_entry.is_default_action
                or entity.HasField("value_set_entry")
                or entity.HasField("meter_entry")
            )
            new.write(Update(type=Update.MODIFY if there else Update.INSERT, entity=entity))
    except P4RuntimeError as error:
        raise _unfit(error.message) from error
    _carry_cells(old.pipeline, new.pipeline)
    new.digests.number_after(old.digests)  # clients may still acknowledge its lists


def _entities(old: Forwarding) -> Iterator[p4runtime_pb2.Entity]:
    """Returns all that controllers have written and the program does not declare itself."""
    full = p4runtime_pb2.TableEntry()
    full.counter_data.SetInParent()
    full.meter_config.SetInParent()
    groups, sessions = (p4runtime_pb2.PacketReplicationEngineEntry() for _ in range(2))
    groups.multicast_group_entry.SetInParent()
    sessions.clone_session_entry.SetInParent()
    # Members before groups, and both before the entries that name them.
    for query in (
        p4runtime_pb2.Entity(action_profile_member=p4runtime_pb2.ActionProfileMember()),
        p4runtime_pb2.Entity(action_profile_group=p4runtime_pb2.ActionProfileGroup()),
        p4runtime_pb2.Entity(table_entry=full),
        p4runtime_pb2.Entity(packet_replication_engine_entry=groups),
        p4runtime_pb2.Entity(packet_replication_engine_entry=sessions),
        p4runtime_pb2.Entity(value_set_entry=p4runtime_pb2.ValueSetEntry()),
        p4runtime_pb2.Entity(digest_entry=p4runtime_pb2.DigestEntry()),
        p4runtime_pb2.Entity(meter_entry=p4runtime_pb2.MeterEntry()),
    ):
        for entity in old.read(query):
            unset = entity.HasField("value_set_entry") and not entity.value_set_entry.members
            unset |= entity.HasField("meter_entry") and not entity.meter_entry.HasField("config")
            if not entity.table_entry.is_const and not unset:
                yield entity
    for table in old.tables.changed_defaults():
        default = p4runtime_pb2.Entity()
        default.table_entry.table_id = table
        default.table_entry.is_default_action = True
        default.table_entry.counter_data.SetInParent()
        yield from old.read(default)


def _check_shapes(old: Forwarding, new: Forwarding, entity: p4runtime_pb2.Entity) -> None:
    """Checks that ids refer to the same objects in both programs."""
    entry, member = entity.table_entry, entity.action_profile_member
    sets = entry.action.action_profile_action_set.action_profile_actions
    actions = [entry.action.action, member.action, *(one.action for one in sets)]
    profiles = (member.action_profile_id, entity.action_profile_group.action_profile_id)
    for kind, number in (
        ("tables", entry.table_id),
        ("value_sets", entity.value_set_entry.value_set_id),
        *(("action_profiles", one) for one in profiles),
        *(("actions", one.action_id) for one in actions),
    ):
        mine, other = (_described(one.config.p4info, kind, number) for one in (old, new))
        if mine != other:
            name = mine[0] if mine else number
            raise invalid_argument(f"{kind[:-1]} {name} does not exist or has other fields")


def _check_same(old: Forwarding, new: Forwarding, kind: str, number: int) -> None:
    mine, other = (
        [one.preamble.name for one in getattr(p4info, kind) if one.preamble.id == number]
        for p4info in (old.config.p4info, new.config.p4info)
    )
    if mine != other:
        raise invalid_argument(f"{kind[:-1]} {mine[0]} is not there")


def _described(p4info: Any, kind: str, number: int) -> tuple[Any, ...]:
    """Returns the name and the fields or parameters of a table or action."""
    for one in getattr(p4info, kind):
        if one.preamble.id == number:
            if kind == "action_profiles":
                return (one.preamble.name, one.with_selector)
            parts = getattr(one, _FIELDS[kind])
            shapes = ((p.id, p.name, p.bitwidth, getattr(p, "match_type", 0)) for p in parts)
            return (one.preamble.name, *shapes)
    return ()


def _carry_cells(old: Pipeline, new: Pipeline) -> None:
    for name, register in old.program.registers.items():
        cells = {i: value for i in range(register.size) if (value := old.register(name, i))}
        other = new.program.registers.get(name)
        if cells and (other is None or other.width != register.width or max(cells) >= other.size):
            raise _unfit(f"register {name} does not exist or is smaller")
        for i, value in cells.items():
            new.set_register(name, i, value)
    for name, counter in old.program.counters.items():
        if counter.binding is not None:
            continue  # read with its table's entries
        counts = {i: both for i in range(counter.size) if any(both := old.counter(name, i))}
        declared = new.program.counters.get(name)
        if counts and (declared is None or declared.binding or max(counts) >= declared.size):
            raise _unfit(f"counter {name} does not exist or is smaller")
        for i, (packets, octets) in counts.items():
            new.set_counter(name, i, packets, octets)


def _unfit(reason: str) -> P4RuntimeError:
    return invalid_argument(
        f"the state cannot be preserved: {reason}; use VERIFY_AND_COMMIT and write it again"
    )
