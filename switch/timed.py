# SPDX-License-Identifier: Apache-2.0
"""The ports of a switch in virtual time: packets with a time each, in and out.

    ports = TimedPorts(latency=500_000)
    ports.attach(pipeline)
    ports.add(1, Line(parts=80, whole=1, longest=1514))
    departures = ports.run([Arrivals(1, times, frames, lengths)], until)

What `switch.ports` is for interfaces and a clock. All of it is in C (runtime/io/timed.h, which says
what holds), many packets at a call; nothing here reads a clock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from switch.paced_line import NEVER, Line, LineCounters, LineOptions, NativeCounters, address
from switch.pipeline import Pipeline
from switch.ports import library as ports_library

__all__ = ["NEVER", "Arrivals", "Departures", "Line", "LineCounters", "TimedPorts"]

PORTS = 511
"""A switch's ports are below this."""

_EXISTS, _RANGE, _NO_MEMORY = -1, -5, -4


class TimedPortsError(Exception):
    """The ports cannot do what was asked; the message says which, why and what to do."""


@dataclass(slots=True, eq=False)
class Arrivals:
    """Packets that arrive on a port: times (n,) int64 ps, not decreasing; frames (n, stored) uint8,
    the rows one behind the other; lengths (n,) int64 bytes of the whole frames. What is not stored
    the program sees as zeros, and what is behind the end of a frame not at all. rank: of packets
    that arrive at one time the lowest come first."""

    port: int
    times: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int64]
    rank: int = 0


@dataclass(slots=True, eq=False)
class Departures:
    """Packets that left a port.

    times: (n,) when the last bit left. frames, lengths: as in Arrivals. inputs: (n,) which arrival
    of the call each comes of, counted through all of them as they were given; -1: it went round
    before. priorities: (n,) that the program gave them. length_bytes, wire_bytes: of all, without
    and with all that goes with a frame. free: when the line is (ps). came: (n,) when it came to its
    queue (ps), of a switch that is watched.
    """

    port: int
    times: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int64]
    inputs: npt.NDArray[np.int64]
    priorities: npt.NDArray[np.uint8]
    length_bytes: int
    wire_bytes: int
    free: int
    came: npt.NDArray[np.int64] | None = None


class _Program(ctypes.Structure):
    _fields_ = (
        ("sw", pointer),
        *(
            (name, pointer)
            for name in (
                "sw_set_traffic_manager", "sw_lock", "sw_unlock", "sw_receive", "sw_send",
                "sw_take_round", "sw_round", "sw_packet_free",
            )
        ),
    )  # fmt: skip


class _Train(ctypes.Structure):
    _fields_ = (
        ("times", pointer), ("lengths", pointer), ("frames", pointer), ("count", c_uint64),
        ("first", c_uint64), ("port", c_uint64), ("stored", c_uint64), ("rank", c_uint64),
        ("taken", c_uint64),
    )  # fmt: skip


class _Departures(ctypes.Structure):
    _fields_ = (
        ("ports", pointer), ("ends", pointer), ("lengths", pointer), ("inputs", pointer),
        ("came", pointer), ("priorities", pointer), ("bytes", pointer),
    )  # fmt: skip


class _Totals(ctypes.Structure):
    _fields_ = (("ports", c_uint64), ("packets", c_uint64), ("bytes", c_uint64))


class _Part(ctypes.Structure):
    _fields_ = (
        ("timed", pointer), ("trains", pointer), ("count", c_uint64), ("totals", _Totals),
    )  # fmt: skip


class _Carried(ctypes.Structure):
    _fields_ = (
        ("packets", c_uint64), ("bytes", c_uint64), ("wire", c_uint64), ("arrived", c_uint64),
        ("free", c_int64),
    )  # fmt: skip


_PORT_FIELDS = 6  # of struct timed_port, 64 bits each


@cache
def _library() -> ctypes.CDLL:
    lib = ports_library()
    lib.timed_create.restype = pointer
    lib.timed_create.argtypes = [c_uint64]
    lib.timed_destroy.restype = None
    lib.timed_destroy.argtypes = [pointer]
    lib.timed_attach.restype = None
    lib.timed_attach.argtypes = [pointer, POINTER(_Program)]
    lib.timed_line.argtypes = [pointer, c_uint32, POINTER(LineOptions), c_int]
    lib.timed_line_read.argtypes = [pointer, c_uint32, POINTER(NativeCounters)]
    for counter in (lib.timed_no_port, lib.timed_no_program):
        counter.restype = c_uint64
        counter.argtypes = [pointer]
    lib.timed_next.restype = c_int64
    lib.timed_next.argtypes = [pointer]
    lib.timed_run.restype = c_int
    lib.timed_run.argtypes = [POINTER(_Part), c_uint64, c_int64, POINTER(c_int64)]
    lib.timed_watch.restype = None
    lib.timed_watch.argtypes = [pointer]
    lib.timed_echoes.restype = None
    lib.timed_echoes.argtypes = [pointer, pointer]
    lib.timed_wire.argtypes = [pointer, c_uint32, pointer, c_uint32, c_int64, c_uint64]
    lib.timed_wire_read.argtypes = [pointer, c_uint32, POINTER(_Carried)]
    lib.timed_collect.restype = None
    lib.timed_collect.argtypes = [pointer, POINTER(_Departures)]
    return lib


