# SPDX-License-Identifier: Apache-2.0
"""Runs a switch's ports in virtual time: packets in and out have a time each.

    ports = TimedPorts(latency=500_000)
    ports.attach(pipeline)
    ports.add(1, Line(parts=80, whole=1, longest=1514))
    departures = ports.run([Arrivals(1, times, frames, lengths)], until)

This is `switch.ports` without interfaces and clock. The work is done in C for batches of packets
(runtime/virtual_time/timed_ports.h, which defines the model).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int, c_int64, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from switch.compiler import Functions, declare
from switch.pipeline import Pipeline, abi
from switch.ports.paced_line import (
    NEVER,
    Change,
    Line,
    LineCounters,
    LineOptions,
    NativeChange,
    NativeCounters,
    address,
    load_driver,
    native_changes,
)

__all__ = ["NEVER", "Arrivals", "Departures", "Line", "LineCounters", "TimedPorts"]

PORTS = 511
"""Port numbers of a switch are below this."""

ECHO = 7
"""64-bit fields of struct timed_echo."""


Queue: TypeAlias = Literal["fifo", "strict", "outside"]
_QUEUES: dict[Queue, int] = {"fifo": 0, "strict": 1, "outside": 2}


class TimedPortsError(Exception):
    """The ports cannot carry out a request; the message gives the port, the reason and the
    remedy."""


@dataclass(slots=True, eq=False)
class Arrivals:
    """Packets that arrive on a port.

    times: (n,) int64 ps, not decreasing
    frames: (n, stored) uint8, C-contiguous; the program sees bytes that are not stored as zeros
    lengths: (n,) int64 bytes of the whole frames
    rank: packets that arrive at one time are processed by rising rank
    """

    port: int
    times: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int64]
    rank: int = 0


@dataclass(slots=True, eq=False)
class Departures:
    """Packets that left a port.

    times: (n,) ps, when the last bit left
    frames, lengths: as in Arrivals
    inputs: (n,) the arrival each derives from, counted through all arrivals of the call in their
        order; -1: it was recirculated from an earlier call
    priorities: (n,) given by the program
    length_bytes, wire_bytes: totals, without and with the line's overhead
    free: when the line is free (ps)
    came: (n,) ps, when each entered its queue, if the switch is watched
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


class _Train(ctypes.Structure):
    """struct timed_train"""

    _fields_ = (
        ("times", pointer), ("lengths", pointer), ("frames", pointer), ("count", c_uint64),
        ("first", c_uint64), ("port", c_uint64), ("stored", c_uint64), ("rank", c_uint64),
        ("taken", c_uint64),
    )  # fmt: skip


class _Departures(ctypes.Structure):
    """struct timed_departures"""

    _fields_ = (
        ("ports", pointer), ("ends", pointer), ("lengths", pointer), ("inputs", pointer),
        ("came", pointer), ("priorities", pointer), ("bytes", pointer),
    )  # fmt: skip


class _Totals(ctypes.Structure):
    """struct timed_totals"""

    _fields_ = (("ports", c_uint64), ("packets", c_uint64), ("bytes", c_uint64))


class _Part(ctypes.Structure):
    """struct timed_part"""

    _fields_ = (
        ("timed", pointer), ("trains", pointer), ("count", c_uint64), ("totals", _Totals),
    )  # fmt: skip


class _Carried(ctypes.Structure):
    """struct timed_carried"""

    _fields_ = (
        ("packets", c_uint64), ("bytes", c_uint64), ("wire", c_uint64), ("arrived", c_uint64),
        ("free", c_int64),
    )  # fmt: skip


_PORT_FIELDS = 7  # 64-bit fields of struct timed_port


_FUNCTIONS: Functions = {
    "timed_create": (pointer, [c_uint64]),
    "timed_destroy": (None, [pointer]),
    "timed_attach": (None, [pointer, pointer, pointer]),
    "timed_lose": (None, [pointer]),
    "timed_hold": (None, [pointer, c_int64, c_int64]),
    "timed_slots": (c_uint64, [pointer, c_uint32]),
    "timed_overflowed": (c_uint64, [pointer]),
    "timed_line": (c_int, [pointer, c_uint32, POINTER(LineOptions), c_int]),
    "timed_line_read": (c_int, [pointer, c_uint32, POINTER(NativeCounters)]),
    "timed_line_change": (c_int, [pointer, c_uint32, POINTER(NativeChange), c_uint64]),
    "timed_no_port": (c_uint64, [pointer]),
    "timed_no_program": (c_uint64, [pointer]),
    "timed_next": (c_int64, [pointer]),
    "timed_first": (c_int64, [pointer, c_uint64]),
    "timed_since": (c_int64, [pointer]),
    "timed_run": (c_int, [POINTER(_Part), c_uint64, c_int64, c_uint64, POINTER(c_int64)]),
    "timed_watch": (None, [pointer]),
    "timed_echoes": (None, [pointer, pointer]),
    "timed_wire": (c_int, [pointer, c_uint32, pointer, c_uint32, c_int64, c_uint64]),
    "timed_wire_read": (c_int, [pointer, c_uint32, POINTER(_Carried)]),
    "timed_collect": (None, [pointer, POINTER(_Departures)]),
    "timed_free": (None, [pointer]),
}


