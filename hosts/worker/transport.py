# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the protocol: submitted chunks in, packets out and in, sums out.

A state machine without socket, clock or thread: `on_packets` takes arrivals, `poll` returns packets
to send and the time of the next poll. It is deterministic in the calls made to it.

- A number `seq` of a stream is sent only after the result of `seq - W` has arrived.
- When later sums have arrived, or after a timeout, it sends a probe (QUERY). It retransmits its
  contribution only when the answer (STATE) shows that it was lost or that the sum is complete. So
  waiting for stragglers costs few packets, of headers only (`hosts.worker.loss_detection`).
- A sum flagged OVERFLOW or NONFINITE is requested from the chunk's server in float32 (DIRECT).
- A result that fails its check is dropped; when the same chunk fails twice, a Failure is reported.
- In an asynchronous job every chunk is DIRECT from the start and needs no exponents; its result
  answers this worker alone (`hosts.server.asynchronous_node`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Completed, Failure, Statistics, Sums
from hosts.data.submissions import Submission
from hosts.native.quantization import exponents_in
from hosts.net.arrivals import Clock, Enough, Released, Seconds
from hosts.net.pacer import BACKLOG, Pacer
from hosts.worker.chunk_queues import Queue, enqueue, entries_of
from hosts.worker.completion import Completion
from hosts.worker.congestion.control import CongestionControl
from hosts.worker.contributions import Contributions
from hosts.worker.epoch_transfer import check_successor, incomplete, kept, lacking, last_kept
from hosts.worker.explanation import Outline, Waiting, explain, streams_of, unanswered
from hosts.worker.loss_detection import LossDetector
from hosts.worker.native_state import NativeState
from hosts.worker.native_steps import NativeSteps
from hosts.worker.read_ahead import ReadAhead
from hosts.worker.receiver import Receiver
from hosts.worker.round_trips import RoundTrips
from hosts.worker.scheduling.registry import scheduler_for
from hosts.worker.slots import DIRECT, HELD, WAITING, Rows, Slots
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.header import (
    Array,
    Batch,
    Flag,
    opaque,
    peer_array,
)
from protocol.payloads import Floats
from protocol.plan import WorkerPlan

_DIRECT_FLAG = np.uint8(Flag.DIRECT)


class WorkerTransport:
    """The state machine of one worker in one epoch of its job.

    exponents: the policy, which outlives epochs.
    rto_*: timeouts in seconds (see RoundTrips), at least the time of `LEAST_PACKETS` on the link.
    link_rate: bit/s to pace by; None: the plan's, 0: no pacing.
    backlog: see Pacer.
    payload: true if chunks have one; else the values of each are (0,).
    header_room: see HostEnvironment.
    former: the transport of the previous epoch, which is continued.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        exponents: Exponents,
        *,
        rto_initial: float = 0.25,
        rto_least: float = 0.001,
        rto_most: float = 1.0,
        link_rate: int | None = None,
        backlog: float = BACKLOG,
        payload: bool = True,
        header_room: int = 0,
        former: WorkerTransport | None = None,
    ) -> None:
        if exponents.world != plan.world:
            raise ValueError(f"exponents of world {exponents.world}, plan of world {plan.world}")
        if exponents.codec is not plan.codec:
            raise ValueError(f"exponents of {exponents.codec.name}, plan of {plan.codec.name}")
        self.plan = plan
        self.lanes = plan.lanes
        sums = Sums(plan.epoch, plan.tree, plan.roots)
        self.statistics: Statistics = former.statistics if former is not None else Statistics()
        self.statistics.plans.append(sums)
        rate = plan.link_rate if link_rate is None else link_rate
        packet = int(Pacer.wire_bytes(np.ones(1, np.bool_), plan.lanes)[0])
        seconds = 8 * packet / rate if rate else 0.0
        if former is None:
            self.round_trips = RoundTrips.of(plan, seconds, rto_initial, rto_least, rto_most)
        else:
            self.round_trips = former.round_trips.fresh(len(plan.streams))
        self._exponents = exponents
        self._payload, self._header_room = payload, header_room
        self._slots = Slots(plan, payload=payload)
        self._detector = LossDetector(self._slots, plan, self.round_trips)
        self._congestion = CongestionControl(plan, self._slots, self.round_trips)
        self._scheduler = scheduler_for(plan)
        self._priorities = self._scheduler.priorities()
        self._queues = [Queue() for _ in plan.streams]
        self._pacer = Pacer(rate, backlog)
        self._backlog = backlog
        servers = peer_array([server.pair() for server in plan.servers])
        self._contributions = Contributions(plan, self._slots, servers, header_room)
        if plan.is_asynchronous:
            exponents.contact_none()
        stream_index = np.full(256, -1, np.intp)
        stream_index[[s.stream for s in plan.streams]] = np.arange(len(plan.streams))
        native: NativeState | None = None
        if NativeState.can(plan, exponents):
            common = self._contributions.common
            native = NativeState(
                plan, self._slots, exponents, common, servers, stream_index, self._priorities
            )
        self._native = self._contributions.native = self._slots.native = native
        self._tickets: int = former._tickets if former is not None else 0
        self._order: int = former._order if former is not None else 0
        self._incomplete = 0  # numbers submitted that have no result
        self._moved = False  # windows may move or exponents have become known
        self._frozen = False
        self._link_rate = link_rate
        self._completion = Completion(plan, self._slots, exponents, self.statistics, sums, native)
        self._steps: NativeSteps | None = None
        if native is not None and NativeSteps.can(plan):
            self._steps = NativeSteps(
                *(plan, self._slots, native, self._detector, self.round_trips),
                *(self._pacer, header_room),
            )
        self._receiver = Receiver(
            *(plan, self._slots, self._detector, self.statistics),
            *(self._congestion, servers, stream_index, self._take),
            steps=self._steps,
        )
        self._ahead: ReadAhead | None = None
        if native is not None and ReadAhead.can(plan) and not self._congestion.adapts:
            self._ahead = ReadAhead(
                *(plan, self._slots, native, exponents, self._queues, self._detector),
                *(self._contributions, self.round_trips, self._pacer, self.statistics),
                self._complete,
            )

    @property
    def idle(self) -> bool:
        """True if every submitted chunk is complete."""
        return self._incomplete == 0

    def submit(self, chunks: Any, values: Floats, lanes: Any, into: Floats | None = None) -> int:
        """Queues one round of each of n chunks; every worker must make the same submissions in the
        same order.

        chunks: (n,) distinct indices.
        values: (n, lanes of the plan) float32, zero padded; not copied, so they must stay unchanged
            until the sums have arrived.
        lanes: (n,) valid lanes of each.
        into: destination of the sums, contiguous and shaped like `values`, which it may be: each
            sum then replaces its values.

        Returns the first of n consecutive tickets. Raises ValueError for wrong shapes, unknown or
        repeated chunks.
        """
        rows = np.asarray(chunks, np.int64)
        n = len(rows)
        widths = np.broadcast_to(np.asarray(lanes, np.int64), (n,))
        if values.shape != (n, self._slots.width):
            raise ValueError(f"values must be ({n}, {self._slots.width}), got {values.shape}")
        if n and (int(widths.min()) < 1 or int(widths.max()) > max(1, self.lanes)):
            raise ValueError(f"valid lanes must be in 1..{self.lanes}, got {widths.tolist()}")
        values = np.ascontiguousarray(values, np.float32)
        submission = Submission(values, np.empty_like(values) if into is None else into)
        rounds, first = self._exponents.begin(rows)
        ticket = self._tickets
        self._tickets += n
        own, unfit = np.zeros(n, np.int16), np.zeros(n, np.uint8)
        if not self.plan.is_asynchronous:  # else all goes in float32
            own, unfit = exponents_in(values)
        arranged = self._scheduler.arrange(rows)
        columns = rows, rounds, first, own, unfit, widths
        entries = entries_of(arranged, *columns, ticket, self._order)
        enqueue(self._scheduler, self._queues, entries, submission)
        self._order += len(entries)
        self._incomplete += len(entries)
        self._moved = True
        return ticket

    def take_completed(self) -> Completed:
        """Returns the sums that arrived since the last call."""
        return self._completion.collect()

    def take_failures(self) -> list[Failure]:
        """Returns the chunks that failed for good since the last call."""
        return self._receiver.take_failures()

    def explain(self, now: float) -> list[Waiting]:
        """Returns each number in flight, the longest submitted first."""
        return explain(self._slots, now)

    def outline(self, now: float, most: int) -> Outline:
        """Returns an outline with up to `most` of each stream's oldest numbers."""
        plan = self.plan
        streams = streams_of(plan, self._slots, self.round_trips.timeouts.tolist(), now, most)
        return Outline(plan.epoch, plan.world, plan.rank, self._frozen, streams)

    def unanswered(self, now: float) -> float:
        """Returns the longest time in seconds without a response for a number in flight; 0 if none
        is."""
        return unanswered(self._slots, now)

    # -- from epoch to epoch (see hosts.worker.epoch_transfer) ------------------------------------

    def freeze(self) -> None:
        """Stops the transport: packets are counted and dropped, none are sent, and `submit` only
        queues."""
        self._frozen = True

    def levels(self) -> npt.NDArray[np.uint32]:
        """Returns the number of complete results of each chunk (chunks,)."""
        return self._exponents.levels()

    def results(self, wants: Iterable[tuple[int, int]] | None = None) -> list[jobs_pb2.Result]:
        """Returns the results that lead to these (chunk, level); None: all that other workers may
        lack.

        Raises KeyError, naming the chunk, for one that is not at hand.
        """
        if wants is None and self.plan.is_asynchronous:
            return []  # no other worker can use them
        if wants is None:
            return kept(self._slots, last_kept(self.plan, self._slots, self.levels()))
        return self._completion.results(wants)

    def last_results(self) -> tuple[bytes, bytes]:
        """Returns headers and payloads of each chunk's last result, for a worker that joins a job
        whose servers optimize."""
        return self._completion.last_results()

    def keep(self, headers: bytes, payloads: bytes) -> None:
        """Takes `last_results` of another worker, whose levels this one has adopted.

        Raises ValueError if they are inconsistent.
        """
        self._completion.keep(headers, payloads)

    def parameters(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Returns the last results (chunks, lanes) of a job whose servers optimize, and the number
        of workers in each (chunks,)."""
        return self._completion.parameters()

    def take_results(self, results: Sequence[jobs_pb2.Result]) -> None:
        """Takes results of this epoch from other workers as if they had arrived: all or none.

        Results already complete are ignored. Raises ValueError, naming chunk and cause, for an
        invalid one.
        """
        rows, batch = lacking(self.plan, self._slots, self.levels(), results)
        direct = (batch.headers["flags"] & _DIRECT_FLAG) != 0
        for mine, stage in ((~direct, WAITING), (direct, DIRECT)):
            if mine.any():
                self._take(rows[mine], batch.headers[mine], batch.payloads[mine], stage)

    def successor(self, plan: WorkerPlan) -> WorkerTransport:
        """Returns the same worker's transport in a newer epoch; this one must be frozen and
        drained.

        Numbers without a result are contributed again, numbered from 0 in order of submission.
        Tickets, statistics, policy and uncollected sums carry over. Raises ValueError for a plan of
        another job or an epoch that is not newer.
        """
        check_successor(self.plan, plan)
        self.freeze()
        self._exponents.world = plan.world
        next_epoch = WorkerTransport(
            plan,
            self._exponents,
            link_rate=self._link_rate,
            backlog=self._backlog,
            payload=self._payload,
            header_room=self._header_room,
            former=self,
        )
        next_epoch._completion.inherit(self._completion)
        for entries, submission in incomplete(self._slots, self._queues):
            enqueue(next_epoch._scheduler, next_epoch._queues, entries, submission)
            next_epoch._incomplete += len(entries)
        next_epoch._moved = True
        return next_epoch

    # -- sending ----------------------------------------------------------------------------------

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Returns packets to send now, and the time of the next poll (sooner after packets or a
        submission)."""
        if self._frozen:
            return None, math.inf
        slots = self._slots
        if self._moved:
            self._advance()
        sent = self._steps.send(now) if self._steps is not None else None
        if sent is not None:
            self.statistics.sent += 0 if sent.batch is None else len(sent.batch)
            return sent
        late, timed = self._detector.late(now)
        due = self._most_urgent(slots.due.nonzero()[0])
        late, due, left_over = self._within_rate(now, self._most_urgent(late), due)
        batch = None
        if len(late) or len(due):
            batch = self._contributions.packets(late, due)
            sizes = Pacer.wire_bytes(batch.full, self.lanes)
            leave = self._pacer.hand_over_all(now, sizes)
            self._account(now, late, due, leave)
        # Overdue numbers that may not be probed yet must not cause polls.
        timers = slice(None) if timed is None else np.concatenate((timed, due))
        following = float(slots.deadline[timers].min())
        if left_over:
            following = max(now, self._pacer.next_time())
        return batch, following

    def _advance(self) -> None:
        """Moves windows, and makes data due whose exponent has become known."""
        self._moved = False
        slots = self._slots
        for stream, queue in enumerate(self._queues):
            if len(queue):
                if self._congestion.adapts:
                    self._congestion.update(stream)
                slots.enter(stream, queue, self.plan)
        if self._native is not None:
            self._native.activate_held(WAITING)
            return
        held = (slots.stage == HELD).nonzero()[0]
        if len(held):
            held = held[self._exponents.ready(slots.chunk[held], slots.round[held])]
            slots.exponent[held] = self._exponents.exponents(slots.chunk[held], slots.round[held])
            slots.stage[held] = DIRECT if self.plan.is_asynchronous else WAITING
            slots.due[held] = True

    def _most_urgent(self, rows: Rows) -> Rows:
        """Sorts rows by the priority of their streams, then in the order of their numbering."""
        if len(rows) < 2:
            return rows
        order = self._slots.order[rows]
        if len(self._queues) == 1:
            return rows[np.argsort(order)]
        return rows[np.lexsort((order, -self._priorities[self._slots.stream[rows]]))]

    def _within_rate(self, now: float, late: Rows, due: Rows) -> tuple[Rows, Rows, bool]:
        """Returns the prefix of `late` and `due` that the link has room for now, and whether some
        remain."""
        room = self._pacer.room(now)
        if math.isinf(room) or not (len(late) or len(due)):
            return late, due, False
        full = np.concatenate((np.zeros(len(late), np.bool_), self._contributions.carry(due)))
        sizes = Pacer.wire_bytes(full, self.lanes)
        fits = int(np.searchsorted(np.cumsum(sizes) - sizes, room, side="left"))
        return late[:fits], due[: max(0, fits - len(late))], fits < len(full)

    def _account(self, now: float, late: Rows, due: Rows, leave: Seconds) -> None:
        """Records QUERYs of `late` and CONTRIBUTEs of `due`, sent now, that leave the host at
        `leave`."""
        slots = self._slots
        leaving = leave[len(late) :]
        if len(due):
            again = slots.sent[due] > 0
            repeated = int(np.count_nonzero(again))
            progress = slots.progress.take(due)
            if repeated:
                progress["sent_first"] = np.where(again, progress["sent_first"], leaving)
            else:
                progress["sent_first"] = leaving
            progress["sent_last"] = leaving
            progress["sent"] += 1
            progress["clean"] = ~again
            progress["failed"] = False
            progress["probes"] = 0
            progress["backoff"] = 0
            opaque(slots.progress)[due] = opaque(progress)
            slots.deadline[due] = leaving + self.round_trips.after(slots.stream[due], 0)
            slots.due[due] = False
            self.statistics.sent += len(due)
            self.statistics.retransmitted += repeated
            if repeated and self._congestion.adapts:
                self._congestion.on_retransmitted(due[again])
        if len(late):
            self._detector.on_probed(now, late, leave[: len(late)])
            self.statistics.queries += len(late)

    # -- receiving --------------------------------------------------------------------------------

    def on_train(
        self, times: Seconds, batch: Batch, clock: Clock, enough: Enough
    ) -> Released | None:
        """Takes a batch of results with arrival times (n,), see hosts.worker.read_ahead.

        Returns None if the first must be processed singly.
        """
        if self._ahead is None or self._frozen or self._moved:
            return None
        return self._ahead.release(times, batch, clock, enough)

    def on_packets(self, now: float, batch: Batch) -> None:
        """Takes packets that arrived by `now`; packets for no number in flight are counted."""
        if self._frozen:
            self.statistics.dropped["frozen"] += len(batch)
        elif len(batch):
            self._receiver.take(now, batch)

    def _take(self, rows: Rows, headers: Array, words: Any, stage: int) -> None:
        """Completes rows with good results."""
        self._incomplete -= len(rows)
        self._moved = True
        self._completion.take(rows, headers, words, stage)

    def _complete(self, rows: Rows, headers: Array, words: Any) -> None:
        """Completes rows with good integer sums of a batch."""
        self._take(rows, headers, words, WAITING)
        self._advance()
