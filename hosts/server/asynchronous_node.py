# SPDX-License-Identifier: Apache-2.0
"""The server of an asynchronous job: one optimizer step per worker's gradient, as it arrives.

There is no sum, so there are no slots: a packet is identified by its chunk, its worker and the
worker's count of contributions to this chunk (from 1, the initial parameters; header field
`children`). A worker sends the next one only after the answer to the last, so the count decides:
one more than the ledger's is a step to take, an equal count repeats the request, and a smaller one
is a late copy. Contributions are counted with the parameters (`Shards.ledger`), and the count moves
with them to the backup and to the chunk's next server. So each gradient is applied once, despite
loss, duplication, reordering and crashes.

An answer has the parameters as they are when it leaves: after the backup holds the step and, with
bounded delay, after no worker is more than `staleness` contributions behind. It may include a later
step that is still on its way to the backup; if that step dies with this server, it is taken again.

While chunk maps change, a server takes steps of the chunks in its custody
(`hosts.server.chunk_custody`); contributions to others that the newest map gives it wait for them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from hosts.data.reports import Failure
from hosts.data.snapshot import Chunks, Snapshot
from hosts.server.chunk_fetches import MoveTask
from hosts.server.conflict_free_batches import Indices, Mask, waves
from hosts.server.shards import Shards
from hosts.server.update_pipeline import UpdatePipeline
from protocol.header import (
    LANE,
    PHASE_SHIFT,
    Array,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    peer_array,
    picked,
)
from protocol.payloads import NO_EXPONENT, chunk_hash, float_words, floats_of, sum_checks, word_sums
from protocol.plan import ServerPlan

Counts = npt.NDArray[np.int64]

INITIAL = 1
"""The number of a worker's contribution that has initial parameters."""


