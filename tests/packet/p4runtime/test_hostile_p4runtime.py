# SPDX-License-Identifier: Apache-2.0
"""Tests hostile P4Runtime clients: noise, slow readers, endless roles. The primary client keeps
working."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2 as code

from switch.p4runtime.arbitration import LONGEST_ROLE, MAX_ROLES
from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.service.server import serve
from switch.p4runtime.service.servicer import MAX_WAITING, P4RuntimeServicer
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.packet.p4runtime.p4rt_support import (
    DEVICE,
    INSERT,
    Controller,
    action,
    arbitration,
    entry,
    exact,
    write_request,
)

REQUESTS = int(os.environ.get("RACKHUB_HOSTILE_CALLS", "400"))
SERVICE = p4rt.DESCRIPTOR.services_by_name["P4Runtime"]
ENTRY = entry("bridge", {"destination": exact(5), "port": exact(1)}, action("forward", port=2))


@contextlib.contextmanager
def listening() -> Iterator[tuple[Controller, str]]:
    """A device with a program, its primary client, and its socket."""
    device = Device(DEVICE)
    with tempfile.TemporaryDirectory(prefix="rh-") as directory:
        server = serve(device, f"unix:{directory}/p4rt")
        try:
            controller = Controller(device)
            controller.push()
            yield controller, f"{directory}/p4rt"
        finally:
            server.stop()
            device.close()


def works(controller: Controller) -> None:
    controller.write((INSERT, ENTRY))
    assert controller.read(entry("bridge")) == [ENTRY]


def mutated(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    kind = draw.randrange(6)
    if kind == 0:
        return bytes(changed[: draw.randrange(len(changed))])
    if kind == 1:
        return bytes(changed + changed)
    return draw.randbytes(draw.randrange(64)) if kind == 2 else bytes(changed)


def test_requests_of_noise_are_refused_by_every_call() -> None:
    draw = random.Random(1)
    seen: Counter[str] = Counter()
    seed = {
        "Write": write_request((INSERT, ENTRY), election=(0, 0)),
        "Read": p4rt.ReadRequest(device_id=DEVICE, entities=[p4rt.Entity(table_entry=ENTRY)]),
        "SetForwardingPipelineConfig": p4rt.SetForwardingPipelineConfigRequest(
            device_id=DEVICE, action=1, config=p4rt.ForwardingPipelineConfig(p4_device_config=b"{}")
        ),
        "GetForwardingPipelineConfig": p4rt.GetForwardingPipelineConfigRequest(device_id=DEVICE),
        "StreamChannel": arbitration((0, 0)),
        "Capabilities": p4rt.CapabilitiesRequest(),
    }
    assert seed.keys() == set(SERVICE.methods_by_name), "a call without a request here"
    with listening() as (controller, path), grpc.insecure_channel(f"unix:{path}") as channel:
        for _ in range(REQUESTS):
            name = draw.choice(sorted(seed))
            data = mutated(draw, seed[name].SerializeToString() or b"\0")
            method = SERVICE.methods_by_name[name]
            status, details, noted = answer(channel, method, data)
            seen[status] += 1
            if status == "INTERNAL":
                assert "deserializing" in details, (name, data)
            if status == "UNKNOWN" and not method.client_streaming:  # of a batch, or a defect
                assert "grpc-status-details-bin" in noted, (name, data)
        works(controller)
    assert seen["PERMISSION_DENIED"]
    assert seen["INTERNAL"]


def answer(channel: grpc.Channel, method: Any, data: bytes) -> tuple[str, str, dict[str, Any]]:
    """Status, text and trailing metadata of a call with these bytes."""
    full = f"/{SERVICE.full_name}/{method.name}"
    try:
        if method.client_streaming:
            list(channel.stream_stream(full)(iter([data])))
        elif method.server_streaming:
            list(channel.unary_stream(full)(data))
        else:
            channel.unary_unary(full)(data)
    except grpc.RpcError as error:
        return error.code().name, error.details() or "", dict(error.trailing_metadata() or ())
    return "OK", "", {}


@pytest.mark.parametrize("first", [b"", b"\xff" * 4096, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_silent_connections_do_not_block_others(first: bytes) -> None:
    with listening() as (controller, path), contextlib.ExitStack() as stack:
        for _ in range(200):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(path)
            one.sendall(first)
        with grpc.insecure_channel(f"unix:{path}") as channel:
            full = f"/{SERVICE.full_name}/Capabilities"
            assert channel.unary_unary(full)(b"")
        works(controller)


def test_roles_are_limited_in_number_and_length() -> None:
    """A role stays known when its clients have left, so their number has to have an end."""
    with listening() as (controller, _):
        refused: Counter[int] = Counter()
        for number in range(10 * MAX_ROLES):
            request = arbitration((0, 1))
            request.arbitration.role.name = f"role{number}"
            stream = controller.device.open_stream(lambda _: None)
            try:
                stream.receive(request)
            except P4RuntimeError as error:
                refused[error.code] += 1
            stream.close()
        # The default role is one of them.
        assert refused == {code.RESOURCE_EXHAUSTED: 9 * MAX_ROLES + 1}
        request.arbitration.role.name = "x" * (LONGEST_ROLE + 1)
        with pytest.raises(P4RuntimeError) as caught:
            controller.device.open_stream(lambda _: None).receive(request)
        assert caught.value.code == code.INVALID_ARGUMENT
        assert len(caught.value.message) < 200
        works(controller)


def test_notifications_to_slow_client_are_dropped() -> None:
    """Each change of the primary is sent to all: clients that never read must not fill memory."""
    with listening() as (controller, _):
        servicer = P4RuntimeServicer(controller.device)
        requests: queue.Queue[p4rt.StreamMessageRequest | None] = queue.Queue()
        requests.put(arbitration((0, 0)))
        slow = servicer.StreamChannel(iter(requests.get, None))
        assert next(slow).arbitration.status.code == code.ALREADY_EXISTS
        for number in range(3 * MAX_WAITING):
            controller.stream.receive(arbitration((1, number)))
        for _ in range(2 * MAX_WAITING):
            assert next(slow).HasField("arbitration")
        with pytest.raises(P4RuntimeError) as caught:
            next(slow)
        assert caught.value.code == code.RESOURCE_EXHAUSTED
        requests.put(None)
        controller.device.write(write_request((INSERT, ENTRY), election=(1, 3 * MAX_WAITING - 1)))
