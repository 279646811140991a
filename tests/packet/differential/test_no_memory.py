# SPDX-License-Identifier: GPL-2.0-only
"""Tests updates under allocation failure: an update fails with RESOURCE_EXHAUSTED and has no
effect, whichever allocation fails."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from google.rpc import code_pb2 as code

from controller.p4rt.connection import Connection, DeviceConnection, WriteError
from controller.p4rt.entries import insertion, modification
from switch.compiler import FLAGS
from switch.p4runtime import loading
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.pipeline import Pipeline
from tests.p4 import HERE
from tests.packet.differential.case import program_files
from tests.packet.differential.profiles import SHARED, SPREAD, Profiles

PROGRAM, P4INFO = program_files(HERE / "profiles.json")
MADE = Profiles(P4INFO)
SCARCE = Path(__file__).parent / "scarce.h"
SCARCE_FLAGS = (
    *FLAGS, "-D_GNU_SOURCE=", "-include", str(SCARCE),
    f"-DSCARCE={zlib.crc32(SCARCE.read_bytes())}",  # another header, another library
)  # fmt: skip


@pytest.fixture
def connection(device: Device) -> Iterator[Connection]:
    """Pushes programs that may lack memory."""
    made = DeviceConnection("scarce", device)
    made.open()
    with mock.patch.object(loading, "Pipeline", partial(Pipeline, flags=SCARCE_FLAGS)):
        yield made
    made.close()


def allocations_left(device: Device) -> ctypes.c_long:
    assert device.pipeline is not None
    return ctypes.c_long.in_dll(device.pipeline.native, "allocations_left")


def send(port: int) -> p4rt.TableAction:
    return MADE.action("Enter.send", port, port)


def spreading(value: int, mask: int, **chosen: int) -> p4rt.Entity:
    return MADE.entry("Enter.spreading", {"hdr.flow.source": (value & mask, mask)}, 9, **chosen)


# Entries of eight masks: so many that lookups go through the masks' filters.
FILLED = [
    *(insertion(MADE.member(SPREAD, number, send(number))) for number in range(1, 9)),
    *(
        insertion(spreading((value + 1) << place, 0x1F << place, member=place // 3 + 1))
        for place in range(0, 24, 3)
        for value in range(9)
    ),
]
BESIDE = modification(MADE.member(SPREAD, 1, send(1)))  # takes no memory
# What is written while memory is scarce, and how many allocations it makes at least.
STEPS: list[tuple[p4rt.Update, int]] = [
    (insertion(spreading(0x50000000, 0xF0000000, member=8)), 5),  # a ninth mask
    (insertion(MADE.member(SPREAD, 20, send(6))), 0),
    (insertion(MADE.group(SPREAD, 1, {1: 8, 20: 3})), 2),
    (modification(MADE.group(SPREAD, 1, {1: 3, 20: 30})), 2),
    (insertion(spreading(0x60000000, 0xFF000000, group=1)), 3),
    (insertion(MADE.entry("Enter.choosing", {"hdr.flow.kind": 7}, chosen=[(send(3), 8)])), 5),
    (modification(MADE.entry("Enter.choosing", {"hdr.flow.kind": 7}, chosen=[(send(4), 8)])), 1),
    (insertion(MADE.member(SHARED, 1, send(5))), 1),
]
FRAMES = [
    bytes([kind, 0, flow]) + source.to_bytes(4, "big") + bytes(7)
    for kind in (7, 8)
    for flow in (1, 2)
    for source in (*(1 << place for place in range(24)), 0x50000000, 0x60000000)
]
EVERYTHING = [
    p4rt.Entity(table_entry={}),
    p4rt.Entity(action_profile_member={}),
    p4rt.Entity(action_profile_group={}),
]


def test_updates_without_memory_change_nothing(device: Device, connection: Connection) -> None:
    connection.push(P4INFO.message, PROGRAM)
    left = allocations_left(device)

    def state() -> tuple[object, Sequence[object]]:
        return connection.read(EVERYTHING), [device.inject(1, one) for one in FRAMES]

    connection.write(FILLED)
    for step, least in STEPS:
        before, failures = state(), 0
        while True:
            left.value = failures + 1
            try:
                connection.write([step, BESIDE])
            except WriteError as error:
                [failure] = error.failures
                assert (failure.code, failure.text[:9]) == (code.RESOURCE_EXHAUSTED, "no memory")
                assert left.value == 0
                failures += 1
                assert state() == before
            else:
                break
        left.value = 0
        assert failures >= least
        assert state() != before


def test_a_value_set_without_memory_reads_as_it_is(device: Device, connection: Connection) -> None:
    program, p4info = program_files(HERE / "valuesets.json")
    connection.push(p4info.message, program)
    left = allocations_left(device)
    [number] = [
        one.preamble.id for one in p4info.message.value_sets if one.preamble.alias == "kinds"
    ]

    def holding(*values: int) -> p4rt.Update:
        entity = p4rt.Entity(value_set_entry={"value_set_id": number})
        for value in values:
            match = entity.value_set_entry.members.add().match.add(field_id=1)
            match.exact.value = bytes([value])
        return modification(entity)

    def seen() -> set[int]:
        """Kinds whose packets' items are parsed: the parser counts them in the fourth byte."""
        frames = [bytes([kind, 0, 0, 0, 1, 0]) for kind in range(1, 8)]
        outputs = [device.inject(1, one) for one in frames]
        return {frame[0] for [(_, frame)] in outputs if frame[3]}

    def members_read() -> set[int]:
        [found] = connection.read([p4rt.Entity(value_set_entry={"value_set_id": number})])
        return {one.match[0].exact.value[0] for one in found.value_set_entry.members}

    connection.write([holding(1, 2)])
    failures = 0
    while True:
        left.value = failures + 1
        try:
            connection.write([holding(5, 6, 7)])
        except WriteError as error:
            [failure] = error.failures
            assert failure.code == code.RESOURCE_EXHAUSTED
            assert seen() == members_read() < {1, 2, 5, 6, 7}
            failures += 1
            connection.write([holding(1, 2)])
        else:
            break
    left.value = 0
    assert failures >= 3
    assert seen() == members_read() == {5, 6, 7}
