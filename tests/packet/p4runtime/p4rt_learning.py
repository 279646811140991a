# SPDX-License-Identifier: Apache-2.0
"""Messages and rig of the P4Runtime tests of meters, digests and idle timeouts
(tests/p4/learning.p4)."""

from pathlib import Path

from controller.p4rt.entries import P4Info
from switch.p4runtime.device import Device
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.p4 import HERE
from tests.packet.p4runtime.p4rt_support import DEVICE, Controller, config_request

P4INFO_PATH: Path = HERE / "learning.p4info.txtpb"
JSON_PATH: Path = HERE / "learning.json"
INFO = P4Info.load(P4INFO_PATH)
SECOND = 1_000_000_000
RATES = {"cir": 2, "cburst": 1, "pir": 4, "pburst": 3}


def number(kind, alias):
    """Id of the P4Info object of this kind ("meters", ...)."""
    return next(
        one.preamble.id for one in getattr(INFO.message, kind) if one.preamble.alias == alias
    )


def meter(index=None, **fields):
    message = p4rt.MeterEntry(meter_id=number("meters", "arrivals"), **fields)
    if index is not None:
        message.index.index = index
    return message


def source(address, **fields):
    """The TableEntry of a known host."""
    entity = INFO.table_entry("Enter.sources", {"hdr.frame.source": address}, "Enter.known")
    entry = entity.table_entry
    entry.MergeFrom(p4rt.TableEntry(**fields))
    return entry


def bare(address, **fields):
    """The same without action, as it is asked for."""
    entry = source(address, **fields)
    entry.ClearField("action")
    return entry


def direct(address, **fields):
    return p4rt.DirectMeterEntry(table_entry=bare(address), **fields)


def digest(alias="learned_t", size=0, timeout=0, ack=0):
    """DigestEntry; times in seconds."""
    message = p4rt.DigestEntry(digest_id=number("digests", alias))
    message.config.max_list_size = size
    message.config.max_timeout_ns = int(timeout * SECOND)
    message.config.ack_timeout_ns = int(ack * SECOND)
    return message


def frame(address, kind=0, payload=b""):
    return bytes(6) + address.to_bytes(6, "big") + kind.to_bytes(2, "big") + payload


def learned(notice):
    """(source, port) of each message of a DigestList of learned_t."""
    found = []
    for data in notice.data:
        values = [int.from_bytes(one.bitstring, "big") for one in data.struct.members]
        found.append((values[0], values[1]))
    return found


def config():
    return p4rt.ForwardingPipelineConfig(
        p4info=INFO.message, p4_device_config=JSON_PATH.read_bytes()
    )


class Learner(Controller):
    """A controller of a device with the manual clock `now_us`."""

    def __init__(self):
        self.now_us = 0
        super().__init__(Device(DEVICE, clock=lambda: self.now_us))
        self.push()

    def push(self):
        self.device.set_forwarding_pipeline_config(config_request(pushed=config()))

    def wait(self, seconds):
        """Advances the clock and notifies the switch; returns the seconds until its next event."""
        self.now_us += int(seconds * 1_000_000)
        due = self.device.notify()
        return None if due is None else due / 1_000_000

    def arrives(self, address, port=1, kind=0, payload=b""):
        return self.device.inject(port, frame(address, kind, payload))

    def take(self, kind):
        """Returns the messages since the last call, which must all be of this kind."""
        found = [getattr(one, kind) for one in self.received]
        assert all(one.HasField(kind) for one in self.received)
        self.received.clear()
        return found

    def acknowledge(self, notice):
        ack = p4rt.DigestListAck(digest_id=notice.digest_id, list_id=notice.list_id)
        self.stream.receive(p4rt.StreamMessageRequest(digest_ack=ack))
