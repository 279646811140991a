# SPDX-License-Identifier: Apache-2.0
"""Compares a root with a model of it that takes one packet at a time, in plain numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.server.root_node import RootNode
from protocol.header import (
    HEADER_BYTES,
    PHASE_SHIFT,
    PORT,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    carries_payload,
    opaque,
    ops,
    parts_of,
    peer_array,
)
from protocol.payloads import chunk_hash, header_hashes, word_sums
from protocol.plan import Address, Child, RootStream, ServerPlan
from protocol.server_pipelines import Pipeline

LANES, WINDOW, CHUNKS, NODE, STREAM = 5, 4, 16, 9, 1
WORKERS = tuple(Address(10 + rank, 5000 + rank) for rank in range(4))
# Two workers, and a switch with the other two below it.
CHILDREN = (
    Child(0, WORKERS[0], 1, 0), Child(1, WORKERS[1], 1, 0), Child(2, Address(500, PORT), 2, 7),
)  # fmt: skip
ROOT = RootStream(STREAM, NODE, WINDOW, CHILDREN)
PLAN = ServerPlan(
    job=1,
    epoch=2,
    world=len(WORKERS),
    lanes=LANES,
    rank=0,
    servers=(Address(1000, PORT), Address(1001, PORT)),
    workers=WORKERS,
    windows={STREAM: WINDOW},
    counts=(CHUNKS,),
    chunks_per_slice=8,
    roots=(ROOT,),
)
PIPELINES = {
    "tall": Pipeline("tall"),
    "wide": Pipeline("wide"),
    "discarding": Pipeline("tall", ("aggregation",)),
    "pulled": Pipeline("wide", ("elision",)),
}
FIELDS = ("sender", "seq", "chunk", "workers", "exponent", "max_exponent", "lanes", "node")
ELSE = ("checksum", "source", "large", "least", "flags", "query", "query", "short")
Packet = tuple[int, int, str, int]
PACKETS = st.tuples(
    st.integers(0, 3 * WINDOW - 1), st.integers(0, len(CHILDREN) - 1),
    st.sampled_from([""] * 12 + [*FIELDS, *ELSE]), st.integers(0, 2**32 - 1),
)  # fmt: skip
# As it mostly is: a window from all children, somehow mixed, and little else.
WINDOWS = st.permutations([(at, c, "", at) for c in range(len(CHILDREN)) for at in range(WINDOW)])


def packet(of: Packet, base: int) -> Batch:
    """A child's contribution to a number, with something changed; its checksum holds unless that
    is what was changed."""
    at, child, change, value = of
    rng = np.random.default_rng([at, child])
    words = rng.integers(-1000, 1000, (1, LANES)).astype(">i4")
    headers = blank(1, Op.CONTRIBUTE)
    for name, number in {
        "job": PLAN.job, "epoch": PLAN.epoch, "stream": STREAM, "node": NODE, "lanes": LANES,
        "workers": CHILDREN[child].workers, "sender": child, "seq": (base + at) % 2**32,
        "chunk": at % (CHUNKS // 2), "max_exponent": value % 100, "exponent": 3,
    }.items():  # fmt: skip
        headers[name] = number
    source = CHILDREN[child].address
    if change in FIELDS:
        headers[change] += np.array([value % 3 + 1]).astype(headers[change].dtype)
    elif change == "flags":
        headers["flags"] = value & ~int(Flag.DIRECT) & 0xFF
    elif change == "query":
        headers["version_op"] += Op.QUERY - Op.CONTRIBUTE
        if child == 2 and value % 2:
            source = WORKERS[3]  # through the switch
    elif change == "short":
        headers["lanes"] = 0
    elif change in ("large", "least"):
        words[0, value % LANES] = 2**31 - 1 - value % 5 if change == "large" else -(2**31)
    elif change == "source":
        source = Address(77, 77)
    full = carries_payload(headers)
    hashes = headers["workers"].astype(np.uint32) * header_hashes(headers)
    headers["checksum"] = hashes + np.where(full, word_sums(words), 0)
    if change == "checksum":
        headers["checksum"] ^= 1 + value % 1000
    return Batch(headers, words, full, peer_array([source.pair()]))


def as_received(batch: Batch) -> Batch:
    """Payloads as parts of datagrams, which do not begin where a word might."""
    size = HEADER_BYTES + 4 * LANES
    wire = np.zeros(len(batch) * size + 1, np.uint8)[1:].reshape(-1, size)
    headers, words = parts_of(wire)
    opaque(headers)[:] = opaque(batch.headers)
    words[:] = batch.payloads
    return Batch(batch.headers, words, batch.full, batch.peers)


@dataclass
class Slot:
    seq: int
    chunk: int
    lanes: int
    exponent: int
    max_exponent: int
    flags: int = 0
    checksum: int = 0
    final: bool = False
    copies: dict[int, list[int]] = field(default_factory=dict)
    total: list[int] = field(default_factory=lambda: [0] * LANES)


@dataclass
class Model:
    """A root in plain Python, after docs/reference/protocol.md."""

    pipeline: Pipeline
    slots: dict[int, Slot] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def good(self, header: Any, source: tuple[int, int], query: bool) -> bool:
        child = next((one for one in CHILDREN if one.sender == header["sender"]), None)
        workers = [one.pair() for one in WORKERS]
        through = query and child is not None and child.node and source in workers
        if header["node"] != NODE or child is None:
            self.counters["not_a_child"] += 1
        elif source != child.address.pair() and not through:
            self.counters["wrong_source"] += 1
        elif header["workers"] != child.workers:
            self.counters["wrong_workers"] += 1
        elif PLAN.server_of(np.array([header["chunk"]]))[0] != PLAN.rank:
            self.counters["other_server"] += 1
        else:
            return True
        return False

    def match(self, header: Any) -> tuple[str, Slot | None]:
        slot = self.slots.get(int(header["seq"]) % (2 * WINDOW))
        behind = 0 if slot is None else (slot.seq - int(header["seq"])) % 2**32
        if slot is None or behind > 1 << 24:
            return "newer", slot
        if behind:
            return "stale", slot
        return ("current" if slot.chunk == header["chunk"] else "other_chunk"), slot

    def contribute(self, batch: Batch) -> list[Any]:
        complete: list[Slot] = []
        again: list[tuple[Slot, int]] = []
        for header, words, full, peer in zip(
            batch.headers, batch.payloads.tolist(), batch.full, batch.peers.tolist(), strict=True
        ):
            if not self.good(header, peer, query=False):
                continue
            sender, seq = int(header["sender"]), int(header["seq"])
            there = words if full else [0] * LANES
            lost = not full and header["flags"] & (Flag.OVERFLOW | Flag.NONFINITE)
            hashed = int(header["workers"]) * int(header_hashes(header[None])[0])
            if (sum(there) + hashed - int(header["checksum"])) % 2**32 and not lost:
                self.counters["bad_checksum"] += 1
                continue
            matched, slot = self.match(header)
            if matched == "newer":
                if slot is not None and len(slot.copies) == len(CHILDREN) and not slot.final:
                    self.counters["early"] += 1
                    continue
                names = ("seq", "chunk", "lanes", "exponent", "max_exponent")
                slot = Slot(*(int(header[name]) for name in names))
                self.slots[seq % (2 * WINDOW)] = slot
                self.counters["claimed"] += 1
            elif matched != "current":
                self.counters[matched] += 1
                continue
            assert slot is not None
            if slot.final:
                self.counters["replayed"] += 1
                again.append((slot, sender))
                continue
            if sender in slot.copies:
                self.counters["duplicate"] += 1
                continue
            self.counters["added"] += matched == "current"
            slot.copies[sender] = there
            slot.checksum += int(header["checksum"])
            slot.max_exponent = max(slot.max_exponent, int(header["max_exponent"]))
            slot.flags |= int(header["flags"]) & (Flag.OVERFLOW | Flag.NONFINITE | Flag.ECN)
            alike = slot.exponent == header["exponent"] and slot.lanes == header["lanes"]
            wraps = self.pipeline.adds and not self.pipeline.wide and self.add(slot, there)
            if not alike or wraps:
                self.overflow(slot)
            if len(slot.copies) == len(CHILDREN):
                complete.append(slot)
        complete.sort(key=lambda slot: slot.seq % (2 * WINDOW))
        self.counters["completed"] += len(complete)
        for slot in complete:
            if self.pipeline.adds and self.pipeline.wide:
                wraps = [self.add(slot, slot.copies[child.sender]) for child in CHILDREN]
                if any(wraps):
                    self.overflow(slot)
            if not self.pipeline.adds:
                known = PLAN.job, STREAM, slot.seq, slot.chunk, slot.exponent
                slot.checksum = PLAN.world * int(chunk_hash(*known))
            slot.final = True
        sent = [self.result(slot, child) for child in CHILDREN for slot in complete]
        if self.pipeline.pulls:
            whole = [slot for slot in complete if self.carries(slot)]
            rest = [slot for slot in complete if not self.carries(slot)]
            sent = [self.announced(slot, child) for child in CHILDREN for slot in whole]
            sent += [self.result(slot, child) for child in CHILDREN for slot in rest]
        # Of a slot that a newer number has claimed nobody needs the result.
        held = [id(slot) for slot in self.slots.values()]
        return sent + [self.result(s, CHILDREN[sender]) for s, sender in again if id(s) in held]

    def query(self, batch: Batch) -> list[Any]:
        states, results = [], []
        for header, peer in zip(batch.headers, batch.peers.tolist(), strict=True):
            if not self.good(header, peer, query=True):
                continue
            matched, slot = self.match(header)
            if matched not in ("newer", "current"):
                self.counters["query_stale"] += 1
                continue
            self.counters["query_answered"] += 1
            current = slot if matched == "current" else None
            if current is not None and current.final and self.pipeline.pulls:
                results.append(self.result(current, CHILDREN[header["sender"]]))
                continue
            final = Phase.FINAL if current is not None and current.final else Phase.AGGREGATING
            fields = {name: int(header[name]) for name in ("sender", "seq", "chunk", "workers")}
            fields |= {"flags": final << PHASE_SHIFT, "node": NODE}
            fields["children"] = 0 if current is None else sum(1 << one for one in current.copies)
            states.append(self.sent(Op.STATE, peer, **fields))
        return results + states

    def add(self, slot: Slot, words: list[int]) -> bool:
        sums = [one + other for one, other in zip(slot.total, words, strict=True)]
        slot.total = [(one + 2**31) % 2**32 - 2**31 for one in sums]
        return sums != slot.total

    def overflow(self, slot: Slot) -> None:
        slot.flags |= Flag.OVERFLOW
        self.counters["overflowed"] += 1

    def carries(self, slot: Slot) -> bool:
        return bool(slot.lanes) and not slot.flags & (Flag.OVERFLOW | Flag.NONFINITE)

    def result(self, slot: Slot, child: Child) -> Any:
        return self.sent(
            Op.RESULT, child.address.pair(), slot.total if self.carries(slot) else None,
            flags=slot.flags, sender=child.sender, seq=slot.seq, chunk=slot.chunk,
            children=sum(1 << one for one in slot.copies), workers=PLAN.world,
            exponent=slot.exponent, max_exponent=slot.max_exponent, lanes=slot.lanes,
            node=child.node, checksum=slot.checksum % 2**32,
        )  # fmt: skip

    def announced(self, slot: Slot, child: Child) -> Any:
        children = (1 << len(CHILDREN)) - 1
        return self.sent(
            Op.STATE, child.address.pair(), flags=Phase.FINAL << PHASE_SHIFT, sender=child.sender,
            seq=slot.seq, chunk=slot.chunk, children=children, node=child.node,
        )  # fmt: skip

    def sent(
        self, op: Op, peer: tuple[int, int], words: list[int] | None = None, **fields: int
    ) -> Any:
        header = blank(1, op)
        for name, value in {
            "job": PLAN.job, "epoch": PLAN.epoch, "stream": STREAM, **fields
        }.items():  # fmt: skip
            header[name] = value
        return header[0].item(), words, peer


def sent(batches: list[Batch]) -> list[Any]:
    return [
        (header.item(), words.tolist() if full else None, peer.item())
        for batch in batches
        for header, words, full, peer in zip(
            batch.headers, batch.payloads, batch.full, batch.peers, strict=True
        )
    ]


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES.keys())
@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(st.lists(PACKETS, min_size=1, max_size=40), min_size=1, max_size=4),
    base=st.sampled_from([0, 2**31 - 5, 2**32 - 8]),
    window=WINDOWS,
    between=st.lists(st.tuples(st.integers(0, len(CHILDREN) * WINDOW), PACKETS), max_size=3),
)
def test_packets_and_counts_are_those_of_the_protocol(
    pipeline: Pipeline,
    batches: list[list[Packet]],
    base: int,
    window: list[Packet],
    between: list[tuple[int, Packet]],
) -> None:
    """In the same order, too, whatever the batches are."""
    counters: Counter[str] = Counter()
    root, model = RootNode(replace(PLAN, pipeline=pipeline), ROOT, counters), Model(pipeline)
    for at, of in between:
        window.insert(at, of)
    for packets in (window, *batches):
        batch = as_received(Batch.concatenate([packet(of, base) for of in packets]))
        queries = ops(batch.headers) == Op.QUERY
        contributions, queries = batch.select(~queries), batch.select(queries)
        assert sent(root.on_contributions(contributions)) == model.contribute(contributions)
        assert sent(root.on_queries(queries)) == model.query(queries)
        root.count()
        assert counters == model.counters


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES.keys())
@settings(max_examples=50, deadline=None)
@given(
    before=st.lists(PACKETS, min_size=1, max_size=20),
    packets=st.lists(PACKETS, min_size=1, max_size=40),
    base=st.sampled_from([0, 2**32 - 8]),
)
def test_contributions_that_are_not_visible_are_answered_by_nothing(
    pipeline: Pipeline, before: list[Packet], packets: list[Packet], base: int
) -> None:
    root = RootNode(replace(PLAN, pipeline=pipeline), ROOT, Counter())
    for part in (before, packets):
        batch = as_received(Batch.concatenate([packet(of, base) for of in part]))
        batch = batch.select(ops(batch.headers) != Op.QUERY)
        visible = root.visible(batch, measured=False).tolist()
        for row, shown in enumerate(visible):
            results = root.on_contributions(batch.select(slice(row, row + 1)))
            assert shown or not results


def test_of_a_sum_only_the_last_contribution_is_visible() -> None:
    root = RootNode(PLAN, ROOT, Counter())
    numbers = [(at, child, "", 0) for at in range(2) for child in range(len(CHILDREN))]
    batch = as_received(Batch.concatenate([packet(of, 0) for of in numbers]))
    last = [child == len(CHILDREN) - 1 for _, child, _, _ in numbers]
    assert root.visible(batch, measured=False).tolist() == last
