# SPDX-License-Identifier: Apache-2.0
"""Converts packets to and from the controller (P4Runtime spec, "Packet I/O").

On the CPU port a packet carries the header that the program annotates with @controller_header:
"packet_out" on packets from the controller, "packet_in" on packets to it. Its fields travel as
PacketMetadata. If they are not whole bytes together (P4Info omits fields annotated @padding), zero
bits fill the end, as in BMv2.
"""

from __future__ import annotations

from switch.p4runtime.entities.checks import by_id
from switch.p4runtime.errors import P4RuntimeError, invalid_argument
from switch.p4runtime.p4info.schema import Field, Schema
from switch.p4runtime.p4info.values import decode_unsigned, encode_unsigned
from switch.p4runtime.stubs import p4runtime_pb2


def _layout(fields: tuple[Field, ...]) -> tuple[int, int]:
    """Returns (bytes of a header, padding bits at its end)."""
    width = sum(field.width for field in fields)
    return (width + 7) // 8, -width % 8


def encode_packet_out(schema: Schema, message: p4runtime_pb2.PacketOut) -> bytes:
    """Returns the frame as it arrives on the CPU port: header, then payload.

    Raises INVALID_ARGUMENT unless there is exactly one value for each field of the header (none if
    the program has no such header), each within its width.
    """
    header = 0
    fields = schema.packet_out or ()
    for field, given in by_id("packet-out", "metadata", "metadata_id", message.metadata, fields):
        if given is None:
            raise invalid_argument(f"packet-out: metadata {field.id} ({field.name}) is missing")
        try:
            value = decode_unsigned(given.value, field.width, f"packet-out: {field.name}")
        except P4RuntimeError as error:
            raise invalid_argument(error.message) from None
        header = header << field.width | value
    length, missing = _layout(fields)
    return (header << missing).to_bytes(length, "big") + message.payload


def decode_packet_in(schema: Schema, frame: bytes) -> p4runtime_pb2.PacketIn | None:
    """Returns the PacketIn of a frame that left on the CPU port, None if it is shorter than the
    header."""
    fields = schema.packet_in or ()
    length, _ = _layout(fields)
    if len(frame) < length:
        return None
    message = p4runtime_pb2.PacketIn(payload=frame[length:])
    header = int.from_bytes(frame[:length], "big")
    below = length * 8
    for field in fields:
        below -= field.width
        value = header >> below & ((1 << field.width) - 1)
        message.metadata.add(metadata_id=field.id, value=encode_unsigned(value))
    return message
