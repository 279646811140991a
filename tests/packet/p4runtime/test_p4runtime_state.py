# SPDX-License-Identifier: Apache-2.0
"""Tests counters, registers, replication and packet I/O over P4Runtime."""

import pytest
from google.rpc import code_pb2 as code

from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4data_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_support import (
    CPU_PORT,
    DELETE,
    DEVICE,
    INSERT,
    MODIFY,
    Controller,
    action,
    entry,
    ethernet,
    exact,
    find,
    packet_out,
    value,
)

HOST = 0x0200_0000_00AA
ARRIVALS = find("counters", "arrivals").preamble.id


@pytest.fixture(scope="module")
def pushed():
    device = Device(DEVICE, CPU_PORT)
    controller = Controller(device)
    yield controller
    device.close()


@pytest.fixture
def controller(pushed):
    pushed.push()
    pushed.received.clear()
    pushed.device.on_output = None
    return pushed


# -- counters ------------------------------------------------------------------------------------


def counter(index=None, packets=None, octets=0):
    message = p4rt.CounterEntry(counter_id=ARRIVALS)
    if index is not None:
        message.index.index = index
    if packets is not None:
        message.data.packet_count, message.data.byte_count = packets, octets
    return message


def test_counters_count_and_are_set_one_or_all(controller):
    frame = ethernet(HOST)
    for port in (1, 1, 6):
        controller.device.inject(port, frame)
    assert controller.read(counter(1)) == [counter(1, 2, 2 * len(frame))]
    cells = controller.read(counter())
    assert [cell.index.index for cell in cells] == list(range(8))
    assert [cell.data.packet_count for cell in cells] == [0, 2, 0, 0, 0, 0, 1, 0]
    assert controller.read(p4rt.CounterEntry()) == cells

    controller.write((MODIFY, counter(1, 40, 1)))
    controller.write((MODIFY, counter(6)))  # no data: no change
    assert [c.data.packet_count for c in controller.read(counter())] == [0, 40, 0, 0, 0, 0, 1, 0]
    controller.write((MODIFY, counter(None, 9, 9)))
    assert [c.data.packet_count for c in controller.read(counter())] == [9] * 8


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (INSERT, counter(0, 1), code.INVALID_ARGUMENT),
        (DELETE, counter(0), code.INVALID_ARGUMENT),
        (MODIFY, counter(-1, 1), code.INVALID_ARGUMENT),
        (MODIFY, counter(8, 1), code.OUT_OF_RANGE),
        (MODIFY, counter(0, -1), code.INVALID_ARGUMENT),
        (MODIFY, p4rt.CounterEntry(counter_id=5), code.INVALID_ARGUMENT),
        (MODIFY, p4rt.CounterEntry(), code.INVALID_ARGUMENT),
    ],
)
def test_counter_errors(controller, kind, message, expected):
    assert controller.refusal((kind, message)) == expected


# -- registers -----------------------------------------------------------------------------------


def register(name, index=None, data=None):
    message = p4rt.RegisterEntry(register_id=find("registers", name).preamble.id)
    if index is not None:
        message.index.index = index
    if data is not None:
        message.data.bitstring = data
    return message


def test_registers_are_written_for_the_program_and_read_from_it(controller):
    wide = (1 << 2047) | 0xABCD
    controller.write((MODIFY, register("wide", 0, value(wide))))
    controller.device.inject(2, ethernet(HOST, source=0x0203_1122_3344))
    assert controller.read(register("wide", 1)) == [register("wide", 1, value(wide + 1))]
    assert controller.read(register("last", 2)) == [register("last", 2, value(0x1122_3344))]
    assert controller.read(register("last")) == [
        register("last", index, value(0x1122_3344 if index == 2 else 0)) for index in range(4)
    ]


def test_signed_registers_keep_their_sign(controller):
    controller.write((MODIFY, register("signed_cells", 0, b"\x80")))  # -128
    controller.device.inject(2, ethernet(HOST))
    assert controller.read(register("signed_cells", 1)) == [
        register("signed_cells", 1, b"\xff\x7f")  # -129
    ]


def test_a_register_without_index_is_written_whole(controller):
    controller.write((MODIFY, register("last", None, b"\x07")))
    assert [cell.data.bitstring for cell in controller.read(register("last"))] == [b"\x07"] * 4


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (INSERT, register("last", 0, b"\1"), code.INVALID_ARGUMENT),
        (MODIFY, register("last", 0), code.INVALID_ARGUMENT),
        (MODIFY, register("last", -1, b"\1"), code.INVALID_ARGUMENT),
        (MODIFY, register("last", 4, b"\1"), code.OUT_OF_RANGE),
        (MODIFY, register("last", 0, b"\1\0\0\0\0"), code.OUT_OF_RANGE),
        (MODIFY, register("signed_cells", 0, b"\x08\x00"), code.OUT_OF_RANGE),
        (
            MODIFY,
            p4rt.RegisterEntry(
                register_id=find("registers", "last").preamble.id,
                data=p4data_pb2.P4Data(bool=True),
            ),
            code.INVALID_ARGUMENT,
        ),
    ],
)
def test_register_errors(controller, kind, message, expected):
    assert controller.refusal((kind, message)) == expected


