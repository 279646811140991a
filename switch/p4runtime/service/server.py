# SPDX-License-Identifier: Apache-2.0
"""Runs the gRPC server, and claims the address it listens on.

Addresses are gRPC's: `host:port`, `unix:/absolute/path` or `unix:relative/path`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from switch.p4runtime.device import Device
from switch.p4runtime.service.notifier import Notifier
from switch.p4runtime.service.servicer import MAX_STREAMS, P4RuntimeServicer
from switch.p4runtime.stubs import p4runtime_pb2_grpc

# sun_path holds 108 bytes with the final zero (unix(7)).
MAX_SOCKET_PATH = 107
# Programs are pushed in one message; BMv2's server has the same limit.
_MAX_MESSAGE = 256 * 1024 * 1024
# Threads beside those of the streams, for Write, Read and the other unary calls.
_WORKERS = 16
_END_SECONDS = 1.0


class AddressError(Exception):
    """The server cannot listen there; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class Tls:
    """PEM contents. root: certificate to verify clients by; client_auth: clients must present
    one."""

    key: bytes
    certificate: bytes
    root: bytes | None = None
    client_auth: bool = False


class Server:
    """A listening server. address: with the actual port if 0 was requested."""

    def __init__(
        self, server: grpc.Server, notifier: Notifier, address: str, socket_path: Path | None
    ) -> None:
        self._server = server
        self._notifier = notifier
        self._socket_path = socket_path
        self.address = address

    def stop(self, grace: float = 1.0) -> None:
        """Ends all RPCs, after waiting up to `grace` seconds for them."""
        self._notifier.stop()
        # gRPC's own stop never returns after a stream with a malformed message.
        self._server.stop(grace).wait(grace + _END_SECONDS)
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)


def serve(device: Device, address: str, tls: Tls | None = None) -> Server:
    """Starts serving the device. Raises AddressError if the address is bad or taken."""
    server = grpc.server(
        ThreadPoolExecutor(MAX_STREAMS + _WORKERS, thread_name_prefix="p4rt"),
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
            ("grpc.max_send_message_length", -1),
            # Without this a second server on the same port starts, and gets half of the clients.
            ("grpc.so_reuseport", 0),
        ],
    )
    p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(  # type: ignore[no-untyped-call]
        P4RuntimeServicer(device), server
    )
    path = socket_path(address)
    with _claim(path) if path is not None else contextlib.nullcontext():
        try:
            port = _add_port(server, address, tls)
        except RuntimeError as error:
            raise AddressError(
                f"cannot listen on {address}: {_reason(address, path)} ({error})"
            ) from error
        server.start()
    if path is None:
        address = f"{address.rpartition(':')[0]}:{port}"
    notifier = Notifier(device)
    notifier.start()
    return Server(server, notifier, address, path)


def _add_port(server: grpc.Server, address: str, tls: Tls | None) -> int:
    if tls is None:
        return int(server.add_insecure_port(address))
    credentials = grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)], tls.root, tls.client_auth
    )
    return int(server.add_secure_port(address, credentials))


def socket_path(address: str) -> Path | None:
    """Returns the path of a unix socket address, None for host:port. Raises AddressError for
    others."""
    if address.startswith("unix:"):
        text = address.removeprefix("unix:")
        if text.startswith("//"):
            text = text.removeprefix("//")
        if not text:
            raise AddressError(f"{address!r} has no path: give unix:/path/of/the/socket")
        length = len(os.fsencode(text))
        if length > MAX_SOCKET_PATH:
            raise AddressError(
                f"the socket path {text} has {length} bytes, the system allows "
                f"{MAX_SOCKET_PATH}: use a shorter directory"
            )
        return Path(text)
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{address!r} is no address: give host:port or unix:/path")
    return None


def is_local(address: str) -> bool:
    """Returns True if only processes of this machine can connect to the address."""
    if socket_path(address) is not None:
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _claim(path: Path) -> Iterator[None]:
    """Removes a socket that a dead process left behind.

    The directory is locked meanwhile: gRPC removes what it finds at the path, and of two servers
    that start together one must see the other. Raises AddressError if the path is taken.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise AddressError(f"cannot listen on {path}: {error.strerror}: {path.parent}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        _remove_stale(path)
        yield
    finally:
        os.close(directory)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{path} exists and is no socket: remove it or use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        result = probe.connect_ex(str(path))
    if result == errno.ECONNREFUSED:
        path.unlink()
    elif result == 0 or result in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINPROGRESS):
        raise AddressError(f"port already taken: another process listens on {path}")
    else:
        raise AddressError(f"cannot listen on {path}: {os.strerror(result)}")


def _reason(address: str, path: Path | None) -> str:
    """Returns why gRPC could not bind, which its own exception does not say."""
    family = socket.AF_UNIX if path is not None else socket.AF_INET
    try:
        if path is not None:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(str(path))
            path.unlink()
        else:
            host, _, port = address.rpartition(":")
            info = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            with socket.socket(info[0][0], socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(info[0][4])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "port already taken by another process"
        return error.strerror or str(error)
    return "refused by gRPC"