class TimedPorts:
    """Lines of one switch, and the program behind them.

    latency: ps from a packet's arrival until it is queued for its port. Not for several threads.
    """

    def __init__(self, latency: int = 0) -> None:
        if latency < 0:
            raise ValueError(f"a latency of {latency} ps; allowed: 0 and above")
        self._native = _library()
        handle = self._native.timed_create(latency)
        if not handle:
            raise MemoryError("no memory for the ports of a switch")
        self._open: pointer | None = pointer(handle)
        self._watched = False
        self._ports: list[int] = []
        self._last: dict[int, LineCounters] = {}  # of ports that are closed

    def close(self) -> None:
        """Frees all of it, before the pipeline is closed; only `counters` still answers. May be
        called again."""
        if self._open is not None:
            self._last = {port: self.counters(port) for port in self._ports}
            self._native.timed_destroy(self._open)
            self._open = None

    @property
    def _handle(self) -> pointer:
        if self._open is None:
            raise TimedPortsError("the ports are closed")
        return self._open

    def attach(self, pipeline: Pipeline | None) -> None:
        """Another program under the same lines; None: what arrives is dropped and counted. What
        waits to go round in the old one, which must not be closed yet, is lost."""
        if pipeline is None:
            self._native.timed_attach(self._handle, None)
            return
        program = _Program(pipeline.handle)
        for name, *_ in _Program._fields_[1:]:
            setattr(program, name, ctypes.cast(getattr(pipeline.native, name), pointer))
        self._native.timed_attach(self._handle, byref(program))

    def add(self, port: int, line: Line, unqueued: bool = False) -> None:
        """A line for a port. unqueued: somebody else queues and paces what leaves, by its priority;
        times are those at which it comes to that queue.

        Raises TimedPortsError: it has one, or there is no such port.
        """
        result = self._native.timed_line(self._handle, port, byref(line.options()), unqueued)
        if result == _EXISTS:
            raise TimedPortsError(f"port {port} has a line already")
        if result == _RANGE:
            raise TimedPortsError(f"port {port} cannot have a line: ports are 0 .. 510")
        if result == _NO_MEMORY:
            raise MemoryError(f"no memory for port {port}")
        self._ports.append(port)

    def next(self) -> int:
        """When something that goes round comes back to ingress, or a packet arrives by a wire (ps);
        NEVER if nothing does."""
        return int(self._native.timed_next(self._handle))

    def run(self, arrivals: Sequence[Arrivals], until: int) -> list[Departures]:
        """All that is due before a time: these packets, which must be, and what goes round.

        Packets that arrive at one time come in the order in which they are given. Of each port
        departures are in order, and times do not decrease from call to call. Raises
        TimedPortsError if packets go round without time passing, or have priorities on a line that
        knows none; MemoryError.
        """
        return run_together([(self, arrivals)], NEVER, until).departures[0]

    def wire(self, port: int, to: TimedPorts, to_port: int, delay: int, rank: int) -> None:
        """What leaves by a port that has a line arrives at one of another switch, so many ps later,
        and nothing else does; it is no departure. rank: see Arrivals. From then on the two run
        together only. Raises TimedPortsError if there is no line, or a wire already."""
        result = self._native.timed_wire(self._handle, port, to._handle, to_port, delay, rank)
        if result == _NO_MEMORY:
            raise MemoryError("no memory for a wire between switches")
        if result:
            raise TimedPortsError(f"port {port} has no line, or a wire already, or is unqueued")

    def watch(self) -> None:
        """Before anything has left: departures have `came`, and what leaves by a wire is one, too,
        beside arriving at the other end."""
        self._watched = True
        self._native.timed_watch(self._handle)

    def answered(self, echoes: npt.NDArray[np.int64]) -> None:
        """Who is at the ports may answer, and nothing is forwarded that such an answer could come
        before (`run_together` only).

        echoes: (PORTS, 3) ps by port, read at each call: when the other end's line is free (NEVER
        if nobody answers), how long a packet takes to get there, and an answer back at least.
        """
        self._echoes = echoes
        self._native.timed_echoes(self._handle, address(echoes))

    def carried(self, port: int) -> tuple[int, int, int, int, int]:
        """Of a port's wire since this was asked last: packets, their bytes without and with all
        that goes with a frame, and packets that have arrived; then when the line is free (ps)."""
        found = _Carried()
        if self._native.timed_wire_read(self._handle, port, byref(found)):
            raise TimedPortsError(f"port {port} has no wire")
        return found.packets, found.bytes, found.wire, found.arrived, found.free

    def counters(self, port: int) -> LineCounters:
        """Of a port that has a line, until the ports were closed. KeyError."""
        if port not in self._ports:
            raise KeyError(f"port {port} has no line")
        if self._open is None:
            return self._last[port]
        found = NativeCounters()
        self._native.timed_line_read(self._open, port, byref(found))
        return found.counters()

    @property
    def no_port(self) -> int:
        """Packets that the program sent to ports without a line."""
        return int(self._native.timed_no_port(self._handle))

    @property
    def no_program(self) -> int:
        """Packets that arrived while no program was attached."""
        return int(self._native.timed_no_program(self._handle))

    def _collected(self, totals: _Totals) -> list[Departures]:
        count = totals.packets
        ports = np.empty((totals.ports, _PORT_FIELDS), np.uint64)
        numbers = np.empty((4 if self._watched else 3, count), np.int64)
        priorities = np.empty(count, np.uint8)
        content = np.empty(totals.bytes, np.uint8)
        start = address(numbers)
        native = _Departures(
            address(ports), start, start + 8 * count, start + 16 * count,
            start + 24 * count if self._watched else None, address(priorities), address(content),
        )  # fmt: skip
        self._native.timed_collect(self._handle, byref(native))
        times, lengths, inputs = numbers[:3]
        came = numbers[3] if self._watched else None
        found: list[Departures] = []
        at = used = 0
        for port, packets, width, size, wire, free in ports.tolist():
            rows = slice(at, at + packets)
            kept = packets * width
            frames = content[used : used + kept].reshape(-1, width)
            one = Departures(
                port, times[rows], frames, lengths[rows], inputs[rows], priorities[rows], size,
                wire, free, came[rows] if came is not None else None,
            )  # fmt: skip
            found.append(one)
            at += packets
            used += kept
        return found