# -- replication ---------------------------------------------------------------------------------


def group(number, *replicas, metadata=b""):
    message = p4rt.MulticastGroupEntry(multicast_group_id=number, metadata=metadata)
    for port, instance in replicas:
        message.replicas.add(port=value(port), instance=instance)
    return message


def session(number, *replicas, **fields):
    message = p4rt.CloneSessionEntry(session_id=number, **fields)
    for port, instance in replicas:
        message.replicas.add(port=value(port), instance=instance)
    return message


def flooded(controller, number):
    key = {"destination": exact(HOST), "port": exact(1)}
    controller.write((INSERT, entry("bridge", key, action("flood", group=number))))


def test_a_group_sends_one_copy_per_replica(controller):
    flooded(controller, 4)
    frame = ethernet(HOST)
    assert controller.device.inject(1, frame) == []
    # p4rt_switch marks copies with their instance in the destination's last two bytes.
    copy = {rid: ethernet(HOST & ~0xFFFF | rid) for rid in (1, 2, 9)}
    controller.write((INSERT, group(4, (2, 1), (3, 2), (3, 9))))
    sent = controller.device.inject(1, frame)
    assert sorted(sent) == [(2, copy[1]), (3, copy[2]), (3, copy[9])]
    controller.write((MODIFY, group(4, (3, 2))))
    assert controller.device.inject(1, frame) == [(3, copy[2])]
    controller.write((DELETE, group(4)))
    assert controller.device.inject(1, frame) == []


def test_a_clone_session_sends_copies_cut_to_length(controller):
    key = {"destination": exact(HOST), "port": exact(1)}
    controller.write((INSERT, entry("bridge", key, action("mirror", port=2))))
    frame = ethernet(HOST, payload=b"x" * 50)
    assert controller.device.inject(1, frame) == [(2, frame)]
    controller.write((INSERT, session(7, (5, 0), packet_length_bytes=20)))
    sent = controller.device.inject(1, frame)
    assert sorted(sent) == [(2, frame), (5, frame[:20])]
    controller.write((MODIFY, session(7, (6, 0))))
    assert sorted(controller.device.inject(1, frame)) == [(2, frame), (6, frame)]
    controller.write((DELETE, session(7)))
    assert controller.device.inject(1, frame) == [(2, frame)]


def test_groups_and_sessions_read_back_as_written(controller):
    one, two = group(1, (1, 1), metadata=b"m"), group(0xFFFF, (510, 0xFFFF), (0, 0))
    mirror = session(9, (3, 4), class_of_service=2, packet_length_bytes=99)
    # p4runtime-shell still gives ports in the deprecated field, and looks for them there.
    deprecated = p4rt.MulticastGroupEntry(multicast_group_id=5)
    deprecated.replicas.add(egress_port=3, instance=1)
    controller.write((INSERT, one), (INSERT, two), (INSERT, mirror), (INSERT, deprecated))
    assert controller.read(p4rt.MulticastGroupEntry()) == [one, two, deprecated]
    assert controller.read(group(0xFFFF)) == [two]
    assert controller.read(p4rt.CloneSessionEntry()) == [mirror]
    assert controller.read_refusal(group(2)) == code.NOT_FOUND
    assert controller.read_refusal(session(2)) == code.NOT_FOUND


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (INSERT, group(0, (1, 1)), code.INVALID_ARGUMENT),
        (INSERT, group(0x10000, (1, 1)), code.OUT_OF_RANGE),
        (INSERT, group(2, (1, 1), (1, 1)), code.INVALID_ARGUMENT),
        (INSERT, group(2, (511, 1)), code.INVALID_ARGUMENT),
        (INSERT, group(2, (1, 0x10000)), code.INVALID_ARGUMENT),
        (
            INSERT,
            p4rt.MulticastGroupEntry(multicast_group_id=2, replicas=[p4rt.Replica()]),
            code.INVALID_ARGUMENT,
        ),
        (MODIFY, group(2, (1, 1)), code.NOT_FOUND),
        (DELETE, group(2), code.NOT_FOUND),
        (INSERT, session(0, (1, 1)), code.INVALID_ARGUMENT),
        (INSERT, session(2, (1, 1), packet_length_bytes=-1), code.INVALID_ARGUMENT),
        (INSERT, session(2, (1, 1), class_of_service=8), code.INVALID_ARGUMENT),
        (MODIFY, session(2, (1, 1)), code.NOT_FOUND),
        (DELETE, session(2), code.NOT_FOUND),
        (INSERT, p4rt.PacketReplicationEngineEntry(), code.INVALID_ARGUMENT),
        (INSERT, p4rt.MeterEntry(meter_id=1), code.INVALID_ARGUMENT),
        (INSERT, p4rt.ActionProfileMember(), code.INVALID_ARGUMENT),
        (INSERT, p4rt.DigestEntry(), code.INVALID_ARGUMENT),
        (INSERT, p4rt.ValueSetEntry(), code.INVALID_ARGUMENT),
    ],
)
def test_replication_errors_and_what_this_target_has_not(controller, kind, message, expected):
    assert controller.refusal((kind, message)) == expected


