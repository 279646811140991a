# SPDX-License-Identifier: Apache-2.0
"""Connections to switches: P4Runtime over gRPC, or direct calls of a target in this process.

Both carry the same messages and raise the same errors.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import grpc
from google.rpc import code_pb2, status_pb2

from controller.p4rt.entries import Entity, Update
from protocol.runtime import REAL
from switch.p4runtime.errors import P4RuntimeError
from switch.p4runtime.stubs import p4info_pb2, p4runtime_pb2, p4runtime_pb2_grpc

if TYPE_CHECKING:
    from switch.p4runtime.device import Device

# High half of the first election id. The operator's shell asks with (0, 1) by default,
# and so becomes a reading backup.
FIRST_TERM = 1
CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.02
CLOSE_SECONDS = 2.0
REQUEST_SECONDS = 15.0
# A target may compile the pushed program, which takes seconds, more on a loaded machine.
PUSH_SECONDS = 180.0


class SwitchError(Exception):
    """A switch could not be reached or refused a request; the text starts with its name."""

    def __init__(self, switch: str, text: str) -> None:
        self.switch = switch
        super().__init__(f"{switch}: {text}")

    @property
    def not_found(self) -> bool:
        """True if the switch reported that the object does not exist."""
        return self._says(code_pb2.NOT_FOUND, grpc.StatusCode.NOT_FOUND)

    @property
    def taken(self) -> bool:
        """True if the switch reported that the object exists already, so a retry is useless."""
        return self._says(code_pb2.ALREADY_EXISTS, grpc.StatusCode.ALREADY_EXISTS)

    def _says(self, canonical: int, status: grpc.StatusCode) -> bool:
        cause = self.__cause__
        codes = [error.canonical_code for error in _errors(cause)]
        codes += [cause.code] if isinstance(cause, P4RuntimeError) else []
        return canonical in codes or _code(cause) is status


@dataclass(frozen=True)
class Failure:
    """The failure of one update of a Write: canonical code (google.rpc) and the switch's text."""

    index: int
    code: int
    text: str

    @property
    def code_name(self) -> str:
        """The code's name, such as NOT_FOUND."""
        return str(code_pb2.Code.Name(self.code))


class WriteError(SwitchError):
    """Some updates of a Write failed; the others were applied."""

    def __init__(self, switch: str, failures: Sequence[Failure], total: int) -> None:
        self.failures = tuple(failures)
        lines = [f"update {f.index}: {f.code_name}: {f.text}" for f in failures[:8]]
        if len(failures) > 8:
            lines.append(f"and {len(failures) - 8} more")
        super().__init__(switch, f"{len(failures)} of {total} updates failed: {'; '.join(lines)}")


class Connection(Protocol):
    """The controller's connection to one switch. All methods raise SwitchError."""

    name: str
    # High half of the election id; the low one counts how often the connection was opened, so a
    # switch that has not noticed the end of the last one takes the next.
    term: int

    @property
    def alive(self) -> bool:
        """True if it is open and has not been cut."""

    def open(self, seconds: float | None = None) -> None:
        """Connects or reconnects, and becomes the primary client within ``seconds``."""

    def push(self, p4info: p4info_pb2.P4Info, device_config: bytes, cookie: int = 0) -> None:
        """Commits a program as the forwarding pipeline, which deletes all entries."""

    def cookie(self) -> int | None:
        """Reads the cookie of the forwarding pipeline; None without a program."""

    def write(self, updates: Sequence[Update]) -> None:
        """Applies updates in no guaranteed order; WriteError lists those that failed."""

    def read(self, entities: Sequence[Entity], seconds: float = REQUEST_SECONDS) -> list[Entity]:
        """Reads the entities that match the given ones (unset fields are wildcards)."""

    def close(self) -> None:
        """Gives up the primary role. Idempotent."""


