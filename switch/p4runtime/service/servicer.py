# SPDX-License-Identifier: Apache-2.0
"""Adapts Device to gRPC's p4.v1.P4Runtime service: method names and statuses, nothing else.

It can also be called without gRPC: with context None an error is raised as P4RuntimeError.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc

from switch.p4runtime.device import Device
from switch.p4runtime.errors import P4RuntimeError, internal, resource_exhausted
from switch.p4runtime.streams import Stream
from switch.p4runtime.stubs import p4runtime_pb2

log = logging.getLogger(__name__)

# Most open StreamChannels; each holds a thread of the server.
MAX_STREAMS = 32
# Messages (packet-ins, digest lists, idle timeouts) that may wait for a slow controller, and their
# bytes; further ones are dropped.
MAX_WAITING = 4096
MAX_WAITING_BYTES = 64 << 20

_STATUS = {code.value[0]: code for code in grpc.StatusCode}

Context = grpc.ServicerContext | None


def _unary(method: str) -> Callable[..., Any]:
    """Returns the RPC that calls a method of Device."""

    def call(servicer: P4RuntimeServicer, request: Any, context: Context = None) -> Any:
        with _status(context):
            return getattr(servicer.device, method)(request)

    return call


class P4RuntimeServicer:
    """Register it with p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server, or call it."""

    Write = _unary("write")
    SetForwardingPipelineConfig = _unary("set_forwarding_pipeline_config")
    GetForwardingPipelineConfig = _unary("get_forwarding_pipeline_config")
    Capabilities = _unary("capabilities")

    def __init__(self, device: Device) -> None:
        self.device = device
        self._streams = 0
        self._lock = threading.Lock()

    def Read(  # noqa: N802
        self, request: p4runtime_pb2.ReadRequest, context: Context = None
    ) -> Iterator[p4runtime_pb2.ReadResponse]:
        """Calls Device.read."""
        with _status(context):
            yield from self.device.read(request)

    def StreamChannel(  # noqa: N802
        self,
        request_iterator: Iterable[p4runtime_pb2.StreamMessageRequest],
        context: Context = None,
    ) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        """Calls Device.open_stream. Ends when the requests end, or with the error of
        arbitration."""
        with _status(context):
            with self._lock:
                if self._streams >= MAX_STREAMS:
                    raise resource_exhausted(f"{MAX_STREAMS} streams are open, which is the limit")
                self._streams += 1
            outbox = _Outbox()
            stream = self.device.open_stream(outbox.put)
            reader = threading.Thread(
                target=_pump, args=(request_iterator, stream, outbox), name="p4rt-stream"
            )
            reader.daemon = True  # in process it ends only with its iterator
            reader.start()
            try:
                yield from outbox
            finally:
                stream.close()
                with self._lock:
                    self._streams -= 1


class _Outbox:
    """The send queue of one stream. Iterating yields its messages until `end` is called."""

    def __init__(self) -> None:
        self._waiting: deque[p4runtime_pb2.StreamMessageResponse] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: P4RuntimeError | None = None
        self._bytes = 0
        self._dropped = 0

    def put(self, response: p4runtime_pb2.StreamMessageResponse) -> None:
        with self._changed:
            full = len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES
            if full and not response.HasField("arbitration"):
                self._dropped += 1
                if self._dropped == 1:
                    log.warning("a controller reads too slowly: messages to it are dropped")
                return
            if len(self._waiting) >= 2 * MAX_WAITING and not self._ended:
                self._ended = True
                self._error = resource_exhausted("this client does not read its stream")
            if self._ended:
                return
            self._waiting.append(response)
            self._bytes += response.ByteSize()
            self._changed.notify()

    def end(self, error: P4RuntimeError | None) -> None:
        with self._changed:
            self._ended, self._error = True, self._error or error
            self._changed.notify()

    def __iter__(self) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    break
                response = self._waiting.popleft()
                self._bytes -= response.ByteSize()
            yield response
        if self._error is not None:
            raise self._error


def _pump(
    requests: Iterable[p4runtime_pb2.StreamMessageRequest], stream: Stream, outbox: _Outbox
) -> None:
    """Reads one stream's requests until they end, one is fatal, or the client disconnects."""
    error: P4RuntimeError | None = None
    try:
        for request in requests:
            stream.receive(request)
    except P4RuntimeError as refused:
        log.info("stream refused: %s", refused)
        error = refused
    except grpc.RpcError:
        log.debug("stream broken by the client")
    except Exception as failure:
        # gRPC's own request iterator raises a bare Exception when the call is cancelled.
        if type(failure) is not Exception:
            log.exception("a stream message could not be handled")
            error = internal(f"{type(failure).__name__}: {failure}")
    finally:
        stream.close()
        outbox.end(error)


@contextmanager
def _status(context: Context) -> Iterator[None]:
    """Sets the status of the RPC from a P4RuntimeError (spec, "Error Reporting Messages")."""
    try:
        yield
    except P4RuntimeError as error:
        if context is None:
            raise
        _abort(context, error)
    except GeneratorExit:
        raise
    except Exception as failure:
        if context is None or type(failure) is Exception:
            raise
        log.exception("an RPC could not be handled")
        _abort(context, internal(f"{type(failure).__name__}: {failure}"))


def _abort(context: grpc.ServicerContext, error: P4RuntimeError) -> NoReturn:
    status = error.to_status()
    if status.details:
        details = status.SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(_STATUS[error.code], status.message)
    raise AssertionError("abort returned")
