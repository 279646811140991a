# SPDX-License-Identifier: Apache-2.0
"""The environment of a host: its clock, threads, sockets, and calls to services.

`HERE` is this machine: UDP of its kernel, gRPC over unix sockets to the job service and over TCP to
other servers. In virtual time `simulation.nodes.environment` replaces it; nothing else of a host's
code differs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from hosts.data.workspace import Workspace
from hosts.errors import ServiceUnavailableError
from hosts.net.driver import Attachment, Visible
from hosts.net.pacer import BACKLOG, URGENT_BACKLOG
from hosts.net.udp import worker_endpoint
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES
from protocol.jobs_pb2_grpc import JobServiceStub
from protocol.plan import Address
from protocol.runtime import REAL, Runtime
from protocol.shards_pb2_grpc import (
    ShardServiceServicer,
    ShardServiceStub,
    add_ShardServiceServicer_to_server,
)

_LONGEST_SOCKET_PATH = 107  # bytes; sun_path of unix(7) less its final zero
_MOST_MESSAGE_BYTES = 256 << 20
_SERVICE_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    # Reconnect soon after a service is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_PEER_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES),
    # TCP's own timeouts double; replacing a connection that is dead for 2 s is faster.
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Connection:
    """A connection to a service. `stub` has its calls, as generated gRPC stubs do; `close` ends
    them."""

    def __init__(self, stub: Any, close: Callable[[], None]) -> None:
        self.stub = stub
        self.close = close

    def __enter__(self) -> Any:
        return self.stub

    def __exit__(self, *_: object) -> None:
        self.close()


class HostEnvironment:
    """The environment of this machine.

    payload: true if chunks have a payload. Without it (virtual time only) they only occupy the
        wire: nothing is quantised or summed, and results are zero.
    header_room: bytes reserved before each packet for its headers below UDP.
    """

    runtime: Runtime = REAL
    payload = True
    header_room = 0

    def compute(self, seconds: float) -> None:
        """Takes the time of a computation, in virtual time only; longer on a slow host."""
        self.runtime.sleep(seconds)

    def check_service(self, service: str) -> None:
        """Raises what ``socket_path`` raises."""
        socket_path(service)

    def endpoint(self, address: str, **options: Any) -> Attachment:
        """Returns a worker's endpoint, see ``hosts.net.udp.worker_endpoint``."""
        return worker_endpoint(address, **options)

    def expect(
        self,
        endpoint: Attachment,
        expected: Callable[[], tuple[float, float]],
        visible: Visible | None = None,
    ) -> None:
        """Declares what the driver of an endpoint awaits; of use in virtual time only.

        expected: returns how many packets arrive at least, and a time of the runtime's clock that
            is reached, before the driver calls or wakes anything but its endpoint. Called while it
            waits there.
        visible: returns (n,), whether each packet has an effect that anything but later packets can
            see. The driver may get the others as late as the next one that has. None: all have.
        """

    def service(self, service: str) -> Connection:
        """Connects to the job service; raises what ``socket_path`` raises."""
        path = socket_path(service)
        channel = grpc.insecure_channel(f"unix:{path}", options=_SERVICE_OPTIONS)
        stub = JobServiceStub(channel)  # type: ignore[no-untyped-call]  # generated without types
        return Connection(stub, channel.close)

    def workspace(self) -> Workspace:
        """Returns memory for the calls of a transport."""
        return Workspace()

    def backlog(
        self, rate: int, queue_bytes: int | None, payload: int, *, classes: bool = False
    ) -> float:
        """Returns the seconds of link time that a worker hands over ahead.

        The backlog covers at least two packets, so that one still waits for the link when a busy
        machine polls late, and enough for trains.

        rate: of the link, in bit/s.
        queue_bytes: limit of the interface's queue, where a full queue blocks the sender.
        payload: bytes of payload in a packet.
        classes: some chunks are more urgent than others, and are to overtake them.
        """
        seconds = URGENT_BACKLOG if classes else BACKLOG
        if rate <= 0:
            return seconds
        return max(seconds, 2 * 8 * (payload + HEADER_BYTES + OVERHEAD) / rate)

    def peer(self, address: Address) -> Connection:
        """Connects to another server; the connection is renewed whenever that server is up."""
        channel = grpc.insecure_channel(str(address), options=_PEER_OPTIONS)
        return Connection(ShardServiceStub(channel), channel.close)  # type: ignore[no-untyped-call]

    def answer(self, address: Address, servicer: ShardServiceServicer) -> Callable[[], None]:
        """Serves other servers at an address; returns a function that stops it.

        Raises OSError if the port is taken.
        """
        threads = ThreadPoolExecutor(8, thread_name_prefix="shards")
        server = grpc.server(threads, options=_PEER_OPTIONS)
        add_ShardServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        try:
            port = server.add_insecure_port(str(address))
        except RuntimeError as error:  # of grpcio; before 1.60 it returned 0
            raise OSError(0, f"cannot listen at {address} (TCP): {error}") from error
        if not port:
            raise OSError(0, f"cannot listen at {address} (TCP)")
        server.start()

        def end() -> None:
            server.stop(grace=None).wait()

        return end


HERE = HostEnvironment()


def socket_path(service: str) -> str:
    """The path of a service given as `unix:PATH` or as the path itself.

    Raises ServiceUnavailableError if no such socket is there, ValueError if its path is longer
    than a unix socket's may be.
    """
    path = service.removeprefix("unix:")
    if len(path.encode()) > _LONGEST_SOCKET_PATH:
        raise ValueError(
            f"the job service's socket {path} has a path of {len(path.encode())} bytes, and a "
            f"unix socket's has at most {_LONGEST_SOCKET_PATH}: use a link in a short directory"
        )
    if not Path(path).is_socket():
        raise ServiceUnavailableError(f"no job service at {path}: there is no such socket")
    return path
