# SPDX-License-Identifier: Apache-2.0
"""Compiles the C code of hosts at its first use, and loads it.

All that happens to packets at workers and servers is there, so hosts need a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path

from protocol.header import HEADER_BYTES, Array
from switch.compiler import Functions, load_library

_RUNTIME = Path(__file__).parent
# Each operation rounds by itself, as in Python.
FLAGS = ("-ffp-contract=off",)
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_SOCKET = ctypes.c_int
_FUNCTIONS: Functions = {
    "receive_trains": (None, [_SOCKET, _POINTER]),
    "worker_turns": (None, [*[_POINTER] * 3]),
    "send_trains": (
        ctypes.c_int64,
        [_SOCKET, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, ctypes.POINTER(ctypes.c_uint64)],
    ),
    "cast_trains": (
        ctypes.c_int64,
        [
            _SOCKET, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE, _SIZE,
            ctypes.POINTER(ctypes.c_uint64),
        ],
    ),
    "root_contribute": (ctypes.c_int64, [_POINTER, _POINTER, ctypes.c_int]),
    "root_forecast": (None, [_POINTER, _POINTER]),
    "root_visible": (None, [_POINTER, _POINTER, ctypes.c_int, _POINTER]),
    "root_query": (None, [_POINTER, _POINTER]),
    "root_headers": (None, [_POINTER, _POINTER, _SIZE, _POINTER]),
    "root_finish": (ctypes.c_int64, [_POINTER, _POINTER, _SIZE, *[_POINTER] * 3]),
    "root_write": (None, [_POINTER, _POINTER, _SIZE, *[_POINTER] * 3]),
    "worker_receive": (None, [_POINTER, _POINTER, ctypes.c_double]),
    "worker_prepare": (ctypes.c_int64, [_POINTER, ctypes.c_double]),
    "worker_poll": (None, [_POINTER, ctypes.c_double, _POINTER]),
    "worker_submit": (ctypes.c_int64, [_POINTER, _POINTER]),
    "worker_redirect": (None, [_POINTER, _POINTER]),
    "worker_run": (ctypes.c_int64, [*[_POINTER] * 4]),
    "background_create": (_POINTER, [ctypes.c_uint64]),
    "background_destroy": (None, [_POINTER]),
    "background_begin": (None, [_POINTER, ctypes.c_uint64, *[_POINTER] * 4]),
    "background_ready": (ctypes.c_int, [_POINTER, ctypes.c_uint64]),
    "background_finish": (ctypes.c_int64, [_POINTER, ctypes.c_uint64]),
    "find_tickets": (None, [*[_POINTER] * 3]),
    "complete_rows": (None, [*[_POINTER] * 3]),
    "check_results": (None, [*[_POINTER] * 4]),
    "sort_frames": (
        ctypes.c_int64,
        [_POINTER, _POINTER, _SIZE, _SIZE, *[_POINTER] * 3],
    ),
    "read_frames": (
        ctypes.c_int,
        [_POINTER, _SIZE, _SIZE, _POINTER, _POINTER, ctypes.c_int64, *[_POINTER] * 3],
    ),
    "write_frames": (ctypes.c_int, [_POINTER]),
    "find_room": (
        ctypes.c_int,
        [
            _POINTER, _POINTER, _SIZE, ctypes.c_double, ctypes.c_double, ctypes.c_int64,
            ctypes.c_int64,
        ],
    ),
    "contributed_to": (ctypes.c_int64, [_POINTER, _SIZE]),
}  # fmt: skip


@functools.cache
def load_native() -> ctypes.CDLL:
    """Returns the compiled functions. Raises CompilerError, OSError (cache not writable)."""
    return load_library("hosts", _RUNTIME, _FUNCTIONS, flags=FLAGS)


def check_constants(lib: ctypes.CDLL, expected: Mapping[str, int]) -> None:
    """Compares constants of the C code, such as sizes of structures, with those of Python.

    Raises RuntimeError, naming the constant, where they differ.
    """
    for name, value in expected.items():
        found = ctypes.c_int64.in_dll(lib, name).value
        if found != value:
            raise RuntimeError(f"native code: {name} is {found} in C and {value} in Python")


def contributed_to(lib: ctypes.CDLL, headers: Array) -> tuple[int, int, int] | None:
    """Returns job, epoch and stream if all packets, at least one, are contributions to sums of
    these and not DIRECT.

    headers: (n,) HEADER. May return None if they are not contiguous.
    """
    if headers.strides[0] != HEADER_BYTES:
        return None
    found = lib.contributed_to(headers.ctypes.data, len(headers))
    return None if found < 0 else (found >> 24, found >> 8 & 0xFFFF, found & 0xFF)
