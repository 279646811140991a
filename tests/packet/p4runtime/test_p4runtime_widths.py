# SPDX-License-Identifier: Apache-2.0
"""Tests differences between a P4Info and its program: open or translated widths, omitted
parameters and tables, headers that are not whole bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.rpc import code_pb2 as code

from switch.loader import parse_program
from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.p4info.program_check import bind
from switch.p4runtime.p4info.schema import Field, Schema
from switch.p4runtime.p4info.values import encode_unsigned
from switch.p4runtime.packet_io import decode_packet_in, encode_packet_out
from switch.p4runtime.stubs import p4info_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.differential.case import program_files
from tests.packet.differential.headers import sets
from tests.packet.p4runtime.p4rt_support import (
    DEVICE,
    INSERT,
    MODIFY,
    Controller,
    action,
    config,
    config_request,
    entry,
    ethernet,
    exact,
)

HOST = 0xAABBCCDD
NARROW = entry("bridge", {"destination": exact(HOST), "port": exact(1)}, action("forward", port=2))
WIDE = entry(
    "bridge", {"destination": exact(HOST << 16), "port": exact(1)}, action("forward", port=2)
)


@pytest.fixture
def controller() -> Iterator[Controller]:
    device = Device(DEVICE)
    yield Controller(device)
    device.close()


def pushed(controller: Controller, settings: p4rt.ForwardingPipelineConfig) -> None:
    controller.device.set_forwarding_pipeline_config(config_request("VERIFY_AND_COMMIT", settings))


def table(info: p4info_pb2.P4Info, alias: str) -> p4info_pb2.Table:
    [found] = [one for one in info.tables if one.preamble.alias == alias]
    return found


def translated(info: p4info_pb2.P4Info) -> p4info_pb2.P4NewTypeTranslation:
    """The key of `bridge` becomes of a translated type."""
    field = table(info, "bridge").match_fields[0]
    field.type_name.name = "host_t"
    return info.type_info.new_types["host_t"].translated_type


def test_a_width_that_is_left_open_is_the_programs(controller: Controller) -> None:
    settings = config()
    table(settings.p4info, "bridge").match_fields[0].bitwidth = 0
    pushed(controller, settings)
    controller.write((INSERT, WIDE))
    frame = ethernet(HOST << 16)
    assert controller.device.inject(1, frame) == [(2, frame)]
    over = {"destination": exact(1 << 48), "port": exact(1)}
    message = entry("bridge", over, action("forward", port=2))
    assert controller.refusal((INSERT, message)) == code.INVALID_ARGUMENT


def test_a_translated_width_is_the_control_planes(controller: Controller) -> None:
    settings = config()
    translated(settings.p4info).sdn_bitwidth = 32
    table(settings.p4info, "bridge").match_fields[0].bitwidth = 32
    pushed(controller, settings)
    controller.write((INSERT, NARROW))
    frame = ethernet(HOST)
    assert controller.device.inject(1, frame) == [(2, frame)]
    assert controller.refusal((INSERT, WIDE)) == code.INVALID_ARGUMENT


def test_of_strings_only_the_entries_are_refused(controller: Controller) -> None:
    settings = config()
    translated(settings.p4info).sdn_string.SetInParent()
    table(settings.p4info, "bridge").match_fields[0].bitwidth = 0
    pushed(controller, settings)
    assert controller.refusal((INSERT, NARROW)) == code.UNIMPLEMENTED


def test_a_parameter_that_the_program_left_out_is_taken_and_not_passed(
    controller: Controller,
) -> None:
    settings = config()
    [forward] = [one for one in settings.p4info.actions if one.preamble.alias == "forward"]
    kept = [p4info_pb2.Action.Param.FromString(one.SerializeToString()) for one in forward.params]
    del forward.params[:]
    forward.params.add(id=9, name="unused", bitwidth=16)
    forward.params.extend(kept)
    pushed(controller, settings)
    assert controller.refusal((INSERT, NARROW)) == code.INVALID_ARGUMENT  # `unused` is missing
    full = p4rt.TableEntry.FromString(NARROW.SerializeToString())
    full.action.action.params.add(param_id=9, value=encode_unsigned(700))
    controller.write((INSERT, full))
    frame = ethernet(HOST)
    assert controller.device.inject(1, frame) == [(2, frame)]
    [read] = controller.read(entry("bridge"))
    given = {one.param_id: one.value for one in read.action.action.params}
    assert given[9] == encode_unsigned(700)
    assert len(given) == 2


def test_a_program_may_have_none_of_the_tables() -> None:
    """p4c optimises tables away whose entries can change nothing."""
    text, p4info = program_files(HERE / "varbits.json")
    info = p4info_pb2.P4Info.FromString(p4info.message.SerializeToString())
    gone = info.tables.add(size=16)
    gone.preamble.id, gone.preamble.name = 33554433, "Enter.gone"
    gone.match_fields.add(id=1, name="key", bitwidth=8, match_type="EXACT")
    program = parse_program(text)
    with pytest.raises(P4RuntimeError, match="the P4Info is of another program"):
        bind(Schema.of(info), program)
    kept = info.actions.add()  # what tells that it is of this one
    kept.preamble.id, kept.preamble.name = 16777217, next(iter(program.actions.values())).name
    bound = bind(Schema.of(info), program)
    assert bound.tables == {}
    with pytest.raises(P4RuntimeError, match=r"Enter\.gone, which the compiler left out"):
        bound.table(33554433)


def test_headers_that_are_not_whole_bytes_end_with_zeros() -> None:
    fields = (Field(1, "egress_port", 9), Field(2, "submit", 1), Field(3, "group", 8))
    schema = Schema({}, {}, {}, {}, {}, {}, {}, fields, fields, {})
    message = p4rt.PacketOut(payload=b"payload")
    for number, value in ((1, 0x101), (2, 1), (3, 0xA5)):
        message.metadata.add(metadata_id=number, value=encode_unsigned(value))
    frame = encode_packet_out(schema, message)
    # 1 0000 0001 | 1 | 1010 0101 | 00 0000
    assert frame == bytes([0b10000000, 0b11101001, 0b01000000]) + b"payload"
    back = decode_packet_in(schema, frame)
    assert back is not None
    assert back.payload == b"payload"
    assert [one.value for one in back.metadata] == [one.value for one in message.metadata]
    assert decode_packet_in(schema, frame[:2]) is None


def test_a_value_set_takes_ranges(controller: Controller) -> None:
    text, p4info = program_files(HERE / "valuesets.json")
    info = p4info_pb2.P4Info.FromString(p4info.message.SerializeToString())
    [kinds] = [one for one in info.value_sets if one.preamble.alias == "kinds"]
    kinds.match[0].match_type = p4info_pb2.MatchField.RANGE
    pushed(controller, p4rt.ForwardingPipelineConfig(p4info=info, p4_device_config=text))
    members = sets(p4info)[0].entity.value_set_entry
    del members.members[:]
    for low, high in ((0x20, 0x2F), (0x7F, 0x7F)):
        match = members.members.add().match.add(field_id=kinds.match[0].id)
        match.range.low, match.range.high = encode_unsigned(low), encode_unsigned(high)
    controller.write((MODIFY, members))
    assert controller.read(p4rt.ValueSetEntry(value_set_id=kinds.preamble.id)) == [members]
    pipeline = controller.device.pipeline
    assert pipeline is not None
    inside = set()
    for kind in range(256):
        [(_, out)] = pipeline.inject(1, bytes([kind]) + bytes(24))
        if out[3] == 1:  # so many items
            inside.add(kind)
    assert inside == {*range(0x20, 0x30), 0x7F}
