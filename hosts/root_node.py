# SPDX-License-Identifier: Apache-2.0
"""A server as the root of a stream's tree: the same state machine as a switch's node.

Children are workers or switches. A chunk's slot is claimed by its first contribution, filled by
the others and FINAL when every child is in; from then on a contribution is answered with the
result, to that child only, until a newer number claims the slot.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hosts.reports import Failure
from hosts.served_slots import Indices, Mask, ServedSlots
from hosts.steps import Steps
from hosts.waves import waves
from protocol.fixed_point import (
    dequantise,
    float_words,
    header_hashes,
    sum_checks,
    word_sums,
)
from protocol.header import (
    FLAGGED,
    Array,
    Batch,
    Flag,
    carries_payload,
    peer_array,
    peer_keys,
)
from protocol.plan import RootStream, ServerPlan

_STICKY = np.uint8(FLAGGED | Flag.ECN)


class RootNode(ServedSlots):
    """One stream's root. Outcomes are counted in `counters`, which the caller may share.

    steps: makes parameters of sums, which go out in their stead.
    """

    def __init__(
        self,
        plan: ServerPlan,
        root: RootStream,
        counters: Counter[str],
        steps: Steps | None = None,
    ) -> None:
        super().__init__(plan, root.stream, root.window, counters)
        self._steps = steps
        self._node = root.node
        children = sorted(root.children, key=lambda child: child.sender)
        self._children = len(children)
        self._addresses = peer_array([child.address.pair() for child in children])
        self._keys = peer_keys(self._addresses)
        self._below = np.array([child.workers for child in children])
        self._nodes = np.array([child.node for child in children], np.uint16)
        self._worker_keys = peer_keys(peer_array([address.pair() for address in plan.workers]))
        self._every_child = np.uint32((1 << len(children)) - 1)
        n = 2 * root.window
        self._in = np.zeros(n, np.uint32)
        self._workers = np.zeros(n, np.uint16)
        self._checksum = np.zeros(n, np.uint32)
        self._words = np.zeros((n, plan.lanes), np.int32)
        # Contributions that failed their check, by (slot, child): number in the stream, failures,
        # whether the child has been told since that it is missing (so that it sent again).
        self._failed: dict[tuple[int, int], tuple[int, int, bool]] = {}
        self.failures: list[Failure] = []

    def on_contributions(self, batch: Batch) -> list[Batch]:
        """CONTRIBUTEs of this job, epoch and stream; returns the RESULTs to send."""
        batch = batch.select(self._from_children(batch, queries=False))
        holds = sum_checks(batch.headers, batch.payloads, batch.full)
        if not holds.all():
            self._count("bad_checksum", int(np.count_nonzero(~holds)))
            self._on_bad(batch.headers[~holds])
            batch = batch.select(holds)
        results: list[Batch] = []
        for wave in waves(batch.headers["seq"] & self._mask):
            results += self._on_wave(batch.select(wave))
        return results

    def on_queries(self, batch: Batch) -> list[Batch]:
        """QUERYs of this job, epoch and stream; returns the STATEs to send to those who ask."""
        batch = batch.select(self._from_children(batch, queries=True))
        rows, match = self._answerable(batch.headers)
        headers = batch.headers[rows]
        for slot, sender in zip(match.slots.tolist(), headers["sender"].tolist(), strict=True):
            if (slot, sender) in self._failed:
                seq, failures, _ = self._failed[slot, sender]
                self._failed[slot, sender] = seq, failures, True
        states = self._states(headers, match, self._in[match.slots])
        return self._without_payload(states, batch.peers[rows])

    def _from_children(self, batch: Batch, queries: bool) -> Mask:
        """Whether each packet is for this node and comes from the child that it names."""
        headers = batch.headers
        sender = headers["sender"].astype(np.intp)
        known = (headers["node"] == self._node) & (sender < self._children)
        sender = np.where(known, sender, 0)
        source = peer_keys(batch.peers)
        right = source == self._keys[sender]
        if queries:  # a switch passes a QUERY on in the name of the worker that asks
            right |= (self._nodes[sender] != 0) & np.isin(source, self._worker_keys)
        counted = headers["workers"] == self._below[sender]
        good = known
        self._count("not_a_child", int(np.count_nonzero(~good)))
        for outcome, holds in (
            ("wrong_source", right),
            ("wrong_workers", counted),
            ("other_server", self._mine(headers)),
        ):
            self._count(outcome, int(np.count_nonzero(good & ~holds)))
            good = good & holds
        return np.asarray(good, np.bool_)

    def _on_wave(self, batch: Batch) -> list[Batch]:
        """Contributions to distinct slots."""
        headers = batch.headers
        match = self._match(headers)
        slots, newer, current = match.slots, match.newer, match.current
        bit = np.uint32(1) << headers["sender"].astype(np.uint32)
        replay = current & self._final[slots]
        seen = (self._in[slots] & bit) != 0
        add = current & ~replay & ~seen
        for outcome, rows in (
            ("claimed", newer),
            ("added", add),
            ("replayed", replay),
            ("duplicate", current & ~replay & seen),
            ("other_chunk", match.same & ~current),
            ("stale", match.stale),
        ):
            self._count(outcome, int(np.count_nonzero(rows)))
        if newer.any():
            self._start(slots[newer], headers[newer], batch.payloads[newer], batch.full[newer])
        if add.any():
            self._add(slots[add], headers[add], batch.payloads[add], batch.full[add])
        grown = newer | add
        self._in[slots[grown]] |= bit[grown]
        complete = slots[grown & (self._in[slots] == self._every_child)]
        results = []
        if len(complete):
            self._count("completed", len(complete))
            results += self._finish(complete) if self._steps is None else self._optimize(complete)
        if replay.any():
            senders = headers["sender"][replay].astype(np.intp)
            results.append(self._results(slots[replay], senders, 1))
        return results

    def _finish(self, slots: Indices) -> list[Batch]:
        """These sums are the results."""
        if not len(slots):
            return []
        self._final[slots] = True
        every = np.arange(self._children)
        return [self._results(np.repeat(slots, self._children), every, len(slots))]

    def _optimize(self, slots: Indices) -> list[Batch]:
        """Complete sums: those of gradients become parameters first."""
        assert self._steps is not None
        sums = (self._lanes[slots] != 0) & ((self._flags[slots] & np.uint8(FLAGGED)) == 0)
        results = self._finish(slots[~sums])
        slots = slots[sums]
        chunks = self._chunk[slots].astype(np.int64)
        held = self._steps.held(chunks)
        for slot in slots[~held].tolist():
            # Initial parameters come DIRECT: it is not for a gradient to be taken for them.
            reason = "its parameters are not at this server"
            seq, chunk = int(self._seq[slot]), int(self._chunk[slot])
            self.failures.append(Failure(self._stream, seq, chunk, reason))
        slots, chunks = slots[held], chunks[held]
        if not len(slots):
            return results
        words = self._words[slots].astype(">i4")
        sums_of = dequantise(words, self._exponent[slots], self._plan.world)
        words = float_words(self._steps.step(chunks, sums_of))
        self._words[slots] = words
        headers = self._sum_headers(slots)
        times = headers["workers"].astype(np.uint32)
        self._checksum[slots] = word_sums(words) + times * header_hashes(headers)
        headers["checksum"] = self._checksum[slots]
        return results + self._steps.publish(chunks, headers, lambda: self._finish(slots))

    def _start(self, slots: Indices, headers: Array, words: Any, full: Any) -> None:
        self._claim(slots, headers)
        self._in[slots] = 0
        self._workers[slots] = headers["workers"]
        self._flags[slots] = headers["flags"] & _STICKY
        self._checksum[slots] = headers["checksum"]
        self._words[slots] = np.where(full[:, None], words, 0)

    def _add(self, slots: Indices, headers: Array, words: Any, full: Any) -> None:
        alike = (self._exponent[slots] == headers["exponent"]) & (
            self._lanes[slots] == headers["lanes"]
        )
        overflowed = ~alike
        self._workers[slots] += headers["workers"]
        self._checksum[slots] += headers["checksum"].astype(np.uint32)
        self._max_exponent[slots] = np.maximum(self._max_exponent[slots], headers["max_exponent"])
        rows = np.flatnonzero(alike & full)
        if len(rows):
            before = self._words[slots[rows]]
            added = words[rows].astype(np.int32)
            after = before + added  # wraps, as a switch's lanes do
            overflowed[rows] = (((before ^ after) & (added ^ after)) < 0).any(axis=1)
            self._words[slots[rows]] = after
        self._flags[slots] |= headers["flags"] & _STICKY
        self._flags[slots[overflowed]] |= np.uint8(Flag.OVERFLOW)
        self._count("overflowed", int(np.count_nonzero(overflowed)))

    def _results(self, slots: Indices, senders: Indices, times: int) -> Batch:
        """RESULTs of `slots`, each to its sender; `senders` are repeated `times` times."""
        senders = np.tile(senders, times)
        headers = self._sum_headers(slots)
        headers["sender"] = senders
        headers["node"] = self._nodes[senders]
        words = self._words[slots].astype(">i4")
        return Batch(headers, words, carries_payload(headers), self._addresses[senders])

    def _sum_headers(self, slots: Indices) -> Array:
        """RESULTs of `slots`, but for whom they are for."""
        headers = self._result_headers(slots)
        headers["children"] = self._in[slots]
        headers["workers"] = self._workers[slots]
        headers["checksum"] = self._checksum[slots]
        return headers

    def _on_bad(self, headers: Array) -> None:
        """Contributions that fail their check. A switch's partial sum may stay bad: report it."""
        for header in headers:
            seq, sender = int(header["seq"]), int(header["sender"])
            key = seq & self._mask, sender
            known, failures, asked = self._failed.get(key, (seq, 0, True))
            if known != seq:
                failures, asked = 0, True
            if not asked:
                continue  # a copy that the network made
            self._failed[key] = seq, failures + 1, False
            if failures + 1 == 2:
                reason = f"child {sender}'s sum failed the check twice"
                self.failures.append(Failure(self._stream, seq, int(header["chunk"]), reason))
