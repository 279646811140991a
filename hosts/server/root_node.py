# SPDX-License-Identifier: Apache-2.0
"""A server as the root of a stream's tree: the same state machine as a switch's node.

Children are workers or switches. A chunk's slot is claimed by its first contribution, filled by the
others and final when every child is in; from then on a contribution is answered with the result, to
that child only, until a newer number claims the slot.

All that happens packet by packet is native (``hosts/native/root.h``). Here are the arrays that it
works on, and what is rare or policy: optimizer steps, results that children query, and sums that
stay bad.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.array_pool import ArrayPool
from hosts.data.reports import Failure
from hosts.native.loader import check_constants, load_native
from hosts.native.structures import structures
from hosts.net.arrivals import EXACT, Clock, Released, Seconds
from hosts.net.broadcast_batch import BroadcastBatch
from hosts.server.direct_sums import LATEST_COPY
from hosts.server.slice_release import SliceRelease
from hosts.server.update_pipeline import UpdatePipeline
from protocol.header import (
    FLAGGED,
    HEADER,
    HEADER_BYTES,
    LANE,
    LANE_BYTES,
    PEER,
    PHASE_SHIFT,
    Array,
    Batch,
    Op,
    Phase,
    Wire,
    blank,
    opaque,
    packet_bytes,
    parts_of,
    peer_array,
    peer_keys,
    picked,
)
from protocol.payloads import float_words, header_hashes, word_sums
from protocol.plan import RootStream, ServerPlan
from protocol.server_pipelines import Pipeline
from switch.ports.paced_line import address

Slots = npt.NDArray[np.int64]

_STRUCTURES = structures("root.h")
_Root, _Received = _STRUCTURES["root"], _STRUCTURES["received"]
_SLOT = np.dtype(_STRUCTURES["slot"])
_OUTCOMES = [name for name, *_ in _STRUCTURES["outcomes"]._fields_]
_DISCARDING, _TALL, _WIDE = range(3)  # in root.h
_DONE, _AGAIN, _BAD = range(3)  # rows of what C finds in a batch: `struct received`
_NONE = np.zeros(0, np.bool_)


class RootNode:
    """The root of one stream.

    counters: outcomes; the caller may share it.
    steps: turns sums into parameters, which are sent instead.
    mine: by chunk, this server sums it; the caller may change it. None: as the plan says.

    Raises CompilerError or OSError without native code.
    """

    def __init__(
        self,
        plan: ServerPlan,
        root: RootStream,
        counters: Counter[str],
        steps: UpdatePipeline | None = None,
        mine: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._lib: Any = load_native()
        _check(self._lib)
        self._plan, self._stream, self._counters, self._steps = plan, root.stream, counters, steps
        self._width = plan.lanes
        children = sorted(root.children, key=lambda child: child.sender)
        self._children = len(children)
        self._addresses = peer_array([child.address.pair() for child in children])
        self._nodes = np.array([child.node for child in children], np.uint16)
        self._slots = np.zeros(2 * root.window, _SLOT)
        n = len(self._slots)
        self._release: SliceRelease | None = None
        if plan.propagation.by_slice:
            self._release = SliceRelease(
                plan.shares.slice_of, root.window, n, plan.shares.most_at_once
            )
        holding = {} if self._release is None else self._release.fields
        if mine is None:
            mine = plan.server_of(np.arange(plan.chunks)) == plan.rank
        merging = _merging(plan.pipeline)
        rows = np.zeros((self._children if merging == _WIDE else 1, n, self._width), np.int32)
        self._results = rows[0]  # of complete and final slots, in native byte order
        self._arrays = {
            "slots": self._slots, "forecast": np.zeros(n, _SLOT), "rows": rows,
            "mine": mine, "peers": self._addresses,
            "below": np.array([child.workers for child in children], np.uint16),
            "nodes": self._nodes,
            "workers": np.sort(peer_keys(peer_array([one.pair() for one in plan.workers]))),
        }  # fmt: skip
        self._root = _Root(
            **{name: address(array) for name, array in self._arrays.items()},
            mask=n - 1, chunks=plan.chunks, children=self._children, width=self._width,
            worker_count=len(plan.workers), node=root.node, job=plan.job, epoch=plan.epoch,
            world=plan.world, stream=root.stream, merging=merging, steps=steps is not None,
            pulls=plan.pipeline.pulls, holds=self._release is not None, **holding,
        )  # fmt: skip
        memory = memoryview(self._root).cast("B")
        offset = _Root.outcomes.offset
        self._outcomes = np.frombuffer(memory, np.uint64, len(_OUTCOMES), offset)
        self._received = _Received()
        self._at = ctypes.addressof(self._root), ctypes.addressof(self._received)
        self._found = np.zeros((3, 0), np.int64)
        # Memory for the next results, where sums are results and nobody has to query them.
        self._sends_sums = steps is None and not (plan.pipeline.pulls or holding)
        self._packets, self._whole = np.zeros((0, 0), np.uint8), _NONE
        self._pool = ArrayPool()
        # Contributions that failed their check, by (slot, child): number in the stream, failures,
        # whether the child has learnt since that its copy is missing (so that it retransmitted).
        self._failed: dict[tuple[int, int], tuple[int, int, bool]] = {}
        self.failures: list[Failure] = []

    def on_contributions(self, batch: Batch) -> list[Batch]:
        """Takes CONTRIBUTEs of this job, epoch and stream; returns the RESULTs to send.

        These are the results of all sums that became complete, by slot, then those that answer
        copies for finished sums.
        """
        self._contribute(batch, plain=False)
        received = self._received
        if self._steps is not None and self._steps.moves.expected:
            slots = self._slots
            begun = slots["used"] & ~slots["final"] & (slots["lanes"] != 0)
            self._steps.moves.need(slots["chunk"][begun].astype(np.int64))
        if received.bad_count:
            self._on_bad(batch.headers[self._found[_BAD, : received.bad_count]])
        results = self._results_of() if received.done_count else []
        if received.again_count:
            results += self._answers(
                picked(batch.headers, self._found[_AGAIN, : received.again_count])
            )
        return results

    def visible(self, batch: Batch, *, measured: bool) -> npt.NDArray[np.bool_]:
        """Returns (n,), whether each of these CONTRIBUTEs has an effect that anything but later
        packets can see, if none is corrupted. measured: every complete sum has."""
        found = np.ones(len(batch), np.bool_)
        if self._steps is None or not self._steps.moves.expected:
            kept = self._arrive(batch)
            self._lib.root_visible(*self._at, measured, address(found))
            del kept
        return found

    def on_train(
        self, times: Seconds, batch: Batch, clock: Clock, sizes: tuple[int, int]
    ) -> Released | None:
        """Takes a prefix of contributions that arrive at these ascending times (n,).

        The prefix consists of contributions that are added to sums whose results find room; each
        result leaves when its last copy has arrived. Returns None, with nothing done, if the prefix
        is empty. sizes: bytes of a frame without payload, and with it.
        """
        if not self._sends_sums:
            return None
        if float(times[-1]) * clock.second >= EXACT / 2:
            return None
        # Arrivals of one time are answered together.
        together = np.flatnonzero(times[1:] <= times[:-1])
        count = int(together[0]) if len(together) else len(times)
        kept = self._arrive(batch, count)
        self._lib.root_forecast(*self._at)
        del kept
        completing = self._found[_DONE, : self._received.done_count].copy()
        answers = len(completing)
        while answers:
            leave = times[completing[:answers]].repeat(self._children)
            wide = batch.headers["lanes"][completing[:answers]] != 0
            if clock.room(leave, np.where(wide, sizes[1], sizes[0]).repeat(self._children)):
                break
            count, answers = int(completing[answers // 2]), answers // 2
        taken = self._contribute(batch, count, plain=True)
        if not taken:
            return None
        rows = completing[: self._received.done_count]
        if not len(rows):
            return Released(taken, None, times[:0], False, math.inf)
        (broadcast,) = self._results_of()
        assert isinstance(broadcast, BroadcastBatch)
        leave = times[rows].repeat(self._children)
        sent = int(rows[-1]) == taken - 1
        return Released(taken, broadcast.by_packet(), leave, sent, math.inf)

    def on_queries(self, batch: Batch) -> list[Batch]:
        """Answers QUERYs of this job, epoch and stream with STATEs or, where results are only
        announced, with RESULTs."""
        kept = self._arrive(batch)
        packets = np.empty((len(batch), HEADER_BYTES), np.uint8)
        self._received.packets = address(packets)
        self._lib.root_query(*self._at)
        del kept
        done = self._found[_DONE, : self._received.done_count]
        again = self._found[_AGAIN, : self._received.again_count]
        if self._failed:
            for header in batch.headers[np.concatenate((done, again))]:
                key = int(header["seq"]) % len(self._slots), int(header["sender"])
                if key in self._failed:
                    seq, failures, _ = self._failed[key]
                    self._failed[key] = seq, failures, True
        answers = self._answers(picked(batch.headers, again))
        if len(done):
            headers, _ = parts_of(packets[: len(done)])
            words, full = np.zeros((len(done), self._width), LANE), np.zeros(len(done), np.bool_)
            answers.append(Batch(headers, words, full, picked(batch.peers, done)))
        return answers

    def count(self) -> None:
        """Moves what C has counted to the counters."""
        for name, n in zip(_OUTCOMES, self._outcomes.tolist(), strict=True):
            if n:
                self._counters[name] += n
        self._outcomes[:] = 0

    def sums(self) -> int:
        """Returns how many sums the last contributions completed, without exponent rounds."""
        slots = self._found[_DONE, : self._received.done_count]
        return int(np.count_nonzero(self._slots["lanes"][slots]))

    def take_most_open(self) -> int:
        """Returns the most sums at once that lacked contributions since the last call."""
        most: int = self._root.most_open
        self._root.most_open = self._root.open
        return most

    def _contribute(self, batch: Batch, count: int | None = None, *, plain: bool) -> int:
        """Takes the first `count` contributions, see root.c; returns the number taken."""
        kept = self._arrive(batch, count)
        most = min(self._received.count, len(self._slots))
        if self._sends_sums and most > len(self._whole):
            self._packets = self._pool.empty((most, packet_bytes(self._width)), np.uint8)
            self._whole = np.empty(most, np.bool_)
            self._received.whole = address(self._whole)
        self._received.packets = address(self._packets)  # queries have other memory
        taken: int = self._lib.root_contribute(*self._at, plain)
        del kept
        return taken

    def _arrive(self, batch: Batch, count: int | None = None) -> tuple[Any, ...]:
        """Points to packets; returns the arrays that have to be kept while C reads them."""
        headers, words, full, peers = batch.headers, batch.payloads, batch.full, batch.peers
        n = len(batch) if count is None else count
        if words.shape[1] != self._width:
            raise ValueError(f"packets of {words.shape[1]} lanes, not {self._width}")
        if headers.strides[0] != HEADER_BYTES:
            headers = np.ascontiguousarray(opaque(headers))
        if peers.strides[0] != PEER.itemsize:
            peers = np.ascontiguousarray(opaque(peers))
        if not full.flags.c_contiguous:
            full = np.ascontiguousarray(full)
        if self._width and (words.strides[1] != LANE_BYTES or words.dtype != LANE):
            words = np.ascontiguousarray(words, LANE)
        received = self._received
        if n > self._found.shape[1]:
            self._found = np.empty((3, 2 * n), np.int64)
            received.done, received.again, received.bad = map(address, self._found)
        received.headers, received.full, received.peers = map(address, (headers, full, peers))
        received.words, received.stride = words.__array_interface__["data"][0], words.strides[0]
        received.count = n
        return headers, words, full, peers

    # -- results ----------------------------------------------------------------------------------

    def _results_of(self) -> list[Batch]:
        """Returns the results of slots that became complete."""
        n = self._received.done_count
        if self._sends_sums:
            packets, whole = self._packets[:n], self._whole[:n]
            self._whole = _NONE  # they are on their way, so the next need other memory
            return [self._to_all(packets, whole)]
        slots = self._found[_DONE, :n]
        return self._finish(slots) if self._steps is None else self._optimize(self._steps, slots)

    def _to_all(self, packets: Wire, whole: npt.NDArray[np.bool_]) -> BroadcastBatch:
        return BroadcastBatch(packets, whole, self._addresses, self._nodes, self._pool)

    def _finish(self, slots: Slots) -> list[Batch]:
        """Publishes the results of these slots, once nothing holds them back, to every child."""
        if not len(slots):
            return []
        most = len(slots) + self._root.held_count
        packets = self._pool.empty((most, packet_bytes(self._width)), np.uint8)
        whole, released = np.empty(most, np.bool_), np.empty(most, np.int64)
        slots = np.ascontiguousarray(slots)
        n = self._lib.root_finish(
            self._at[0], address(slots), len(slots), address(released), address(packets),
            address(whole),
        )  # fmt: skip
        if not n:
            return []
        packets, whole = packets[:n], whole[:n]
        if not self._plan.pipeline.pulls:
            return [self._to_all(packets, whole)]
        there, rest = packets[whole], packets[~whole]
        headers = parts_of(there)[0]
        announced = blank(len(there), Op.STATE)
        for name in ("job", "epoch", "stream", "seq", "chunk", "children"):
            announced[name] = headers[name]
        announced["flags"] = Phase.FINAL << PHASE_SHIFT
        opaque(headers)[:] = opaque(announced)
        batches = self._to_all(there, ~whole[whole]), self._to_all(rest, whole[~whole])
        return [batch for batch in batches if len(batch)]

    def _answers(self, headers: Array) -> list[Batch]:
        """Returns RESULTs of the slots of these packets, each to its sender."""
        if not len(headers):
            return []
        slots = (headers["seq"] % len(self._slots)).astype(np.int64)
        senders = headers["sender"].astype(np.int64)
        packets = self._pool.empty((len(slots), packet_bytes(self._width)), np.uint8)
        whole = np.empty(len(slots), np.bool_)
        self._lib.root_write(
            self._at[0], address(slots), len(slots), address(senders), address(packets),
            address(whole),
        )  # fmt: skip
        return [Batch(*parts_of(packets), whole, picked(self._addresses, senders), packets)]

    def _optimize(self, steps: UpdatePipeline, slots: Slots) -> list[Batch]:
        """Turns complete sums of gradients into parameters."""
        at = self._slots[slots]
        whole = (at["lanes"] != 0) & ((at["flags"] & np.uint8(FLAGGED)) == 0)
        return self._finish(slots[~whole]) + self._step(steps, slots[whole])

    def _step(self, steps: UpdatePipeline, slots: Slots) -> list[Batch]:
        """Takes the steps of these sums, of chunks that are on their way here once they are."""
        chunks = self._slots["chunk"][slots].astype(np.int64)
        slots = steps.here(chunks, slots, functools.partial(self._step, steps))
        at = self._slots[slots]
        held = steps.held(at["chunk"].astype(np.int64))
        for slot in at[~held]:
            # Initial parameters come DIRECT; a gradient must not pass for them.
            reason = "its parameters are not at this server"
            seq, chunk = int(slot["seq"]), int(slot["chunk"])
            self.failures.append(Failure(self._stream, seq, chunk, reason))
        if not held.any():
            return []
        slots, at = slots[held], at[held]
        chunks, exponents, world = at["chunk"].astype(np.int64), at["exponent"], self._plan.world
        decode, sums = self._plan.codec.decode, self._results[slots]
        words = float_words(steps.step(chunks, lambda: decode(sums, exponents, world)))
        self._results[slots] = words
        headers = np.empty(len(slots), HEADER)
        self._lib.root_headers(self._at[0], address(slots), len(slots), address(headers))
        headers["checksum"] = word_sums(words) + np.uint32(world) * header_hashes(headers)
        self._slots["checksum"][slots] = headers["checksum"]
        return steps.publish(chunks, headers, lambda: self._finish(slots))

    # -- failures ---------------------------------------------------------------------------------

    def _on_bad(self, headers: Array) -> None:
        """Reports a switch's partial sum that stays bad."""
        for header in headers:
            seq, sender = int(header["seq"]), int(header["sender"])
            key = seq % len(self._slots), sender
            known, failures, reset = self._failed.get(key, (seq, 0, True))
            if known != seq:
                failures, reset = 0, True
            if not reset:
                continue  # duplicated by the network
            self._failed[key] = seq, failures + 1, False
            if failures + 1 == 2:
                reason = f"child {sender}'s sum failed the check twice"
                self.failures.append(Failure(self._stream, seq, int(header["chunk"]), reason))


def _merging(pipeline: Pipeline) -> int:
    if not pipeline.adds:
        return _DISCARDING
    return _WIDE if pipeline.wide else _TALL


@functools.cache
def _check(lib: ctypes.CDLL) -> None:
    """Raises RuntimeError if structures here differ from those of the C code."""
    sizes = {
        f"{one}_bytes": ctypes.sizeof(_STRUCTURES[one]) for one in ("root", "slot", "received")
    }
    check_constants(lib, {**sizes, "latest_copy": LATEST_COPY})
