# SPDX-License-Identifier: Apache-2.0
"""Results that arrived one after the other, taken at once.

A batch says when it was read, not when its packets came. Where arrival times are known (in virtual
time) a worker's transport has to come to what it would, had each result been taken by itself, and
each contribution has to leave when the result that makes room for it is there. Where results are
plain and nothing else can happen meanwhile, that is computed here for many of them: windows, pacing
and timeouts go step by step, in numbers alone, and payloads are worked on together.
`tests/unit/test_releases.py` holds the two against each other.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.scheduler import Pacer, Queue
from hosts.slots import DONE, HELD, WAITING, Rows, taken
from hosts.verification import wrong
from protocol.fixed_point import chunk_exponents
from protocol.header import FLAGGED, Array, Batch, Flag, Op, ops, peer_keys

if TYPE_CHECKING:
    from hosts.transport import WorkerTransport

Seconds = npt.NDArray[np.float64]

_NONE = np.zeros(0, np.intp)
_NOT_PLAIN = np.uint8(FLAGGED | Flag.DIRECT)


class Clock(NamedTuple):
    """What the driver of a transport does between results.

    alarm: (now, seconds) to the time at which it asks again that waits from now on. tick: seconds
    that it waits at least when there was nothing to send. room: whether frames of so many bytes,
    handed over at these times, all find room.
    """

    alarm: Callable[[float, float], float]
    tick: float
    room: Callable[[list[float], int], bool]


class Released(NamedTuple):
    """Packets to send, and when each of them leaves (n,); batch None: there are none. sent: whether
    any did when the last result was there; following: when to ask again."""

    batch: Batch | None
    times: Seconds
    sent: bool
    following: float


def release(
    transport: WorkerTransport, times: Seconds, batch: Batch, clock: Clock
) -> Released | None:
    """Takes results that arrived at these times (n,), ascending. None: they are to be taken one by
    one, and nothing was done."""
    rows = _plain(transport, times, batch)
    if rows is None:
        return None
    steps = _Steps(transport, clock)
    for time, row in zip(times.tolist(), rows.tolist(), strict=True):
        steps.arrive(time, row)
    full = Pacer.wire_bytes(np.ones(1, np.bool_), transport.lanes)
    if not steps.fine() or not clock.room(steps.times, int(full[0])):
        return None
    timeouts = _time(transport, times, rows, batch.headers)
    transport._take(rows, batch.headers, batch.payloads, WAITING)
    transport._advance()
    transport._pacer = steps.pacer
    sent = None
    if steps.rows:
        chosen = np.array(steps.rows, np.intp)
        sent = transport._contributions.packets(_NONE, chosen)
        _account(transport, steps, chosen, timeouts)
    following = steps.following
    if math.isinf(following):
        following = float(transport._slots.deadline.min())
    return Released(sent, np.array(steps.times), steps.sent, following)


def _plain(transport: WorkerTransport, times: Seconds, batch: Batch) -> Rows | None:
    """The rows of results that are nothing but sums of numbers that wait for them, each once, in a
    transport in which nothing else is to be done until the last; None if they are not."""
    slots, plan, headers = transport._slots, transport.plan, batch.headers
    if transport._frozen or transport._moved or plan.alone or plan.pipeline.pulls:
        return None
    if plan.optimizer is not None or (np.diff(times) <= 0).any():
        return None
    stream = transport._stream_index[headers["stream"]]
    seqs = headers["seq"].astype(np.uint32)
    rows: Rows = slots.bases[stream] + (seqs & slots.masks[stream])
    good = (ops(headers) == Op.RESULT) & ((headers["flags"] & _NOT_PLAIN) == 0) & (stream >= 0)
    good &= (headers["job"] == plan.job) & (headers["epoch"] == plan.epoch)
    good &= (slots.seq[rows] == seqs) & (slots.stage[rows] == WAITING) & (slots.sent[rows] > 0)
    good &= (slots.chunk[rows] == headers["chunk"]) & ~slots.exponent_round[rows]
    good &= peer_keys(batch.peers) == transport._server_keys[slots.server[rows]]
    if not good.all() or not slots.first_of_each(rows).all():
        return None
    due, last = slots.due, float(times[-1])
    if (slots.stage == HELD).any() or slots.wanted.any() or transport._questions.suspicious:
        return None
    if slots.sent[due].any() or slots.exponent_round[due].any():
        return None
    if due.any():  # in windows before, and not sent yet: they are quantised when they are
        own, flags = chunk_exponents(taken(slots.values, due.nonzero()[0]))
        if flags.any() or (own > slots.exponent[due]).any():
            return None
    # No timer rings meanwhile, neither of what was sent before nor of what is.
    if slots.deadline.min() <= last or times[0] + transport.round_trips.least <= last:
        return None
    if any(cause.any() for cause in wrong(plan, slots, batch, rows, False).values()):
        return None
    return rows


class _Steps:
    """What a transport sends, result by result. rows, times, arrivals: of each packet its row, when
    it leaves, and how many results had arrived by then. sent, following: see Released."""

    def __init__(self, transport: WorkerTransport, clock: Clock) -> None:
        self.rows: list[int] = []
        self.times: list[float] = []
        self.arrivals: list[int] = []
        self.sent, self.following = False, math.inf
        self.pacer = copy.copy(transport._pacer)
        self._clock = clock
        self._transport = transport
        self._arrived = 0
        self._wake = math.inf
        self._size = int(Pacer.wire_bytes(np.ones(1, np.bool_), transport.lanes)[0])
        slots = transport._slots
        self._stream = slots.stream.tolist()
        self._done = (slots.stage == DONE).tolist()
        self._left, self._next = list(slots.left), list(slots.next)
        self._entries = [_Coming(queue) for queue in transport._queues]
        self._heap = [
            (-int(slots.priority[row]), int(slots.order[row]), row)
            for row in np.flatnonzero(slots.due).tolist()
        ]
        heapq.heapify(self._heap)

    def arrive(self, time: float, row: int) -> None:
        """The next result is there."""
        while self._wake < time:
            self._poll(self._wake)
        self._arrived += 1
        self._done[row] = True
        self._enter(self._stream[row])
        self._poll(time)

    def fine(self) -> bool:
        """Whether all that entered could be sent at once, and in integers."""
        transport = self._transport
        exponents = transport._exponents
        for coming in self._entries:
            if not coming.count:
                continue
            for entries, values in coming.taken():
                if entries["exponent_round"].any():
                    return False
                chunks, rounds = entries["chunk"], entries["round"]
                if not exponents.ready(chunks, rounds).all():
                    return False
                own, flags = chunk_exponents(taken(values, entries["row"]))
                if flags.any() or (own > exponents.exponents(chunks, rounds)).any():
                    return False
        return True

    def _enter(self, stream: int) -> None:
        """Numbers for which there is room in the window now, see Slots.enter."""
        coming, slots = self._entries[stream], self._transport._slots
        if not len(coming):
            return
        base, mask = int(slots.bases[stream]), int(slots.masks[stream])
        left, following = self._left[stream], self._next[stream]
        while left < following and self._done[base + (left & mask)]:
            left += 1
        priority = -int(slots.priority[base])
        for order in coming.take(left + slots.windows[stream] - following):
            row = base + (following & mask)
            self._done[row] = False
            heapq.heappush(self._heap, (priority, order, row))
            following += 1
        self._left[stream], self._next[stream] = left, following

    def _poll(self, now: float) -> None:
        """Sends what there is room for, see WorkerTransport.poll and hosts.udp.drive."""
        heap, room, spent = self._heap, self.pacer.room(now), 0
        while heap and spent < room:
            self.rows.append(heapq.heappop(heap)[2])
            self.times.append(now)
            self.arrivals.append(self._arrived)
            spent += self._size
        if spent:
            self.pacer.spend(now, spent)
        self.sent, self.following = spent > 0, math.inf
        self._wake = math.inf
        if heap:
            self.following = max(now, self.pacer.next_time())
            least = 0.0 if spent else self._clock.tick
            self._wake = self._clock.alarm(now, max(least, self.following - now))


class _Coming:
    """The entries of a queue, taken from it only in thought; `count` of them."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.count = 0
        self._orders: list[int] = []
        self._pieces = queue.pending()

    def __len__(self) -> int:
        return len(self._queue) - self.count

    def take(self, most: int) -> list[int]:
        """Places in the order of submission of the next ones, up to so many."""
        most = max(0, min(most, len(self)))
        while len(self._orders) < self.count + most:
            entries, _ = next(self._pieces)
            self._orders += entries["order"].tolist()
        first, self.count = self.count, self.count + most
        return self._orders[first : self.count]

    def taken(self) -> list[tuple[Array, npt.NDArray[np.float32]]]:
        """Those that were taken: pieces of entries, and the values that they index."""
        found, left = [], self.count
        for entries, values in self._queue.pending():
            if not left:
                break
            piece = entries[:left]
            left -= len(piece)
            found.append((piece, values))
        return found


