# SPDX-License-Identifier: Apache-2.0
"""A worker's transport in C (``hosts/native/worker.h``): its memory, and the calls.

All that happens packet by packet is there: matching and checking results, loss detection, windows,
pacing, quantisation, building packets. Here are the arrays that it works on, and what it calls in
Python: congestion windows once a round trip, and codecs that do not round to nearest.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy as np

from hosts.data.array_pool import demand_columns, demand_zeros
from hosts.data.reports import Failure, Statistics, Sums
from hosts.data.workspace import Workspace
from hosts.native.loader import check_constants, load_native
from hosts.native.structures import structures
from hosts.net.arrivals import EXACT, Clock, Enough, Numbers, Pending, Released, Seconds
from hosts.net.driver import Turn
from hosts.net.pacer import wire_bytes
from hosts.net.udp import Endpoint
from hosts.worker.call_chunks import CallChunks
from hosts.worker.chunk_queues import ENTRY, Queues, shared
from hosts.worker.codec_calls import CodecCalls
from hosts.worker.congestion.control import CongestionControl
from hosts.worker.round_trips import RoundTrips
from hosts.worker.slots import Rows, Slots
from protocol.exponents import Exponents
from protocol.header import (
    HEADER_BYTES,
    LANE,
    LANE_BYTES,
    PEER,
    Array,
    Batch,
    Op,
    Wire,
    WireBatch,
    Words,
    blank,
    copied,
    opaque,
    packet_bytes,
)
from protocol.plan import WorkerPlan
from switch.ports.paced_line import address

_STRUCTURES = structures("worker.h")
_Worker, _Arrivals = _STRUCTURES["worker"], _STRUCTURES["arrivals"]
_Departures, _Driver = _STRUCTURES["departures"], _STRUCTURES["driver"]
_Submitted = _STRUCTURES["submitted"]
_Turn = structures("turn.c")["turn"]
SUM, _FAILURE = np.dtype(_STRUCTURES["sum"]), np.dtype(_STRUCTURES["failure"])
RESPONSE = np.dtype(_STRUCTURES["response"])
_DUE = np.dtype(_STRUCTURES["due"])
# Arrays by row that nothing else has.
_COLUMNS: dict[str, Any] = {
    "flags": np.uint8, "due": np.bool_, "probe_pending": np.bool_, "failures": np.uint8,
    "hash": np.uint32, "server": np.uint16, "exponent": np.int16, "held_next": np.int32,
    "mark": np.int64, "probed": np.int64, "chosen": np.int64, "failed": _FAILURE,
}  # fmt: skip
_COUNTS = [name for name, *_ in _STRUCTURES["counts"]._fields_]

_KINDS, _BLOCK_BITS = 3, 6  # as in worker.h
_CHECKS = ("wrong_workers", "wrong_lanes", "wrong_exponent", "wrong_checksum")
# Lost packets are remembered for so many results at least.
_LOSSY = 4096
_OF_CODEC = ("sum_digits", "finest_scale", "least_digits", "least_exponent", "most_exponent")
_OF_TRIPS = ("smoothed", "variation", "timeouts", "late", "lowest")
_OF_GAPS = ("gap_last", "gap", "gap_variation")
_MANY = 32  # packets that are worth a thread's attention
_SPARE = 64  # packets that a batch of arrivals may lead to, beside two for each

_ADAPT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)
)
_DECODE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)


class Core:
    """The native part of one transport, whose other parts are passed in.

    peers: (n,) PEER of the servers, by rank.
    rate: of the link in bit/s, 0: no pacing.
    backlog: seconds of the link that may be handed over ahead.
    host: IPv4 address of the worker's host, servers at which are not reached by the link.
    header_room: bytes reserved before each packet.
    last_headers, last_words: by chunk, the last results, if servers optimize.
    workspace: memory for its calls.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        slots: Slots,
        queues: Queues,
        exponents: Exponents,
        trips: RoundTrips,
        congestion: CongestionControl,
        priorities: Numbers,
        peers: Array,
        *,
        rate: float,
        backlog: float,
        host: int,
        header_room: int,
        last_headers: Array,
        last_words: Words,
        workspace: Workspace,
    ) -> None:
        self._lib: Any = load_native()
        _check(self._lib)
        self._plan, self._slots, self._queues = plan, slots, queues
        self._header_room = header_room
        self._workspace = workspace
        self._error: BaseException | None = None
        self._congestion = congestion
        rows, streams, chunks = len(slots.stage), len(plan.streams), exponents.chunks
        servers = len(plan.servers)
        stream_index = np.full(256, -1, np.int64)
        stream_index[[s.stream for s in plan.streams]] = np.arange(streams)
        gaps = np.full((3, streams), np.nan)
        gaps[0] = -np.inf
        small, large = wire_bytes(plan.lanes)
        columns = demand_columns(rows, _COLUMNS)
        self._failed = columns["failed"]
        self._responses = np.zeros(servers, RESPONSE)
        self._responses["first"] = np.inf
        self._arrays: dict[str, Any] = {
            # By row.
            **columns, "stage": slots.stage, "seq": slots.seq, "entry": slots.entry,
            "progress": slots.progress, "probing": slots.probing, "deadline": np.full(rows, np.inf),
            "results": slots.result_headers, "words": slots.result_words,
            "stream": slots.stream, "heap": demand_zeros(2 * rows + 1, _DUE),
            "submissions": slots.submissions.table,
            # By stream.
            "common": _common(plan), "bases": slots.bases, "masks": slots.masks,
            "nodes": np.array([stream.node for stream in plan.streams], np.int64),
            "senders": np.array([stream.sender for stream in plan.streams], np.int64),
            "priorities": np.ascontiguousarray(priorities, np.int64),
            "left": slots.left, "next": slots.next, "limits": slots.limits,
            "queues": queues.table,
            **dict(zip(_OF_TRIPS, trips.state, strict=True)),
            **dict(zip(_OF_GAPS, gaps, strict=True)),
            "ring": np.zeros(streams), "ring_timeout": np.zeros(streams),
            "nearest": np.full(streams, np.inf), "unheard": np.full(streams, np.inf),
            "heard": np.full(1 + (rows >> _BLOCK_BITS), np.inf), "longest": np.full(streams, -1.0),
            "earliest": np.full(streams, np.inf), "restarts": np.zeros(streams, np.int64),
            "backed_off": np.zeros(streams, np.int64), **congestion.columns(),
            "stream_index": stream_index, "latest": np.full(_KINDS * streams * servers, -np.inf),
            "answered": np.full(servers, -np.inf),
            # By chunk, and by server.
            **exponents.columns(), "held_first": np.full(chunks, -1, np.int32),
            "last_headers": last_headers, "last_words": last_words,
            "servers": peers, "responses": self._responses,
        }  # fmt: skip
        self._worker = _Worker(
            **{name: address(array) for name, array in self._arrays.items()},
            streams=streams, rows=rows, width=slots.width,
            exponent_headroom=exponents.exponent_headroom, depth=exponents.staleness + 1,
            world=plan.world, rank=plan.rank, job=plan.job, epoch=plan.epoch,
            servers_count=servers, is_asynchronous=plan.is_asynchronous,
            optimizes=plan.optimizer is not None, pulls=plan.pipeline.pulls,
            by_slice=plan.propagation.by_slice,
            adapts=congestion.adapts, **{name: getattr(plan.codec, name) for name in _OF_CODEC},
            credit=plan.propagation.credit, together=_together(plan),
            rate=rate, backlog=backlog, clear=-math.inf, host=host, small=small, large=large,
            least=trips.least, most=trips.most, soonest=math.inf,
            since_loss=max(_LOSSY, 4 * sum(slots.windows)),
            memory=max(_LOSSY, 4 * sum(slots.windows)),
        )  # fmt: skip
        self._at = ctypes.addressof(self._worker)
        self._sums = np.zeros(0)
        self._ends = np.zeros(streams, np.int64)
        self._arrived, self._out, self._driver = _Arrivals(), _Departures(), _Driver()
        self._turn = _Turn()
        self._turn_at, self._driver_at = map(ctypes.addressof, (self._turn, self._driver))
        self._window: Wire | None = None
        self._out.stride = header_room + packet_bytes(slots.width)
        self._arrived_at = ctypes.addressof(self._arrived)
        self._out_at = ctypes.addressof(self._out)
        self._make_room(_SPARE)
        self._policies = [_ADAPT(functools.partial(self._call, congestion.update))]
        self._point("adapt", self._policies[0])
        # True if no policy in Python is called.
        self._calls_nothing = not congestion.adapts and not (
            slots.width and not plan.codec.rounds_to_nearest
        )
        if not plan.codec.rounds_to_nearest and slots.width:
            coder = CodecCalls(plan.codec, plan.world, slots.width)
            for name, kind, function in (
                ("encode", _ENCODE, coder.encode),
                ("decode", _DECODE, coder.decode),
            ):
                self._policies.append(kind(functools.partial(self._call, function)))
                self._point(name, self._policies[-1])

    def _point(self, name: str, function: Any) -> None:
        setattr(self._worker, name, ctypes.cast(function, ctypes.c_void_p).value)

    def _call(self, function: Any, *arguments: Any) -> int:
        """Calls Python from C, which stops after an exception; `_raise` raises that."""
        try:
            function(*arguments)
        except BaseException as error:
            self._error = error
            return 1
        return 0

    def _raise(self) -> None:
        if self._worker.error:
            self._worker.error = 0
            error, self._error = self._error, None
            assert error is not None
            raise error

    # -- numbers submitted and done ---------------------------------------------------------------

    @property
    def incomplete(self) -> int:
        """Numbers submitted that have no result."""
        count: int = self._worker.incomplete
        return count

    def submit(self, given: CallChunks, ticket: int, order: int, place: int) -> int:
        """Begins a round of each chunk, and appends its numbers to the queues.

        ticket: of the first chunk. order: of the first number. place: of the submission. Returns
        how many numbers there are.
        """
        n = len(given.chunks)
        entries = self._workspace.entries(2 * n, ENTRY)
        self._point_at_submissions()
        submitted = _Submitted(
            **given.addresses, n=n, ticket=ticket, order=order, place=place,
            entries=address(entries), ends=address(self._ends),
        )  # fmt: skip
        count: int = self._lib.worker_submit(self._at, ctypes.addressof(submitted))
        made, begin = shared(entries[:count]), 0
        for stream, end in enumerate(self._ends.tolist()):
            if end > begin:
                self._queues.push(stream, made[begin:end])
            begin = end
        self.note_submitted(count)
        return count

    def note_submitted(self, numbers: int) -> None:
        """Records that numbers were added to the queues."""
        self._point_at_submissions()
        self._worker.incomplete += numbers
        self._worker.moved = 1

    def _point_at_submissions(self) -> None:
        self._arrays["submissions"] = table = self._slots.submissions.table
        self._worker.submissions = address(table)

    def redirect(self, servers: Numbers) -> None:
        """Sends what is in the windows to these servers (chunks,)."""
        self._lib.worker_redirect(self._at, address(np.ascontiguousarray(servers, np.int64)))

    @property
    def arrived(self) -> int:
        """Sums that arrived since the last `take_sums`."""
        count: int = self._worker.sums_length
        return count

    @property
    def failing(self) -> bool:
        """True if `take_failures` would return any."""
        return bool(self._worker.failed_length)

    def take_sums(self) -> Array:
        """Returns the sums (n,) SUM that arrived since the last call."""
        n, self._worker.sums_length = self._worker.sums_length, 0
        return copied(self._sums[:n])

    def take_responses(self) -> Array:
        """Returns what came from each server (servers,) RESPONSE since the last call."""
        found = self._responses.copy()
        self._responses[:] = 0, 0.0, np.inf, 0.0, 0.0
        return found

    def take_failures(self) -> list[Failure]:
        """Returns the chunks that failed for good since the last call."""
        n, self._worker.failed_length = self._worker.failed_length, 0
        return [self._failure(*one) for one in self._failed[:n].tolist()]

    def _failure(self, stream: int, seq: int, chunk: int, exponent_round: bool) -> Failure:
        reason = "its sum failed the check twice"
        if exponent_round:
            reason = (
                "its exponent round failed the check twice: corrupted, or the workers do not "
                "submit the same chunks in the same order"
            )
        return Failure(self._plan.streams[stream].stream, seq, chunk, reason)

    def count(self, statistics: Statistics, sums: Sums) -> None:
        """Adds what was counted since the last call; `sums` gets the chunks summed."""
        counts = self._worker.counts
        for name in _COUNTS:
            value = getattr(counts, name)
            if not value:
                continue
            if name == "most_ahead":
                statistics.most_ahead = max(statistics.most_ahead, value)
            elif hasattr(statistics, name):
                setattr(statistics, name, getattr(statistics, name) + value)
            else:
                statistics.dropped[name] += value
            if name == "completed":
                sums.chunks += value
            setattr(counts, name, 0)

    @property
    def met_wrong(self) -> bool:
        """True if a packet has failed a check."""
        return bool(self._worker.met_wrong)

    # -- packets ----------------------------------------------------------------------------------

    def receive(self, now: float, batch: Batch) -> None:
        """Takes packets that have arrived by `now`."""
        kept = self._arrive(batch)
        self._lib.worker_receive(self._at, self._arrived_at, now)
        del kept
        self._raise()

    def send(self, now: float) -> tuple[Batch | None, float]:
        """Returns packets to send now, and the time of the next poll."""
        most = self._lib.worker_prepare(self._at, now)
        self._raise()
        kept = self._depart(most)
        self._lib.worker_poll(self._at, now, self._out_at)
        self._raise()
        return self._departed(kept), self._out.following

    def turns(self, endpoint: Endpoint, enough: int, deadline: float) -> Turn:
        """Takes what has arrived at a socket, polls, and sends, again and again, until there are
        `enough` sums (0: once), something else is to be done here, or the deadline.

        Raises OSError.
        """
        turn, receiver, counters = self._turn, endpoint.receiver, endpoint.counters
        inbox = receiver.inbox
        turn.inbox, most = receiver.at, sum(self._slots.windows)
        if self._window is None:
            # Not of the workspace, as it is kept from call to call.
            self._window = np.empty((most, self._out.stride), np.uint8)
        self._send_from(self._window)
        self._make_room(receiver.most_packets, enough)
        blocked = not endpoint.flush()
        turn.socket, turn.wakeup, turn.most = (*endpoint.files, endpoint.train_packets)
        turn.blocked, turn.hurried = blocked, endpoint.by_priority
        turn.enough, turn.deadline = enough, deadline
        turn.room = len(self._sums) - receiver.most_packets
        inbox.wide, self._out.following = endpoint.datagram_bytes, math.inf
        self._lib.worker_turns(self._at, self._turn_at, self._out_at)
        self._raise()
        counters.sent += turn.sent
        counters.send_calls += turn.calls
        counters.received += turn.received
        counters.receive_calls += turn.receive_calls
        if turn.irregular or inbox.error:
            found, sums = endpoint.received(), self.arrived
            assert found is not None
            self.receive(turn.now, found)
            summed = turn.now if self.arrived > sums else turn.summed
            if blocked:
                return Turn(math.inf, 0.0, summed)
            batch, following = self.send(turn.now)
            if batch is not None:
                endpoint.send(batch)
            return Turn(following, 0.0, summed)
        if turn.first < self._out.count:
            batch, self._window = self._departed(self._window), None
            assert batch is not None
            endpoint.send_rest(batch.select(slice(turn.first, turn.last)), turn.trains_sent)
            if turn.last < len(batch):
                endpoint.send(batch.select(slice(turn.last, None)))
        return Turn(self._out.following, turn.unhurried, turn.summed)

    def run(
        self, times: Seconds, batch: Batch, clock: Clock, enough: Enough | None
    ) -> Released | Pending | None:
        """Takes a prefix of packets that arrived at these ascending times (n,), and sends what
        polls between them would.

        The prefix ends at `enough` (None: all), or where what is sent might not fit into the queue.
        Returns None, with nothing changed, if it is empty; Pending if it goes on in the background.
        """
        n = most = len(batch)
        if float(times[-1]) * clock.second >= EXACT / 2:
            return None
        background, shared, space = clock.background, self._workspace, None
        if background is not None and enough is None and n >= _MANY and self._calls_nothing:
            space = background.begin()
            self._workspace = space.workspace if space is not None else shared
        kept, ends = self._arrive(batch), False
        if enough is not None:
            tickets = np.empty(n, np.int64)
            self._lib.find_tickets(self._at, self._arrived_at, address(tickets))
            most, ends = enough(tickets)
            while 0 < most < n and times[most] <= times[most - 1]:
                most -= 1  # both arrive at the same time
            if not most:
                return None
        self._arrived.count, self._arrived.times = most, address(times)
        driver = self._driver
        driver.second, driver.tick = clock.second, clock.tick
        driver.pace, driver.waiting, driver.bytes = clock.queue()
        driver.since = float(times[0])
        driver.polls_last = not ends  # else the caller of a call may submit first
        room = self._depart(2 * most + self._worker.heap_length + _SPARE)
        addresses = self._at, self._arrived_at, self._driver_at, self._out_at
        if background is None or space is None:
            return self._ran(self._lib.worker_run(*addresses), room)
        background.run(space, *addresses)

        def finish(kept: tuple[Any, ...] = kept) -> Released:
            try:
                return self._ran(background.wait(space), room)
            finally:
                self._workspace = shared
                background.finish(space)

        return Pending(functools.partial(background.ready, space), finish)

    def _ran(self, taken: int, room: Wire | None) -> Released:
        """Returns what ``worker_run``, which took so many packets, has sent."""
        self._arrived.times = None
        self._raise()
        following, leaving = self._out.following, self._workspace.leaving[: self._out.count]
        following = None if math.isnan(following) else following
        return Released(taken, self._departed(room, lasts=False), leaving, True, following)

    def complete(self, rows: Rows, batch: Batch) -> None:
        """Takes good results (n,) of these rows that came another way than by the network."""
        kept = self._arrive(batch)
        self._lib.complete_rows(self._at, address(rows), self._arrived_at)
        del kept
        self._raise()

    def wrong(self, rows: Rows, batch: Batch) -> list[str]:
        """Returns the check that each result (n,) for a row fails; "" if it passes all."""
        failed = np.zeros(len(rows), np.int64)
        kept = self._arrive(batch)
        self._lib.check_results(self._at, self._arrived_at, address(rows), address(failed))
        del kept
        return [_CHECKS[check - 1] if check else "" for check in failed.tolist()]

    def _arrive(self, batch: Batch) -> tuple[Any, ...]:
        """Points to packets; returns the arrays that have to be kept while C reads them."""
        n, words, arrived = len(batch), batch.payloads, self._arrived
        headers, peers, full = batch.headers, batch.peers, batch.full
        if headers.strides[0] != HEADER_BYTES:
            headers = np.ascontiguousarray(headers)
        if peers.strides[0] != PEER.itemsize:
            peers = np.ascontiguousarray(peers)
        if not full.flags.c_contiguous:
            full = np.ascontiguousarray(full)
        if self._slots.width and n:
            if words.shape[1] != self._slots.width:
                raise ValueError(f"packets of {words.shape[1]} lanes, not {self._slots.width}")
            if words.strides[1] != LANE_BYTES or words.dtype != LANE:
                words = np.ascontiguousarray(words, LANE)
        self._make_room(n)
        arrived.headers, arrived.peers = address(headers), address(peers)
        arrived.full = address(full)
        arrived.words, arrived.stride = words.__array_interface__["data"][0], words.strides[0]
        arrived.count = n
        return headers, peers, full, words

    def _make_room(self, packets: int, sums: int = 0) -> None:
        """Makes room for so many packets that arrive, and for their sums, or so many."""
        worker, space = self._worker, self._workspace
        space.make_room_to_receive(packets)
        worker.places, worker.kinds, worker.taken = space.received_at
        held = worker.sums_length
        needed = packets + max(held, sums)
        if needed > len(self._sums):
            room = np.empty(2 * needed, SUM)
            if held:
                opaque(room)[:held] = opaque(self._sums[:held])
            self._sums, worker.sums = room, address(room)

    def _depart(self, most: int) -> Wire | None:
        """Returns memory for so many packets to send; None for none."""
        if not most:
            self._out.count = self._out.room = 0
            return None
        room = self._workspace.packets(most, self._out.stride)
        self._send_from(room)
        return room

    def _send_from(self, room: Wire) -> None:
        """Points to memory for packets to send."""
        out, space = self._out, self._workspace
        out.count, out.room = 0, len(room)
        space.make_room_to_send(len(room))
        out.full, out.times, out.peers = space.sent_at
        out.packets = address(room) + self._header_room

    def _departed(self, room: Wire | None, *, lasts: bool = True) -> Batch | None:
        """Returns the packets that were written to memory of `_depart`, or to the window.

        lasts: they are valid for longer than until the next call of any transport.
        """
        n, space = self._out.count, self._workspace
        if room is None or not n:
            return None
        kept = room[:n]
        if room is not self._window:
            space.hold(kept)
        wire = kept[:, self._header_room :]
        full, peers = space.full[:n], space.peers[:n]
        if lasts:
            full, peers = full.copy(), copied(peers)
        return WireBatch(wire, full, peers, kept)


def _common(plan: WorkerPlan) -> Array:
    """Returns the fields that all packets of a stream share (streams,) HEADER."""
    common = blank(len(plan.streams), Op.CONTRIBUTE)
    common["job"], common["epoch"], common["workers"] = plan.job, plan.epoch, 1
    common["stream"] = [stream.stream for stream in plan.streams]
    common["sender"] = [stream.sender for stream in plan.streams]
    common["node"] = [stream.node for stream in plan.streams]
    return common


@functools.cache
def _check(lib: ctypes.CDLL) -> None:
    """Raises RuntimeError if structures here differ from those of the C code."""
    structures = _Worker, _Arrivals, _Departures, _Driver, _Turn, _Submitted
    check_constants(lib, {f"{one.__name__}_bytes": ctypes.sizeof(one) for one in structures})


def _together(plan: WorkerPlan) -> int:
    """Returns how many numbers of a stream may wait for each other's sums: those of a slice that is
    released as a whole (hosts.server.slice_release), in whose first round chunks have two."""
    if not plan.propagation.by_slice:
        return 1
    window = max(stream.window for stream in plan.streams)
    return min(2 * plan.chunks_per_slice, window)
