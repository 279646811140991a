# SPDX-License-Identifier: Apache-2.0
"""Unwraps a p4_device_config, which old clients of BMv2 wrap in a p4.tmp.P4DeviceConfig.

    message P4DeviceConfig {
      bool reassign = 1;        // BMv2 takes the device away first; here a push always replaces
      Extras extras = 2;        // of other targets
      bytes device_data = 3;    // the program
    }

P4Runtime has dropped that message in 1.0, and its Python stubs lack it, so it is parsed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

_DEVICE_DATA = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def unwrap(device_config: bytes) -> bytes:
    """Returns the wrapped program, which may be empty, or unwrapped bytes as they are."""
    # JSON is not such a message: "{" would begin a group, which proto3 does not have.
    if device_config.lstrip()[:1] == b"{":
        return device_config
    data = b""
    try:
        for number, value in _fields(device_config):
            if number == _DEVICE_DATA:
                data = value
    except (ValueError, IndexError):
        return device_config
    return data


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the number and value of each field. Raises ValueError or IndexError for other
    bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("no field has number 0")
        start = at
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, start = _varint(message, at)
            at = start + length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at > len(message):
            raise ValueError("the message ends within a field")
        yield number, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns the number at this offset, and the offset behind it."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
