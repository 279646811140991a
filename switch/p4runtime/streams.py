# SPDX-License-Identifier: Apache-2.0
"""Handles one StreamChannel of a device (P4Runtime spec, "P4Runtime Stream Messages")."""

from __future__ import annotations

from typing import Any, Protocol

from switch.p4runtime.arbitration import Client, Send
from switch.p4runtime.errors import P4RuntimeError, unimplemented
from switch.p4runtime.stubs import p4runtime_pb2


class StreamDevice(Protocol):
    """The requests of a stream to its device. client: None before its first arbitration message."""

    def arbitrate(self, client: Client | None, update: Any, send: Send) -> Client: ...

    def packet_out(self, client: Client | None, message: p4runtime_pb2.PacketOut) -> None: ...

    def acknowledge(self, client: Client | None, message: p4runtime_pb2.DigestListAck) -> None: ...

    def leave(self, client: Client) -> None:
        """Removes a client whose stream has ended."""


class Stream:
    """One StreamChannel. `send` gets the switch's messages from any thread and must not block."""

    def __init__(self, device: StreamDevice, send: Send) -> None:
        self._device = device
        self._send = send
        self._client: Client | None = None
        self._closed = False

    def receive(self, request: p4runtime_pb2.StreamMessageRequest) -> None:
        """Handles one message. Responses and errors of packet-outs go to `send`.

        Raises P4RuntimeError for an arbitration message that ends the stream (spec, "Rules for
        Handling MasterArbitrationUpdate Messages"); the caller then closes it.
        """
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._client = self._device.arbitrate(self._client, request.arbitration, self._send)
            return
        try:
            if kind == "packet":
                self._device.packet_out(self._client, request.packet)
            elif kind == "digest_ack":
                self._device.acknowledge(self._client, request.digest_ack)
            else:
                raise unimplemented(f"stream messages of kind {kind} are not supported")
        except P4RuntimeError as error:
            self._send(_stream_error(error, request))

    def close(self) -> None:
        """Ends the stream; if it was the primary's, there is no primary now. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._client is not None:
                self._device.leave(self._client)


def _stream_error(
    error: P4RuntimeError, request: p4runtime_pb2.StreamMessageRequest
) -> p4runtime_pb2.StreamMessageResponse:
    response = p4runtime_pb2.StreamMessageResponse()
    response.error.canonical_code = error.code
    response.error.message = error.message
    kind = request.WhichOneof("update")
    if kind == "packet":
        response.error.packet_out.packet_out.CopyFrom(request.packet)
    elif kind == "digest_ack":
        response.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
    else:
        response.error.other.other.CopyFrom(request.other)
    return response