class AsynchronousNode:
    """All streams of one epoch at one server.

    counters: outcomes; the caller may share it.
    failures: impossible contributions, for the caller to take.
    """

    def __init__(
        self, plan: ServerPlan, counters: Counter[str], steps: UpdatePipeline, shards: Shards
    ) -> None:
        assert plan.optimizer is not None
        assert steps.custody is not None
        self._plan = plan
        self._custody = steps.custody
        self._bound = plan.optimizer.consistency.staleness
        self._counters = counters
        self._steps = steps
        self._shards = shards
        self._addresses = peer_array([address.pair() for address in plan.workers])
        members = plan.members or tuple(range(plan.world))
        self._columns = 1 + np.array(members, np.intp)
        self._bits = np.uint32(1) << np.arange(plan.world, dtype=np.uint32)
        # By chunk and rank: contributions applied and replicated. All are when an epoch begins.
        self._safe = np.zeros((plan.chunks, plan.world), np.uint32)
        held = np.flatnonzero(shards.levels)
        self._safe[held] = self._counted(held)
        self._waiting = np.zeros((plan.chunks, plan.world), np.bool_)
        self._seq = np.zeros((plan.chunks, plan.world), np.uint32)
        self._stream = np.zeros(plan.chunks, np.uint8)
        self._lanes = np.zeros(plan.chunks, np.uint16)
        # Contributions to chunks that are to come into custody, of each worker one.
        self._held: list[tuple[Batch, Indices]] = []
        self._holding = np.zeros((plan.chunks, plan.world), np.bool_)
        self.failures: list[Failure] = []

    def on_contributions(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """Takes CONTRIBUTE|DIRECTs from the workers `ranks`; returns RESULTs to send."""
        headers = batch.headers
        good = self._well_addressed(headers, ranks)
        whole = (headers["lanes"] >= 1) & batch.full
        self._count("direct_malformed", good & ~whole)
        good &= whole
        holds = sum_checks(headers, batch.payloads, batch.full)
        self._count("bad_checksum", good & ~holds)
        good &= holds
        batch, ranks = batch.select(good), ranks[good]
        away = ~self._custody.held[batch.headers["chunk"].astype(np.int64)]
        if away.any():
            self._hold(batch.select(away), ranks[away])
            batch, ranks = batch.select(~away), ranks[~away]
        if not len(batch):
            return []
        touched = np.unique(batch.headers["chunk"].astype(np.int64))
        levels = self._shards.levels[touched]
        for wave in waves(batch.headers["chunk"]):
            self._on_wave(batch.select(wave), ranks[wave])
        changed = self._shards.levels[touched] != levels
        results = self._release(touched[~changed])
        if changed.any():
            results += self._publish(touched[changed])
        return results

    def on_queries(self, batch: Batch, ranks: Indices) -> list[Batch]:
        """Answers QUERY|DIRECTs with STATE|DIRECTs.

        FINAL: the answer is available. Else the bitmap has the worker's own bit if its answer is
        pending here, and the bits of the workers that it does not wait for. There is no answer
        about a chunk that is to come into custody.
        """
        good = self._well_addressed(batch.headers, ranks)
        numbers = batch.headers["chunk"][good].astype(np.int64)
        away = ~self._custody.held[numbers]
        if away.any():
            self._custody.need(numbers[away])
            self._counters["query_moving"] += int(np.count_nonzero(away))
            good[np.flatnonzero(good)[away]] = False
        headers, ranks = picked(batch.headers, good), ranks[good]
        chunks = headers["chunk"].astype(np.int64)
        number = headers["children"].astype(np.int64)
        counted = self._counted(chunks)
        behind = number - counted[np.arange(len(ranks)), ranks]
        live = (behind == 0) | (behind == 1)
        self._count("query_stale", ~live)
        self._count("query_answered", live)
        headers, ranks, chunks = picked(headers, live), ranks[live], chunks[live]
        if not len(headers):
            return []
        number, counted, behind = number[live], counted[live], behind[live]
        mine = np.arange(len(ranks)), ranks
        final = (behind == 0) & self._answerable(chunks, counted)[mine]
        there = self._waiting[chunks, ranks] & (self._seq[chunks, ranks] == headers["seq"])
        near = np.ones_like(counted, np.bool_)
        if self._bound is not None:
            near = counted >= (number - self._bound)[:, None]
        near[mine] = there
        states = blank(len(headers), Op.STATE)
        for name in ("job", "epoch", "stream", "sender", "seq", "chunk", "node", "workers"):
            states[name] = headers[name]
        states["children"] = (near * self._bits).sum(axis=1, dtype=np.uint32)
        phase = np.where(final & ~there, Phase.FINAL, Phase.AGGREGATING)
        states["flags"] = phase << PHASE_SHIFT | Flag.DIRECT
        words = np.zeros((len(states), self._plan.lanes), LANE)
        full = np.zeros(len(states), np.bool_)
        return [Batch(states, words, full, picked(self._addresses, ranks))]

    def _well_addressed(self, headers: Array, ranks: Indices) -> Mask:
        named = (headers["sender"] == (ranks & 0xFF)) & (headers["workers"] == 1)
        chunks = np.minimum(headers["chunk"].astype(np.int64), self._plan.chunks)
        mine = self._custody.held[chunks] | self._custody.to_me[chunks]
        self._count("not_a_child", ~named)
        self._count("other_server", named & ~mine)
        return np.asarray(named & mine, np.bool_)

    def _hold(self, batch: Batch, ranks: Indices) -> None:
        """Keeps contributions until their chunks are in custody."""
        chunks = batch.headers["chunk"].astype(np.int64)
        fresh = np.zeros(len(ranks), np.bool_)
        fresh[np.unique(chunks * self._plan.world + ranks, return_index=True)[1]] = True
        fresh &= ~self._holding[chunks, ranks]
        self._count("moving", fresh)
        self._count("duplicate", ~fresh)
        self._holding[chunks[fresh], ranks[fresh]] = True
        rows = np.flatnonzero(fresh)  # of which this is a copy: the batch may be a view
        self._held.append((batch.select(rows), ranks[rows]))
        self._custody.need(chunks)

    def arrived(self, task: MoveTask, parts: list[Snapshot], now: float) -> list[Batch]:
        """Takes the answer of another server at a time; returns RESULTs to send.

        Raises ValueError for invalid chunks.
        """
        found = self._custody.arrived(task, parts, now)
        # The backup of the last server has them, this one's not yet; that one has been asked for
        # other answers than this one.
        self._safe[found] = 0
        self._waiting[found] = False
        held, self._held = self._held, []
        for batch, ranks in held:
            chunks = batch.headers["chunk"].astype(np.int64)
            here = self._custody.held[chunks]
            waits = ~here & self._custody.to_me[chunks]
            self._holding[chunks, ranks] = waits
            if waits.any():
                self._held.append((batch.select(waits), ranks[waits]))
            if here.any():
                ready, of = batch.select(here), ranks[here]
                for wave in waves(ready.headers["chunk"]):
                    self._on_wave(ready.select(wave), of[wave])
                found = np.union1d(found, chunks[here])
        begun = found[self._shards.levels[found] > 0]
        return self._publish(begun) if len(begun) else []

    def _counted(self, chunks: Chunks) -> Counts:
        """Returns the contributions (n, world) of each worker that are applied."""
        held = self._shards.levels[chunks] > 0
        ledger = self._shards.ledger[chunks][:, self._columns].astype(np.int64)
        return np.where(held[:, None], ledger, 0)

    def _on_wave(self, batch: Batch, ranks: Indices) -> None:
        """Takes contributions to distinct chunks."""
        headers, shards = batch.headers, self._shards
        chunks = headers["chunk"].astype(np.int64)
        number = headers["children"].astype(np.int64)
        held = shards.levels[chunks] > 0
        # Initial parameters of the first worker count; the others get them once they are here.
        first = ~held & (number == INITIAL)
        start = first & (ranks == 0)
        if start.any():
            shards.start(chunks[start], floats_of(batch.payloads[start]))
        behind = number - self._counted(chunks)[np.arange(len(ranks)), ranks]
        step = held & (behind == 1)
        if step.any():
            shards.step(chunks[step], floats_of(batch.payloads[step]))
            shards.ledger[chunks[step], self._columns[ranks[step]]] += 1
        again = held & (behind == 0)
        asked = first | step | again
        rows, columns = chunks[asked], ranks[asked]
        known = self._waiting[rows, columns] & (self._seq[rows, columns] == headers["seq"][asked])
        self._waiting[rows, columns] = True
        self._seq[rows, columns] = headers["seq"][asked]
        self._stream[rows] = headers["stream"][asked]
        self._lanes[rows] = headers["lanes"][asked]
        early = (behind > 1) | (~held & (number > INITIAL))
        self._count("started", start)
        self._count("stepped", step)
        self._count("duplicate", known)
        self._count("stale", held & (behind < 0))
        for row in np.flatnonzero(early).tolist():
            self._fail(headers[row], int(ranks[row]), int(number[row] - behind[row]))

    def _fail(self, header: Array, rank: int, counted: int) -> None:
        """Reports a contribution whose predecessors are missing."""
        number, seq, chunk = (int(header[name]) for name in ("children", "seq", "chunk"))
        reason = f"worker {rank}'s contribution {number} came, and {counted} are in"
        self.failures.append(Failure(int(header["stream"]), seq, chunk, reason))

    def _publish(self, chunks: Chunks) -> list[Batch]:
        """Publishes steps of these chunks; returns what may be sent at once."""
        counted = self._counted(chunks)

        def release() -> list[Batch]:
            self._safe[chunks] = np.maximum(self._safe[chunks], counted.astype(np.uint32))
            return self._release(chunks)

        # Members exchange no results in asynchronous jobs, so none is kept.
        return self._steps.publish(chunks, blank(len(chunks), Op.RESULT), release)

    def _answerable(self, chunks: Chunks, counted: Counts) -> Mask:
        """Returns a mask (n, world) of workers whose last contribution may be answered."""
        may = (counted > 0) & (self._safe[chunks] >= counted)
        if self._bound is not None:
            may &= counted <= counted.min(axis=1)[:, None] + self._bound
        return np.asarray(may, np.bool_)

    def _release(self, chunks: Chunks) -> list[Batch]:
        """Returns answers to all workers that wait for one of these chunks and may have it."""
        if not len(chunks):
            return []
        counted = self._counted(chunks)
        ready = self._waiting[chunks] & self._answerable(chunks, counted)
        ranks, rows = ready.T.nonzero()  # one train per worker
        if not len(rows):
            return []
        at = chunks[rows]
        self._waiting[at, ranks] = False
        self._counters["answered"] += len(at)
        headers = blank(len(at), Op.RESULT)
        headers["job"] = self._plan.job
        headers["epoch"] = self._plan.epoch
        headers["stream"] = self._stream[at]
        headers["flags"] = Flag.DIRECT
        headers["sender"] = ranks & 0xFF
        headers["seq"] = self._seq[at, ranks]
        headers["chunk"] = at
        headers["children"] = counted.min(axis=1)[rows]
        headers["workers"] = self._plan.world
        headers["max_exponent"] = NO_EXPONENT
        headers["lanes"] = self._lanes[at]
        words = float_words(self._shards.parameters(at))
        headers["checksum"] = word_sums(words) + chunk_hash(
            self._plan.job, headers["stream"], headers["seq"], headers["chunk"], 0
        )
        full, peers = np.ones(len(at), np.bool_), picked(self._addresses, ranks)
        return [Batch(headers, words, full, peers)]

    def _count(self, outcome: str, packets: Mask) -> None:
        n = int(np.count_nonzero(packets))
        if n:
            self._counters[outcome] += n
