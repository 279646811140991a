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

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hosts.columns import Quiet, behind
from hosts.slots import HELD, WAITING, Rows, Slots
from hosts.stepping import EXACT, Clock, Numbers, Seconds, Steps, before, steps, wire_sizes
from hosts.verification import wrong
from protocol.header import FLAGGED, Array, Batch, Flag, Op, opaque, ops, peer_keys

if TYPE_CHECKING:
    from hosts.transport import WorkerTransport

_NONE = np.zeros(0, np.intp)
_NOT_PLAIN = np.uint8(FLAGGED | Flag.DIRECT)

# Of tickets whose sums come one after the other (-1: of none), how many may be taken at once.
Enough = Callable[[Numbers], int]


class Released(NamedTuple):
    """taken: how many of the results. Packets to send, and when each of them leaves (n,); batch
    None: there are none. sent: whether any did when the last of these results was there; following:
    when to ask again."""

    taken: int
    batch: Batch | None
    times: Seconds
    sent: bool
    following: float


def release(
    transport: WorkerTransport, times: Seconds, batch: Batch, clock: Clock, enough: Enough
) -> Released | None:
    """Takes results that arrived at these times (n,), ascending: the first ones, up to what is
    `enough` or what has to be looked at by itself. None: that is the first one, and nothing was
    done."""
    slots, plan = transport._slots, transport.plan
    if transport._frozen or transport._moved or plan.alone or plan.pipeline.pulls:
        return None
    if plan.optimizer is not None:
        return None
    columns = slots.columns
    if columns is None:
        rows = _plain(transport, times, batch)
    elif behind(batch) and float(times[-1]) * clock.second < EXACT / 2:
        rows = columns.plain(times, batch)
    else:
        rows = _NONE
    if not len(rows) or not _due_fits(slots):
        return None
    tickets = np.where(slots.exponent_round[rows], -1, slots.ticket[rows])
    most = enough(tickets)
    if most < len(times) and times[most] <= times[most - 1]:
        most -= 1  # these two come together
    trips, questions = transport.round_trips, transport._questions
    taken, quiet = _longest(transport, times, rows, most)
    if quiet is None:
        return None
    if taken < len(times):
        times, rows, batch = times[:taken], rows[:taken], batch.select(slice(taken))
    found = _steps(transport, times, rows, clock)
    if found is None or not _fine(transport, found):
        return None
    if not clock.room(found.times, found.sizes):
        return None
    trips.take(found.measured, quiet.lowest)
    questions.take(rows, quiet.latest)
    if columns is not None:
        columns.postpone(found.rings.tolist(), trips.timeouts.tolist())
    else:
        questions.restart(found.rings, trips.timeouts)
    congested = int(np.count_nonzero(batch.headers["flags"] & np.uint8(Flag.ECN)))
    transport.statistics.congested += congested
    transport._take(rows, batch.headers, batch.payloads, WAITING)
    transport._advance()
    sent = None
    if len(found.rows):
        sent = transport._contributions.packets(_NONE, found.rows)
        _account(transport, found)
    transport._pacer = found.pacer
    following = found.following
    if math.isinf(following):
        following = _first_deadline(slots)
    return Released(taken, sent, found.times, found.sent, following)


def _longest(
    transport: WorkerTransport, times: Seconds, rows: Rows, most: int
) -> tuple[int, Quiet | None]:
    """How many of the first results are quiet, at most so many, and what `_quiet` gives of them:
    if so many are, fewer are, too."""
    columns = transport.columns

    def behind_first(count: int) -> Quiet | None:
        if columns is None:
            return _quiet(transport, times[:count], rows[:count])
        trips, questions = transport.round_trips, transport._questions
        return columns.quiet(times[:count], rows[:count], trips, questions)

    quiet, loud, found = 0, most + 1, None
    count = most
    while loud - quiet > 1:
        last = behind_first(count)
        if last is None:
            loud = count
        else:
            quiet, found = count, last
        count = (quiet + loud) // 2
    return quiet, found


def _steps(transport: WorkerTransport, times: Seconds, rows: Rows, clock: Clock) -> Steps | None:
    """What is sent, and how the transport is then; None if something waits for anything else."""
    slots = transport._slots
    if slots.columns is not None:
        entries = [
            queue.first(window)
            for queue, window in zip(transport._queues, slots.windows, strict=True)
        ]
        trips, pacer = transport.round_trips, transport._pacer
        sizes = wire_sizes(transport)
        return slots.columns.steps(times, rows, trips, pacer, entries, sizes, clock)
    coming = _coming(transport)
    if coming is None:
        return None
    return steps(transport, before(transport, times, rows, *coming), clock)


def _plain(transport: WorkerTransport, times: Seconds, batch: Batch) -> Rows:
    """The rows of the first results that are nothing but sums of numbers that wait for them, each
    once and at a time of its own, in a transport in which nothing else is to be done meanwhile."""
    slots, plan, headers = transport._slots, transport.plan, batch.headers
    if slots.wanted.any() or slots.sent[slots.due].any():
        return _NONE
    stream = transport._stream_index[headers["stream"]]
    seqs = headers["seq"].astype(np.uint32)
    rows: Rows = slots.bases[stream] + (seqs & slots.masks[stream])
    good = (ops(headers) == Op.RESULT) & ((headers["flags"] & _NOT_PLAIN) == 0) & (stream >= 0)
    good &= (headers["job"] == plan.job) & (headers["epoch"] == plan.epoch)
    good &= (slots.seq[rows] == seqs) & (slots.stage[rows] == WAITING) & (slots.sent[rows] == 1)
    good &= slots.chunk[rows] == headers["chunk"]
    good &= peer_keys(batch.peers) == transport._server_keys[slots.server[rows]]
    good &= slots.first_of_each(rows)
    good[1:] &= np.diff(times) > 0
    for failed in wrong(plan, slots, batch, rows, False).values():
        good &= ~failed
    return rows if good.all() else rows[: int(good.argmin())]


