# SPDX-License-Identifier: GPL-2.0-only
"""Differential cases of action profiles: members, groups and action sets are created, changed
and deleted."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from controller.p4rt.entries import MatchValue, P4Info, deletion, insertion, modification
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import Case, program_files
from tests.packet.differential.entries import drawn, frame, replication

SHARED, SPREAD, ONCE, LAST = "Enter.shared", "Enter.spread", "Enter.once", "Leave.last"
SOURCES = (0x9E3779B9, 0, 0xFFFFFFFF)


class Profiles:
    """Messages by name."""

    def __init__(self, p4info: P4Info) -> None:
        self.p4info = p4info
        self._ids = {one.preamble.name: one.preamble.id for one in p4info.message.action_profiles}
        self._actions = {one.preamble.name: one for one in p4info.message.actions}

    def action(self, name: str, *arguments: int) -> p4rt.Action:
        declared = self._actions[name]
        action = p4rt.Action(action_id=declared.preamble.id)
        for one, value in zip(declared.params, arguments, strict=True):
            size = max(1, (value.bit_length() + 7) // 8)
            action.params.add(param_id=one.id, value=value.to_bytes(size, "big"))
        return action

    def member(self, profile: str, number: int, action: p4rt.Action) -> p4rt.Entity:
        entity = p4rt.Entity()
        entity.action_profile_member.action_profile_id = self._ids[profile]
        entity.action_profile_member.member_id = number
        entity.action_profile_member.action.CopyFrom(action)
        return entity

    def group(self, profile: str, number: int, weights: Mapping[int, int]) -> p4rt.Entity:
        entity = p4rt.Entity()
        entity.action_profile_group.action_profile_id = self._ids[profile]
        entity.action_profile_group.group_id = number
        for member, weight in weights.items():
            entity.action_profile_group.members.add(member_id=member, weight=weight)
        return entity

    def entry(
        self,
        table: str,
        match: Mapping[str, MatchValue],
        priority: int = 0,
        *,
        member: int = 0,
        group: int = 0,
        chosen: list[tuple[p4rt.Action, int]] | None = None,
    ) -> p4rt.Entity:
        """An entry that names a member, a group, or (chosen) has a set of actions with weights."""
        entity = p4rt.Entity()
        own = self.p4info.table(table)
        made = entity.table_entry
        made.table_id, made.priority = own.preamble.id, priority
        for field in own.match_fields:
            if field.name not in match:
                continue
            given, value = made.match.add(field_id=field.id), match[field.name]
            size = (field.bitwidth + 7) // 8
            first = value if isinstance(value, int) else value[0]
            data = first.to_bytes(size, "big").lstrip(b"\0") or b"\0"
            if isinstance(value, int):
                given.exact.value = data
            elif field.match_type == field.LPM:
                given.lpm.value, given.lpm.prefix_len = data, value[1]
            else:
                given.ternary.value = data
                given.ternary.mask = value[1].to_bytes(size, "big").lstrip(b"\0")
        if member:
            made.action.action_profile_member_id = member
        if group:
            made.action.action_profile_group_id = group
        for action, weight in chosen or ():
            made.action.action_profile_action_set.action_profile_actions.add(
                action=action, weight=weight
            )
        return entity


def updates(p4info: P4Info) -> list[p4rt.Update]:
    made = Profiles(p4info)
    rng = random.Random(901)

    def send(number: int) -> p4rt.Action:
        return made.action("Enter.send", 1 + number % 7, number)

    shared = [
        made.action("Enter.rewrite", SOURCES[0], drawn(rng, 40)),
        made.action("Enter.rewrite", SOURCES[1], 1),
        made.action("Enter.deny"),
        send(2),
        send(3),
    ]
    written = [insertion(made.member(SHARED, i, one)) for i, one in enumerate(shared, start=1)]
    for kind, member in ((0, 1), (1, 2), (0x7F, 3), (0x80, 4), (0xFF, 1), (0xB9, 5)):
        written.append(insertion(made.entry("Enter.kinds", {"hdr.flow.kind": kind}, member=member)))
    for length, member in ((8, 4), (32, 5), (1, 2)):
        source = SOURCES[0] & 0xFFFFFFFF << (32 - length) & 0xFFFFFFFF
        entry = made.entry("Enter.sources", {"hdr.flow.source": (source, length)}, member=member)
        written.append(insertion(entry))
    written.append(modification(made.member(SHARED, 5, send(9))))
    # Numbers given back and taken again, by weights, in another order than they were made.
    for number in range(1, 9):
        written.append(insertion(made.member(SPREAD, number, send(number))))
    written += [
        deletion(made.member(SPREAD, 3, send(3))),
        insertion(made.group(SPREAD, 1, {7: 3, 1: 1, 5: 2})),
        insertion(made.group(SPREAD, 2, {2: 1, 4: 1, 6: 5, 7: 1})),
        insertion(made.member(SPREAD, 3, made.action("Enter.rewrite", 5, 6))),
        insertion(made.group(SPREAD, 3, {3: 4, 8: 1})),
        modification(made.group(SPREAD, 1, {7: 1, 2: 6, 3: 1})),
        modification(made.member(SPREAD, 6, made.action("Enter.deny"))),
        insertion(made.group(SPREAD, 4, {1: 1})),
        deletion(made.group(SPREAD, 4, {})),
        modification(made.group(SPREAD, 2, {2: 1, 4: 2, 6: 1, 8: 3})),
        insertion(made.member(SPREAD, 9, send(9))),
        modification(made.group(SPREAD, 3, {3: 1, 9: 2, 8: 1, 5: 1})),
    ]
    masks = [(0x9E000000, 0xFF000000, 1), (0, 0xFFFFFFFF, 2), (0xFFFFFFFF, 0xFFFFFFFF, 3)]
    for priority, (value, mask, group) in enumerate(masks, start=2):
        match: dict[str, MatchValue] = {"hdr.flow.source": (value, mask)}
        written.append(insertion(made.entry("Enter.spreading", match, priority, group=group)))
    written.append(insertion(made.entry("Enter.spreading", {}, 1, member=8)))
    for kind in (0, 1, 0x80, 0xFF):
        chosen = [(send(rng.randrange(7)), rng.randrange(1, 4)) for _ in range(3)]
        chosen[kind % 3] = (made.action("Enter.rewrite", kind, kind), 1)
        match = {"hdr.flow.kind": kind}
        written.append(insertion(made.entry("Enter.choosing", match, chosen=chosen)))
    written += [
        deletion(made.entry("Enter.choosing", {"hdr.flow.kind": 1})),
        modification(made.entry("Enter.choosing", {"hdr.flow.kind": 0}, chosen=chosen[:2])),
        insertion(made.entry("Enter.choosing", {"hdr.flow.kind": 0x7F}, chosen=[(send(4), 8)])),
    ]
    for number in range(1, 5):
        action = made.action("Leave.leave", number)
        written.append(insertion(made.member(LAST, number, action)))
    written.append(insertion(made.group(LAST, 1, dict.fromkeys(range(1, 5), 1))))
    for port in range(1, 6):
        match = {"standard.egress_port": port}
        written.append(insertion(made.entry("Leave.leaving", match, group=1)))
    return written


def cases() -> Iterator[Case]:
    text, p4info = program_files(HERE / "profiles.json")
    rng = random.Random(902)
    arrivals = []
    for _ in range(300):
        one = bytearray(frame(rng, [8, 16, 32, 8, 8, 40, 12, 4]))
        if rng.random() < 0.7:
            one[3:7] = rng.choice(SOURCES).to_bytes(4, "big")
        one[1:3] = rng.randbytes(2)
        arrivals.append((rng.randrange(8), bytes(one) + rng.randbytes(rng.randrange(9))))
    filled = Case("profiles", text, p4info, updates(p4info), arrivals)
    yield filled
    yield replace(filled, name="profiles-empty", updates=[], arrivals=arrivals[:20])


def blocks(count: int = 80) -> Iterator[Case]:
    """A selector beside a meter, counters and a timeout; large headers in packets that are copied
    and go round."""
    text, p4info = program_files(HERE / "blocks.json")
    made, rng = Profiles(p4info), random.Random(911)
    spread = "Enter.spread"

    def member(number: int) -> p4rt.Action:
        if number % 2:
            return made.action("Enter.mark", 10 + number)
        return made.action("Enter.send", number % 8, 10 + number)

    written = [insertion(made.member(spread, i, member(i))) for i in range(1, 9)]
    written += [
        insertion(made.group(spread, 1, {1: 1, 2: 2, 5: 3})),
        insertion(made.group(spread, 2, {7: 1})),
    ]
    for key in range(20):
        match = {"hdr.order.key": key}
        group = key % 3
        entry = made.entry("Enter.keys", match, group=group, member=0 if group else 1 + key % 8)
        written.append(insertion(entry))
    arrivals = []
    for _ in range(count):
        # The controller receives nothing.
        ingress = _some(rng) & ~0x10
        egress = _some(rng)
        if ingress & 2 or egress & 1:  # a clone that has not kept its count would go round forever
            egress &= ~4
        numbers = (rng.randrange(8), rng.randrange(7), rng.randrange(1, 7), rng.randrange(3))
        order = bytes([ingress, egress, *numbers, rng.randrange(24), rng.randrange(5)])
        payload = rng.randbytes(rng.choice([0, 5, 128, 130, 256, 256 + 40, 300]))
        arrivals.append((rng.randrange(8), order + bytes(8) + payload))
    yield Case("blocks", text, p4info, [*written, *replication(912)], arrivals, races=True)


def _some(rng: random.Random) -> int:
    """Up to three bits of eight."""
    return sum(1 << bit for bit in rng.sample(range(8), rng.randrange(4)))