def _time(
    transport: WorkerTransport, times: Seconds, rows: Rows, headers: Array
) -> list[tuple[int, float, list[float]]]:
    """Takes round trips, and sets timers anew; of each result its stream, when its timers ring, and
    all streams' timeouts then."""
    slots, trips = transport._slots, transport.round_trips
    took = (times - slots.sent_last[rows]).tolist()
    clean, streams = slots.clean[rows].tolist(), slots.stream[rows].tolist()
    told = []
    rings = np.full(len(trips.timeouts), -np.inf)
    for at, stream, time, counts in zip(times.tolist(), streams, took, clean, strict=True):
        if counts and time <= trips.timeouts[stream]:
            trips.sample_one(stream, time)
        ring = at + float(trips.timeouts[stream])
        rings[stream] = max(rings[stream], ring)
        told.append((stream, ring, trips.timeouts.tolist()))
    np.maximum(slots.deadline, rings[slots.stream], out=slots.deadline)
    congested = int(np.count_nonzero(headers["flags"] & np.uint8(Flag.ECN)))
    transport.statistics.congested += congested
    return told


def _account(
    transport: WorkerTransport,
    steps: _Steps,
    rows: Rows,
    timeouts: list[tuple[int, float, list[float]]],
) -> None:
    """CONTRIBUTEs were sent, for the first time; see WorkerTransport._account."""
    slots = transport._slots
    times = np.array(steps.times)
    # The latest ring of each stream by results from each one on.
    latest: list[dict[int, float]] = [{}]
    for stream, ring, _ in reversed(timeouts):
        latest.append({**latest[-1], stream: max(ring, latest[-1].get(stream, -math.inf))})
    latest.reverse()
    streams = slots.stream[rows].tolist()
    deadlines = []
    for time, arrived, stream in zip(steps.times, steps.arrivals, streams, strict=True):
        own = time + timeouts[arrived - 1][2][stream]
        deadlines.append(max(own, latest[arrived].get(stream, -math.inf)))
    slots.sent_first[rows] = times
    slots.sent_last[rows] = times
    slots.sent[rows] += 1
    slots.clean[rows] = True
    slots.failed[rows] = False
    slots.asked[rows] = 0
    slots.backoff[rows] = 0
    slots.deadline[rows] = deadlines
    slots.due[rows] = False
    transport.statistics.sent += len(rows)
