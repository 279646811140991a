# SPDX-License-Identifier: GPL-2.0-only
"""Tests action profiles over P4Runtime (members, groups, one-shot sets): the same conversations
with this target and with BMv2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.rpc import code_pb2 as code

from controller.p4rt.connection import Connection, DeviceConnection, GrpcConnection, WriteError
from controller.p4rt.entries import deletion, insertion, modification
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import DEVICE, program_files
from tests.packet.differential.profiles import ONCE, SHARED, SPREAD, Profiles
from tests.packet.p4runtime.p4rt_targets import BOTH, running

PROGRAM, P4INFO = program_files(HERE / "profiles.json")
MADE = Profiles(P4INFO)
SEND = MADE.action("Enter.send", 3, 7)
OTHER = MADE.action("Enter.send", 4, 8)
KIND = {"hdr.flow.kind": 5}
FRAME = bytes([5]) + bytes(13)

Write = Callable[[p4rt.Entity], p4rt.Update]


@pytest.fixture(scope="module", params=BOTH)
def opened(request: Any) -> Iterator[Connection]:
    connection: Connection
    if request.param == "bmv2":
        with running("bmv2") as (_, address, _log):
            connection = GrpcConnection("BMv2", address, DEVICE)
            connection.open()
            yield connection
            connection.close()
        return
    device = Device(DEVICE)
    connection = DeviceConnection("embedded", device)
    connection.open()
    yield connection
    connection.close()
    device.close()


@pytest.fixture
def switch(opened: Connection) -> Connection:
    """With the program and nothing else."""
    opened.push(P4INFO.message, PROGRAM)
    return opened


@pytest.fixture
def embedded(device: Device) -> Iterator[Connection]:
    connection = DeviceConnection("embedded", device)
    connection.open()
    connection.push(P4INFO.message, PROGRAM)
    yield connection
    connection.close()


def members(profile: str, *numbers: int) -> list[p4rt.Update]:
    return [insertion(MADE.member(profile, one, SEND)) for one in numbers]


def every(kind: str, profile: str = "", **given: int) -> p4rt.Entity:
    """A query."""
    asked = p4rt.Entity(**{kind: {}})
    if profile:
        number = MADE.member(profile, 1, SEND).action_profile_member.action_profile_id
        getattr(asked, kind).action_profile_id = number
    for name, value in given.items():
        setattr(getattr(asked, kind), name, value)
    return asked


def refusal(connection: Connection, update: p4rt.Update) -> int:
    with pytest.raises(WriteError) as refused:
        connection.write([update])
    [failure] = refused.value.failures
    assert failure.text
    return failure.code


def test_members_groups_and_entries_are_written_read_and_deleted(switch: Connection) -> None:
    one, two = MADE.member(SPREAD, 11, SEND), MADE.member(SPREAD, 12, OTHER)
    group = MADE.group(SPREAD, 21, {11: 1, 12: 1})
    entry = MADE.entry("Enter.spreading", {"hdr.flow.source": (1, 3)}, 4, group=21)
    switch.write([insertion(each) for each in (one, two, group, entry)])
    other = MADE.member(SHARED, 11, SEND)
    switch.write([insertion(other)])
    assert switch.read([every("action_profile_member", SPREAD)]) == [one, two]
    assert switch.read([every("action_profile_member", SPREAD, member_id=12)]) == [two]
    found = switch.read([every("action_profile_member")])
    assert sorted(map(str, found)) == sorted(map(str, (one, two, other)))
    assert switch.read([every("action_profile_group")]) == [group]
    assert switch.read([p4rt.Entity(table_entry={"table_id": entry.table_entry.table_id})]) == [
        entry
    ]
    changed = MADE.entry("Enter.spreading", {"hdr.flow.source": (1, 3)}, 4, member=12)
    two = MADE.member(SPREAD, 12, MADE.action("Enter.rewrite", 1, 2))
    group = MADE.group(SPREAD, 21, {12: 1})
    switch.write([modification(each) for each in (changed, two, group)])
    assert switch.read([every("action_profile_group", SPREAD, group_id=21)]) == [group]
    assert switch.read([every("action_profile_member", SPREAD, member_id=12)]) == [two]
    switch.write([deletion(each) for each in (changed, group, two, one, other)])
    assert switch.read([every("action_profile_member"), every("action_profile_group")]) == []


def test_a_set_of_an_entry_reads_back_and_needs_no_members(switch: Connection) -> None:
    entry = MADE.entry("Enter.choosing", KIND, chosen=[(SEND, 2), (OTHER, 1), (SEND, 1)])
    switch.write([insertion(entry)])
    asked = p4rt.Entity(table_entry={"table_id": entry.table_entry.table_id})
    assert switch.read([asked]) == [entry]
    if isinstance(switch, DeviceConnection):  # BMv2 refuses to say what a profile with sets has
        assert switch.read([every("action_profile_member"), every("action_profile_group")]) == []
    assert refusal(switch, insertion(MADE.member(ONCE, 1, SEND))) == code.INVALID_ARGUMENT
    changed = MADE.entry("Enter.choosing", KIND, chosen=[(OTHER, 8)])
    switch.write([modification(changed)])
    assert switch.read([asked]) == [changed]
    switch.write([deletion(changed)])
    switch.write(members(ONCE, 1))
    assert refusal(switch, insertion(entry)) == code.INVALID_ARGUMENT


UNKNOWN_ACTION = MADE.member(SHARED, 1, MADE.action("Leave.leave", 1))
NO_PROFILE = MADE.member(SHARED, 1, SEND)
NO_PROFILE.action_profile_member.action_profile_id = 1
DIRECT = MADE.entry("Enter.kinds", KIND)
DIRECT.table_entry.action.action.CopyFrom(SEND)
TOO_LARGE = MADE.group(ONCE, 1, {})
TOO_LARGE.action_profile_group.max_size = 9
REFUSED: dict[str, tuple[Write, p4rt.Entity, int]] = {
    "a member twice": (insertion, MADE.member(SPREAD, 1, SEND), code.ALREADY_EXISTS),
    "no such member": (modification, MADE.member(SPREAD, 9, SEND), code.NOT_FOUND),
    "no member to delete": (deletion, MADE.member(SPREAD, 9, SEND), code.NOT_FOUND),
    "another profile's action": (insertion, UNKNOWN_ACTION, code.INVALID_ARGUMENT),
    "no such profile": (insertion, NO_PROFILE, code.INVALID_ARGUMENT),
    "a group twice": (insertion, MADE.group(SPREAD, 1, {}), code.ALREADY_EXISTS),
    "no such group": (modification, MADE.group(SPREAD, 9, {}), code.NOT_FOUND),
    "no group to delete": (deletion, MADE.group(SPREAD, 9, {}), code.NOT_FOUND),
    "no weight": (insertion, MADE.group(SPREAD, 2, {1: 0}), code.INVALID_ARGUMENT),
    "a group of no such member": (insertion, MADE.group(SPREAD, 2, {9: 1}), code.NOT_FOUND),
    "more than max_group_size": (insertion, TOO_LARGE, code.INVALID_ARGUMENT),
    "an action itself": (insertion, DIRECT, code.INVALID_ARGUMENT),
    "a set without weight": (
        insertion, MADE.entry("Enter.choosing", KIND, chosen=[(SEND, 0)]), code.INVALID_ARGUMENT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_have_the_same_codes(switch: Connection, what: str) -> None:
    write, entity, expected = REFUSED[what]
    switch.write([*members(SPREAD, 1), insertion(MADE.group(SPREAD, 1, {1: 1}))])
    assert refusal(switch, write(entity)) == expected


WATCHING = MADE.group(SPREAD, 2, {1: 1})
WATCHING.action_profile_group.members[0].watch_port = b"\1"
WATCHED_SET = MADE.entry("Enter.choosing", KIND, chosen=[(SEND, 1)])
WATCHED_SET.table_entry.action.action_profile_action_set.action_profile_actions[0].watch = 1
GROUPLESS = MADE.group(SHARED, 1, {})
NUMBERLESS = MADE.member(SPREAD, 0, SEND)
DEFAULT = MADE.entry("Enter.spreading", {}, group=1)
DEFAULT.table_entry.is_default_action = True
RESIZED = MADE.group(SPREAD, 1, {1: 1})
RESIZED.action_profile_group.max_size = 5
OURS: dict[str, tuple[Write, p4rt.Entity, int]] = {
    "a member of a group": (deletion, MADE.member(SPREAD, 1, SEND), code.FAILED_PRECONDITION),
    "a member of an entry": (deletion, MADE.member(SHARED, 1, SEND), code.FAILED_PRECONDITION),
    "a group of an entry": (deletion, MADE.group(SPREAD, 1, {}), code.FAILED_PRECONDITION),
    "an entry for no such member": (
        insertion, MADE.entry("Enter.kinds", {"hdr.flow.kind": 6}, member=99), code.NOT_FOUND,
    ),
    "an entry for no such group": (
        insertion, MADE.entry("Enter.spreading", {}, 2, group=9), code.NOT_FOUND,
    ),
    "a set of too much weight": (
        insertion, MADE.entry("Enter.choosing", KIND, chosen=[(SEND, 9)]), code.INVALID_ARGUMENT,
    ),
    "a default": (modification, DEFAULT, code.PERMISSION_DENIED),
    "a port to watch": (insertion, WATCHING, code.UNIMPLEMENTED),
    "a port to watch in a set": (insertion, WATCHED_SET, code.UNIMPLEMENTED),
    "a group without a selector": (insertion, GROUPLESS, code.INVALID_ARGUMENT),
    "no number": (insertion, NUMBERLESS, code.INVALID_ARGUMENT),
    "another size": (modification, RESIZED, code.INVALID_ARGUMENT),
    "an empty set": (
        insertion, MADE.entry("Enter.choosing", KIND, chosen=[]), code.INVALID_ARGUMENT,
    ),
    "more weight than the profile": (
        insertion, MADE.group(SPREAD, 2, {1: 127}), code.RESOURCE_EXHAUSTED,
    ),
    "a weight beyond all bounds": (
        insertion, MADE.group(SPREAD, 2, {1: (1 << 31) - 1}), code.RESOURCE_EXHAUSTED,
    ),
    "a member too many": (insertion, MADE.member(SHARED, 17, SEND), code.RESOURCE_EXHAUSTED),
}  # fmt: skip


@pytest.mark.parametrize("what", OURS)
def test_what_is_in_use_or_too_much_is_refused(embedded: Connection, what: str) -> None:
    """As the specification says; BMv2 has other codes for some of it, or accepts it."""
    write, entity, expected = OURS[what]
    embedded.write(
        [
            *members(SPREAD, 1),
            *members(SHARED, *range(1, 17)),
            insertion(MADE.group(SPREAD, 1, {1: 2})),
            insertion(MADE.entry("Enter.kinds", KIND, member=1)),
            insertion(MADE.entry("Enter.spreading", {}, 1, group=1)),
        ]
    )
    assert refusal(embedded, write(entity)) == expected


def test_a_set_may_take_the_place_of_another_where_there_is_no_room_for_one_more(
    embedded: Connection,
) -> None:
    def entry(kind: int, weight: int) -> p4rt.Entity:
        chosen = [(SEND, 1), (OTHER, weight - 1)]
        return MADE.entry("Enter.choosing", {"hdr.flow.kind": kind}, chosen=chosen)

    embedded.write([insertion(entry(kind, 8)) for kind in range(8)])  # 64, the selector's size
    embedded.write([modification(entry(3, 8)), modification(entry(3, 7))])
    assert refusal(embedded, insertion(entry(9, 2))) == code.RESOURCE_EXHAUSTED
    embedded.write([modification(entry(3, 6)), insertion(entry(9, 2))])
    assert refusal(embedded, modification(entry(9, 3))) == code.RESOURCE_EXHAUSTED


def test_packets_follow_what_is_written(device: Device, embedded: Connection) -> None:
    def left() -> list[tuple[int, int]]:
        return [(port, frame[7]) for port, frame in device.inject(1, FRAME)]

    embedded.write([*members(SHARED, 1, 2), insertion(MADE.entry("Enter.kinds", KIND, member=1))])
    assert left() == [(3, 7)]
    embedded.write([modification(MADE.member(SHARED, 1, OTHER))])
    assert left() == [(4, 8)]
    embedded.write([modification(MADE.entry("Enter.kinds", KIND, member=2))])
    assert left() == [(3, 7)]
    embedded.write([deletion(MADE.member(SHARED, 1, OTHER))])
    embedded.write([deletion(MADE.entry("Enter.kinds", KIND))])
    assert left() == [(1, 0)]
    embedded.write([*members(SPREAD, 1), insertion(MADE.group(SPREAD, 1, {}))])
    embedded.write([insertion(MADE.entry("Enter.spreading", {}, 1, group=1))])
    assert left() == [(1, 0)]  # an empty group does nothing
    embedded.write([modification(MADE.group(SPREAD, 1, {1: 5}))])
    assert left() == [(3, 7)]
    chosen = MADE.entry("Enter.choosing", KIND, chosen=[(OTHER, 8)])
    embedded.write([insertion(chosen)])
    assert left() == [(4, 8)]
    embedded.write([deletion(chosen)])
    assert left() == [(3, 7)]
    embedded.write(members(ONCE, 1))  # nothing is left of the set


def test_the_same_program_again_may_keep_it_all(device: Device, embedded: Connection) -> None:
    embedded.write(
        [
            *[
                insertion(MADE.member(SPREAD, n, MADE.action("Enter.send", n, n)))
                for n in (3, 1, 2)
            ],
            insertion(MADE.group(SPREAD, 1, {1: 2, 2: 1, 3: 1})),
            insertion(MADE.entry("Enter.spreading", {}, 1, group=1)),
            insertion(MADE.entry("Enter.choosing", KIND, chosen=[(OTHER, 3)])),
        ]
    )
    queries = [p4rt.Entity(table_entry={}), every("action_profile_group")]
    queries.append(every("action_profile_member"))
    frames = [bytes([1, 37 * flow % 256, flow]) + bytes(11) for flow in range(32)]
    before = embedded.read(queries), [device.inject(1, one) for one in frames]
    assert len({port for [(port, _)] in before[1]}) == 3
    again = p4rt.SetForwardingPipelineConfigRequest(action="RECONCILE_AND_COMMIT", device_id=DEVICE)
    again.config.p4info.CopyFrom(P4INFO.message)
    again.config.p4_device_config = PROGRAM
    again.election_id.high, again.election_id.low = embedded.term, 1
    device.set_forwarding_pipeline_config(again)
    assert (embedded.read(queries), [device.inject(1, one) for one in frames]) == before
