# SPDX-License-Identifier: Apache-2.0
"""Bindings of the benchmark's C code: the load at the links' ends, and the null switch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.common import BenchError
from benchmarks.forwarding.traffic import Traffic
from switch.compiler import CompilerError, Functions, load_library

GATHER, CROSS = 0, 1  # enum pattern of native/null.c
_SOURCES = Path(__file__).parent / "native"
_READY = ctypes.CFUNCTYPE(None)


class _Traffic(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "messages", "message_bytes", "vnet", "numbers", "number_at", "number_stride",
            "number_step", "number_again", "headers", "segment", "train", "window", "sign_at",
            "sign", "varying", "varying_at", "varying_bytes", "across",
        )
    ]  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """Packets of all ports: sent, received (and their payload bytes), unexpected, given up as lost,
    and how often that was; wall seconds, those that the load was sending, and those that other
    processes had its core (the maximum over cores)."""

    sent: int
    received: int
    bytes: int
    strange: int
    lost: int
    stalls: int
    seconds: float
    sending: float
    waited: float


class _Counts(ctypes.Structure):
    _fields_ = [
        (one.name, ctypes.c_double if one.type == "float" else ctypes.c_uint64)
        for one in fields(Counts)
    ]


@cache
def _library() -> ctypes.CDLL:
    number, names = ctypes.c_uint32, ctypes.POINTER(ctypes.c_char_p)
    functions: Functions = {
        "ends_open": (
            ctypes.c_void_p,
            [
                names, ctypes.POINTER(_Traffic), ctypes.c_char_p, ctypes.c_char_p, number,
                ctypes.POINTER(ctypes.c_int),
            ],
        ),
        "ends_close": (None, [ctypes.c_void_p]),
        "ends_run": (
            ctypes.c_int, [ctypes.c_void_p, ctypes.c_double, ctypes.POINTER(_Counts)],
        ),
        "null_run": (ctypes.c_int, [names, ctypes.c_int, number, ctypes.c_int, number, _READY]),
    }  # fmt: skip
    try:
        return load_library("bench", _SOURCES, functions, use_errno=True)
    except CompilerError as error:
        raise BenchError(str(error)) from error


def _names(interfaces: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(interfaces))(*map(os.fsencode, interfaces))


class Ends:
    """Sends and counts at the far ends of the switch's links; a context manager.

    cores: 1, 2 or 4 that serve the ports; the first is the caller's. Raises BenchError if the
        interfaces cannot be used.
    """

    def __init__(self, interfaces: Sequence[str], traffic: Traffic, cores: Sequence[int]) -> None:
        self._native = _library()
        train = b"".join(traffic.trains)
        size = len(traffic.trains[0]) // traffic.messages
        varying = b"".join(traffic.varying)
        contents = len(varying) // len(traffic.trains) // (traffic.varying_bytes or 1)
        raw = _Traffic(
            traffic.messages, size, traffic.vnet, traffic.numbers, traffic.number_at,
            traffic.number_stride, traffic.number_step, traffic.number_again, traffic.headers,
            traffic.segment, traffic.packets, traffic.window, *traffic.sign,
            contents, traffic.varying_at, traffic.varying_bytes, traffic.across,
        )  # fmt: skip
        self._handle = self._native.ends_open(
            _names(interfaces), raw, train, varying, len(cores), (ctypes.c_int * len(cores))(*cores)
        )
        if not self._handle:
            why = os.strerror(ctypes.get_errno())
            raise BenchError(f"cannot open {', '.join(interfaces)} for the load: {why}")

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self._native.ends_close(self._handle)

    def run(self, seconds: float) -> Counts:
        """Loads the switch; 0 only waits for packets in flight. Raises BenchError."""
        counts = _Counts()
        result = self._native.ends_run(self._handle, seconds, counts)
        if result < 0:
            hint = " (without UDP segmentation offload, only --mode plain can be measured)"
            raise BenchError(f"the load cannot be sent: {os.strerror(-result)}{hint}")
        return Counts(*(getattr(counts, one.name) for one in fields(Counts)))


def forward_nothing(
    interfaces: Sequence[str],
    pattern: int,
    number_at: int,
    vnet: bool,
    batch: int,
    ready: Callable[[], None],
) -> None:
    """Runs the null switch until it is killed. Raises BenchError."""
    result = _library().null_run(_names(interfaces), pattern, number_at, vnet, batch, _READY(ready))
    raise BenchError(f"the null switch ended: {os.strerror(-result)}")
