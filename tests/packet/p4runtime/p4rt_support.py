# SPDX-License-Identifier: Apache-2.0
"""Named messages of the P4Runtime tests (tests/p4/p4rt_switch.p4 and its P4Info)."""

from pathlib import Path

import pytest
from google.protobuf import text_format

from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4info_pb2
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt

P4 = Path(__file__).parents[2] / "p4"
P4INFO_PATH = P4 / "p4rt_switch.p4info.txtpb"
JSON_PATH = P4 / "p4rt_switch.json"
DEVICE = 1
CPU_PORT = 255
ELECTION = (0, 1)

INSERT, MODIFY, DELETE = p4rt.Update.INSERT, p4rt.Update.MODIFY, p4rt.Update.DELETE


def p4info():
    return text_format.Parse(P4INFO_PATH.read_text(), p4info_pb2.P4Info())


INFO = p4info()


def find(kind, name):
    """The P4Info object of this kind ("tables", ...) whose alias is `name`."""
    return next(item for item in getattr(INFO, kind) if item.preamble.alias == name)


def value(number):
    return number.to_bytes(max((number.bit_length() + 7) // 8, 1), "big")


def exact(number):
    return {"exact": p4rt.FieldMatch.Exact(value=value(number))}


def lpm(number, length):
    return {"lpm": p4rt.FieldMatch.LPM(value=value(number), prefix_len=length)}


def ternary(number, mask):
    return {"ternary": p4rt.FieldMatch.Ternary(value=value(number), mask=value(mask))}


def between(low, high):
    return {"range": p4rt.FieldMatch.Range(low=value(low), high=value(high))}


def optional(number):
    return {"optional": p4rt.FieldMatch.Optional(value=value(number))}


def action(name, **arguments):
    declared = find("actions", name)
    message = p4rt.TableAction()
    message.action.action_id = declared.preamble.id
    for param in declared.params:
        message.action.params.add(param_id=param.id, value=value(arguments[param.name]))
    return message


def entry(table, matches=None, act=None, **fields):
    """TableEntry of `table`; matches: field name -> exact(..) and the like."""
    declared = find("tables", table)
    message = p4rt.TableEntry(table_id=declared.preamble.id, **fields)
    for name, match in (matches or {}).items():
        field = next(field for field in declared.match_fields if field.name == name)
        message.match.add(field_id=field.id, **match)
    if act is not None:
        message.action.CopyFrom(act)
    return message


def entity(message):
    """Entity of a TableEntry, CounterEntry, ..., MulticastGroupEntry or CloneSessionEntry."""
    if isinstance(message, (p4rt.MulticastGroupEntry, p4rt.CloneSessionEntry)):
        name = "multicast_group_entry"
        if isinstance(message, p4rt.CloneSessionEntry):
            name = "clone_session_entry"
        message = p4rt.PacketReplicationEngineEntry(**{name: message})
    for field in p4rt.Entity.DESCRIPTOR.fields:
        if field.message_type is message.DESCRIPTOR:
            return p4rt.Entity(**{field.name: message})
    raise TypeError(message)


def write_request(*updates, election=ELECTION):
    """WriteRequest of (type, message) pairs."""
    request = p4rt.WriteRequest(device_id=DEVICE)
    request.election_id.high, request.election_id.low = election
    for kind, message in updates:
        request.updates.add(type=kind, entity=entity(message))
    return request


def config(cookie=None):
    message = p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=JSON_PATH.read_bytes())
    if cookie is not None:
        message.cookie.cookie = cookie
    return message


def config_request(action_name="VERIFY_AND_COMMIT", pushed=None, election=ELECTION):
    request = p4rt.SetForwardingPipelineConfigRequest(
        device_id=DEVICE,
        action=p4rt.SetForwardingPipelineConfigRequest.Action.Value(action_name),
    )
    request.election_id.high, request.election_id.low = election
    if pushed is not None:
        request.config.CopyFrom(pushed)
    return request


def arbitration(election=ELECTION, device=DEVICE):
    request = p4rt.StreamMessageRequest()
    request.arbitration.device_id = device
    request.arbitration.election_id.high, request.arbitration.election_id.low = election
    return request


def packet_out(payload, **metadata):
    header = next(h for h in INFO.controller_packet_metadata if h.preamble.name == "packet_out")
    message = p4rt.PacketOut(payload=payload)
    for field in header.metadata:
        if field.name in metadata:
            message.metadata.add(metadata_id=field.id, value=value(metadata[field.name]))
    return message


def ethernet(destination, source=0x0200_0000_0001, ether_type=0x9999, payload=b"data"):
    return (
        destination.to_bytes(6, "big")
        + source.to_bytes(6, "big")
        + ether_type.to_bytes(2, "big")
        + payload
    )


class Controller:
    """A primary controller in the same process, with what its stream received."""

    def __init__(self, device):
        self.device = device
        self.received = []
        self.stream = device.open_stream(self.received.append)
        self.stream.receive(arbitration())
        self.received.clear()

    def push(self):
        self.device.set_forwarding_pipeline_config(config_request(pushed=config()))

    def write(self, *updates):
        self.device.write(write_request(*updates))

    def read(self, *messages):
        """The entries found, without their Entity wrapping."""
        request = p4rt.ReadRequest(device_id=DEVICE)
        request.entities.extend(entity(message) for message in messages)
        found = []
        for response in self.device.read(request):
            for item in response.entities:
                inner = getattr(item, item.WhichOneof("entity"))
                if isinstance(inner, p4rt.PacketReplicationEngineEntry):
                    inner = getattr(inner, inner.WhichOneof("type"))
                found.append(inner)
        return found

    def refusal(self, *updates):
        """Canonical code of the last update, which must be the only one that is refused."""
        with pytest.raises(P4RuntimeError) as refused:
            self.write(*updates)
        codes = [error.canonical_code for error in refused.value.errors]
        assert len(codes) == len(updates)
        assert not any(codes[:-1])
        assert refused.value.errors[-1].message
        return codes[-1]

    def read_refusal(self, message):
        with pytest.raises(P4RuntimeError) as refused:
            self.read(message)
        return refused.value.errors[-1].canonical_code