class _Messages:
    """Builds the requests of one client of one device."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self.term = FIRST_TERM
        self.opened = 0

    @property
    def election(self) -> p4runtime_pb2.Uint128:
        return p4runtime_pb2.Uint128(high=self.term, low=self.opened)

    def arbitration(self) -> p4runtime_pb2.StreamMessageRequest:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.device_id
        request.arbitration.election_id.CopyFrom(self.election)
        return request

    def outbid(self, answer: p4runtime_pb2.MasterArbitrationUpdate) -> bool:
        """Raises the election id if there is no primary because an earlier one had a higher id.

        Returns whether it did.
        """
        if answer.status.code != code_pb2.NOT_FOUND:
            return False
        self.term = max(self.term, answer.election_id.high) + 1
        return True

    def push(
        self, p4info: p4info_pb2.P4Info, device_config: bytes, cookie: int
    ) -> p4runtime_pb2.SetForwardingPipelineConfigRequest:
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            election_id=self.election,
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = device_config
        request.config.cookie.cookie = cookie
        return request

    def cookie(self) -> p4runtime_pb2.GetForwardingPipelineConfigRequest:
        return p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            response_type=p4runtime_pb2.GetForwardingPipelineConfigRequest.COOKIE_ONLY,
        )

    def write(self, updates: Sequence[Update]) -> p4runtime_pb2.WriteRequest:
        return p4runtime_pb2.WriteRequest(
            device_id=self.device_id, election_id=self.election, updates=updates
        )

    def read(self, entities: Sequence[Entity]) -> p4runtime_pb2.ReadRequest:
        return p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)


def _cookie_of(reply: p4runtime_pb2.GetForwardingPipelineConfigResponse) -> int | None:
    return reply.config.cookie.cookie if reply.HasField("config") else None


def _failures(errors: Sequence[p4runtime_pb2.Error]) -> list[Failure]:
    return [
        Failure(index, error.canonical_code, error.message)
        for index, error in enumerate(errors)
        if error.canonical_code != code_pb2.OK
    ]


class _Base:
    """The common part of both connections."""

    def __init__(self, name: str, device_id: int) -> None:
        self.name = name
        self.device_id = device_id
        self._messages = _Messages(device_id)

    @property
    def term(self) -> int:
        """Implements Connection."""
        return self._messages.term

    @term.setter
    def term(self, term: int) -> None:
        self._messages.term = term


class DeviceConnection(_Base):
    """A connection to a switch in this process, by plain calls that do not block.

    ``device`` may be replaced while the connection is closed, as after a restart.
    """

    def __init__(self, name: str, device: Device) -> None:
        super().__init__(name, device.device_id)
        self.device = device
        self._stream: Any = None

    @property
    def alive(self) -> bool:
        """Implements Connection."""
        return self._stream is not None

    def open(self, seconds: float | None = None) -> None:
        """Implements Connection."""
        self.close()
        self._messages.opened += 1
        answers: list[p4runtime_pb2.StreamMessageResponse] = []
        stream = self.device.open_stream(answers.append)
        try:
            stream.receive(self._messages.arbitration())
            if self._messages.outbid(answers[-1].arbitration):
                stream.receive(self._messages.arbitration())
        except P4RuntimeError as error:
            stream.close()
            raise SwitchError(self.name, str(error)) from error
        except SwitchError:
            stream.close()
            raise
        status = answers[-1].arbitration.status
        if status.code != code_pb2.OK:
            stream.close()
            raise SwitchError(self.name, f"another client is primary: {status.message}")
        self._stream = stream

    def push(self, p4info: p4info_pb2.P4Info, device_config: bytes, cookie: int = 0) -> None:
        """Implements Connection."""
        with self._connected("the program was refused: ") as device:
            device.set_forwarding_pipeline_config(
                self._messages.push(p4info, device_config, cookie)
            )

    def cookie(self) -> int | None:
        """Implements Connection."""
        with self._connected() as device:
            return _cookie_of(device.get_forwarding_pipeline_config(self._messages.cookie()))

    def write(self, updates: Sequence[Update]) -> None:
        """Implements Connection."""
        with self._connected() as device:
            try:
                device.write(self._messages.write(updates))
            except P4RuntimeError as error:
                if error.errors:
                    raise WriteError(self.name, _failures(error.errors), len(updates)) from error
                raise

    def read(self, entities: Sequence[Entity], seconds: float = REQUEST_SECONDS) -> list[Entity]:
        """Implements Connection."""
        with self._connected() as device:
            replies = device.read(self._messages.read(entities))
            return [entity for reply in replies for entity in reply.entities]

    def close(self) -> None:
        """Implements Connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    @contextmanager
    def _connected(self, failed: str = "") -> Iterator[Device]:
        """Yields the device, and raises failures as a SwitchError whose text begins with
        `failed`."""
        if self._stream is None:
            raise SwitchError(self.name, "not connected")
        try:
            yield self.device
        except P4RuntimeError as error:
            raise SwitchError(self.name, f"{failed}{error}") from error


class GrpcClient:
    """A client over gRPC that is primary from its start on.

    Its start takes at most ``seconds`` for each of three steps. Raises ConnectionError, RpcError.
    """

    def __init__(self, messages: _Messages, address: str, seconds: float) -> None:
        self._channel = grpc.insecure_channel(address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)  # type: ignore[no-untyped-call]
        self._requests: SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = SimpleQueue()
        self._answers: SimpleQueue[p4runtime_pb2.MasterArbitrationUpdate | None] = SimpleQueue()
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise ConnectionError(f"no answer within {seconds:g} s") from None
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None))
        self._reader = REAL.thread(self._receive, "stream", daemon=True)
        self._reader.start()
        answer = self._ask(messages, seconds)
        if answer is not None and messages.outbid(answer):
            answer = self._ask(messages, seconds)
        if answer is None or answer.status.code != code_pb2.OK:
            why = "no answer" if self.alive else self._stream.details()
            self.close()
            if answer is None:
                raise ConnectionError(f"device {messages.device_id} accepted no primary: {why}")
            raise ConnectionError(f"another client is primary: {answer.status.message}")

    @property
    def alive(self) -> bool:
        """True while the stream is open, which makes it the primary."""
        return bool(self._stream.is_active())

    def close(self) -> None:
        """Closes the stream and the channel, with little patience for the switch."""
        self._requests.put(None)
        self._reader.join(CLOSE_SECONDS)
        self._stream.cancel()
        self._reader.join()
        self._channel.close()

    def _ask(
        self, messages: _Messages, seconds: float
    ) -> p4runtime_pb2.MasterArbitrationUpdate | None:
        """Asks to be the primary; returns None without an answer."""
        self._requests.put(messages.arbitration())
        with suppress(Empty):
            return self._answers.get(timeout=seconds)
        return None

    def _receive(self) -> None:
        """Reads the stream until its end."""
        with suppress(grpc.RpcError):
            for message in self._stream:
                if message.HasField("arbitration"):
                    self._answers.put(message.arbitration)
                else:
                    self.notice(message)
        self._answers.put(None)

    def notice(self, message: p4runtime_pb2.StreamMessageResponse) -> None:
        """Takes a packet or notice, which the controller has no use for."""


