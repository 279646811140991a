# SPDX-License-Identifier: Apache-2.0
"""A switch as the controller talks to it: P4Runtime over gRPC, or straight into a target here.

Both ways carry the same messages and raise the same errors, so nothing above knows which it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2
from p4runtime_sh.p4runtime import P4RuntimeClient, SSLOptions

from controller.entries import Entity, Update
from switch.p4runtime import Device, P4RuntimeError

__all__ = [
    "Connection",
    "DeviceConnection",
    "Failure",
    "GrpcConnection",
    "SwitchError",
    "WriteError",
]

log = logging.getLogger(__name__)

# The operator's shell asks with (0, 1) unless told otherwise, and so becomes a reading backup.
ELECTION_ID = (1, 0)
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 2.0
REQUEST_SECONDS = 15.0
# A target may compile what is pushed: seconds, more on a loaded machine.
PUSH_SECONDS = 180.0


class SwitchError(Exception):
    """A switch could not be reached or refused a request; the text starts with its name."""

    def __init__(self, switch: str, text: str) -> None:
        self.switch = switch
        super().__init__(f"{switch}: {text}")


@dataclass(frozen=True)
class Failure:
    """Why one update of a Write failed: canonical code (google.rpc) and the switch's words."""

    index: int
    code: int
    text: str

    @property
    def code_name(self) -> str:
        """Such as NOT_FOUND."""
        return str(code_pb2.Code.Name(self.code))


class WriteError(SwitchError):
    """Some updates of a Write failed, the others were done."""

    def __init__(self, switch: str, failures: Sequence[Failure], total: int) -> None:
        self.failures = tuple(failures)
        lines = [f"update {f.index}: {f.code_name}: {f.text}" for f in failures[:8]]
        if len(failures) > 8:
            lines.append(f"and {len(failures) - 8} more")
        super().__init__(switch, f"{len(failures)} of {total} updates failed: {'; '.join(lines)}")


class Connection(Protocol):
    """One switch. All methods raise SwitchError."""

    name: str

    def open(self) -> None:
        """Connect and become the primary client."""

    def push(self, p4info: p4info_pb2.P4Info, device_config: bytes) -> None:
        """Make a program the one that forwards; all entries are gone afterwards."""

    def write(self, updates: Sequence[Update]) -> None:
        """Apply updates, in no promised order; WriteError tells which of them failed."""

    def read(self, entities: Sequence[Entity]) -> list[Entity]:
        """Entities that match the given ones (unset fields are wildcards)."""

    def close(self) -> None:
        """Give the primary role up. Idempotent."""


def _election_id() -> p4runtime_pb2.Uint128:
    return p4runtime_pb2.Uint128(high=ELECTION_ID[0], low=ELECTION_ID[1])


def _failures(errors: Sequence[p4runtime_pb2.Error]) -> list[Failure]:
    return [
        Failure(index, error.canonical_code, error.message)
        for index, error in enumerate(errors)
        if error.canonical_code != code_pb2.OK
    ]


def _arbitration(device_id: int) -> p4runtime_pb2.StreamMessageRequest:
    request = p4runtime_pb2.StreamMessageRequest()
    request.arbitration.device_id = device_id
    request.arbitration.election_id.CopyFrom(_election_id())
    return request


def _push_request(
    device_id: int, p4info: p4info_pb2.P4Info, device_config: bytes
) -> p4runtime_pb2.SetForwardingPipelineConfigRequest:
    request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
        device_id=device_id,
        election_id=_election_id(),
        action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
    )
    request.config.p4info.CopyFrom(p4info)
    request.config.p4_device_config = device_config
    return request


def _write_request(device_id: int, updates: Sequence[Update]) -> p4runtime_pb2.WriteRequest:
    return p4runtime_pb2.WriteRequest(
        device_id=device_id, election_id=_election_id(), updates=updates
    )


