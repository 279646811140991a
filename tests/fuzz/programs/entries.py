# SPDX-License-Identifier: Apache-2.0
"""Random P4Runtime updates for everything that a P4Info declares (P4Runtime spec, "Write RPC")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from controller.p4rt.entries import insertion, modification
from switch.codegen.accesses import Place
from switch.p4runtime.p4info.values import encode_unsigned
from switch.p4runtime.stubs import p4info_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.program import expressions as ex
from switch.program.model import Primitive, Program
from tests.fuzz.programs.values import Values
from tests.packet.differential.case import PORTS

DROP_PORT = 511
MOST_ENTRIES = 6
MOST_MEMBERS = 4
_PORT_BITS = 9
_FULL = 0.85  # share of the tables, profiles, ... that get entries at all


class Updates:
    """Draws the updates of one case, in an order in which each may come."""

    def __init__(self, values: Values, info: p4info_pb2.P4Info, program: Program) -> None:
        self._values, self._rng = values, values.rng
        self._info, self._program = info, program
        self._actions = {one.preamble.id: one for one in info.actions}
        # How the entries of a table with an action profile name what they do.
        self._members: dict[int, list[int]] = {}
        self._groups: dict[int, list[int]] = {}
        self._one_shot: set[int] = set()

    def draw(self) -> list[p4rt.Update]:
        """Updates that P4Runtime allows; those of one write may still be refused as duplicates."""
        made = [*self._replication(), *self._digests(), *self._meters(), *self._value_sets()]
        for profile in self._info.action_profiles:
            made += self._profile(profile)
        for table in self._info.tables:
            if self._rng.random() < _FULL:
                made += self._table(table)
        return made

    # Tables

    def _table(self, table: p4info_pb2.Table) -> Iterator[p4rt.Update]:
        scopes = p4info_pb2.ActionRef
        allowed = [one.id for one in table.action_refs if one.scope != scopes.DEFAULT_ONLY]
        defaults = [one.id for one in table.action_refs if one.scope != scopes.TABLE_ONLY]
        fixed = table.const_default_action_id or table.implementation_id
        if defaults and not fixed and self._rng.random() < 0.4:
            entry = p4rt.TableEntry(table_id=table.preamble.id, is_default_action=True)
            self._act(entry.action.action, self._rng.choice(defaults))
            yield modification(p4rt.Entity(table_entry=entry))
        if table.is_const_table or not allowed or not table.match_fields:
            return
        for _ in range(self._rng.randint(1, MOST_ENTRIES)):
            entry = p4rt.TableEntry(table_id=table.preamble.id)
            places = self._places(table.preamble.name, len(table.match_fields))
            ordered = [
                self._match(entry.match, field, place)
                for field, place in zip(table.match_fields, places, strict=True)
            ]
            if any(ordered):
                entry.priority = self._rng.randint(1, 5)
            if not self._choose(entry.action, table, allowed):
                return
            yield insertion(p4rt.Entity(table_entry=entry))

    def _places(self, name: str, count: int) -> list[Place | None]:
        """The fields that a table's key is made of, where the program still has it."""
        table = self._program.tables.get(name)
        if table is None or len(table.key) != count:
            return [None] * count
        return [_place(one.value) for one in table.key]

    def _match(self, matches: Any, field: p4info_pb2.MatchField, place: Place | None) -> bool:
        """Adds one element of a key. Returns whether it makes the entry have a priority."""
        kinds, width = p4info_pb2.MatchField, field.bitwidth
        value = self._values.draw(width, place)
        everything = (1 << width) - 1
        match = p4rt.FieldMatch(field_id=field.id)
        if field.match_type == kinds.EXACT:
            match.exact.value = encode_unsigned(value)
        elif field.match_type == kinds.LPM:
            length = self._rng.choice([0, width, self._rng.randint(0, width)])
            value &= everything & ~(everything >> length)
            match.lpm.value, match.lpm.prefix_len = encode_unsigned(value), length
            if not length:
                return False
        elif field.match_type == kinds.TERNARY:
            mask = self._rng.choice([0, everything, self._rng.getrandbits(max(width, 1))])
            mask &= everything
            value &= mask
            match.ternary.value, match.ternary.mask = encode_unsigned(value), encode_unsigned(mask)
            if not mask:
                return True
        elif field.match_type == kinds.RANGE:
            low, high = sorted((value, self._values.draw(width, place)))
            match.range.low, match.range.high = encode_unsigned(low), encode_unsigned(high)
            if (low, high) == (0, everything):
                return True
        else:
            if self._rng.random() < 0.3:
                return True
            match.optional.value = encode_unsigned(value)
        if place is not None:
            self._values.matched(place, value)
        matches.append(match)
        return field.match_type not in (kinds.EXACT, kinds.LPM)

    def _choose(
        self, action: p4rt.TableAction, table: p4info_pb2.Table, allowed: list[int]
    ) -> bool:
        """What an entry does. False: its profile has nothing to choose from."""
        profile = table.implementation_id
        if not profile:
            self._act(action.action, self._rng.choice(allowed))
        elif profile in self._one_shot:
            for _ in range(self._rng.randint(1, 3)):
                one = action.action_profile_action_set.action_profile_actions.add(
                    weight=self._rng.randint(1, 2)
                )
                self._act(one.action, self._rng.choice(allowed))
        elif self._groups.get(profile) and self._rng.random() < 0.6:
            action.action_profile_group_id = self._rng.choice(self._groups[profile])
        elif self._members.get(profile):
            action.action_profile_member_id = self._rng.choice(self._members[profile])
        else:
            return False
        return True

    def _act(self, action: p4rt.Action, number: int) -> None:
        action.action_id = number
        for one in self._actions[number].params:
            action.params.add(param_id=one.id, value=encode_unsigned(self._argument(one)))

    def _argument(self, one: p4info_pb2.Action.Param) -> int:
        if one.bitwidth == _PORT_BITS or "port" in one.name.lower():
            return self._port() & (1 << one.bitwidth) - 1
        return self._values.draw(one.bitwidth)

    def _port(self) -> int:
        return DROP_PORT if self._rng.random() < 0.05 else self._rng.choice(PORTS)

    # Action profiles

    def _profile(self, profile: p4info_pb2.ActionProfile) -> Iterator[p4rt.Update]:
        number = profile.preamble.id
        tables = [one for one in self._info.tables if one.preamble.id in profile.table_ids]
        refs = [ref for table in tables for ref in table.action_refs]
        actions = [ref.id for ref in refs if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY]
        if not actions:
            return
        if profile.with_selector and self._rng.random() < 0.3:
            self._one_shot.add(number)
            return
        members = self._members[number] = list(range(1, self._rng.randint(1, MOST_MEMBERS) + 1))
        for one in members:
            member = p4rt.ActionProfileMember(action_profile_id=number, member_id=one)
            self._act(member.action, self._rng.choice(actions))
            yield insertion(p4rt.Entity(action_profile_member=member))
        if not profile.with_selector:
            return
        groups = self._groups[number] = list(range(1, self._rng.randint(1, 3) + 1))
        for one in groups:
            group = p4rt.ActionProfileGroup(action_profile_id=number, group_id=one)
            chosen = self._rng.sample(members, self._rng.randint(1, len(members)))
            for member_id in chosen:
                group.members.add(member_id=member_id, weight=self._rng.randint(1, 2))
            group.max_size = min(profile.max_group_size, 8) if profile.max_group_size else 0
            yield insertion(p4rt.Entity(action_profile_group=group))

    # The packet replication engine, digests, meters, value sets

    def _replication(self) -> Iterator[p4rt.Update]:
        groups = {1, 2, *self._assigned("mcast_grp")}
        for number in sorted(groups):
            if not 0 < number < 1 << 16 or self._rng.random() > _FULL:
                continue
            entry = p4rt.PacketReplicationEngineEntry()
            entry.multicast_group_entry.multicast_group_id = number
            # One instance goes to different ports, as BMv2 has a port once in each.
            for port in self._rng.sample(PORTS, self._rng.randint(1, 3)):
                replica = entry.multicast_group_entry.replicas.add(instance=self._rng.randint(0, 3))
                replica.egress_port = port
            yield insertion(p4rt.Entity(packet_replication_engine_entry=entry))
        for number in sorted(self._sessions()):
            entry = p4rt.PacketReplicationEngineEntry()
            entry.clone_session_entry.session_id = number
            replica = entry.clone_session_entry.replicas.add(instance=self._rng.randint(0, 3))
            replica.egress_port = self._rng.choice(PORTS)
            yield insertion(p4rt.Entity(packet_replication_engine_entry=entry))

    def _primitives(self) -> Iterator[Primitive]:
        for action in self._program.actions.values():
            yield from action.primitives

    def _assigned(self, name: str) -> Iterator[int]:
        """Constants that the program assigns to a field of standard metadata."""
        for one in self._primitives():
            if one.op != "assign" or not isinstance(one.operands[0], ex.FieldValue):
                continue
            target = one.operands[0]
            constants = [each.value for each in one.operands[1:] if isinstance(each, ex.Const)]
            if target.field == name and constants:
                yield constants[0]

    def _sessions(self) -> set[int]:
        """Constants that the program clones to."""
        return {
            one.operands[0].value
            for one in self._primitives()
            if one.op.startswith("clone_") and isinstance(one.operands[0], ex.Const)
            if 0 < one.operands[0].value < 1 << 15
        }

    def _digests(self) -> Iterator[p4rt.Update]:
        for one in self._info.digests:
            entry = p4rt.DigestEntry(digest_id=one.preamble.id)
            entry.config.max_list_size = 1
            yield insertion(p4rt.Entity(digest_entry=entry))

    def _meters(self) -> Iterator[p4rt.Update]:
        """Without rates: colors depend on bursts alone, not on time."""
        for one in self._info.meters:
            for index in range(min(one.size, 4)):
                if self._rng.random() < 0.5:
                    entry = p4rt.MeterEntry(meter_id=one.preamble.id)
                    entry.index.index = index
                    entry.config.cburst = self._rng.randint(0, 4) * 60
                    entry.config.pburst = entry.config.cburst + self._rng.randint(0, 4) * 60
                    yield modification(p4rt.Entity(meter_entry=entry))

    def _value_sets(self) -> Iterator[p4rt.Update]:
        for one in self._info.value_sets:
            kinds = {each.match_type for each in one.match}
            if kinds != {p4info_pb2.MatchField.EXACT}:
                continue  # BMv2 has whole values only
            entry = p4rt.ValueSetEntry(value_set_id=one.preamble.id)
            members = set()
            for _ in range(self._rng.randint(0, min(one.size, 3))):
                members.add(tuple(self._values.draw(each.bitwidth) for each in one.match))
            for member in sorted(members):
                added = entry.members.add()
                for each, value in zip(one.match, member, strict=True):
                    added.match.add(field_id=each.id).exact.value = encode_unsigned(value)
            yield modification(p4rt.Entity(value_set_entry=entry))


def _place(value: ex.Data) -> Place | None:
    if isinstance(value, ex.FieldValue) and isinstance(value.header, ex.HeaderRef):
        return value.header.name, value.field
    return None