@cache
def _library() -> ctypes.CDLL:
    return declare(load_driver(), _FUNCTIONS)


class _Given:
    """Frames that C has given: bytes of a shape, freed with the last array that refers to them."""

    def __init__(self, at: int, shape: tuple[int, int]) -> None:
        self._at, self._free = at, _library().timed_free
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": shape, "data": (at, False),
        }  # fmt: skip

    def __del__(self) -> None:
        self._free(self._at)


class TimedPorts:
    """The lines of one switch, and the program behind them.

    latency: ps from a packet's arrival until it is queued for its port. Not thread safe.
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
        self._asked_by: list[FirstEvent] = []
        self._ports: list[int] = []
        self._last: dict[int, LineCounters] = {}  # of closed ports
        self._last_overflowed = 0

    def close(self) -> None:
        """Frees everything but the counters, before the pipeline is closed. Idempotent."""
        if self._open is not None:
            self._last = {port: self.counters(port) for port in self._ports}
            self._last_overflowed = self.overflowed
            for one in self._asked_by:
                one.close()
            self._native.timed_destroy(self._open)
            self._open = None

    @property
    def _handle(self) -> pointer:
        if self._open is None:
            raise TimedPortsError("the ports are closed")
        return self._open

    def attach(self, pipeline: Pipeline | None) -> None:
        """Attaches another program to the same lines; None: arrivals are dropped and counted.
        Packets that wait to recirculate in the old program, which must not be closed yet, are
        lost."""
        program = (None, None) if pipeline is None else (pipeline.handle, pipeline.functions)
        self._native.timed_attach(self._handle, *program)

    def lose(self) -> None:
        """Drops and counts what waits in queues by strict priority. A packet that has begun to
        leave is not lost."""
        self._native.timed_lose(self._handle)

    def hold(self, now: int, until: int) -> None:
        """Stops the switch until a time (ps), or longer if it is stopped: nothing begins to leave.

        Packets that arrive by wires meanwhile arrive then, but not more than `slots` at a port:
        others are dropped and counted (`overflowed`). The caller has to hold all other arrivals
        itself. until = now: it does not go on, and what waits arrives now.
        """
        self._native.timed_hold(self._handle, now, until)

    def slots(self, port: int) -> int:
        """Returns how many packets wait at a port while the switch is stopped; 0 without a
        line."""
        return int(self._native.timed_slots(self._handle, port))

    def add(self, port: int, line: Line, queue: Queue = "fifo") -> None:
        """Adds a line for a port.

        queue: first in, first out; by strict priority; or outside: the caller queues and paces
            departures, whose times are those at which they enter that queue.

        Raises TimedPortsError if the port has a line or does not exist.
        """
        result = self._native.timed_line(self._handle, port, byref(line.options()), _QUEUES[queue])
        if result == abi.EXISTS:
            raise TimedPortsError(f"port {port} has a line already")
        if result == abi.RANGE:
            raise TimedPortsError(f"port {port} cannot have a line: ports are 0 .. 510")
        if result == abi.NO_MEMORY:
            raise MemoryError(f"no memory for port {port}")
        self._ports.append(port)

    def change(self, port: int, changes: Sequence[Change]) -> None:
        """Changes the rate of a port's line (`LineQueue.change`). Raises TimedPortsError if there
        is none, MemoryError."""
        native = native_changes(changes)
        result = self._native.timed_line_change(self._handle, port, native, len(changes))
        if result == abi.NO_MEMORY:
            raise MemoryError("no memory for changes of a line's rate")
        if result:
            raise TimedPortsError(f"port {port} has no line")

    def next(self) -> int:
        """Returns the time (ps) of the next recirculation, arrival by a wire, or start of a packet
        that waits by priority; NEVER without one."""
        return int(self._native.timed_next(self._handle))

    def waiting_since(self) -> int:
        """Returns when the first of the packets came (ps) that wait by priority; NEVER without
        one."""
        return int(self._native.timed_since(self._handle))

    def run(self, arrivals: Sequence[Arrivals], until: int) -> list[Departures]:
        """Processes all that is due before `until`: these packets, which must be, and recirculated
        ones.

        Packets that arrive at one time are processed in the order of `arrivals`. Departures of a
        port are in order, and times do not decrease from call to call. Raises TimedPortsError if
        packets recirculate without time passing, or have priorities on a line without priorities;
        MemoryError.
        """
        return run_together([(self, arrivals)], NEVER, until).departures[0]

    def wire(self, port: int, to: TimedPorts, to_port: int, delay: int, rank: int) -> None:
        """Connects a port that has a line to a port of another switch, `delay` ps away. Packets of
        the port arrive there instead of being departures, and are that port's only arrivals. From
        then on the two switches run together only.

        rank: see Arrivals. Raises TimedPortsError if there is no line, or a wire already.
        """
        result = self._native.timed_wire(self._handle, port, to._handle, to_port, delay, rank)
        if result == abi.NO_MEMORY:
            raise MemoryError("no memory for a wire between switches")
        if result:
            raise TimedPortsError(f"port {port} has no line, or a wire already, or no queue")

    def watch(self) -> None:
        """Records when packets enter queues (`came`), and reports what leaves by a wire as
        departures, too. Call it before any packet has left."""
        self._watched = True
        self._native.timed_watch(self._handle)

    def set_echoes(self, echoes: npt.NDArray[np.int64]) -> None:
        """Bounds how far `run_together` runs: peers at the ports may answer, and no packet is
        forwarded that such an answer could precede.

        echoes: (PORTS, ECHO) by port, read at each call: when the peer's line is free (ps, NEVER
        if there is no peer); the delay of a packet to it; a time, at multiples of which it notices
        packets; the least delay until an answer leaves, and until that arrives; how many packets
        cause no other event, and the delay of the earliest event that the next one causes. The
        sixth is changed by calls.
        """
        self._echoes = echoes
        self._native.timed_echoes(self._handle, address(echoes))

    def carried(self, port: int) -> tuple[int, int, int, int, int]:
        """Returns what a port's wire carried since the last call: packets, bytes without and with
        the line's overhead, packets that have arrived; and when the line is free (ps)."""
        found = _Carried()
        if self._native.timed_wire_read(self._handle, port, byref(found)):
            raise TimedPortsError(f"port {port} has no wire")
        return found.packets, found.bytes, found.wire, found.arrived, found.free

    def counters(self, port: int) -> LineCounters:
        """Returns the counters of a port's line, after close() too. Raises KeyError."""
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

    @property
    def overflowed(self) -> int:
        """Packets of wires for which there was no room while the switch was stopped; after close()
        too."""
        if self._open is None:
            return self._last_overflowed
        return int(self._native.timed_overflowed(self._handle))

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
        for port, packets, width, size, wire, free, given in ports.tolist():
            rows = slice(at, at + packets)
            if given:
                frames = np.asarray(_Given(given, (packets, width)))
            else:
                frames = content[used : used + packets * width].reshape(-1, width)
                used += packets * width
            one = Departures(
                port, times[rows], frames, lengths[rows], inputs[rows], priorities[rows], size,
                wire, free, came[rows] if came is not None else None,
            )  # fmt: skip
            found.append(one)
            at += packets
        return found


