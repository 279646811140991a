# SPDX-License-Identifier: Apache-2.0
"""Describes the numbers that a worker waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hosts.worker.slots import DIRECT, DONE, EMPTY, HELD, Slots
from protocol.header import Phase
from protocol.plan import WorkerPlan


@dataclass(frozen=True, slots=True)
class Waiting:
    """The state of one number in flight.

    kind: "exponent round", "sum", "direct sum" or "held" (its exponent is not known yet).
    sent_first, sent_last, asked_last, heard: seconds before `now` of the first and last CONTRIBUTE
        (0 while it is in the host's queue), the last QUERY and the last STATE; None if never.
    node, phase, children: of the last STATE (for a direct sum the server's; this worker's bit is
        its rank mod 32).
    """

    stream: int
    seq: int
    chunk: int
    kind: str
    sent: int
    sent_first: float | None
    sent_last: float | None
    asked_last: float | None
    unanswered_queries: int
    node: int | None
    phase: str | None
    children: int | None
    heard: float | None

    def __str__(self) -> str:
        text = f"chunk {self.chunk} (stream {self.stream}, seq {self.seq}, {self.kind})"
        if self.sent_first is None:
            return f"{text}: not sent yet"
        if self.heard is None:
            text += f": sent {self.sent_first:.1f} s ago, no node has reported its phase"
        else:
            text += (
                f": {self.heard:.1f} s ago node {self.node} was {self.phase}, "
                f"children in: {self.children:#b}"
            )
        return f"{text}, {self.unanswered_queries} queries unanswered"


@dataclass(frozen=True, slots=True)
class StreamOutline:
    """A stream as a worker sees it: its place in the tree, and its numbers in flight.

    following: the next number to enter the window (mod 2^32).
    open: numbers in the window without a result.
    oldest: the oldest of these, in order.
    timeout: RTO in seconds.
    """

    stream: int
    node: int
    sender: int
    following: int
    open: int
    timeout: float
    oldest: list[Waiting]


@dataclass(frozen=True, slots=True)
class Outline:
    """A worker's chunks in flight.

    rank: position among the workers of this epoch.
    frozen: true during a change of plan.
    """

    epoch: int
    world: int
    rank: int
    frozen: bool
    streams: list[StreamOutline]


def streams_of(
    plan: WorkerPlan, slots: Slots, timeouts: Sequence[float], now: float, most: int
) -> list[StreamOutline]:
    """Returns an outline of each stream, with up to `most` of its oldest open numbers."""
    outlines = []
    for index, stream in enumerate(plan.streams):
        left, following = int(slots.left[index]), int(slots.next[index])
        rows = slots.rows(index, np.arange(left, following))
        rows = rows[slots.stage[rows] != DONE]
        outlines.append(
            StreamOutline(
                stream.stream,
                stream.node,
                stream.sender,
                following & 0xFFFFFFFF,
                len(rows),
                float(timeouts[index]),
                [_explain(slots, row, now) for row in rows[:most].tolist()],
            )
        )
    return outlines


def explain(slots: Slots, now: float) -> list[Waiting]:
    """Returns every open number, the longest submitted first."""
    rows = np.flatnonzero((slots.stage != EMPTY) & (slots.stage != DONE))
    return [_explain(slots, row, now) for row in rows[np.argsort(slots.order[rows])].tolist()]


def unanswered(slots: Slots, now: float) -> float:
    """Returns the longest time in seconds that a number in flight has had neither a result nor an
    answer to a probe; 0 if nothing is in flight."""
    rows = np.flatnonzero((slots.stage != EMPTY) & (slots.stage != DONE) & (slots.sent > 0))
    if not len(rows):
        return 0.0
    heard = slots.progress["sent_first"][rows]
    probed = slots.progress["probed"][rows]
    if probed.any():
        answered = slots.probing["state_time"][rows[probed]]
        heard[probed] = np.fmax(heard[probed], answered)
    return max(0.0, now - float(heard.min()))


def _explain(slots: Slots, row: int, now: float) -> Waiting:
    kind = "exponent round" if slots.exponent_round[row] else "sum"
    if slots.stage[row] == HELD:
        kind = "held"
    elif slots.stage[row] == DIRECT:
        kind = "direct sum"
    progress, probing = slots.progress[row], slots.probing_of(np.array([row]))[0]
    sent, heard = bool(progress["sent"]), not np.isnan(probing["state_time"])
    return Waiting(
        stream=int(slots.stream_number[row]),
        seq=int(slots.seq[row]),
        chunk=int(slots.chunk[row]),
        kind=kind,
        sent=int(progress["sent"]),
        sent_first=max(0.0, now - float(progress["sent_first"])) if sent else None,
        sent_last=max(0.0, now - float(progress["sent_last"])) if sent else None,
        asked_last=now - float(probing["probed_last"]) if probing["probed_last"] else None,
        unanswered_queries=int(probing["probes"]),
        node=int(probing["state_node"]) if heard else None,
        phase=Phase(int(probing["state_phase"])).name if heard else None,
        children=int(probing["state_children"]) if heard else None,
        heard=now - float(probing["state_time"]) if heard else None,
    )
