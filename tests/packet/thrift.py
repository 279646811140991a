# SPDX-License-Identifier: Apache-2.0
"""A client of BMv2's Thrift server, for state that P4Runtime does not expose."""

import contextlib
import itertools
import os
import socket
import struct

# Below those that the kernel assigns to binds of port 0, so that no process takes one between here
# and the process that is to have it. Test processes side by side begin apart.
_FIRST, _COUNT = 10_000, 22_000
_numbers = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """Returns a free TCP port that is given to no other caller."""
    for number in itertools.islice(_numbers, _COUNT):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"all of {_COUNT} TCP ports are in use")


# Thrift's binary protocol: types of values, and of the messages.
_STOP, _I32, _I64, _STRING, _LIST = 0, 8, 10, 11, 15
_CALL, _REPLY = 0x8001_0001, 0x8001_0002


def _call(method: bytes) -> bytes:
    """Of a function of the first context."""
    head = struct.pack(f">II{len(method)}sI", _CALL, len(method), method, 0)
    return head + struct.pack(">bhi", _I32, 1, 0)


def _text(number: int, text: bytes) -> bytes:
    return struct.pack(f">bhI{len(text)}s", _STRING, number, len(text), text)


def add_to_value_set(port: int, name: str, value: bytes) -> None:
    """Adds a member (the parts of the key one behind the other, right-aligned) to a parser value
    set of BMv2, as bm_parse_vset_add does. OSError."""
    message = _call(b"standard:bm_parse_vset_add") + _text(2, name.encode()) + _text(3, value)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(message + bytes([_STOP]))
        with connection.makefile("rb") as answer:
            kind, length = struct.unpack(">II", answer.read(8))
            answer.read(length + 4)
            if kind != _REPLY or answer.read(1) != bytes([_STOP]):
                raise OSError(f"BMv2 did not add {value.hex()} to value set {name}")


def set_queue_rates(port: int, rate: int) -> None:
    """Has each queue of BMv2 send so many packets a second, as simple_switch_CLI's set_queue_rate
    does. OSError."""
    method = b"simple_switch:set_all_egress_queue_rates"
    message = struct.pack(f">II{len(method)}sI", _CALL, len(method), method, 0)
    message += struct.pack(">bhq", _I64, 1, rate) + bytes([_STOP])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(message)
        with connection.makefile("rb") as answer:
            kind, length = struct.unpack(">II", answer.read(8))
            answer.read(length + 4)
            if kind != _REPLY:
                raise OSError(f"BMv2 did not set queue rates: {answer.peek()[:200]!r}")


def registers(port: int, name: str) -> dict[int, int]:
    """All cells of a register of BMv2 that are not 0, over its Thrift server (its call
    bm_register_read_all), as simple_switch_CLI's register_read does. What is
    larger than 2^63 - 1 is that. OSError."""
    method, array = b"standard:bm_register_read_all", name.encode()
    message = _call(method) + _text(2, array) + bytes([_STOP])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(message)
        with connection.makefile("rb") as answer:
            kind, length = struct.unpack(">II", answer.read(8))
            answer.read(length + 4)
            field, number = struct.unpack(">bh", answer.read(3))
            if kind != _REPLY or field != _LIST or number != 0:
                raise OSError(f"BMv2 did not give register {name}: {answer.peek()[:200]!r}")
            _, count = struct.unpack(">bi", answer.read(5))
            cells = struct.unpack(f">{count}q", answer.read(8 * count))
    return {index: value for index, value in enumerate(cells) if value}