class Together(NamedTuple):
    """What came of several switches' packets: departures by switch; taken: by switch, how many of
    each of its arrivals were due; until: as far as they have run."""

    departures: list[list[Departures]]
    taken: list[list[int]]
    until: int


def run_together(
    parts: Sequence[tuple[TimedPorts, Sequence[Arrivals]]], lookahead: int, until: int
) -> Together:
    """As `run` of each of several switches, which have wires among them alone; no further than to
    the first time at which an answer could come (`TimedPorts.answered`). lookahead: ps that each
    wire takes at least. Arrivals of a switch are in the order of their ranks."""
    native = (_Part * len(parts))()
    kept: list[Any] = []
    given: list[Any] = []
    for part, (ports, arrivals) in zip(native, parts, strict=True):
        count, first = len(arrivals), 0
        trains = (_Train * count)()
        for train, one in zip(trains, arrivals, strict=True):
            # The C library keeps addresses alone.
            times, lengths = np.ascontiguousarray(one.times), np.ascontiguousarray(one.lengths)
            frames = np.ascontiguousarray(one.frames)
            kept.append((times, lengths, frames))
            train.times, train.lengths = address(times), address(lengths)
            train.frames = address(frames)
            train.count, train.first, train.port = len(one.times), first, one.port
            train.stored, train.rank = one.frames.shape[1], one.rank
            first += len(one.times)
        given.append(trains)
        part.timed, part.count = ports._handle, count
        part.trains = ctypes.addressof(trains) if count else None
    end = c_int64(until)
    result = _library().timed_run(native, len(parts), lookahead, byref(end))
    if result == _RANGE:
        raise TimedPortsError(
            "packets were recirculated or resubmitted more than 65536 times at one moment: the"
            " program sends them round without end; a latency above 0 lets time pass"
        )
    if result == _EXISTS:
        raise TimedPortsError(
            "the program gives packets priorities: its lines must be unqueued ones"
        )
    if result == _NO_MEMORY:
        raise MemoryError("no memory for what leaves the ports of a switch")
    return Together(
        [
            ports._collected(part.totals) if part.totals.packets else []
            for part, (ports, _) in zip(native, parts, strict=True)
        ],
        [[train.taken for train in trains] for trains in given],
        end.value,
    )
