# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the protocol: submitted chunks in, packets out and in, sums out.

A state machine without socket, clock or thread: `on_packets` takes arrivals, `poll` returns packets
to send and the time of the next poll. It is deterministic in the calls made to it. What happens
packet by packet is in C (`hosts.worker.core`).

- A number `seq` of a stream is sent only after the result of `seq - W` has arrived.
- When later sums have arrived, or after a timeout, it sends a probe (QUERY). It retransmits its
  contribution only when the answer (STATE) shows that it was lost or that the sum is complete. So
  waiting for stragglers costs few packets, of headers only (``hosts/native/loss_detection.c``).
- A sum flagged OVERFLOW or NONFINITE is requested from the chunk's server in float32 (DIRECT).
- A result that fails its check is dropped; when the same chunk fails twice, a Failure is reported.
- In an asynchronous job every chunk is DIRECT from the start and needs no exponents; its result
  answers this worker alone (`hosts.server.asynchronous_node`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Completed, EpochSums, Failure, Statistics, Sums
from hosts.data.submissions import Scattered, Submission
from hosts.data.workspace import Workspace
from hosts.net.arrivals import Clock, Enough, Pending, Released, Seconds
from hosts.net.driver import Turn
from hosts.net.pacer import BACKLOG, wire_bytes
from hosts.net.udp import Endpoint
from hosts.worker.call_chunks import CallChunks
from hosts.worker.chunk_queues import Queues, enqueue
from hosts.worker.congestion.control import CongestionControl
from hosts.worker.core import Core
from hosts.worker.epoch_transfer import (
    check_successor,
    incomplete,
    kept,
    lacking,
    last_kept,
    last_of,
    results_of,
)
from hosts.worker.explanation import Outline, Waiting, explain, streams_of, unanswered
from hosts.worker.round_trips import RoundTrips
from hosts.worker.scheduling.registry import scheduler_for
from hosts.worker.scheduling.scheduler import Numbers
from hosts.worker.slots import Slots
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.header import HEADER, LANE, Array, Batch, Words, distinct, peer_array
from protocol.partition import Moved
from protocol.payloads import Floats, floats_of
from protocol.plan import WorkerPlan

_MOST_CALLS = 1024  # whose chunks are kept


def _is_constant(array: Any) -> bool:
    return isinstance(array, np.ndarray) and not array.flags.writeable


class WorkerTransport:
    """The state machine of one worker in one epoch of its job.

    exponents: the policy, which outlives epochs.
    rto_*: timeouts in seconds (see RoundTrips), at least the time of `LEAST_PACKETS` on the link.
    link_rate: bit/s to pace by; None: the plan's, 0: no pacing.
    backlog: seconds of the link that are handed over ahead of time.
    host: IPv4 address of the worker's host, servers at which are not reached by the link; 0: none.
    payload: true if chunks have one; else the values of each are (0,).
    header_room: see HostEnvironment.
    workspace: memory for its calls; None: its own.
    former: the transport of the previous epoch, which is continued.

    Raises CompilerError without a C compiler.
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
        host: int = 0,
        payload: bool = True,
        header_room: int = 0,
        workspace: Workspace | None = None,
        former: WorkerTransport | None = None,
    ) -> None:
        if exponents.world != plan.world:
            raise ValueError(f"exponents of world {exponents.world}, plan of world {plan.world}")
        if exponents.codec is not plan.codec:
            raise ValueError(f"exponents of {exponents.codec.name}, plan of {plan.codec.name}")
        self.plan = plan
        self.lanes = plan.lanes
        self._sums = Sums(plan.epoch, plan.tree, plan.roots)
        self._statistics = former.statistics if former is not None else Statistics()
        self._statistics.plans.append(self._sums)
        self._former_met_wrong = former is not None and former.met_wrong
        rate = plan.link_rate if link_rate is None else link_rate
        seconds = 8 * wire_bytes(plan.lanes)[1] / rate if rate else 0.0
        if former is None:
            self.round_trips = RoundTrips.of(plan, seconds, rto_initial, rto_least, rto_most)
        else:
            self.round_trips = former.round_trips.fresh(len(plan.streams))
        self._exponents = exponents
        self._payload, self._header_room, self._backlog = payload, header_room, backlog
        self._workspace = workspace or Workspace()
        self._slots = slots = Slots(plan, payload=payload)
        self._scheduler = scheduler_for(plan)
        self._queues = Queues(len(plan.streams))
        if plan.is_asynchronous:
            exponents.contact_none()
        # Each chunk's last result, if servers optimize: in case all of them die.
        held = exponents.chunks if plan.optimizer is not None else 0
        self._last_headers: Array = np.zeros(held, HEADER)
        self._last_words: Words = np.zeros((held, slots.width), LANE)
        self._tickets: int = former._tickets if former is not None else 0
        self._order: int = former._order if former is not None else 0
        self._completed: list[EpochSums] = []  # of former epochs
        if former is not None:
            self._completed += former.take_completed().epochs
            slots.submissions = former._slots.submissions
            if held:
                self._last_headers, self._last_words = former._last_headers, former._last_words
        # By chunk, a class that the caller has given; -1: none.
        self._given = np.full(exponents.chunks, -1, np.int8)
        self._calls: dict[tuple[int, int, int | None], tuple[Any, Any, CallChunks]] = {}
        if former is not None:
            self._given = former._given
        self._frozen = False
        self._link_rate, self._host = link_rate, host
        self._core = Core(
            *(plan, slots, self._queues, exponents, self.round_trips),
            *(CongestionControl(plan, slots, self.round_trips), self._scheduler.priorities()),
            peer_array([server.pair() for server in plan.servers]),
            rate=rate,
            backlog=backlog,
            host=host,
            header_room=header_room,
            last_headers=self._last_headers,
            last_words=self._last_words,
            workspace=self._workspace,
        )

    @property
    def statistics(self) -> Statistics:
        """Counts of packets and chunks since the start of the job."""
        self._core.count(self._statistics, self._sums)
        return self._statistics

    @property
    def met_wrong(self) -> bool:
        """True if packets failed a check since the start of the job."""
        return self._core.met_wrong or self._former_met_wrong

    @property
    def idle(self) -> bool:
        """True if every submitted chunk is complete."""
        return self._core.incomplete == 0

    def submit(
        self,
        chunks: Any,
        values: Floats | Scattered,
        lanes: Any,
        into: Floats | None = None,
        priority: int | None = None,
        *,
        averages: bool = False,
    ) -> int:
        """Queues one round of each of n chunks; every worker must make the same submissions in the
        same order.

        chunks: (n,) distinct indices; if neither they nor the lanes are writeable, the same arrays
            again are the same.
        values: (n, lanes of the plan) float32, zero padded, or scattered, with payload and `into`
            alone; not copied, so they must stay unchanged until the sums have arrived.
        lanes: (n,) valid lanes of each.
        into: destination of the sums, contiguous and shaped like `values`, which it may be: each
            sum then replaces its values.
        priority: class of the chunks, the same in all submissions of each; None: that of the plan.
        averages: means over the workers take the place of sums: float32(float64(sum) / workers).

        Returns the first of n consecutive tickets. Raises ValueError for wrong shapes, unknown or
        repeated chunks.
        """
        given = self._call_chunks(chunks, lanes, priority)
        n = len(given.chunks)
        if isinstance(values, Scattered):
            if len(values) != n or into is None or into.shape != (n, self._slots.width):
                raise ValueError(f"values of {n} chunks, and memory for sums, are needed")
        else:
            if values.shape != (n, self._slots.width):
                raise ValueError(f"values must be ({n}, {self._slots.width}), got {values.shape}")
            values = np.ascontiguousarray(values, np.float32)
        sums = np.empty((n, self._slots.width), np.float32) if into is None else into
        submission = Submission(values, sums, averages=averages)
        ticket = self._tickets
        if n:
            self._tickets += n
            place = self._slots.submissions.add(submission)
            self._order += self._core.submit(given, ticket, self._order, place)
        return ticket

    def _call_chunks(self, chunks: Any, lanes: Any, priority: int | None) -> CallChunks:
        """Returns the chunks of a call, which most calls have in common with an earlier one."""
        key = id(chunks), id(lanes), priority
        if key in self._calls:
            return self._calls[key][-1]
        rows = self._exponents.checked(chunks)
        widths = np.broadcast_to(np.asarray(lanes, np.int64), rows.shape)
        if len(rows) and (int(widths.min()) < 1 or int(widths.max()) > max(1, self.lanes)):
            raise ValueError(f"valid lanes must be in 1..{self.lanes}, got {widths.tolist()}")
        arranged = self._scheduler.arrange(rows)
        if priority is not None:
            self._given[rows] = priority
        made = CallChunks.of(rows, arranged, widths, *self._ways(rows))
        if _is_constant(chunks) and _is_constant(lanes):
            if len(self._calls) == _MOST_CALLS:
                self._calls.clear()
            self._calls[key] = chunks, lanes, made
        return made

    def _ways(self, chunks: Numbers) -> tuple[Numbers, Numbers]:
        """Returns the server and the stream of each chunk, in the class that the caller has given,
        if any."""
        servers = self.plan.server_of(chunks)
        if len(self.plan.streams) == 1:
            return servers, np.zeros(len(chunks), np.int64)
        streams, given = self._scheduler.streams(chunks), self._given[chunks].astype(np.int64)
        of_each = len(self.plan.streams) // self.plan.propagation.classes
        return servers, np.where(given < 0, streams, streams % of_each + given * of_each)

    @property
    def arrived(self) -> int:
        """Sums that `take_completed` would return."""
        return self._core.arrived + (self._former if self._completed else 0)

    @property
    def _former(self) -> int:
        """Sums of former epochs that `take_completed` would return."""
        return sum(len(one.found) for one in self._completed)

    @property
    def failing(self) -> bool:
        """True if `take_failures` would return any."""
        return self._core.failing

    def take_completed(self) -> Completed:
        """Returns the sums that arrived since the last call."""
        found, epochs = self._core.take_sums(), self._completed
        self._completed = []
        if len(found):
            epochs.append(self._complete(found))
        return Completed(epochs)

    def _complete(self, found: Array) -> EpochSums:
        """Returns sums (n,) SUM as the caller gets them; forgets submissions that are complete."""
        column, take = found["submission"], self._slots.submissions.take
        places = distinct(column)  # mostly one
        counts = [len(found)] if len(places) == 1 else np.bincount(column)[places].tolist()
        taken = {place: take(place, count) for place, count in zip(places, counts, strict=True)}
        return EpochSums(found, taken, self.plan.world)

    def take_responses(self) -> Array:
        """Returns what came from each server since the last call: (servers,) RESPONSE in
        hosts/worker/core.py."""
        return self._core.take_responses()

    def take_failures(self) -> list[Failure]:
        """Returns the chunks that failed for good since the last call."""
        return self._core.take_failures()

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

    def own_values(self) -> None:
        """Copies values that are not copied yet: from now on they may change."""
        self._slots.submissions.own()

    def freeze(self) -> None:
        """Stops the transport: packets are counted and dropped, none are sent, and `submit` only
        queues."""
        self._frozen = True

    def remap(self, moved: Moved) -> None:
        """Sends what is submitted from now on to the servers of another chunk map; in an
        asynchronous job also what has been submitted and has no result."""
        self.plan = replace(self.plan, moved=moved)
        self._scheduler = scheduler_for(self.plan)
        self._calls.clear()
        if self.plan.is_asynchronous:
            servers = self.plan.server_of(np.arange(self._exponents.chunks))
            self._core.redirect(servers)
            for stream in range(len(self.plan.streams)):
                self._queues.redirect(stream, servers)

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
            return results_of(self._slots, last_kept(self.plan, self._slots, self.levels()))
        if self.plan.optimizer is None:
            return kept(self._slots, wants)
        levels, results = self.levels(), []
        for chunk, level in wants:
            if level == levels[chunk] > 1:
                header, words = self._last_headers[chunk], self._last_words[chunk]
                results.append(
                    jobs_pb2.Result(
                        chunk=chunk, level=level, header=header.tobytes(), payload=words.tobytes()
                    )
                )
            else:
                results += kept(self._slots, [(chunk, level)])
        return results

    def last_results(self) -> tuple[bytes, bytes]:
        """Returns headers and payloads of each chunk's last result, for a worker that joins a job
        whose servers optimize."""
        return self._last_headers.tobytes(), self._last_words.tobytes()

    def keep(self, headers: bytes, payloads: bytes) -> None:
        """Takes `last_results` of another worker, whose levels this one has adopted.

        Raises ValueError if they are inconsistent.
        """
        kept_headers, words = last_of(headers, payloads, self.levels())
        if words.shape != self._last_words.shape:
            raise ValueError(f"last results {words.shape}, of a job {self._last_words.shape}")
        self._last_headers[:], self._last_words[:] = kept_headers, words

    def parameters(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Returns the last results (chunks, lanes) of a job whose servers optimize, and the number
        of workers in each (chunks,)."""
        return floats_of(self._last_words), self._last_headers["workers"].astype(np.int64)

    def take_results(self, results: Sequence[jobs_pb2.Result]) -> None:
        """Takes results of this epoch from other workers as if they had arrived: all or none.

        Results already complete are ignored. Raises ValueError, naming chunk and cause, for an
        invalid one.
        """
        rows, batch = lacking(self.plan, self._slots, self._core, self.levels(), results)
        self._core.complete(rows, batch)

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
            host=self._host,
            payload=self._payload,
            header_room=self._header_room,
            workspace=self._workspace,
            former=self,
        )
        for entries in incomplete(self._slots, self._queues):
            enqueue(next_epoch._ways, next_epoch._queues, entries)
            next_epoch._core.note_submitted(len(entries))
        return next_epoch

    # -- packets ----------------------------------------------------------------------------------

    def poll(self, now: float) -> tuple[Batch | None, float]:
        """Returns packets to send now, and the time of the next poll (sooner after packets or a
        submission)."""
        if self._frozen:
            return None, math.inf
        return self._core.send(now)

    def turns(self, endpoint: Endpoint, enough: int = 0, deadline: float = math.inf) -> Turn | None:
        """Takes what has arrived at a socket, polls and sends, in one native call: again and again
        until `enough` sums are there, or once; at most until a `wake` of the endpoint and the
        deadline.

        Returns None if it has to be done step by step.
        """
        if self._frozen or endpoint.lanes != self._slots.width:
            return None
        return self._core.turns(endpoint, max(0, enough - self._former), deadline)

    def on_packets(self, now: float, batch: Batch) -> None:
        """Takes packets that arrived by `now`; packets for no number in flight are counted."""
        if self._frozen:
            self._statistics.dropped["frozen"] += len(batch)
        elif len(batch):
            self._core.receive(now, batch)

    def on_train(
        self, times: Seconds, batch: Batch, clock: Clock, enough: Enough | None
    ) -> Released | Pending | None:
        """Takes a prefix of packets with arrival times (n,), which ends at `enough` (None: all).

        Returns None if the first must be processed singly.
        """
        return None if self._frozen else self._core.run(times, batch, clock, enough)
