# SPDX-License-Identifier: Apache-2.0
"""Tests a controller with real interfaces: written entries apply to frames on the wire."""

import contextlib

import pytest

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.namespaces import needs_namespaces
from tests.packet.p4runtime.p4rt_support import (
    CPU_PORT,
    DEVICE,
    INSERT,
    JSON_PATH,
    P4INFO_PATH,
    action,
    entity,
    entry,
    ethernet,
    exact,
    packet_out,
)
from tests.packet.p4runtime.p4rt_targets import BOTH, running
from tests.packet.p4runtime.shell_client import ShellClient, ShellError, needs_shell
from tests.packet.ports.wires import wired

pytestmark = [needs_namespaces, needs_shell]

HOST, OTHER = 0x0200_0000_00AA, 0x0200_0000_00BB


@pytest.fixture(scope="module", params=BOTH)
def switch(request):
    """(kind, address, wires) of a switch with two ports in a namespace of its own."""
    with contextlib.ExitStack() as stack:
        inside, wires = stack.enter_context(wired())
        ports = ("-i", "1@sw1", "-i", "2@sw2")
        _, address, _ = stack.enter_context(running(request.param, *ports, prefix=inside))
        yield request.param, address, wires


@pytest.fixture
def client(switch):
    client = ShellClient(DEVICE, switch[1], (0, 1))
    try:
        client.set_fwd_pipe_config(P4INFO_PATH, JSON_PATH)
        yield client
    finally:
        client.tear_down()


@pytest.fixture
def wires(switch):
    return switch[2]


def insert(client, table, matches, act):
    message = entry(table, matches, act)
    client.write_update(p4rt.Update(type=INSERT, entity=entity(message)))


def test_an_entry_forwards_between_interfaces(client, wires):
    insert(
        client, "bridge", {"destination": exact(HOST), "port": exact(1)}, action("forward", port=2)
    )
    frame = ethernet(HOST, payload=bytes(50))
    wires.send(1, frame)
    assert wires.receive(2) == frame
    frame = ethernet(HOST, payload=bytes(1400))
    wires.send(1, frame)
    assert wires.receive(2) == frame


def test_packets_go_to_the_controller_and_come_from_it(client, wires):
    insert(
        client,
        "bridge",
        {"destination": exact(OTHER), "port": exact(2)},
        action("to_controller", reason=9),
    )
    frame = ethernet(OTHER, payload=bytes(50))
    wires.send(2, frame)
    message = client.get_stream_packet("packet", timeout=60)
    assert message is not None
    assert message.packet.payload == frame
    assert [m.value for m in message.packet.metadata] == [b"\2", b"\x09"]
    request = p4rt.StreamMessageRequest(packet=packet_out(frame, egress_port=1, group=0))
    client.send(request)
    assert wires.receive(1) == frame


def test_a_multicast_group_reaches_ports_and_controller(client, wires):
    group = p4rt.MulticastGroupEntry(multicast_group_id=3)
    for port in (1, 2, CPU_PORT):
        group.replicas.add(egress_port=port, instance=port)
    client.write_update(p4rt.Update(type=INSERT, entity=entity(group)))
    insert(
        client, "bridge", {"destination": exact(HOST), "port": exact(1)}, action("flood", group=3)
    )
    wires.send(1, ethernet(HOST, payload=bytes(50)))
    for port in (1, 2):
        assert wires.receive(port) == ethernet(HOST & ~0xFFFF | port, payload=bytes(50))
    message = client.get_stream_packet("packet", timeout=60)
    assert message.packet.payload == ethernet(HOST & ~0xFFFF | CPU_PORT, payload=bytes(50))


def test_another_push_clears_and_goes_on_on_the_same_interfaces(client, wires):
    key = {"destination": exact(HOST), "port": exact(1)}
    frame = ethernet(HOST, payload=bytes(50))
    insert(client, "bridge", key, action("forward", port=2))
    client.set_fwd_pipe_config(P4INFO_PATH, JSON_PATH)
    wires.send(1, frame)
    insert(client, "bridge", {**key, "destination": exact(OTHER)}, action("forward", port=2))
    wires.send(1, ethernet(OTHER, payload=bytes(50)))
    assert wires.receive(2) == ethernet(OTHER, payload=bytes(50))  # and not the first frame


def test_a_push_that_is_refused_leaves_the_old_program_forwarding(switch, client, wires, tmp_path):
    if switch[0] == "bmv2":
        pytest.skip("BMv2 says yes to this program and then forwards nothing")
    frame = ethernet(HOST, payload=bytes(50))
    insert(
        client, "bridge", {"destination": exact(HOST), "port": exact(1)}, action("forward", port=2)
    )
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(ShellError):
        client.set_fwd_pipe_config(P4INFO_PATH, broken)
    wires.send(1, frame)
    assert wires.receive(2) == frame
