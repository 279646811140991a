# SPDX-License-Identifier: Apache-2.0
"""A server as the root of a stream's tree: the same state machine as a switch's node.

Children are workers or switches. A chunk's slot is claimed by its first contribution, filled by the
others and FINAL when every child is in; from then on a contribution is answered with the result, to
that child only, until a newer number claims the slot.

Most batches are plain: one copy per child, consistent, within the bound in which no sum can
overflow. Native code takes those (`hosts.server.contribution_kernel`), up to the first contribution
that is not plain. The rest of a batch, or all of it without a compiler, is processed in waves with
distinct slots, with the same result.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.array_pool import ArrayPool
from hosts.data.reports import Failure
from hosts.native.loader import load_native
from hosts.net.arrivals import EXACT, Clock, Released, Seconds
from hosts.net.broadcast_batch import BroadcastBatch
from hosts.server.conflict_free_batches import waves
from hosts.server.contribution_kernel import ContributionKernel
from hosts.server.merge_buffers import Integers, merging, span
from hosts.server.served_slots import LATEST_COPY, Indices, Mask, Match, ServedSlots
from hosts.server.update_pipeline import UpdatePipeline
from protocol.header import (
    FLAGGED,
    LANE,
    PHASE_SHIFT,
    Array,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    carries_payload,
    opaque,
    packet_bytes,
    parts_of,
    peer_array,
    peer_keys,
)
from protocol.payloads import float_words, header_hashes, sums_hold, word_sums
from protocol.plan import RootStream, ServerPlan

_STICKY = np.uint8(FLAGGED | Flag.ECN)
_NONE = np.zeros(0, np.intp)


class RootNode(ServedSlots):
    """The root of one stream.

    counters: outcomes; the caller may share it.
    steps: turns sums into parameters, which are sent instead.
    """

    def __init__(
        self,
        plan: ServerPlan,
        root: RootStream,
        counters: Counter[str],
        steps: UpdatePipeline | None = None,
    ) -> None:
        super().__init__(plan, root.stream, root.window, counters)
        self._steps = steps
        self._node = root.node
        children = sorted(root.children, key=lambda child: child.sender)
        self._children = len(children)
        self._addresses = peer_array([child.address.pair() for child in children])
        self._keys = peer_keys(self._addresses)
        self._below = np.array([child.workers for child in children], np.uint16)
        self._nodes = np.array([child.node for child in children], np.uint16)
        self._worker_keys = peer_keys(peer_array([worker.pair() for worker in plan.workers]))
        self._every_child = np.uint32((1 << self._children) - 1)
        n = 2 * root.window
        self._in = np.zeros(n, np.uint32)
        self._checksum = np.zeros(n, np.uint32)
        self._large = np.zeros(n, np.bool_)  # a copy was beyond the bound
        self._pool = ArrayPool()
        self._merging = merging(plan.pipeline, n, self._children, plan.lanes)
        # Of FINAL slots, in wire format.
        self._results = np.zeros((n, plan.lanes), LANE)
        # Contributions that failed their check, by (slot, child): number in the stream, failures,
        # whether the child has learnt since that its copy is missing (so that it retransmitted).
        self._failed: dict[tuple[int, int], tuple[int, int, bool]] = {}
        self.failures: list[Failure] = []
        native = load_native()
        self._kernel = None if native is None else self._make_taker(native)

    def _make_taker(self, native: ctypes.CDLL) -> ContributionKernel:
        plan = self._plan
        columns = {
            "used": self._used, "final": self._final, "flags": self._flags, "large": self._large,
            "seq": self._seq, "chunk": self._chunk, "in": self._in, "checksum": self._checksum,
            "lanes": self._lanes, "exponent": self._exponent, "max_exponent": self._max_exponent,
            "peers": self._addresses, "below": self._below,
            "mine": plan.server_of(np.arange(plan.chunks)) == plan.rank, "results": self._results,
        }  # fmt: skip
        return ContributionKernel(
            native, columns, self._merging, latest_copy=LATEST_COPY, node=self._node, job=plan.job,
            epoch=plan.epoch, world=plan.world, stream=self._stream,
        )  # fmt: skip

    def on_contributions(self, batch: Batch) -> list[Batch]:
        """Takes CONTRIBUTEs of this job, epoch and stream; returns the RESULTs to send.

        These are the results of all sums that became complete, by slot, then those that answer
        copies for finished sums. So packets and their order depend on the arrivals, not on how they
        are processed.
        """
        taken, complete = 0, _NONE
        if self._kernel is not None:
            prefix = self._kernel.take(batch)
            taken, complete = prefix.count, prefix.complete
            self._count("claimed", prefix.claimed)
            self._count("added", taken - prefix.claimed)
        headers = batch.headers[:0]
        if taken < len(batch):
            more, headers = self._take(batch.select(slice(taken, None)) if taken else batch)
            complete = np.sort(np.concatenate((complete, more))) if len(complete) else more
        results = self._results_of(complete)
        if len(headers):
            slots = (headers["seq"] & self._mask).astype(np.intp)
            results += self._answers(slots, headers["sender"].astype(np.intp))
        return results

    def on_train(
        self, times: Seconds, batch: Batch, clock: Clock, sizes: tuple[int, int]
    ) -> Released | None:
        """Takes a prefix of contributions that arrive at these ascending times (n,).

        The prefix consists of plain contributions whose results find room; each result leaves when
        its last copy has arrived. Returns None, with nothing done, if the prefix is empty. sizes:
        bytes of a frame without payload, and with it.
        """
        kernel = self._kernel
        if kernel is None or self._steps is not None or self._plan.pipeline.pulls:
            return None
        if float(times[-1]) * clock.second >= EXACT / 2:
            return None
        # Arrivals of one time are answered together.
        together = np.flatnonzero(times[1:] <= times[:-1])
        count = int(together[0]) if len(together) else len(times)
        completing = self._completing(batch.headers[:count])
        answers = len(completing)
        while answers:
            leave = times[completing[:answers]].repeat(self._children)
            wide = batch.headers["lanes"][completing[:answers]] != 0
            if clock.room(leave, np.where(wide, sizes[1], sizes[0]).repeat(self._children)):
                break
            count, answers = int(completing[answers // 2]), answers // 2
        if not count:
            return None
        prefix = kernel.take(batch.select(slice(count)))
        if not prefix.count:
            return None
        self._count("claimed", prefix.claimed)
        self._count("added", prefix.count - prefix.claimed)
        rows = completing[: len(prefix.complete)]
        results = self._results_of((batch.headers["seq"][rows] & self._mask).astype(np.intp))
        sent = len(rows) > 0 and int(rows[-1]) == prefix.count - 1
        if not results:
            return Released(prefix.count, None, times[:0], sent, math.inf)
        (broadcast,) = results
        assert isinstance(broadcast, BroadcastBatch)
        leave = times[rows].repeat(self._children)
        return Released(prefix.count, broadcast.by_packet(), leave, sent, math.inf)

    def _completing(self, headers: Array) -> Indices:
        """Returns the rows of contributions that complete their sums, in order, if all are
        plain."""
        slots = (headers["seq"] & self._mask).astype(np.intp)
        match = self._match(headers)
        there = np.where(match.newer, 0, _bits(self._in[slots]))
        order = np.argsort(slots, kind="stable")
        firsts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        lengths = np.diff(firsts, append=len(slots))
        turns = np.empty(len(slots), np.intp)
        turns[order] = np.arange(1, len(slots) + 1) - firsts.repeat(lengths)
        return np.flatnonzero(there + turns == self._children)

    def _take(self, batch: Batch) -> tuple[Indices, Array]:
        """Takes contributions; returns the slots, ascending, that became complete, and the headers
        of contributions to finished sums, in the order of the batch."""
        batch = batch.select(self._from_children(batch, queries=False))
        none = batch.headers[:0]
        if not len(batch):
            return _NONE, none
        rows: Integers = self._pool.empty(batch.payloads.shape, np.int32)
        np.copyto(rows, batch.payloads)  # in native byte order
        holds = sums_hold(batch.headers, word_sums(rows), batch.full)
        if not holds.all():
            self._count("bad_checksum", int(np.count_nonzero(~holds)))
            self._on_bad(batch.headers[~holds])
            batch, rows = batch.select(holds), rows[holds]
        headers = batch.headers
        rows[~batch.full] = 0
        complete, replayed = [_NONE], [_NONE]
        for wave in waves(headers["seq"] & self._mask):
            slots, again = self._on_wave(headers[wave], rows[wave])
            complete.append(slots)
            replayed.append(wave[again])
        return np.sort(np.concatenate(complete)), headers[np.sort(np.concatenate(replayed))]

    def on_queries(self, batch: Batch) -> list[Batch]:
        """Answers QUERYs of this job, epoch and stream with STATEs or, where results are only
        announced, with RESULTs."""
        batch = batch.select(self._from_children(batch, queries=True))
        rows, match = self._answerable(batch.headers)
        headers = batch.headers[rows]
        for slot, sender in zip(match.slots.tolist(), headers["sender"].tolist(), strict=True):
            if (slot, sender) in self._failed:
                seq, failures, _ = self._failed[slot, sender]
                self._failed[slot, sender] = seq, failures, True
        answers = []
        if self._plan.pipeline.pulls:
            pulled = match.current & self._final[match.slots]
            senders = headers["sender"][pulled].astype(np.intp)
            answers = self._answers(match.slots[pulled], senders)
            headers, rows, match = headers[~pulled], rows[~pulled], match.select(~pulled)
        states = self._states(headers, match, self._in[match.slots])
        return answers + self._without_payload(states, batch.peers[rows])

    def _from_children(self, batch: Batch, queries: bool) -> Mask:
        """Returns a mask (n,) of packets for this node that come from the child that they name."""
        headers = batch.headers
        sender = headers["sender"].astype(np.intp)
        known = (headers["node"] == self._node) & (sender < self._children)
        sender = np.where(known, sender, 0)
        source = peer_keys(batch.peers)
        right = source == self._keys[sender]
        if queries:  # a switch forwards a QUERY with the sender of the worker
            right |= (self._nodes[sender] != 0) & np.isin(source, self._worker_keys)
        good = known
        self._count("not_a_child", int(np.count_nonzero(~good)))
        for outcome, holds in (
            ("wrong_source", right),
            ("wrong_workers", headers["workers"] == self._below[sender]),
            ("other_server", self._mine(headers)),
        ):
            if not holds.all():
                self._count(outcome, int(np.count_nonzero(good & ~holds)))
                good = good & holds
        return np.asarray(good, np.bool_)

    def _on_wave(self, headers: Array, rows: Integers) -> tuple[Indices, Indices]:
        """Takes contributions to distinct slots; returns the slots that became complete, and the
        indices of contributions to finished sums."""
        match = self._match(headers)
        early = self._early(match)
        slots, newer, current = match.slots, match.newer & ~early, match.current
        bit = np.uint32(1) << headers["sender"].astype(np.uint32)
        replay = current & self._final[slots]
        seen = (self._in[slots] & bit) != 0
        add = current & ~replay & ~seen
        for outcome, packets in (
            ("claimed", newer),
            ("added", add),
            ("replayed", replay),
            ("duplicate", current & ~replay & seen),
            ("other_chunk", match.same & ~current),
            ("stale", match.stale),
            ("early", early),
        ):
            self._count(outcome, int(np.count_nonzero(packets)))
        if newer.any():
            self._start(slots[newer], headers[newer])
        grown = np.flatnonzero(newer | add)
        if len(grown):
            self._in[slots[grown]] |= bit[grown]
            self._add(slots[grown], headers[grown], rows[grown])
        return self._full(slots[grown]), np.flatnonzero(replay)

    def _early(self, match: Match) -> Mask:
        """Returns a mask (n,) of impossible numbers: their slot has a complete sum whose result was
        not sent."""
        slots = match.slots
        unsent = (self._in[slots] == self._every_child) & ~self._final[slots]
        return np.asarray(match.newer & self._used[slots] & unsent, np.bool_)

    def _start(self, slots: Indices, headers: Array) -> None:
        self._claim(slots, headers)
        self._in[slots] = 0
        self._large[slots] = False
        self._checksum[slots] = 0
        self._merging.claim(slots)

    def _add(self, slots: Indices, headers: Array, rows: Integers) -> None:
        alike = (self._exponent[slots] == headers["exponent"]) & (
            self._lanes[slots] == headers["lanes"]
        )
        self._checksum[slots] += headers["checksum"].astype(np.uint32)
        self._max_exponent[slots] = np.maximum(self._max_exponent[slots], headers["max_exponent"])
        self._flags[slots] |= headers["flags"] & _STICKY
        self._large[slots] |= self._beyond(rows)
        self._overflow(slots, ~alike | self._merging.put(slots, headers["sender"], rows))

    def _beyond(self, rows: Integers) -> Mask:
        bound = self._merging.bound
        return np.asarray(
            (rows.max(axis=1, initial=0) > bound) | (rows.min(axis=1, initial=0) < -bound), np.bool_
        )

    def _overflow(self, slots: Indices, overflowed: Mask) -> None:
        self._flags[slots[overflowed]] |= np.uint8(Flag.OVERFLOW)
        self._count("overflowed", int(np.count_nonzero(overflowed)))

    def _full(self, slots: Indices) -> Indices:
        """Returns those of these slots that every child is in."""
        full: Indices = slots[self._in[slots] == self._every_child]
        return full

    def _results_of(self, slots: Indices) -> list[Batch]:
        """Makes the results of complete slots; returns the packets to send."""
        if not len(slots):
            return []
        self._count("completed", len(slots))
        if self._kernel is not None and self._steps is None and self._kernel.seal(slots):
            return self._finish(slots)
        sums, overflowed = self._merging.take(slots)
        if overflowed.any():
            self._overflow(slots, overflowed)
        if self._steps is not None:
            return self._optimize(self._steps, slots, sums)
        self._results[span(slots)] = sums
        if not self._plan.pipeline.adds:
            self._seal(slots, word_sums(sums))
        return self._finish(slots)

    def _seal(self, slots: Indices, sums: Any) -> None:
        """Sets checksums of results that differ from the sum of contributions."""
        hashes = header_hashes(self._sum_headers(slots))
        self._checksum[slots] = sums + np.uint32(self._plan.world) * hashes

    def _finish(self, slots: Indices) -> list[Batch]:
        """Publishes the results of these slots to every child."""
        self._final[slots] = True
        if not self._plan.pipeline.pulls:
            return [self._to_all(slots)]
        headers = self._sum_headers(slots)
        whole = carries_payload(headers)
        announced = blank(int(np.count_nonzero(whole)), Op.STATE)
        for name in ("job", "epoch", "stream", "seq", "chunk", "children"):
            announced[name] = headers[name][whole]
        announced["flags"] = Phase.FINAL << PHASE_SHIFT
        rest = headers[~whole]
        batches = (self._to_all(slots[whole], announced), self._to_all(slots[~whole], rest))
        return [batch for batch in batches if len(batch)]

    def _to_all(self, slots: Indices, headers: Array | None = None) -> BroadcastBatch:
        """Returns packets about slots to every child: their results, or those with `headers`."""
        # Written in wire format, so that headers and payloads need no joining.
        size = packet_bytes(self._plan.lanes)
        packets = self._pool.empty((len(slots), size), np.uint8)
        if headers is None and self._kernel is not None:
            whole = self._kernel.write(slots, packets)
        else:
            headers = self._sum_headers(slots) if headers is None else headers
            whole = carries_payload(headers)
            ours, words = parts_of(packets)
            opaque(ours)[:] = opaque(headers)
            words[:] = self._results[span(slots)]
        return BroadcastBatch(packets, whole, self._addresses, self._nodes, self._pool)

    def _optimize(self, steps: UpdatePipeline, slots: Indices, sums: Integers) -> list[Batch]:
        """Turns complete sums of gradients into parameters."""
        whole = (self._lanes[slots] != 0) & ((self._flags[slots] & np.uint8(FLAGGED)) == 0)
        results: list[Batch] = []
        if not whole.all():
            results = self._finish(slots[~whole])
            slots, sums = slots[whole], sums[whole]
        chunks = self._chunk[slots].astype(np.int64)
        held = steps.held(chunks)
        if not held.all():
            for slot in slots[~held].tolist():
                # Initial parameters come DIRECT; a gradient must not pass for them.
                reason = "its parameters are not at this server"
                seq, chunk = int(self._seq[slot]), int(self._chunk[slot])
                self.failures.append(Failure(self._stream, seq, chunk, reason))
            slots, chunks, sums = slots[held], chunks[held], sums[held]
        if not len(slots):
            return results
        exponents, world = self._exponent[slots], self._plan.world
        decode = self._plan.codec.decode
        words = float_words(steps.step(chunks, lambda: decode(sums, exponents, world)))
        self._results[span(slots)] = words
        self._seal(slots, word_sums(words))
        headers = self._sum_headers(slots)
        return results + steps.publish(chunks, headers, lambda: self._finish(slots))

    def _answers(self, slots: Indices, senders: Indices) -> list[Batch]:
        """Returns RESULTs of `slots`, each to its sender."""
        if not len(slots):
            return []
        headers = self._sum_headers(slots)
        headers["sender"] = senders
        headers["node"] = self._nodes[senders]
        words = self._results[slots]
        return [Batch(headers, words, carries_payload(headers), self._addresses[senders])]

    def _sum_headers(self, slots: Indices) -> Array:
        """Returns the headers of RESULTs of `slots`, without their receivers."""
        headers = self._result_headers(slots)
        headers["children"] = self._in[slots]
        headers["workers"] = self._plan.world  # all are in
        headers["checksum"] = self._checksum[slots]
        return headers

    def _on_bad(self, headers: Array) -> None:
        """Counts contributions that fail their check, and reports a switch's partial sum that stays
        bad."""
        for header in headers:
            seq, sender = int(header["seq"]), int(header["sender"])
            key = seq & self._mask, sender
            known, failures, reset = self._failed.get(key, (seq, 0, True))
            if known != seq:
                failures, reset = 0, True
            if not reset:
                continue  # duplicated by the network
            self._failed[key] = seq, failures + 1, False
            if failures + 1 == 2:
                reason = f"child {sender}'s sum failed the check twice"
                self.failures.append(Failure(self._stream, seq, int(header["chunk"]), reason))


def _bits(numbers: npt.NDArray[np.uint32]) -> Indices:
    """Returns the number of bits set in each number (n,)."""
    bytes_ = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 4)
    found: Indices = np.unpackbits(bytes_, axis=1).sum(axis=1, dtype=np.intp)
    return found
