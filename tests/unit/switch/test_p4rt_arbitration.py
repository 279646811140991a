# SPDX-License-Identifier: Apache-2.0
"""Tests client arbitration against the P4Runtime spec, section by section."""

import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2

from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt

DEVICE = 3


class Controller:
    """A stream and what it received."""

    def __init__(self, device, **arbitration):
        self.received = []
        self.stream = device.open_stream(self.received.append)
        if arbitration:
            self.arbitrate(**arbitration)

    def arbitrate(self, election_id=None, role=None, device_id=DEVICE, config=None):
        request = p4rt.StreamMessageRequest()
        request.arbitration.device_id = device_id
        if election_id is not None:
            request.arbitration.election_id.high, request.arbitration.election_id.low = election_id
        if role is not None:
            request.arbitration.role.name = role
        if config is not None:
            request.arbitration.role.config.CopyFrom(config)
        self.stream.receive(request)

    def take(self):
        """(status code, election id or None) of each message since the last take."""
        result, self.received[:] = list(self.received), []
        return [
            (
                message.arbitration.status.code,
                (message.arbitration.election_id.high, message.arbitration.election_id.low)
                if message.arbitration.HasField("election_id")
                else None,
            )
            for message in result
        ]


PRIMARY, BACKUP, NO_PRIMARY = code_pb2.OK, code_pb2.ALREADY_EXISTS, code_pb2.NOT_FOUND


@pytest.fixture
def device():
    device = Device(DEVICE)
    yield device
    device.close()


def _write(election_id=None, role="", device_id=DEVICE):
    request = p4rt.WriteRequest(device_id=device_id, role=role)
    if election_id is not None:
        request.election_id.high, request.election_id.low = election_id
    return request


def _code(call, *args, **kwargs):
    with pytest.raises(P4RuntimeError) as refused:
        call(*args, **kwargs)
    return refused.value.code


def test_first_client_with_an_election_id_is_primary(device):
    one = Controller(device, election_id=(0, 1))
    assert one.take() == [(PRIMARY, (0, 1))]
    # Allowed to write: what is missing now is a pipeline.
    assert _code(device.write, _write((0, 1))) == code_pb2.FAILED_PRECONDITION


def test_higher_election_id_takes_over_and_notifies_all(device):
    one = Controller(device, election_id=(0, 1))
    two = Controller(device, election_id=(0, 2))
    assert one.take() == [(PRIMARY, (0, 1)), (BACKUP, (0, 2))]
    assert two.take() == [(PRIMARY, (0, 2))]
    assert _code(device.write, _write((0, 1))) == code_pb2.PERMISSION_DENIED
    assert _code(device.write, _write((0, 2))) == code_pb2.FAILED_PRECONDITION


def test_high_bits_of_the_election_id_count_first(device):
    Controller(device, election_id=(1, 0))
    assert Controller(device, election_id=(0, 99)).take() == [(BACKUP, (1, 0))]


def test_backup_arbitration_notifies_backup_only(device):
    one = Controller(device, election_id=(0, 5))
    one.take()
    two = Controller(device, election_id=(0, 4))
    assert two.take() == [(BACKUP, (0, 5))]
    assert one.take() == []


def test_without_an_election_id_a_client_never_becomes_primary(device):
    standby = Controller(device)
    standby.arbitrate()
    assert standby.take() == [(NO_PRIMARY, None)]
    assert _code(device.write, _write(None)) == code_pb2.PERMISSION_DENIED


def test_election_id_zero_is_not_the_same_as_none(device):
    assert Controller(device, election_id=(0, 0)).take() == [(PRIMARY, (0, 0))]


def test_no_primary_after_departure_until_equal_election_id(device):
    primary = Controller(device, election_id=(0, 7))
    backup = Controller(device, election_id=(0, 6))
    backup.take()
    primary.stream.close()
    assert backup.take() == [(NO_PRIMARY, (0, 7))]
    assert _code(device.write, _write((0, 6))) == code_pb2.PERMISSION_DENIED
    backup.arbitrate(election_id=(0, 6))  # still below the highest ever seen
    assert backup.take() == [(NO_PRIMARY, (0, 7))]
    backup.arbitrate(election_id=(0, 7))
    assert backup.take() == [(PRIMARY, (0, 7))]


