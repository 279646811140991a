# SPDX-License-Identifier: Apache-2.0
"""P4Runtime v1 for the embedded target (https://p4.org/p4-spec/p4runtime/main/P4Runtime-Spec.html).

`Device` handles requests, `P4RuntimeServicer` adapts it to gRPC, `serve` listens on an address.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switch.p4runtime.device import Device
    from switch.p4runtime.errors import P4RuntimeError
    from switch.p4runtime.service.server import (
        AddressError,
        Server,
        Tls,
        is_local,
        serve,
        socket_path,
    )
    from switch.p4runtime.service.servicer import P4RuntimeServicer
    from switch.p4runtime.streams import Stream

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

_PLACES = {"Device": "device", "Stream": "streams", "P4RuntimeError": "errors"}
_PLACES["P4RuntimeServicer"] = "service.servicer"


def __getattr__(name: str) -> Any:
    # A device compiles programs, which takes long to import; clients of one need none of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES.get(name, 'service.server')}", __name__), name)