def test_the_same_group_twice_already_exists(controller):
    controller.write((INSERT, group(3, (1, 1))))
    assert controller.refusal((INSERT, group(3, (2, 1)))) == code.ALREADY_EXISTS
    assert controller.read(group(3)) == [group(3, (1, 1))]


def test_everything_can_be_read_in_one_request(controller):
    # The P4Runtime spec's way to get the whole state, kinds included that a program has none of.
    flooded(controller, 1)
    found = controller.read(
        p4rt.ExternEntry(),
        p4rt.TableEntry(),
        p4rt.ActionProfileMember(),
        p4rt.ActionProfileGroup(),
        p4rt.MeterEntry(),
        p4rt.DirectMeterEntry(),
        p4rt.CounterEntry(),
        p4rt.DirectCounterEntry(),
        p4rt.MulticastGroupEntry(),
        p4rt.ValueSetEntry(),
        p4rt.RegisterEntry(),
        p4rt.DigestEntry(),
    )
    kinds = [type(message).__name__ for message in found]
    assert kinds.count("TableEntry") == 3
    assert kinds.count("CounterEntry") == 8
    assert kinds.count("DirectCounterEntry") == 1
    assert kinds.count("RegisterEntry") == 8


# -- packet I/O ----------------------------------------------------------------------------------


def test_a_packet_out_goes_where_its_metadata_says(controller):
    outputs = []
    controller.device.on_output = outputs.extend
    frame = ethernet(HOST)
    message = packet_out(frame, egress_port=3, group=0)
    controller.stream.receive(p4rt.StreamMessageRequest(packet=message))
    assert outputs == [(3, frame)]
    assert controller.received == []


def test_a_packet_to_the_cpu_port_is_a_packet_in(controller):
    key = {"destination": exact(HOST), "port": exact(300)}
    controller.write((INSERT, entry("bridge", key, action("to_controller", reason=0x55))))
    frame = ethernet(HOST)
    assert controller.device.inject(300, frame) == []
    (message,) = controller.received
    assert message.packet.payload == frame
    assert [(m.metadata_id, m.value) for m in message.packet.metadata] == [
        (1, value(300)),
        (2, value(0x55)),
    ]


def test_packet_ins_without_a_primary_are_counted_as_lost():
    device = Device(DEVICE, CPU_PORT)
    controller = Controller(device)
    controller.push()
    key = {"destination": exact(HOST), "port": exact(1)}
    controller.write((INSERT, entry("bridge", key, action("to_controller", reason=1))))
    controller.stream.close()
    assert device.inject(1, ethernet(HOST)) == []
    assert (device.packet_ins, device.packet_ins_lost) == (0, 1)
    device.close()


def _with(message, **metadata):
    message.metadata.add(**metadata)
    return message


@pytest.mark.parametrize(
    "message",
    [
        packet_out(b"x" * 14, egress_port=3),
        _with(packet_out(b"x" * 14, egress_port=3, group=0), metadata_id=3, value=b"\1"),
        _with(packet_out(b"x" * 14, egress_port=3, group=0), metadata_id=2, value=b"\1"),
        packet_out(b"x" * 14, egress_port=3, group=200),
        _with(packet_out(b"x" * 14, egress_port=3), metadata_id=2, value=b""),
    ],
    ids=["missing", "unknown", "twice", "too wide", "empty"],
)
def test_a_packet_out_with_wrong_metadata_is_dropped_and_reported(controller, message):
    outputs = []
    controller.device.on_output = outputs.extend
    controller.stream.receive(p4rt.StreamMessageRequest(packet=message))
    assert outputs == []
    (answer,) = controller.received
    assert answer.error.canonical_code == code.INVALID_ARGUMENT
    assert answer.error.packet_out.packet_out == message


def test_without_a_cpu_port_there_is_no_packet_out():
    device = Device(DEVICE)
    controller = Controller(device)
    controller.push()
    message = packet_out(ethernet(HOST), egress_port=3, group=0)
    controller.stream.receive(p4rt.StreamMessageRequest(packet=message))
    assert controller.received[0].error.canonical_code == code.FAILED_PRECONDITION
    device.close()


def test_a_digest_ack_names_no_digest(controller):
    controller.stream.receive(p4rt.StreamMessageRequest(digest_ack=p4rt.DigestListAck(digest_id=1)))
    assert controller.received[0].error.canonical_code == code.INVALID_ARGUMENT
    assert controller.received[0].error.WhichOneof("details") == "digest_list_ack"