class FirstEvent:
    """When the first event of several switches comes.

    Asked in each round of a network of hundreds of switches.
    """

    def __init__(self, ports: Sequence[TimedPorts]) -> None:
        self._native = _library()
        self._handles: Any = (pointer * len(ports))(*(one._handle.value for one in ports))
        for one in ports:
            one._asked_by.append(self)

    def close(self) -> None:
        """Called when one of the switches is closed."""
        self._handles = None

    def next(self) -> int:
        """Returns the first time (ps) that `next` of one of them returns; NEVER without one. Raises
        TimedPortsError if one is closed."""
        if self._handles is None:
            raise TimedPortsError("the ports are closed")
        return int(self._native.timed_first(self._handles, len(self._handles)))


class Together(NamedTuple):
    """The result of running several switches.

    departures: by switch
    taken: by switch, how many packets of each of its arrivals were due
    until: the time up to which they have run
    """

    departures: list[list[Departures]]
    taken: list[list[int]]
    until: int


def run_together(
    parts: Sequence[tuple[TimedPorts, Sequence[Arrivals]]],
    lookahead: int,
    until: int,
    threads: int = 1,
) -> Together:
    """Runs several switches, which have wires only among one another, as `run` does one. Stops at
    the first time at which an answer could arrive (`TimedPorts.set_echoes`).

    lookahead: ps that each wire takes at least. threads: that share the work, at most, where that
    is worth their start; results do not depend on it. Arrivals of a switch are in the order of
    their ranks.
    """
    native = (_Part * len(parts))()
    kept: list[Any] = []
    given: list[Any] = []
    for part, (ports, arrivals) in zip(native, parts, strict=True):
        count, first = len(arrivals), 0
        trains = (_Train * count)()
        for train, one in zip(trains, arrivals, strict=True):
            # The C library keeps only addresses; these references keep the arrays alive.
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
    result = _library().timed_run(native, len(parts), lookahead, threads, byref(end))
    if result == abi.RANGE:
        raise TimedPortsError(
            "packets were recirculated or resubmitted more than 65536 times at one moment: the"
            " program recirculates them endlessly; a latency above 0 lets time pass"
        )
    if result == abi.EXISTS:
        raise TimedPortsError(
            "the program gives packets priorities: its lines must have queues for them"
        )
    if result == abi.NO_MEMORY:
        raise MemoryError("no memory for what leaves the ports of a switch")
    return Together(
        [
            ports._collected(part.totals) if part.totals.packets else []
            for part, (ports, _) in zip(native, parts, strict=True)
        ],
        [[train.taken for train in trains] for trains in given],
        end.value,
    )