def _quiet(transport: WorkerTransport, times: Seconds, rows: Rows) -> Quiet | None:
    """The streams' lowest round trips behind these results; None if a question may come of them, or
    a timer may ring until the last, of what was sent before or of what is."""
    slots, trips = transport._slots, transport.round_trips
    lowest: Seconds = trips.lowest.copy()
    clean = slots.clean[rows]
    took = np.maximum(times - slots.sent_last[rows], 0.0)
    np.minimum.at(lowest, slots.stream[rows][clean], took[clean])
    if transport._questions.would_ask(rows, lowest):
        return None
    first, last = times[:1], times[-1:]
    streams = slots.stream[rows]
    for stream, (base, mask) in enumerate(zip(slots.bases, slots.masks, strict=True)):
        mine = streams == stream
        came = times[mine]
        # No timeout is less than two of the least sample meanwhile (see RoundTrips.sample_one).
        measured = took[mine & ~slots.exponent_round[rows]]
        sample = np.fmin(trips.smoothed[stream], measured.min(initial=np.inf))
        timeout = min(max(2 * sample, trips.least), trips.timeouts[stream])
        if slots.deadline[base : base + mask + 1].min() <= (came[:1] if mine.any() else last)[0]:
            return None
        if np.diff(np.concatenate((first, came, last))).max() >= timeout:
            return None
    return Quiet(lowest, None)


def _due_fits(slots: Slots) -> bool:
    """Whether data that is due and was not sent, of windows before, fits into integers: it is
    quantised when it is sent."""
    if not slots.width:
        return True
    data = (slots.due & ~slots.exponent_round).nonzero()[0]
    return not (slots.unfit[data].any() or (slots.own[data] > slots.exponent[data]).any())


def _coming(transport: WorkerTransport) -> tuple[list[Array], list[Any]] | None:
    """Of each stream, the entries that could enter its window, and which of them have exponents
    that the ones before them find; None if what is in a window or comes into it waits for anything
    else."""
    slots, exponents = transport._slots, transport._exponents
    held = (slots.stage == HELD).nonzero()[0]
    if len(held):
        bases, masks = slots.bases[slots.stream[held]], slots.masks[slots.stream[held]]
        finders = bases + ((held - bases - 1) & masks)
        finds = slots.exponent_round[finders] & (slots.stage[finders] == WAITING)
        if not (finds & (slots.chunk[finders] == slots.chunk[held])).all():
            return None
    entries: list[Array] = []
    after: list[Any] = []
    for stream, queue in enumerate(transport._queues):
        first = queue.first(slots.windows[stream])
        chunks, finding = first["chunk"], first["exponent_round"]
        last = slots.bases[stream] + ((slots.next[stream] - 1) & slots.masks[stream])
        finders = np.concatenate(([slots.exponent_round[last]], finding[:-1]))
        of_chunks = np.concatenate(([slots.chunk[last]], chunks[:-1]))
        waits = ~finding & ~exponents.ready(chunks, first["round"])
        if (waits & ~(finders[: len(first)] & (of_chunks[: len(first)] == chunks))).any():
            return None
        entries.append(first)
        after.append(waits.view(np.uint8))
    return entries, after


def _fine(transport: WorkerTransport, found: Steps) -> bool:
    """Whether all that entered or became due fits into integers."""
    slots, exponents = transport._slots, transport._exponents
    if not slots.width:
        return True
    if slots.unfit[found.released].any():
        return False
    for queue, after, taken in zip(transport._queues, found.after, found.taken, strict=True):
        at = 0
        for entries, _ in queue.pending():
            piece = entries[: taken - at]
            if not len(piece):
                break
            waits = after[at : at + len(piece)] != 0
            at += len(piece)
            if piece["unfit"].any():
                return False
            ones = piece[~piece["exponent_round"] & ~waits]
            if (ones["own"] > exponents.exponents(ones["chunk"], ones["round"])).any():
                return False
    return True


def _account(transport: WorkerTransport, found: Steps) -> None:
    """CONTRIBUTEs were sent, for the first time; see WorkerTransport._account."""
    slots, rows = transport._slots, found.rows
    transport.statistics.sent += len(rows)
    if slots.columns is not None:
        slots.columns.note_sent(rows, found.leave, found.deadlines)
        return
    progress = slots.progress.take(rows)
    progress["sent_first"] = found.leave
    progress["sent_last"] = found.leave
    progress["sent"] += 1
    progress["clean"] = True
    progress["failed"] = False
    progress["asked"] = 0
    progress["backoff"] = 0
    opaque(slots.progress)[rows] = opaque(progress)
    slots.deadline[rows] = found.deadlines
    slots.due[rows] = False


def _first_deadline(slots: Slots) -> float:
    if slots.columns is not None:
        none = [-math.inf] * len(slots.windows)
        return slots.columns.postpone(none, none)
    return float(slots.deadline.min())
