# SPDX-License-Identifier: Apache-2.0
"""P4Runtime v1 for the embedded target (https://p4.org/p4-spec/p4runtime/main/P4Runtime-Spec.html).

`Device` handles requests, `P4RuntimeServicer` gives it gRPC's shape, `serve` a listening address.
"""

from .device import Device, Stream
from .errors import P4RuntimeError
from .server import AddressError, Server, Tls, is_local, serve, socket_path
from .servicer import P4RuntimeServicer

__all__ = [
    "AddressError",
    "Device",
    "P4RuntimeError",
    "P4RuntimeServicer",
    "Server",
    "Stream",
    "Tls",
    "is_local",
    "serve",
    "socket_path",
]
