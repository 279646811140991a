# SPDX-License-Identifier: Apache-2.0
"""What a worker's transport sends, result by result, when many results were given at once.

Windows move, data whose exponent round is done becomes due, what the link has room for goes, round
trips are measured and timers set: in numbers alone, without payloads. In C where there is a
compiler (``runtime/releases.c``, `hosts.columns`); what is here says what that comes to.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.round_trip import Measured
from hosts.scheduler import WIRE_OVERHEAD, Pacer
from hosts.slots import DONE, HELD, Rows
from protocol.header import HEADER_BYTES, Array

if TYPE_CHECKING:
    from hosts.transport import WorkerTransport

Seconds = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

# Whole numbers of a clock's resolution are exact in float64 up to here.
EXACT = 2.0**53


class Clock(NamedTuple):
    """What the driver of a transport does between results.

    second: of what its clock counts; who waits is asked again at a whole number of them. tick:
    seconds that it waits at least when there was nothing to send. room: whether frames of so many
    bytes each, handed over at these times, all find room.
    """

    second: float
    tick: float
    room: Callable[[Seconds, Numbers], bool]

    def alarm(self, now: float, seconds: float) -> float:
        """The time at which it asks again that waits from now on."""
        return (round(now * self.second) + round(seconds * self.second)) / self.second


@dataclass
class Steps:
    """What is sent (n,): rows of the slots in their order, bytes on the wire, when they are handed
    over, when they leave the host, and when to ask about them. taken: by stream, how many entries
    of its queue entered the window. rings: by stream, the time before which none of its timers
    rings; -inf: no result of it came. sent: whether anything left at the last result; following:
    when to ask again. released: rows that were held at first, and became due. after: by stream, of
    each entry that could enter whether its exponent is what the one before it finds. measured,
    pacer: round trips (see RoundTrips.take) and the pacer as they are then."""

    rows: Rows
    sizes: Numbers
    times: Seconds
    leave: Seconds
    deadlines: Seconds
    taken: list[int]
    rings: Seconds
    sent: bool
    following: float
    released: Rows
    after: list[Any]
    measured: Measured
    pacer: Pacer


@dataclass
class Before:
    """What a transport is before the results, by row of its slots, stream, entry and result:
    copies, which the steps write to.

    entries[i]: those of stream i that could enter. after: of each entry, whether its exponent is
    what the one before it finds.
    """

    times: Seconds
    rows: Numbers
    took: Seconds
    clean: _Bytes
    done: _Bytes
    held: _Bytes
    round: _Bytes
    order: Numbers
    ready: Numbers
    left: list[int]
    next: list[int]
    entries: list[Array]
    after: list[_Bytes]
    measured: Measured
    pacer: Pacer


def before(
    transport: WorkerTransport, times: Seconds, rows: Rows, entries: list[Array], after: list[Any]
) -> Before:
    """Of results that arrive at these times (n,) for these rows."""
    slots, trips = transport._slots, transport.round_trips
    return Before(
        np.ascontiguousarray(times, np.float64),
        np.ascontiguousarray(rows, np.int64),
        np.maximum(times - slots.sent_last[rows], 0.0),
        slots.clean[rows].view(np.uint8),
        (slots.stage == DONE).view(np.uint8),
        (slots.stage == HELD).view(np.uint8),
        np.ascontiguousarray(slots.exponent_round).view(np.uint8).copy(),
        slots.order.copy(),
        slots.due.nonzero()[0].astype(np.int64),
        list(slots.left),
        list(slots.next),
        entries,
        after,
        trips.copies(),
        copy.copy(transport._pacer),
    )


def steps(transport: WorkerTransport, known: Before, clock: Clock) -> Steps:
    """Writes to `known` what is so behind the last result."""
    return _Singly(transport, known, clock).run()


class _Singly:
    """One result after the other."""

    def __init__(self, transport: WorkerTransport, known: Before, clock: Clock) -> None:
        self._known, self._clock, self._slots = known, clock, transport._slots
        self._held = known.held.copy()
        self._trips = transport.round_trips.fresh(len(known.left))
        self._trips.take(known.measured)
        self._rows: list[int] = []
        self._sizes: list[int] = []
        self._times: list[float] = []
        self._leave: list[float] = []
        self._deadlines: list[float] = []
        self._arrived: list[int] = []
        self._rings: list[tuple[int, float]] = []  # of each result: its stream, and when
        self._taken = [0] * len(known.left)
        self._wake = self._following = math.inf
        self._spent = 0
        small, large = wire_sizes(transport)
        self._size = [large, small]
        self._heap: list[tuple[int, int, int]] = []
        for row in known.ready.tolist():
            self._push(row)

    def run(self) -> Steps:
        """All of them."""
        known = self._known
        for number, (time, row) in enumerate(
            zip(known.times.tolist(), known.rows.tolist(), strict=True)
        ):
            while self._wake < time:
                self._poll(self._wake)
            self._arrive(number, time, row)
            self._poll(time)
        latest = np.full(len(self._taken), -np.inf)
        result = len(self._rings)
        for at in range(len(self._rows) - 1, -1, -1):
            result = self._restart(latest, result, self._arrived[at])
            stream = self._slots.stream[self._rows[at]]
            ring, timeout = float(latest[stream]), float(self._trips.timeouts[stream])
            if math.isfinite(ring):
                self._deadlines[at] = max(ring, self._leave[at] + timeout)
        self._restart(latest, result, 0)
        return Steps(
            np.array(self._rows, np.intp),
            np.array(self._sizes, np.int64),
            np.array(self._times, np.float64),
            np.array(self._leave, np.float64),
            np.array(self._deadlines, np.float64),
            self._taken,
            latest,
            self._spent > 0,
            self._following,
            (self._held > known.held).nonzero()[0],
            known.after,
            self._trips.copies(),
            known.pacer,
        )

    def _restart(self, latest: Seconds, result: int, first: int) -> int:
        """A stream's timer restarts with every result, from the last to the first of these."""
        for stream, ring in reversed(self._rings[first:result]):
            if not math.isfinite(latest[stream]):
                latest[stream] = ring
        return min(result, first)

    def _push(self, row: int) -> None:
        entry = -int(self._slots.priority[row]), int(self._known.order[row]), row
        heapq.heappush(self._heap, entry)

    def _arrive(self, number: int, time: float, row: int) -> None:
        known, slots, trips = self._known, self._slots, self._trips
        stream = int(slots.stream[row])
        if known.clean[number] and not known.round[row]:
            trips.sample_one(time, stream, float(known.took[number]))
        self._rings.append((stream, time + float(trips.timeouts[stream])))
        known.done[row] = 1
        base, mask = int(slots.bases[stream]), int(slots.masks[stream])
        behind = base + ((row - base + 1) & mask)
        is_last = (known.next[stream] - 1 - (row - base)) & mask == 0
        if known.round[row] and not is_last and known.held[behind]:
            known.held[behind] = 0
            self._push(behind)
        self._enter(stream)

    def _enter(self, stream: int) -> None:
        """Numbers for which there is room in the window now, see Slots.enter."""
        known, slots = self._known, self._slots
        entries, after = known.entries[stream], known.after[stream]
        base, mask = int(slots.bases[stream]), int(slots.masks[stream])
        left, following, at = known.left[stream], known.next[stream], self._taken[stream]
        if at == len(entries):
            return
        while left < following and known.done[base + (left & mask)]:
            left += 1
        while at < len(entries) and following < left + slots.windows[stream]:
            row = base + (following & mask)
            known.done[row] = 0
            known.order[row] = entries["order"][at]
            known.round[row] = entries["exponent_round"][at]
            known.held[row] = after[at] and not known.done[base + ((following - 1) & mask)]
            if not known.held[row]:
                self._push(row)
            at, following = at + 1, following + 1
        known.left[stream], known.next[stream], self._taken[stream] = left, following, at

    def _poll(self, now: float) -> None:
        """Sends what there is room for, see WorkerTransport.poll and hosts.driver.drive."""
        known, heap = self._known, self._heap
        room, spent = known.pacer.room(now), 0
        while heap and spent < room:
            row = heapq.heappop(heap)[2]
            size = self._size[known.round[row]]
            self._rows.append(row)
            self._sizes.append(size)
            self._times.append(now)
            leave = known.pacer.hand_over(now, size)
            self._leave.append(leave)
            self._deadlines.append(leave + float(self._trips.timeouts[self._slots.stream[row]]))
            self._arrived.append(len(self._rings))
            spent += size
        self._spent, self._following, self._wake = spent, math.inf, math.inf
        if heap:
            self._following = max(now, known.pacer.next_time())
            least = 0.0 if spent else self._clock.tick
            self._wake = self._clock.alarm(now, max(least, self._following - now))


def wire_sizes(transport: WorkerTransport) -> tuple[int, int]:
    """Bytes on the wire of a packet without payload, and of one with it."""
    small = HEADER_BYTES + WIRE_OVERHEAD
    return small, small + 4 * transport.lanes