class GrpcConnection(_Base):
    """A connection over gRPC.

    address: gRPC's notation (unix:/path, host:port).
    client: the client that it opens.
    """

    client: ClassVar[type[GrpcClient]] = GrpcClient

    def __init__(self, name: str, address: str, device_id: int) -> None:
        super().__init__(name, device_id)
        self.address = address
        self._client: GrpcClient | None = None

    @property
    def alive(self) -> bool:
        """Implements Connection."""
        client = self._client
        return client is not None and client.alive

    def open(self, seconds: float | None = None) -> None:
        """Implements Connection."""
        self.close()
        self._messages.opened += 1
        seconds = CONNECT_SECONDS if seconds is None else seconds
        try:
            _wait_for_socket(self.address, seconds)
            self._client = self.client(self._messages, self.address, seconds)
        except (ConnectionError, grpc.RpcError) as error:
            raise SwitchError(self.name, f"P4Runtime at {self.address}: {error}") from error

    def push(self, p4info: p4info_pb2.P4Info, device_config: bytes, cookie: int = 0) -> None:
        """Implements Connection."""
        request = self._messages.push(p4info, device_config, cookie)
        with self._stub("the program was refused") as stub:
            stub.SetForwardingPipelineConfig(request, timeout=PUSH_SECONDS)

    def cookie(self) -> int | None:
        """Implements Connection."""
        try:
            with self._stub("GetForwardingPipelineConfig failed") as stub:
                request = self._messages.cookie()
                reply = stub.GetForwardingPipelineConfig(request, timeout=REQUEST_SECONDS)
                return _cookie_of(reply)
        except SwitchError as error:
            # What BMv2 says when it has no program.
            if _code(error.__cause__) is grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise

    def write(self, updates: Sequence[Update]) -> None:
        """Implements Connection."""
        request = self._messages.write(updates)
        try:
            with self._stub("Write failed") as stub:
                stub.Write(request, timeout=REQUEST_SECONDS)
        except SwitchError as error:
            failures = _failures(_errors(error.__cause__))
            if failures:
                raise WriteError(self.name, failures, len(updates)) from error.__cause__
            raise

    def read(self, entities: Sequence[Entity], seconds: float = REQUEST_SECONDS) -> list[Entity]:
        """Implements Connection."""
        request = self._messages.read(entities)
        with self._stub("Read failed") as stub:
            replies = stub.Read(request, timeout=seconds)
            return [entity for reply in replies for entity in reply.entities]

    def close(self) -> None:
        """Implements Connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextmanager
    def _stub(self, failed: str) -> Iterator[Any]:
        """Yields the stub, and raises failures as a SwitchError whose text begins with `failed`."""
        client = self._client
        if client is None:
            raise SwitchError(self.name, "not connected")
        if not client.alive:
            raise SwitchError(self.name, f"{failed}: the connection was cut")
        try:
            yield client.stub
        except grpc.RpcError as error:
            raise SwitchError(self.name, f"{failed}: {_words(error)}") from error
        except ValueError as error:  # what grpcio raises for a channel closed by another thread
            raise SwitchError(self.name, f"{failed}: {error}") from error


def _wait_for_socket(address: str, seconds: float) -> None:
    """Waits for a listener at a unix socket, as gRPC retries only after a second."""
    path = address.removeprefix("unix:")
    deadline = REAL.now() + seconds
    while path != address:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        if REAL.now() >= deadline:
            raise ConnectionError(f"no answer within {seconds:g} s")
        REAL.sleep(POLL_SECONDS)


def _code(error: BaseException | None) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.RpcError) else None


def _words(error: grpc.RpcError) -> str:
    """The status of a failed RPC, with the words for each element that failed."""
    words = [f"{error.code().name}: {error.details()}" if error.details() else error.code().name]
    failures = _failures(_batch_errors(error))
    words += [f"element {f.index}: {f.code_name}: {f.text}" for f in failures]
    return "; ".join(words)


def _errors(cause: BaseException | None) -> Sequence[p4runtime_pb2.Error]:
    if isinstance(cause, P4RuntimeError):
        return cause.errors
    return _batch_errors(cause) if isinstance(cause, grpc.RpcError) else []


def _batch_errors(error: grpc.RpcError) -> list[p4runtime_pb2.Error]:
    """Reads one p4.v1.Error per update from the status details; [] if the RPC failed as a whole."""
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
