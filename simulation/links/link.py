# SPDX-License-Identifier: Apache-2.0
"""One direction of a link: queue, rate, delay and faults, over trains of packets.

    sender: send ─► queue ─► line ─► faults ─► delay ─► take: receiver

A packet arrives with its last bit (store and forward). Results are those of single packets,
independent of the division into trains.
"""

from __future__ import annotations

import ctypes
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from protocol.ethernet import HEADER as ETHERNET_HEADER
from simulation.errors import CausalityError, LinkError, TrainError
from simulation.links.impairments import DUPLICATION, LOSS, REORDERING, chosen, key
from simulation.links.marking import mark
from simulation.links.queues import LineRate, StrictPriorityQueue
from simulation.links.timeline import NORMAL, Step, Timeline
from simulation.links.trains import NEVER, Times, Train, joined, picoseconds
from switch.ports.paced_line import Change, LateError, LineCounters, LineError, LineQueue
from topologies.model.topology import LinkQuality

_SMALL = 64  # packets: smaller trains are joined, which is cheaper than many trains
_LONGEST = 10**6  # s to drain a queue, so that times fit in 64 bits
_REORDER_PACKETS = 4  # a reordered packet falls behind this many of its own size, less one


@dataclass(frozen=True)
class LinkSpec:
    """The parameters of one direction of a link.

    rate: bit/s.
    delay: propagation delay in ps.
    queue_bytes: bytes of frames that may wait.
    ecn_bytes: mark ECN-capable packets that find more bytes waiting (RFC 3168); 0: never.
    mtu: bytes of an IP packet; longer ones are dropped.
    loss, duplicate, reorder: probabilities per packet, drawn from `seed` by the packet's number.
    framing: count preamble, FCS and gap.
    priorities: serve packets in strict priority order; otherwise priorities are ignored.

    Raises LinkError for invalid parameters.
    """

    rate: int
    delay: int = 0
    queue_bytes: int = 128 * 1024
    ecn_bytes: int = 0
    mtu: int = 1500
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 0
    framing: bool = False
    priorities: bool = False

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise LinkError(f"a rate of {self.rate} bit/s; allowed: above 0")
        if self.delay < 0:
            raise LinkError(f"a delay of {self.delay} ps; allowed: 0 and above")
        if self.queue_bytes < self.mtu + ETHERNET_HEADER:
            raise LinkError(
                f"a queue of {self.queue_bytes} B holds no packet of MTU {self.mtu}; allowed: at"
                f" least {self.mtu + ETHERNET_HEADER} B"
            )
        if 8 * self.queue_bytes > self.rate * _LONGEST:
            raise LinkError(
                f"a queue of {self.queue_bytes} B at {self.rate} bit/s takes more than {_LONGEST} s"
                " to empty"
            )
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise LinkError(f"{name} of {getattr(self, name)}; allowed: 0 to 1")

    @staticmethod
    def of(quality: LinkQuality, *, framing: bool = False, priorities: bool = False) -> LinkSpec:
        """Converts the quality of a topology's link.

        Loss, duplication, reordering, corruption and marking are left out: as in emulation, the P4
        program applies them at the switches' ports, by table entries from the controller.
        """
        return LinkSpec(
            rate=quality.rate,
            delay=picoseconds(quality.delay),
            queue_bytes=quality.queue_bytes,
            mtu=quality.mtu,
            framing=framing,
            priorities=priorities,
        )


@dataclass(frozen=True)
class LinkCounters:
    """Counters of one direction; bytes are those of frames without FCS and framing.

    Packets at the queue are sent, dropped (queue full), oversized (above the MTU), or undecided;
    sent + duplicated = arrived + lost + in flight.

    wire_bytes: bytes sent, with framing if that counts.
    queue_most: the most bytes waiting, including the newest packet.
    """

    sent: int
    sent_bytes: int
    wire_bytes: int
    dropped: int
    dropped_bytes: int
    oversized: int
    queue_most: int
    marked: int
    lost: int
    duplicated: int
    reordered: int
    arrived: int


