# SPDX-License-Identifier: GPL-2.0-only
"""Tests parser value sets over P4Runtime, which BMv2 has only over Thrift."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.rpc import code_pb2 as code

from controller.p4rt.connection import DeviceConnection, WriteError
from controller.p4rt.entries import deletion, insertion
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import DEVICE, program_files
from tests.packet.differential.headers import value_set

PROGRAM, P4INFO = program_files(HERE / "valuesets.json")


@pytest.fixture
def switch(device: Device) -> Iterator[DeviceConnection]:
    connection = DeviceConnection("embedded", device)
    connection.open()
    connection.push(P4INFO.message, PROGRAM)
    yield connection
    connection.close()


def way(device: Device, kind: int, tag: int = 0, behind: bytes = bytes(9)) -> int:
    """Where the parser went, by what the program says."""
    frame = bytes([kind]) + (tag << 4).to_bytes(2, "big") + b"\0" + behind
    [(_, out)] = device.inject(1, frame)
    return out[3]


def asked(number: int = 0) -> p4rt.Entity:
    return p4rt.Entity(value_set_entry={"value_set_id": number})


def test_packets_follow_what_is_written(device: Device, switch: DeviceConnection) -> None:
    assert [way(device, kind) for kind in (1, 2, 3)] == [0, 0, 0]
    switch.write([value_set(P4INFO, "kinds", [(1,), (2,)])])
    assert [way(device, kind) for kind in (1, 2, 3)] == [1, 1, 0]
    assert way(device, 1, behind=b"\2\0\1\0\3\0") == 3
    switch.write([value_set(P4INFO, "kinds", [(2,), (3,)])])
    assert [way(device, kind) for kind in (1, 2, 3)] == [0, 1, 1]
    switch.write([value_set(P4INFO, "kinds", [])])
    assert [way(device, kind) for kind in (1, 2, 3)] == [0, 0, 0]


def test_a_part_of_a_member_may_be_masked(device: Device, switch: DeviceConnection) -> None:
    switch.write([value_set(P4INFO, "pairs", [(0x123, (0x10, 0xF0)), (0x456, (0x20, 0xF0))])])
    assert [way(device, 0x10, tag) for tag in (0x123, 0x456, 0x124)] == [0xC0, 0x40, 0x40]
    everything = value_set(P4INFO, "pairs", [(0x456, (0, 0))])
    del everything.entity.value_set_entry.members[0].match[1]  # any kind
    switch.write([everything])
    assert [way(device, 0x10, tag) for tag in (0x123, 0x456)] == [0x40, 0xC0]


def test_sets_read_back(switch: DeviceConnection) -> None:
    kinds = value_set(P4INFO, "kinds", [(7,), (9,)])
    pairs = value_set(P4INFO, "pairs", [(1, (0x30, 0xF0))])
    switch.write([kinds, pairs])
    assert switch.read([asked(kinds.entity.value_set_entry.value_set_id)]) == [kinds.entity]
    found = switch.read([asked()])
    assert len(found) == 3
    assert kinds.entity in found
    assert pairs.entity in found
    empty = value_set(P4INFO, "kinds", [])
    switch.write([empty])
    assert empty.entity in switch.read([asked()])


def test_what_makes_no_set_is_refused_and_changes_nothing(switch: DeviceConnection) -> None:
    kinds = value_set(P4INFO, "kinds", [(7,)])
    switch.write([kinds])
    unknown = value_set(P4INFO, "kinds", [(1,)])
    unknown.entity.value_set_entry.value_set_id = 5
    wrong = value_set(P4INFO, "kinds", [((1, 1),)])
    refused = {
        code.INVALID_ARGUMENT: [
            insertion(kinds.entity),
            deletion(kinds.entity),
            value_set(P4INFO, "kinds", [(256,)]),
            unknown,
            wrong,
        ],
        code.ALREADY_EXISTS: [value_set(P4INFO, "kinds", [(1,), (1,)])],
        code.RESOURCE_EXHAUSTED: [value_set(P4INFO, "kinds", [(one,) for one in range(5)])],
    }
    for expected, updates in refused.items():
        for update in updates:
            with pytest.raises(WriteError) as failed:
                switch.write([update])
            assert [one.code for one in failed.value.failures] == [expected]
    assert kinds.entity in switch.read([asked()])


def test_the_same_program_again_may_keep_them(device: Device, switch: DeviceConnection) -> None:
    switch.write([value_set(P4INFO, "kinds", [(1,)])])
    before = switch.read([asked()])
    again = p4rt.SetForwardingPipelineConfigRequest(action="RECONCILE_AND_COMMIT", device_id=DEVICE)
    again.config.p4info.CopyFrom(P4INFO.message)
    again.config.p4_device_config = PROGRAM
    again.election_id.high, again.election_id.low = switch.term, 1
    device.set_forwarding_pipeline_config(again)
    assert switch.read([asked()]) == before
    assert [way(device, kind) for kind in (1, 2)] == [1, 0]
