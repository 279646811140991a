# SPDX-License-Identifier: Apache-2.0
"""Transfers state from one epoch of a job to the next: results to workers that lack them, and work.

A chunk's *level* is the number of its results that are complete at a worker: 1 for the exponent
round, then one more for each round of data. Within an epoch levels differ by at most one, and the
worker that is ahead still has the result in its rows: a number is sent only after the results of
all numbers up to W before it. So results are transferred and contributions are not: once all
workers have the same results, what is still incomplete is contributed again, in the order of
submission.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hosts.worker.chunk_queues import ENTRY, Queues
from hosts.worker.core import Core
from hosts.worker.slots import DIRECT, DONE, EMPTY, WAITING, Rows, Slots
from protocol import jobs_pb2
from protocol.header import (
    FLAGGED,
    HEADER,
    HEADER_BYTES,
    LANE,
    LANE_BYTES,
    PEER,
    VERSION,
    Array,
    Batch,
    Flag,
    Op,
    Words,
    carries_payload,
    picked,
)
from protocol.payloads import sum_checks
from protocol.plan import WorkerPlan

Levels = npt.NDArray[np.int64]

# Minimum of workers that hand over a result without payload, if there are so many.
_HOLDERS = 8

_RESULT = np.uint8(VERSION << 4 | Op.RESULT)


def levels_of(slots: Slots, rows: Rows) -> Levels:
    """Returns the levels (n,) that the results of these rows lead to."""
    return np.where(slots.exponent_round[rows], 1, slots.round[rows].astype(np.int64) + 2)


def last_kept(plan: WorkerPlan, slots: Slots, levels: npt.NDArray[np.uint32]) -> Rows:
    """Returns the rows of the chunks whose last result is among the last W of its stream and that
    this worker hands over: all of them if there are few workers, or a payload.

    levels: (chunks,). Older results have reached every worker, as their successors were sent.
    """
    rows = np.flatnonzero(slots.stage == DONE)
    if not slots.width:
        rows = rows[hands_over(len(levels), plan.rank, plan.world)[slots.chunk[rows]]]
    following = slots.next[slots.stream[rows]]
    age = (following - slots.seq[rows]) & 0xFFFFFFFF
    recent = age <= np.array(slots.windows)[slots.stream[rows]]
    last: Rows = rows[recent & (levels_of(slots, rows) == levels[slots.chunk[rows]])]
    return last


def hands_over(chunks: int, rank: int, world: int) -> npt.NDArray[np.bool_]:
    """Returns a mask (chunks,) of those whose results a worker hands over, in a job without
    payload.

    Such a job may have a thousand workers in one process, most with the same results. The workers
    chosen for a chunk are far apart, as losses come by rack.
    """
    every = max(1, world // _HOLDERS)
    chosen = np.zeros(chunks, np.bool_)
    chosen[-rank % every :: every] = True
    return chosen


def kept(slots: Slots, wants: Iterable[tuple[int, int]]) -> list[jobs_pb2.Result]:
    """Returns the results that lead to these (chunk, level). Raises KeyError for one not at
    hand."""
    wants = list(wants)
    rows = np.flatnonzero(slots.stage == DONE)
    rows = rows[np.isin(slots.chunk[rows], [chunk for chunk, _ in wants])]
    names = zip(slots.chunk[rows].tolist(), levels_of(slots, rows).tolist(), strict=True)
    row_of = dict(zip(names, rows.tolist(), strict=True))
    for chunk, level in wants:
        if (chunk, level) not in row_of:
            raise KeyError(f"chunk {chunk}: the result that leads to level {level} is not here")
    return results_of(slots, np.array([row_of[want] for want in wants], np.intp))


def results_of(slots: Slots, rows: Rows) -> list[jobs_pb2.Result]:
    """Returns the results in these rows (n,)."""
    headers = picked(slots.result_headers, rows)
    data = headers.tobytes()
    full = carries_payload(headers).tolist() if slots.width else [False] * len(rows)
    return [
        jobs_pb2.Result(
            chunk=chunk,
            level=level,
            header=data[HEADER_BYTES * i : HEADER_BYTES * (i + 1)],
            payload=slots.result_words[row].tobytes() if full[i] else b"",
        )
        for i, (row, chunk, level) in enumerate(
            zip(
                *(rows.tolist(), slots.chunk[rows].tolist(), levels_of(slots, rows).tolist()),
                strict=True,
            )
        )
    ]


def lacking(
    plan: WorkerPlan,
    slots: Slots,
    core: Core,
    levels: npt.NDArray[np.uint32],
    results: Sequence[jobs_pb2.Result],
) -> tuple[Rows, Batch]:
    """Returns those of `results` that are incomplete here, with their rows, checked as on arrival.

    levels: (chunks,) that are complete. Raises ValueError, naming chunk and cause, for a result
    that this worker does not wait for.
    """
    news = [result for result in results if _is_news(result, levels)]
    batch = batch_of(news, slots.width)
    headers = batch.headers
    numbers = np.array([stream.stream for stream in plan.streams])
    stream = np.minimum(np.searchsorted(numbers, headers["stream"]), len(numbers) - 1)
    rows = slots.bases[stream] + (headers["seq"].astype(np.int64) & slots.masks[stream])
    direct = (headers["flags"] & Flag.DIRECT) != 0
    chunks = np.array([result.chunk for result in news], np.int64)
    reached = np.array([result.level for result in news], np.int64)
    stage = slots.stage[rows]
    for cause, holds in (
        ("it is of another job or epoch", _belongs(headers, plan)),
        ("this worker has no such stream", numbers[stream] == headers["stream"]),
        ("its header is of another chunk", headers["chunk"] == chunks),
        (
            "this worker does not wait for it under this number",
            (slots.seq[rows] == headers["seq"])
            & (slots.chunk[rows] == chunks)
            & (levels_of(slots, rows) == reached)
            & ((stage == WAITING) | (stage == DIRECT) & direct)
            & (slots.sent[rows] > 0),
        ),
        ("a flagged sum is no result", direct | ((headers["flags"] & FLAGGED) == 0)),
    ):
        _need(news, holds, cause)
    for result, cause in zip(news, core.wrong(rows, batch), strict=True):
        _need([result], np.array([not cause]), cause.replace("_", " "))
    rows, first = np.unique(rows, return_index=True)
    return rows, batch.select(first)


def _is_news(result: jobs_pb2.Result, levels: npt.NDArray[np.uint32]) -> bool:
    if result.chunk >= len(levels):
        raise ValueError(f"chunk {result.chunk}: this job has chunks 0..{len(levels) - 1}")
    return bool(result.level > levels[result.chunk])


def batch_of(results: Sequence[jobs_pb2.Result], lanes: int) -> Batch:
    """Converts results to packets without source. Raises ValueError, naming the chunk, for wrong
    sizes."""
    headers = np.zeros(len(results), HEADER)
    words = np.zeros((len(results), lanes), LANE)
    for i, result in enumerate(results):
        if len(result.header) != HEADER_BYTES:
            raise ValueError(f"chunk {result.chunk}: a header of {len(result.header)} bytes")
        headers[i] = np.frombuffer(result.header, HEADER)[0]
        needed = LANE_BYTES * lanes if carries_payload(headers[i : i + 1])[0] else 0
        if len(result.payload) != needed:
            raise ValueError(
                f"chunk {result.chunk}: a payload of {len(result.payload)} bytes, not {needed}"
            )
        if needed:
            words[i] = np.frombuffer(result.payload, LANE)
    return Batch(headers, words, carries_payload(headers), np.zeros(len(results), PEER))


def last_of(headers: bytes, payloads: bytes, levels: npt.NDArray[np.uint32]) -> tuple[Array, Words]:
    """Parses each chunk's last result, as kept by another worker, to (chunks,), (chunks, lanes).

    levels: (chunks,) that they lead to; below 2 there is none. Raises ValueError, naming the chunk,
    for an inconsistent one, and for a wrong number of them.
    """
    n = len(levels)
    if len(headers) != n * HEADER_BYTES or len(payloads) % (LANE_BYTES * n):
        raise ValueError(
            f"{len(headers)} B of headers and {len(payloads)} B of payloads are no results of"
            f" {n} chunks"
        )
    kept_headers = np.frombuffer(headers, HEADER).copy()
    words = np.frombuffer(payloads, LANE).reshape(n, -1).copy()
    there = levels > 1
    holds = sum_checks(kept_headers, words, there) & (kept_headers["chunk"] == np.arange(n))
    bad = np.flatnonzero(there & ~holds)
    if len(bad):
        raise ValueError(f"chunk {bad[0]}: its last result fails its check")
    return kept_headers, words


def _belongs(headers: Array, plan: WorkerPlan) -> npt.NDArray[np.bool_]:
    ours = (headers["version_op"] == _RESULT) & (headers["job"] == plan.job)
    return np.asarray(ours & (headers["epoch"] == plan.epoch), np.bool_)


def _need(results: Sequence[jobs_pb2.Result], holds: npt.NDArray[np.bool_], otherwise: str) -> None:
    bad = np.flatnonzero(~holds)
    if len(bad):
        result = results[bad[0]]
        raise ValueError(
            f"chunk {result.chunk}: the result that leads to level {result.level} cannot be "
            f"taken: {otherwise}"
        )


def incomplete(slots: Slots, queues: Queues) -> list[Array]:
    """Returns the entries (ENTRY) without a result, an array for each submission, in order of
    submission."""
    open_rows = (slots.stage != EMPTY) & (slots.stage != DONE)
    waiting = [queues.pending(stream) for stream in range(len(queues.table))]
    entries = np.concatenate([slots.entry[open_rows], *waiting], dtype=ENTRY)
    entries = entries[np.argsort(entries["order"])]
    ends = np.flatnonzero(np.diff(entries["submission"])) + 1
    return [piece for piece in np.split(entries, ends) if len(piece)]


def check_successor(before: WorkerPlan, after: WorkerPlan) -> None:
    """Raises ValueError if a worker cannot go from one plan to the other."""
    if after.job != before.job or after.lanes != before.lanes:
        raise ValueError(
            f"job {before.job} with {before.lanes} lanes per chunk cannot go on as job "
            f"{after.job} with {after.lanes}"
        )
    if after.epoch <= before.epoch:
        raise ValueError(
            f"job {before.job} is in epoch {before.epoch}; epoch {after.epoch} is not newer"
        )