def test_a_primary_may_downgrade_itself(device):
    primary = Controller(device, election_id=(0, 7))
    backup = Controller(device, election_id=(0, 3))
    primary.take(), backup.take()
    primary.arbitrate(election_id=(0, 2))
    assert primary.take() == [(NO_PRIMARY, (0, 7))]
    assert backup.take() == [(NO_PRIMARY, (0, 7))]


def test_an_election_id_in_use_ends_the_stream(device):
    Controller(device, election_id=(0, 1))
    assert _code(Controller, device, election_id=(0, 1)) == code_pb2.INVALID_ARGUMENT


def test_unknown_device_first_and_changed_device_later(device):
    assert _code(Controller, device, election_id=(0, 1), device_id=9) == code_pb2.NOT_FOUND
    one = Controller(device, election_id=(0, 1))
    code = _code(one.arbitrate, election_id=(0, 1), device_id=9)
    assert code == code_pb2.FAILED_PRECONDITION
    assert _code(device.write, _write((0, 1), device_id=9)) == code_pb2.NOT_FOUND


def test_roles_have_primaries_of_their_own(device):
    Controller(device, election_id=(0, 9))
    other = Controller(device, election_id=(0, 1), role="ports")
    assert other.take() == [(PRIMARY, (0, 1))]
    assert _code(device.write, _write((0, 1), role="ports")) == code_pb2.FAILED_PRECONDITION
    assert _code(device.write, _write((0, 9), role="ports")) == code_pb2.PERMISSION_DENIED
    assert _code(device.write, _write((0, 9), role="nobody")) == code_pb2.NOT_FOUND
    assert _code(other.arbitrate, election_id=(0, 1)) == code_pb2.FAILED_PRECONDITION


def test_a_role_config_is_refused_since_no_scheme_is_agreed(device):
    config = any_pb2.Any(type_url="example.com/scheme")
    code = _code(Controller, device, election_id=(0, 1), role="ports", config=config)
    assert code == code_pb2.INVALID_ARGUMENT


def test_more_clients_than_the_limit_are_refused(device):
    for low in range(16):
        Controller(device, election_id=(0, low))
    assert _code(Controller, device, election_id=(0, 99)) == code_pb2.RESOURCE_EXHAUSTED


def test_packet_outs_of_a_backup_are_refused_on_its_stream(device):
    Controller(device, election_id=(0, 2))
    backup = Controller(device, election_id=(0, 1))
    backup.take()
    backup.stream.receive(p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=b"x")))
    (message,) = backup.received
    assert message.error.canonical_code == code_pb2.PERMISSION_DENIED
    assert message.error.packet_out.packet_out.payload == b"x"


def test_bmv2_mode_allows_writes_without_clients():
    device = Device(DEVICE, like_bmv2=True)
    assert (
        _code(device.write, _write(None)) == code_pb2.FAILED_PRECONDITION
    )  # allowed: there is no program yet
    assert _code(device.write, _write((0, 1))) == code_pb2.PERMISSION_DENIED
    controller = Controller(device, election_id=(0, 1))
    assert _code(device.write, _write(None)) == code_pb2.PERMISSION_DENIED
    assert _code(device.write, _write((0, 1))) == code_pb2.FAILED_PRECONDITION
    controller.stream.close()
    assert _code(device.write, _write(None)) == code_pb2.FAILED_PRECONDITION
    device.close()


def test_bmv2_mode_considers_live_clients_only():
    device = Device(DEVICE, like_bmv2=True)
    first, second = Controller(device, election_id=(0, 9)), Controller(device, election_id=None)
    assert second.take() == [(BACKUP, (0, 9))]
    first.stream.close()
    assert second.take() == [(PRIMARY, (0, 0))]
    assert _code(device.write, _write(None)) == code_pb2.FAILED_PRECONDITION
    third = Controller(device, election_id=(0, 1))
    assert third.take() == [(PRIMARY, (0, 1))]
    assert _code(device.write, _write(None)) == code_pb2.PERMISSION_DENIED
    device.close()


def test_as_bmv2_does_reading_the_config_before_the_first_push_fails():
    request = p4rt.GetForwardingPipelineConfigRequest(device_id=DEVICE)
    device = Device(DEVICE, like_bmv2=True)
    assert _code(device.get_forwarding_pipeline_config, request) == code_pb2.FAILED_PRECONDITION
    device.close()
