# SPDX-License-Identifier: Apache-2.0
"""Implements P4Runtime for one switch without gRPC: requests in, messages out.

    device = Device(device_id=1, cpu_port=255)
    stream = device.open_stream(print)                # StreamMessageResponse messages
    stream.receive(StreamMessageRequest(arbitration=...))
    device.set_forwarding_pipeline_config(request)
    device.write(request)

All methods are thread safe. Updates of one Write are applied under one lock, so Writes are
serializable and a Read sees each Write whole or not at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from google.rpc import code_pb2

from switch.p4runtime.arbitration import Arbitration, Client, Send
from switch.p4runtime.errors import (
    P4RuntimeError,
    batch_error,
    failed_precondition,
    internal,
    invalid_argument,
    not_found,
    permission_denied,
    resource_exhausted,
    unimplemented,
)
from switch.p4runtime.loading import build
from switch.p4runtime.packet_io import decode_packet_in, encode_packet_out
from switch.p4runtime.pushed_program import Forwarding
from switch.p4runtime.read_responses import Packer
from switch.p4runtime.reconciling import carry
from switch.p4runtime.streams import Stream
from switch.p4runtime.stubs import API_VERSION, p4runtime_pb2
from switch.pipeline import Pipeline

log = logging.getLogger(__name__)


SetConfig = p4runtime_pb2.SetForwardingPipelineConfigRequest
GetConfig = p4runtime_pb2.GetForwardingPipelineConfigRequest
Output = tuple[int, bytes]


class Device:
    """A switch with P4Runtime.

    device_id   that requests must carry
    cpu_port    the port of packet-in and packet-out; None: there is no packet I/O
    pipeline    forwards until the first push (a program given at the start, without P4Info)
    on_commit   called with the Pipeline that forwards from now on, before the old one is closed;
                raising refuses the push
    on_packet_out  called with (port, frame) for a packet-out, to put the frame into the data plane;
                None: it is injected in process
    on_output   called with the [(port, frame)] that a packet-out injected in process sends
    clock       microseconds, for pushed programs that forward in process only; None: the system's
    traced      compile pushed programs for Pipeline.set_trace
    priority_queues  queues per port of pushed programs
    like_bmv2   rules of BMv2 that clients rely on: see Arbitration, get_forwarding_pipeline_config
    """

    def __init__(
        self,
        device_id: int = 1,
        cpu_port: int | None = None,
        *,
        pipeline: Pipeline | None = None,
        on_commit: Callable[[Pipeline], None] | None = None,
        on_packet_out: Callable[[int, bytes], None] | None = None,
        on_output: Callable[[Sequence[Output]], None] | None = None,
        clock: Callable[[], int] | None = None,
        traced: bool = False,
        priority_queues: int = 1,
        like_bmv2: bool = False,
    ) -> None:
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.on_commit = on_commit
        self.on_packet_out = on_packet_out
        self.on_output = on_output
        self._build = partial(build, clock=clock, traced=traced, priority_queues=priority_queues)
        self._notice_to = -1
        self.packet_ins = 0  # sent to a controller
        self.packet_ins_lost = 0  # no primary, no P4Info, or shorter than the header
        self.packet_outs = 0
        # Guards writes, reads, commits and arbitration; taken before the arbitration's own lock.
        self._lock = threading.RLock()
        # Serializes pushes; compiling takes seconds, during which requests are served.
        self._pushing = threading.Lock()
        self._like_bmv2 = like_bmv2
        self._arbitration = Arbitration(device_id, like_bmv2)
        self._pipeline = pipeline
        self._committed: Forwarding | None = None
        self._saved: Forwarding | None = None

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline that forwards now; another object after each push."""
        return self._pipeline

    def close(self) -> None:
        """Frees the pipelines. The device cannot be used afterwards."""
        with self._pushing, self._lock:
            if self._saved is not None:
                self._saved.close()
            if self._pipeline is not None:
                self._pipeline.close()
            self._saved = self._committed = self._pipeline = None

    # -- streams and packets -------------------------------------------------------------------

    def open_stream(self, send: Send) -> Stream:
        """Opens a StreamChannel, which takes requests and passes responses to `send`."""
        return Stream(self, send)

    def packet_in(self, frame: bytes) -> None:
        """Sends a frame that left on the CPU port to the primary of each role."""
        committed = self._committed
        message = None if committed is None else decode_packet_in(committed.schema, frame)
        primaries = self._arbitration.primaries()
        if message is None or not primaries:
            self.packet_ins_lost += 1
            return
        self.packet_ins += 1
        for client in primaries:
            client.send(p4runtime_pb2.StreamMessageResponse(packet=message))

    def inject(self, port: int, frame: bytes, now_us: int | None = None) -> list[Output]:
        """Runs a frame through the pipeline in process; see Pipeline.inject. Frames that leave
        on the CPU port become packet-ins and are not returned. Raises RuntimeError without a
        pipeline."""
        return self.inject_batch([port], [frame], now_us)

    def inject_batch(
        self, ports: Sequence[int], frames: Sequence[bytes], now_us: int | None = None
    ) -> list[Output]:
        """Injects frames that arrive back to back; see Pipeline.inject_batch."""
        with self._lock:
            if self._pipeline is None:
                raise RuntimeError("no pipeline has been pushed")
            outputs = self._pipeline.inject_batch(ports, frames, now_us)
            self.notify(now_us)
        if self.cpu_port is None:
            return outputs
        for port, frame in outputs:
            if port == self.cpu_port:
                self.packet_in(frame)
        return [output for output in outputs if output[0] != self.cpu_port]

    def arbitrate(
        self, client: Client | None, message: p4runtime_pb2.MasterArbitrationUpdate, send: Send
    ) -> Client:
        # The lock lets a Write of the previous primary finish first, as the spec demands.
        with self._lock:
            try:
                return self._arbitration.update(client, message, send)
            finally:
                self._changed()

    def leave(self, client: Client) -> None:
        """Removes a client whose stream has ended; if it was the primary, there is no primary
        now."""
        self._arbitration.leave(client)

    def packet_out(self, client: Client | None, message: p4runtime_pb2.PacketOut) -> None:
        if client is None or not self._arbitration.is_primary(client):
            raise permission_denied("packet-outs are the primary client's alone")
        if self.cpu_port is None:
            raise failed_precondition("this switch has no CPU port: start it with --cpu-port")
        committed = self._committed
        if committed is None:
            raise failed_precondition("no pipeline has been pushed")
        frame = encode_packet_out(committed.schema, message)
        self.packet_outs += 1
        if self.on_packet_out is not None:
            self.on_packet_out(self.cpu_port, frame)
            return
        outputs = self.inject(self.cpu_port, frame)
        if self.on_output is not None:
            self.on_output(outputs)

    # -- digests and idle timeouts -------------------------------------------------------------

    def notify(self, now_us: int | None = None) -> int | None:
        """Sends the primary of each role the digest lists and idle timeouts that are due.

        now_us: None = the clock. Returns the microseconds after which to call again, None = not
        before something changes.
        """
        with self._lock:
            committed = self._committed
            if committed is None or not committed.speaks:
                return None
            now = committed.pipeline.now_us() if now_us is None else now_us
            primaries = self._arbitration.primaries()
            for message in committed.notices(now, bool(primaries)):
                for client in primaries:
                    client.send(message)
            due = committed.due_us(bool(primaries))
        return None if due is None else max(0, due - now)

    def notice_to(self, descriptor: int) -> None:
        """Sets the eventfd that is written to when notify() may have something to send; -1:
        none."""
        with self._lock:
            self._notice_to = descriptor
            if self._committed is not None:
                self._committed.externs.set_notice(descriptor)

    def _changed(self) -> None:
        """Signals that a client changed what notify() has to wait for. Lock held."""
        if self._notice_to >= 0 and self._committed is not None and self._committed.speaks:
            os.eventfd_write(self._notice_to, 1)

    def acknowledge(self, client: Client | None, message: p4runtime_pb2.DigestListAck) -> None:
        if client is None or not self._arbitration.is_primary(client):
            raise permission_denied("digest lists are the primary client's alone")
        with self._lock:
            if self._committed is None:
                raise failed_precondition("no pipeline has been pushed")
            self._committed.digests.acknowledge(message)

    # -- pipeline configuration ----------------------------------------------------------------

    def set_forwarding_pipeline_config(
        self, request: p4runtime_pb2.SetForwardingPipelineConfigRequest
    ) -> p4runtime_pb2.SetForwardingPipelineConfigResponse:
        """Verifies, saves or commits a program (spec, "SetForwardingPipelineConfig RPC").

        The program is compiled before anything changes: one that cannot be realized is
        INVALID_ARGUMENT, and the old one continues to forward. A commit clears all entries.
        """
        self._require_primary(request, "SetForwardingPipelineConfig")
        with self._pushing:
            if request.action == SetConfig.COMMIT:
                self._commit_saved(request)
            elif request.action == SetConfig.RECONCILE_AND_COMMIT:
                self._reconcile(request)
            elif request.action in (
                SetConfig.VERIFY,
                SetConfig.VERIFY_AND_SAVE,
                SetConfig.VERIFY_AND_COMMIT,
            ):
                self._verify(request)
            else:
                raise invalid_argument(f"action {request.action} is not set or not known")
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def _verify(self, request: SetConfig) -> None:
        built = self._build(request)
        try:
            if request.action == SetConfig.VERIFY:
                built.close()
                return
            with self._lock:
                # Compiling took a while: the client may have lost its primary role meanwhile.
                self._require_primary(request, "SetForwardingPipelineConfig")
                if request.action == SetConfig.VERIFY_AND_COMMIT:
                    self._commit(built)
                    self._drop_saved()
                else:
                    self._drop_saved()
                    self._saved = built
        except BaseException:
            built.close()
            raise
        log.info("pipeline config: %s", SetConfig.Action.Name(request.action))

    def _commit_saved(self, request: SetConfig) -> None:
        if request.HasField("config"):
            raise invalid_argument("COMMIT takes no config: it commits the saved one")
        with self._lock:
            self._require_primary(request, "SetForwardingPipelineConfig")
            if self._saved is None:
                raise not_found("no config is saved: send VERIFY_AND_SAVE first")
            self._commit(self._saved)
            self._saved = None
        log.info("pipeline config: COMMIT")

    def _reconcile(self, request: SetConfig) -> None:
        if not request.HasField("config"):
            raise invalid_argument("RECONCILE_AND_COMMIT needs a config")
        with self._lock:
            committed, config = self._committed, request.config
            if (
                committed is not None
                and committed.config.p4info == config.p4info
                and committed.config.p4_device_config == config.p4_device_config
            ):
                committed.config.CopyFrom(config)
                self._drop_saved()
                return
        built = self._build(request)
        try:
            with self._lock:
                self._require_primary(request, "SetForwardingPipelineConfig")
                if self._committed is not None:
                    carry(self._committed, built)
                self._commit(built)
                self._drop_saved()
        except BaseException:
            built.close()
            raise
        log.info("pipeline config: RECONCILE_AND_COMMIT")

    def _drop_saved(self) -> None:
        if self._saved is not None:
            self._saved.close()
            self._saved = None

    def _commit(self, forwarding: Forwarding) -> None:
        if self.on_commit is not None:
            self.on_commit(forwarding.pipeline)
        old, self._pipeline = self._pipeline, forwarding.pipeline
        self._committed = forwarding
        forwarding.externs.set_notice(self._notice_to)
        self._changed()
        if old is not None:
            old.close()

    def get_forwarding_pipeline_config(
        self, request: p4runtime_pb2.GetForwardingPipelineConfigRequest
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        """Returns the config that requests refer to (the saved one if there is one). Before the
        first push it is unset, as the spec says; BMv2 answers FAILED_PRECONDITION."""
        self._check_device(request.device_id)
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        with self._lock:
            current = self._saved or self._committed
            if current is None:
                if self._like_bmv2:
                    raise failed_precondition("no forwarding pipeline config is set")
                return response
            kind = request.response_type
            if kind not in GetConfig.ResponseType.values():
                raise invalid_argument(f"response_type {kind} is not known")
            response.config.SetInParent()
            if kind in (GetConfig.ALL, GetConfig.P4INFO_AND_COOKIE):
                response.config.p4info.CopyFrom(current.config.p4info)
            if kind in (GetConfig.ALL, GetConfig.DEVICE_CONFIG_AND_COOKIE):
                response.config.p4_device_config = current.config.p4_device_config
            if current.config.HasField("cookie"):
                response.config.cookie.CopyFrom(current.config.cookie)
        return response

    # -- entities ------------------------------------------------------------------------------

    def write(self, request: p4runtime_pb2.WriteRequest) -> p4runtime_pb2.WriteResponse:
        """Applies the updates in order, all of them even if some fail (CONTINUE_ON_ERROR).

        Raises UNKNOWN with one error per update if any failed; NOT_FOUND, PERMISSION_DENIED,
        FAILED_PRECONDITION (no pipeline) or UNIMPLEMENTED (another atomicity) if none was tried.
        """
        self._check_device(request.device_id)
        errors = []
        failed = False
        with self._lock:
            self._require_primary(request, "Write")
            forwarding = self._current("Write")
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise unimplemented("a batch is applied update by update: use CONTINUE_ON_ERROR")
            for update in request.updates:
                error = self._attempt(partial(forwarding.write, update))
                errors.append(error)
                failed = failed or error.canonical_code != code_pb2.OK
            self._changed()
        if failed:
            raise batch_error("Write", errors)
        return p4runtime_pb2.WriteResponse()

    def read(self, request: p4runtime_pb2.ReadRequest) -> Iterator[p4runtime_pb2.ReadResponse]:
        """Returns the entities that the request selects, read at one instant.

        The iterator yields those of the valid queries, then raises UNKNOWN with one error per query
        if any failed. Raises NOT_FOUND (device) or FAILED_PRECONDITION (no pipeline) at once. Every
        role sees everything, since a role has the whole pipeline here.
        """
        self._check_device(request.device_id)
        responses: list[p4runtime_pb2.ReadResponse] = []
        errors = []
        with self._lock:
            forwarding = self._current("Read")
            for query in request.entities:
                packer = Packer(responses)
                errors.append(self._attempt(partial(packer.take, forwarding.read(query))))
        return self._responses(responses, errors)

    @staticmethod
    def _responses(
        responses: list[p4runtime_pb2.ReadResponse], errors: list[p4runtime_pb2.Error]
    ) -> Iterator[p4runtime_pb2.ReadResponse]:
        yield from responses
        if any(error.canonical_code != code_pb2.OK for error in errors):
            raise batch_error("Read", errors)

    def capabilities(
        self, request: p4runtime_pb2.CapabilitiesRequest
    ) -> p4runtime_pb2.CapabilitiesResponse:
        """Returns the version of the API."""
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    # -- checks --------------------------------------------------------------------------------

    @staticmethod
    def _attempt(action: Callable[[], None]) -> p4runtime_pb2.Error:
        """Runs one element of a batch; returns its p4.v1.Error, with code OK if it succeeded."""
        try:
            action()
        except P4RuntimeError as error:
            return error.to_error()
        except MemoryError as error:
            return resource_exhausted(str(error) or "no memory").to_error()
        except Exception as error:
            log.exception("a request could not be handled")
            return internal(f"{type(error).__name__}: {error}").to_error()
        return p4runtime_pb2.Error(canonical_code=code_pb2.OK)

    def _current(self, what: str) -> Forwarding:
        current = self._saved or self._committed
        if current is None:
            raise failed_precondition(
                f"{what} before a pipeline: send SetForwardingPipelineConfig first"
            )
        return current

    def _check_device(self, device_id: int) -> None:
        if device_id != self.device_id:
            raise not_found(f"device_id {device_id}: this switch is device {self.device_id}")

    def _require_primary(self, request: p4runtime_pb2.WriteRequest | SetConfig, what: str) -> None:
        self._check_device(request.device_id)
        if request.role_id and not request.role:
            raise invalid_argument("role_id was deprecated in P4Runtime 1.4: give role")
        election_id = request.election_id if request.HasField("election_id") else None
        self._arbitration.require_primary(request.role, election_id, what)