class Link(ctypes.Structure):
    """One direction, from `send` to `take`.

    Its fields are struct link of native/link.h, from which the engine computes horizons.

    name: such as `w0:0->tor0:1`; seeds the draws of its faults.
    number: the engine's number; orders simultaneous arrivals from several links.
    latency: ps from an event at the sender until it can send because of it.
    interval: the receiver notices packets at multiples of this (ps).
    least: lower bound in ps from a frame's start to its arrival.
    shortest: lower bound in ps of a frame's transmission.
    slowdown: how many times as long it takes, see `slow`.
    free: time (ps) when all decided packets have left.
    head: arrival time of the first packet not taken; NEVER if none is in flight.
    news: arrival time of the first packet in flight that may lead the receiver to call another
        node; NEVER without one.
    silent: how many more packets may be sent that do not.
    pending: time (ps) at which the earliest undecided packet came; NEVER without any.
    queue_counters: the queue's counters; a switch has its own.
    passed: returns the traffic since the last call that bypassed this object
        (``switch.ports.virtual_time``); None if there is none.
    """

    latency: int
    interval: int
    least: int
    shortest: int
    free: int
    head: int
    news: int
    silent: int
    pending: int

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("latency", "interval", "least", "shortest", "free", "head", "news", "silent"),
            "pending",
        )
    )

    def __init__(self, spec: LinkSpec, name: str = "", number: int = 0) -> None:
        super().__init__(interval=1, head=NEVER, news=NEVER, pending=NEVER)
        self.spec, self.name, self.number = spec, name, number
        self.line_rate = LineRate.of(spec.rate, spec.framing)
        self.line = self.line_rate.line(spec.queue_bytes, spec.mtu)
        # Called with every departing train (times are those of last bits), before faults, and the
        # times at which its packets reached the queue. Set before the engine runs.
        self.on_departure: Callable[[Train, Times], None] | None = None
        self.passed: Callable[[], tuple[int, int, int, int, int]] | None = None
        self.slowdown = Timeline()
        self._decided = 0, NORMAL  # see `slowest`
        self._queue = LineQueue(self.line)
        self._strict = StrictPriorityQueue(self.line_rate, self.line) if spec.priorities else None
        self.queue_counters: Callable[[], LineCounters] = (self._strict or self._queue).counters
        self._change: Callable[[Sequence[Change]], None] = (self._strict or self._queue).change
        self.shortest = self.line_rate.min_time
        self.least = self.shortest + spec.delay
        self._keys = [key(spec.seed, name, kind) for kind in (LOSS, DUPLICATION, REORDERING)]
        self._faulty = spec.loss > 0 or spec.duplicate > 0 or spec.reorder > 0
        self._sent = self._sent_bytes = self._wire_bytes = self._marked = 0
        self._lost = self._duplicated = self._reordered = self._arrived = 0
        # Trains in flight in order, and reordered packets.
        self._arriving: deque[Train] = deque()
        self._flying = 0  # packets in `_arriving`
        self._late: list[tuple[int, int, Train]] = []
        self._late_count = 0
        # Undecided packets of a queue with priorities, as trains of one packet.
        self._undecided: dict[int, Train] = {}
        self._offered = self._last = 0

    @property
    def counters(self) -> LinkCounters:
        """The counters as of now."""
        if self.passed is not None:
            packets, length_bytes, wire_bytes, arrived, self.free = self.passed()
            self._sent += packets
            self._sent_bytes += length_bytes
            self._wire_bytes += wire_bytes
            self._arrived += arrived
        queue = self.queue_counters()
        return LinkCounters(
            sent=self._sent,
            sent_bytes=self._sent_bytes,
            wire_bytes=self._wire_bytes,
            dropped=queue.dropped,
            dropped_bytes=queue.dropped_bytes,
            oversized=queue.oversized,
            queue_most=queue.queue_most,
            marked=self._marked,
            lost=self._lost,
            duplicated=self._duplicated,
            reordered=self._reordered,
            arrived=self._arrived,
        )

    @property
    def plain(self) -> bool:
        """True if the link has no faults or marking."""
        return not (self._faulty or self.spec.ecn_bytes)

    @property
    def by_priority(self) -> bool:
        """True if this object queues packets by priority: their departures need `settle`."""
        return self._strict is not None

    @property
    def marks_by_priority(self) -> bool:
        """True if it has priorities and marks packets, which a switch's own queues do not."""
        return self.spec.priorities and self.spec.ecn_bytes > 0

    def leave_queueing(
        self,
        counters: Callable[[], LineCounters],
        change: Callable[[Sequence[Change]], None],
    ) -> None:
        """Leaves queueing to a sender that calls `carry`, counts drops, and changes the rate."""
        self.queue_counters, self._change, self._strict = counters, change, None

    def give_no_priorities(self) -> None:
        """Declares that the sender gives no priorities, so departures are certain on queueing."""
        if self._strict is not None:
            self._strict, self._queue = None, LineQueue(replace(self.line, exact=True))
            self.queue_counters, self._change = self._queue.counters, self._queue.change

    def slow(self, at: int, steps: Sequence[Step]) -> None:
        """Has packets that begin to leave from these times on take so many times as long, in place
        of all steps from `at` on, which is now at the sender.

        Packets whose departure is decided keep their times. Propagation is never slow.
        """
        self._decided = self.free, self.slowest(at, max(at, self.free))
        self.slowdown.replace(at, steps)
        changes = []
        for when, factor in self.slowdown.since(at):
            rate = self.line_rate.slowed(factor)
            changes.append((when, rate.parts, rate.whole))
        self._change(changes)

    def hold(self, now: int, until: int) -> None:
        """Has no packet begin to leave from now on until a time, if they queue here."""
        if self._strict is not None:
            self.settle(now)
            self._strict.hold(until)
            self.free = self._strict.free

    def slowest(self, first: int, last: int) -> Fraction:
        """Returns the largest factor of packets that leave between two times, the first of which is
        not before now."""
        until, factor = self._decided
        found = self.slowdown.slowest(first, last)
        return max(found, factor) if first < until else found

    def pace(self, first: int, last: int) -> float:
        """Returns how many bytes leave in a second between two times (see `slowest`), at least."""
        factor = self.slowest(first, last)
        # Conversion of fractions is slow, and most links are never slowed.
        return self.spec.rate / 8 / (1.0 if factor is NORMAL else float(factor))

    # The sender's end

    def send(self, train: Train) -> None:
        """Sends packets that reach the queue at these times, in order with earlier ones.

        Raises TrainError or CausalityError; without priorities, nothing is sent then.
        """
        try:
            if self._strict is not None:
                self._send_by_priority(self._strict, train)
                return
            marking = self.spec.ecn_bytes or None
            sent = self._queue.offer(train.times, train.lengths, train.stored, marking)
        except LateError as error:
            raise CausalityError(f"{self.name}: {error}, at {train.times[0]} ps") from error
        except LineError as error:
            raise TrainError(f"{self.name}: {error}") from error
        self.free = self._queue.free
        if sent.rows is not None:
            train = train.select(sent.rows)
        if len(sent.marked):
            train = self._mark(train, sent.marked)
        self._depart(train, sent.ends, sent.length_bytes, sent.wire_bytes, train.times)

    def carry(
        self,
        train: Train,
        length_bytes: int,
        wire_bytes: int,
        free: int,
        came: Times | None = None,
    ) -> None:
        """Carries packets from a switch's own queue, whose last bits leave at these times.

        free: time (ps) when the line is free again.
        length_bytes, wire_bytes: sums over all frames, without and with framing.
        came: times (ps) at which they reached the queue, if an observer is set.
        """
        self.free = free
        self._depart(train, train.times, length_bytes, wire_bytes, came)

    def seen(self, train: Train, came: Times | None) -> None:
        """Reports departing packets that bypass this object (`passed`)."""
        if self.on_departure is not None and came is not None:
            self.on_departure(train, came)

    def waiting(self, at: int) -> int:
        """Returns the bytes in the queue at a time no earlier than the last packet sent."""
        if self._strict is not None:
            self.settle(at)
            return self._strict.held
        return self._queue.waiting(at)

    def room(self, size: int) -> int:
        """Returns the time from which a frame of `size` bytes fits into the queue.

        0 if it does now, NEVER if it exceeds the queue. Assumes that nothing else is sent. Raises
        LinkError for a queue with priorities, where it depends on later packets.
        """
        if self._strict is not None:
            raise LinkError(f"{self.name}: when there is room depends on priorities")
        if size > self.spec.queue_bytes:
            return NEVER
        return self._queue.drained(self.spec.queue_bytes - size)

    def settle(self, until: int) -> bool:
        """Decides the departures up to a time before which nothing more is sent.

        Returns whether there were any. Only queues with priorities have undecided packets.
        """
        if self._strict is None or not self._undecided:
            return False
        found = self._strict.settle(until)
        self.free, self.pending = self._strict.free, self._strict.pending
        for item, end in found:
            one = self._undecided.pop(item)
            length = int(one.lengths[0])
            ends = np.array([end], np.int64)
            self._depart(one, ends, length, self.line_rate.wire_bytes(length), one.times)
        return bool(found)

    # The receiver's end

    def take(self, until: int) -> list[Train]:
        """Takes all packets that arrive before a time, in order."""
        arriving, found = self._arriving, []
        while arriving and arriving[0].times.item(0) < until:
            first = arriving[0]
            if first.times.item(-1) < until:
                found.append(arriving.popleft())
                continue
            count = int(np.searchsorted(first.times, until, "left"))
            found.append(first.select(slice(count)))
            arriving[0] = first.select(slice(count, None))
            break
        count = sum([len(one.times) for one in found])
        self._flying -= count
        if self._late and self._late[0][0] < until:
            found = self._merge_late(found, until)
            count = sum([len(one.times) for one in found])
        self._look_ahead()
        self._arrived += count
        return [joined(found)] if found and count < _SMALL * len(found) else found

    def put_back(self, train: Train) -> None:
        """Puts back the last packets that were taken."""
        self._arriving.appendleft(train)
        self._flying += len(train)
        self._arrived -= len(train)
        self._look_ahead()

    def _look_ahead(self) -> None:
        first = self._arriving[0].times.item(0) if self._arriving else NEVER
        self.head = min(first, self._late[0][0]) if self._late else first

    def listen(self, silent: int) -> None:
        """Sets how many of the packets that are in flight, or follow, lead the receiver to no
        call."""
        if self._faulty:
            self.silent, self.news = 0, self.head
            return
        self.news = NEVER
        if silent >= self._flying:
            self.silent = silent - self._flying
            return
        self.silent = silent
        for train in self._arriving:
            self._pass_silently(train)

    def _pass_silently(self, train: Train) -> None:
        n, silent = len(train.times), self.silent
        if n <= silent:
            self.silent = silent - n
        elif self.news == NEVER:
            self.news = train.times.item(silent)
            self.silent = 0

    @property
    def under_way(self) -> int:
        """Number of packets between the line and the receiver."""
        return self._flying + sum(len(one) for _, _, one in self._late)

    @property
    def undecided(self) -> int:
        """Number of packets in a queue with priorities without a departure time."""
        return len(self._undecided)

    def _send_by_priority(self, queue: StrictPriorityQueue, train: Train) -> None:
        train.check()
        if len(train) and int(train.times[0]) < self._last:
            raise LateError("packets that come before the last one of before")
        marking = self.spec.ecn_bytes
        priorities = [0] * len(train) if train.priorities is None else train.priorities.tolist()
        for row, (at, size, priority) in enumerate(
            zip(train.times.tolist(), train.lengths.tolist(), priorities, strict=True)
        ):
            self.settle(at)
            self._last = at
            one = train.select(slice(row, row + 1))
            if marking and queue.held > marking:
                one = self._mark(one, np.zeros(1, np.intp))
            self._undecided[self._offered] = one
            for item in queue.offer(at, size, priority, self._offered):
                del self._undecided[item]
            self._offered += 1
            self.pending = queue.pending

    def _mark(self, train: Train, rows: npt.NDArray[np.intp]) -> Train:
        frames, count = mark(train.frames, rows)
        self._marked += count
        return Train(train.times, frames, train.lengths, train.priorities)

    def _depart(
        self, train: Train, ends: Times, length_bytes: int, wire_bytes: int, came: Times | None
    ) -> None:
        """Lets packets go whose last bits leave at these times."""
        n, first = len(ends), self._sent
        if n == 0:
            return
        self._sent += n
        self._sent_bytes += length_bytes
        self._wire_bytes += wire_bytes
        if self.on_departure is not None:
            self.seen(train.at(ends), came)
        if self._faulty:
            train = self._impair(train.at(ends), first)
            ends = train.times
        if len(ends):
            train = train.at(ends + self.spec.delay)
            self._arriving.append(train)
            self._flying += len(ends)
            self._pass_silently(train)
        if self.head == NEVER or self._faulty:
            self._look_ahead()
            if self._faulty:
                self.news = self.head

    def _impair(self, train: Train, first: int) -> Train:
        """Applies faults to packets `first` on; puts reordered ones aside."""
        spec, n = self.spec, len(train)
        loss, duplication, reordering = self._keys
        lost = chosen(loss, first, n, spec.loss)
        copies = np.where(lost, 0, 1 + chosen(duplication, first, n, spec.duplicate))
        late = chosen(reordering, first, n, spec.reorder) & ~lost
        self._lost += int(np.count_nonzero(lost))
        self._duplicated += int(np.count_nonzero(copies == 2))
        self._reordered += int(np.count_nonzero(late))
        for row in np.flatnonzero(late).tolist():
            one = train.select(np.repeat(row, copies[row]))
            wire = self.line_rate.wire_bytes(int(one.lengths[0]))
            behind = one.times + (spec.delay + self.line_rate.time(_REORDER_PACKETS * wire))
            self._late_count += 1
            entry = (int(behind[0]), self._late_count, one.at(behind))
            heapq.heappush(self._late, entry)
        return train.select(np.repeat(np.arange(n), np.where(late, 0, copies)))

    def _merge_late(self, found: list[Train], until: int) -> list[Train]:
        """Merges reordered packets, each behind all that arrive no later."""
        merged: list[Train] = []
        waiting = deque(found)
        while self._late and self._late[0][0] < until:
            at, _, late = heapq.heappop(self._late)
            while waiting and int(waiting[0].times[0]) <= at:
                one = waiting.popleft()
                count = int(np.searchsorted(one.times, at, "right"))
                merged.append(one.select(slice(count)))
                if count < len(one):
                    waiting.appendleft(one.select(slice(count, None)))
            merged.append(late)
        return [*merged, *waiting]
