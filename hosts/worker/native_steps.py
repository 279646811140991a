# SPDX-License-Identifier: Apache-2.0
"""What a worker does whenever it wakes up, in C: takes plain results, builds what it sends
(``hosts/native/steps.c``).

Nearly all results are the integer sum that a number waits for, and nearly all packets are sent for
the first time. Where something else is among them, both methods change nothing, and the transport
does the same in Python.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from hosts.data.array_pool import ArrayPool
from hosts.native.loader import check_constants, load_native
from hosts.net.pacer import Pacer
from hosts.worker.loss_detection import LossDetector
from hosts.worker.native_state import Detection, NativeState, behind
from hosts.worker.round_trips import RoundTrips
from hosts.worker.slots import Rows, Slots
from protocol.header import PEER, Batch, packet_bytes, parts_of
from protocol.plan import WorkerPlan
from switch.ports.paced_line import address

_DUE = np.dtype([("rank", "i8"), ("order", "i8"), ("row", "i8")])


class _Found(ctypes.Structure):
    """`struct found` of hosts/native/steps.c."""

    _fields_ = (
        ("due", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("special", ctypes.c_int64),
        ("deadline", ctypes.c_double),
    )


class _Link(ctypes.Structure):
    """`struct link` of hosts/native/steps.c."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("rate", "backlog", "clear")),
        *((name, ctypes.c_int64) for name in ("small", "large")),
    )


class Sent(NamedTuple):
    """Packets sent for the first time, None if nothing was due, and the time of the next poll."""

    batch: Batch | None
    following: float


class NativeSteps:
    """The steps of one transport, whose parts are passed in; only where `can` returns true.

    header_room: bytes reserved before each packet.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        native: NativeState,
        detector: LossDetector,
        trips: RoundTrips,
        pacer: Pacer,
        header_room: int,
    ) -> None:
        self._lib: Any = load_native()
        _check(self._lib)
        self._worker, self._native, self._slots = native.at, native, slots
        self._detector, self._pacer, self._header_room = detector, pacer, header_room
        self._memory = ArrayPool()
        self._detection = Detection.of(
            detector, trips, detector.latest, trips.state, detector.gaps.state
        )
        rows = len(slots.stage)
        # Kept, as C has their addresses.
        self._kept = trips.state, detector.latest, detector.gaps.state, slots.values_at
        self._due, self._rows = np.zeros(rows, _DUE), np.zeros(rows, np.intp)
        self._found = _Found(address(self._due), 0, 0, 0.0)
        small, large = (int(n) for n in Pacer.wire_bytes(np.array([False, True]), plan.lanes))
        self._link = _Link(pacer.rate, pacer.backlog, 0.0, small, large)
        self._found_at, self._link_at = ctypes.addressof(self._found), ctypes.addressof(self._link)
        self._detection_at = ctypes.addressof(self._detection)
        self._rows_at, self._values_at = address(self._rows), address(slots.values_at)

    @staticmethod
    def can(plan: WorkerPlan) -> bool:
        """Returns true if results of such a plan, for which there is a NativeState, are plain."""
        plain = not (plan.is_asynchronous or plan.pipeline.pulls)
        return plain and plan.codec.rounds_to_nearest

    def receive(self, now: float, batch: Batch) -> tuple[Rows, int] | None:
        """Takes results that arrive now; the caller completes their rows.

        Returns these (n,) and the number of results that met congestion, or None if they are not
        all plain.
        """
        n, words, detector, windows = (
            len(batch),
            batch.payloads,
            self._detector,
            self._native.open(),
        )
        if n > len(self._rows) or not behind(batch):
            return None
        detector.count(n)
        self._detection.lossy = detector.lossy
        congested = self._lib.receive_results(
            self._worker, self._detection_at, now, address(batch.headers), address(batch.peers),
            words.__array_interface__["data"][0], words.strides[0], address(batch.full), n,
            address(windows), self._rows_at,
        )  # fmt: skip
        if congested < 0:
            detector.count(-n)
            return None
        detector.news = True
        return self._rows[:n].copy(), congested

    def send(self, now: float) -> Sent | None:
        """Sends what is due and fits; None if a probe, retransmission or DIRECT chunk is due."""
        detector, pacer, found, link = self._detector, self._pacer, self._found, self._link
        windows = self._native.open()
        self._lib.find_due(
            self._worker, self._detection_at, now, detector.news, address(windows), self._found_at
        )
        if found.special:
            return None
        if not found.count:
            detector.news = False
            return Sent(None, found.deadline)
        link.clear = pacer.clear
        n = self._lib.fitting(self._worker, self._found_at, self._link_at, now)
        batch = None
        if n:
            room = self._memory.empty(
                (n, self._header_room + packet_bytes(self._slots.width)), np.uint8
            )
            wire = room[:, self._header_room :]
            headers, payloads = parts_of(wire)
            full, peers = np.empty(n, np.bool_), np.empty(n, PEER)
            sent = self._lib.send_due(
                self._worker, self._detection_at, self._found_at, self._link_at, now, n,
                self._values_at, address(room) + self._header_room, room.shape[1], address(full),
                address(peers), self._rows_at,
            )  # fmt: skip
            if not sent:
                return None
            batch = Batch(headers, payloads, full, peers, wire, room)
            pacer.clear = link.clear
        detector.news = False
        if n < found.count:
            return Sent(batch, max(now, pacer.next_time()))
        return Sent(batch, found.deadline)


@functools.cache
def _check(lib: ctypes.CDLL) -> None:
    """Raises RuntimeError if structures here differ from those of the C code."""
    check_constants(
        lib,
        {
            "found_bytes": ctypes.sizeof(_Found),
            "link_bytes": ctypes.sizeof(_Link),
            "due_bytes": _DUE.itemsize,
        },
    )