class DeviceConnection:
    """A switch in this process; calls are plain calls, and nothing waits."""

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.device = device
        self._answers: list[p4runtime_pb2.StreamMessageResponse] = []
        self._stream: Any = None

    def open(self) -> None:
        """See Connection."""
        self._stream = self.device.open_stream(self._answers.append)
        try:
            self._stream.receive(_arbitration(self.device.device_id))
        except P4RuntimeError as error:
            raise SwitchError(self.name, str(error)) from error
        status = self._answers[-1].arbitration.status
        self._answers.clear()
        if status.code != code_pb2.OK:
            raise SwitchError(self.name, f"another client is primary: {status.message}")

    def push(self, p4info: p4info_pb2.P4Info, device_config: bytes) -> None:
        """See Connection."""
        request = _push_request(self.device.device_id, p4info, device_config)
        try:
            self.device.set_forwarding_pipeline_config(request)
        except P4RuntimeError as error:
            raise SwitchError(self.name, f"the program was refused: {error}") from error

    def write(self, updates: Sequence[Update]) -> None:
        """See Connection."""
        try:
            self.device.write(_write_request(self.device.device_id, updates))
        except P4RuntimeError as error:
            if error.errors:
                raise WriteError(self.name, _failures(error.errors), len(updates)) from error
            raise SwitchError(self.name, str(error)) from error

    def read(self, entities: Sequence[Entity]) -> list[Entity]:
        """See Connection."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device.device_id, entities=entities)
        try:
            return [entity for reply in self.device.read(request) for entity in reply.entities]
        except P4RuntimeError as error:
            raise SwitchError(self.name, str(error)) from error

    def close(self) -> None:
        """See Connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Client(P4RuntimeClient):  # type: ignore[misc]
    """p4runtime-shell's client; where that one prints and exits, this one raises."""

    def set_up_stream(self) -> None:
        try:
            grpc.channel_ready_future(self.channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            self.channel.close()
            raise ConnectionError(f"no answer within {CONNECT_SECONDS:.0f} s") from None
        super().set_up_stream()

    def handshake(self) -> None:
        self.stream_out_q.put(_arbitration(self.device_id))
        answer = self.get_stream_packet("arbitration", timeout=CONNECT_SECONDS)
        if answer is None:
            why = "no answer" if self.stream.is_active() else self.stream.details()
            self.tear_down()
            raise ConnectionError(f"device {self.device_id} let nobody be primary: {why}")
        status = answer.arbitration.status
        if status.code != code_pb2.OK:
            self.tear_down()
            raise ConnectionError(f"another client is primary: {status.message}")

    def tear_down(self) -> None:
        """End the stream and the channel; a switch that does not answer is not waited for."""
        self.stream_out_q.put(None)
        self.stream_recv_thread.join(CLOSE_SECONDS)
        if self.stream_recv_thread.is_alive():
            self.stream.cancel()
            self.stream_recv_thread.join()
        self.channel.close()


class GrpcConnection:
    """A switch behind gRPC: ``address`` as gRPC writes it (unix:/path, host:port).

    ``tls``: PEM files; without, the connection is for a unix socket.
    """

    def __init__(
        self, name: str, address: str, device_id: int, tls: SSLOptions | None = None
    ) -> None:
        self.name = name
        self.address = address
        self.device_id = device_id
        self.tls = tls
        self._client: _Client | None = None

    def open(self) -> None:
        """See Connection."""
        try:
            self._client = _Client(self.device_id, self.address, ELECTION_ID, ssl_options=self.tls)
        except (ConnectionError, grpc.RpcError) as error:
            raise SwitchError(self.name, f"P4Runtime at {self.address}: {error}") from error

    def push(self, p4info: p4info_pb2.P4Info, device_config: bytes) -> None:
        """See Connection."""
        request = _push_request(self.device_id, p4info, device_config)
        try:
            self._stub.SetForwardingPipelineConfig(request, timeout=PUSH_SECONDS)
        except grpc.RpcError as error:
            text = f"the program was refused: {_words(error)}"
            raise SwitchError(self.name, text) from error

    def write(self, updates: Sequence[Update]) -> None:
        """See Connection."""
        request = _write_request(self.device_id, updates)
        try:
            self._stub.Write(request, timeout=REQUEST_SECONDS)
        except grpc.RpcError as error:
            failures = _failures(_batch_errors(error))
            if failures:
                raise WriteError(self.name, failures, len(updates)) from error
            raise SwitchError(self.name, f"Write failed: {_words(error)}") from error

    def read(self, entities: Sequence[Entity]) -> list[Entity]:
        """See Connection."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)
        try:
            replies = self._stub.Read(request, timeout=REQUEST_SECONDS)
            return [entity for reply in replies for entity in reply.entities]
        except grpc.RpcError as error:
            raise SwitchError(self.name, f"Read failed: {_words(error)}") from error

    def close(self) -> None:
        """See Connection."""
        if self._client is not None:
            self._client.tear_down()
            self._client = None

    @property
    def _stub(self) -> Any:
        if self._client is None:
            raise SwitchError(self.name, "not connected")
        return self._client.stub


def _words(error: grpc.RpcError) -> str:
    """The status of a failed RPC, with the words for each element that failed."""
    words = [f"{error.code().name}: {error.details()}" if error.details() else error.code().name]
    failures = _failures(_batch_errors(error))
    words += [f"element {f.index}: {f.code_name}: {f.text}" for f in failures]
    return "; ".join(words)


def _batch_errors(error: grpc.RpcError) -> list[p4runtime_pb2.Error]:
    """One p4.v1.Error per update, from the status details; empty when the RPC failed as a whole.

    Read here because p4runtime-shell's reader never returns when one of several updates was OK.
    """
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == "grpc-status-details-bin":
            status = status_pb2.Status()
            status.ParseFromString(value)
            errors = []
            for detail in status.details:
                unpacked = p4runtime_pb2.Error()
                if detail.Unpack(unpacked):
                    errors.append(unpacked)
            return errors
    return []
