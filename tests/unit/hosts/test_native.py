# SPDX-License-Identifier: Apache-2.0
"""Tests the C code of hosts against numpy, bit by bit."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.data.array_pool import ArrayPool
from hosts.native import loader
from hosts.native.structures import structures
from hosts.net.broadcast_batch import BroadcastBatch
from hosts.net.offload import MAX_SEGMENTS, available
from hosts.net.udp import Endpoint
from hosts.server.state import ServerState
from protocol.header import (
    HEADER_BYTES,
    PORT,
    VERSION,
    Batch,
    Flag,
    Op,
    blank,
    carries_payload,
    opaque,
    parts_of,
    peer_array,
)
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import header_hashes, word_sums
from protocol.plan import Address, Child, RootStream, ServerPlan
from protocol.server_pipelines import Pipeline
from tests.unit.protocol.packet_bytes import packet_bytes

COMPILER = shutil.which(shlex.split(os.environ.get("CC", "cc"))[0])

pytestmark = pytest.mark.skipif(
    COMPILER is None or os.environ.get(loader.VARIABLE) == "1",
    reason=f"no C compiler here, or {loader.VARIABLE}=1",
)

LANES, WINDOW, WORLD, CHUNKS, NODE = 8, 4, 3, 16, 9
WIDE = HEADER_BYTES + 4 * LANES
WORKERS = tuple(Address(10 + rank, 5000 + rank) for rank in range(WORLD))
PLAN = ServerPlan(
    job=1,
    epoch=2,
    world=WORLD,
    lanes=LANES,
    rank=0,
    servers=(Address(1000, PORT), Address(1001, PORT)),
    workers=WORKERS,
    windows={0: WINDOW, 1: WINDOW},
    counts=(CHUNKS,),
    chunks_per_slice=4,
    roots=tuple(
        RootStream(s, NODE, WINDOW, tuple(Child(r, w, 1, 0) for r, w in enumerate(WORKERS)))
        for s in (0, 1)
    ),
)
PLANS = {
    "tall": PLAN,
    "wide": replace(PLAN, pipeline=Pipeline("wide")),
    "discarding": replace(PLAN, pipeline=Pipeline("tall", ("aggregation",))),
    "pulled": replace(PLAN, pipeline=Pipeline("tall", ("elision",))),
    "optimizer": replace(PLAN, optimizer=OptimizerPlan("sgd", 0.5), servers=PLAN.servers[:1]),
}


@contextmanager
def numpy_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(loader.VARIABLE, "1")
        yield


# --- what arrives ---

# The first byte decides most: so nearly all are of the known version and ops.
FIRST = st.one_of(st.integers(1, 4).map(lambda op: VERSION << 4 | op), st.integers(0, 255))


@st.composite
def datagrams(draw: st.DrawFn) -> bytes:
    """A packet, or what another program may send."""
    size = draw(st.sampled_from([WIDE] * 6 + [HEADER_BYTES] * 3 + [0, 1, WIDE - 1, WIDE + 1, 200]))
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if data:
        data[0] = draw(FIRST)
    if size == HEADER_BYTES and draw(st.booleans()):
        data[24:26] = bytes(2)  # no lanes: a packet without payload
    return bytes(data)


def same(found: Batch, wanted: Batch) -> bool:
    return (
        found.headers.tobytes() == wanted.headers.tobytes()
        and found.peers.tobytes() == wanted.peers.tobytes()
        and found.full.tolist() == wanted.full.tolist()
        and found.payloads[found.full].tobytes() == wanted.payloads[wanted.full].tobytes()
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(datagrams(), max_size=20), min_size=1, max_size=3))
def test_native_and_numpy_decode_alike(rounds: list[list[bytes]]) -> None:
    """Over what came before, which may be longer."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, Endpoint(("127.0.0.1", 0), lanes=LANES) as one:
        with numpy_only():
            other = Endpoint(("127.0.0.1", 0), lanes=LANES)
        with other:
            for pieces in rounds:
                for piece in pieces:
                    for to in (one, other):
                        sender.sendto(piece, (to.address, to.port))
                found, wanted = one.receive(), other.receive()
                assert (found is None) == (wanted is None) == (not pieces)
                if found is not None and wanted is not None:
                    assert same(found, wanted)
            assert one.counters == other.counters


# --- what is summed ---

FIELDS = (
    "job",
    "epoch",
    "stream",
    "sender",
    "seq",
    "chunk",
    "workers",
    "exponent",
    "lanes",
    "node",
)
CHANGES = st.one_of(
    st.none(), st.none(), st.none(),  # mostly nothing
    st.sampled_from(FIELDS),
    st.sampled_from(["checksum", "source", "large", "least", "flags", "query", "short", "direct"]),
)  # fmt: skip
PACKETS = st.tuples(
    st.integers(0, 3 * WINDOW - 1), st.integers(0, WORLD - 1), st.integers(0, 1), CHANGES,
    st.integers(0, 2**32 - 1),
)  # fmt: skip
Packet = tuple[int, int, int, str | None, int]
# As it mostly is: a stream's window from all workers, somehow mixed, and little that is not plain.
WINDOWS = st.permutations([(at, r, 0, None, at) for r in range(WORLD) for at in range(WINDOW)])
BETWEEN = st.lists(st.tuples(st.integers(0, WORLD * WINDOW), PACKETS), max_size=3)


def contribution(packet: Packet, base: int) -> Batch:
    """A worker's contribution to a number of a stream, with something changed; its checksum holds
    unless that is what was changed."""
    at, rank, stream, change, value = packet
    rng = np.random.default_rng([at, rank, stream])
    words = rng.integers(-1000, 1000, (1, LANES)).astype(">i4")
    headers = blank(1, Op.CONTRIBUTE)
    for name, number in (
        ("job", 1), ("epoch", 2), ("stream", stream), ("node", NODE), ("workers", 1),
        ("lanes", LANES), ("sender", rank), ("seq", (base + at) % 2**32), ("chunk", at % CHUNKS),
        ("max_exponent", value % 100), ("exponent", 3),
    ):  # fmt: skip
        headers[name] = number
    source = WORKERS[rank]
    if change in FIELDS:
        headers[change] = headers[change] + np.array([value % 3 + 1]).astype(headers[change].dtype)
    elif change == "flags":
        headers["flags"] = value & ~int(Flag.DIRECT) & 0xFF
    elif change == "direct":
        headers["flags"] = Flag.DIRECT
    elif change == "query":
        headers["version_op"] = VERSION << 4 | Op.QUERY
    elif change == "short":
        headers["lanes"] = 0
    elif change in ("large", "least"):
        words[0, value % LANES] = 2**31 - 1 - value % 5 if change == "large" else -(2**31)
    elif change == "source":
        source = Address(77, 77)
    full = carries_payload(headers)
    headers["checksum"] = header_hashes(headers) + np.where(full, word_sums(words), 0)
    if change == "checksum":
        headers["checksum"] ^= 1 + value % 1000
    return Batch(headers, words, full, peer_array([source.pair()]))


def server(plan: ServerPlan) -> ServerState:
    state = ServerState()
    state.install(plan)
    if plan.optimizer is not None:
        shards = state.shards(plan.job, plan.optimizer, plan.chunks, plan.lanes)
        shards.start(np.arange(plan.chunks - 1), np.ones((plan.chunks - 1, LANES), np.float32))
    return state


def pending_packets(state: ServerState) -> list[tuple[bytes, bytes, bytes]]:
    """Takes the packets that it would send now, in order."""
    return packet_bytes(state.poll(0.0)[0] or Batch.empty(LANES))


def as_received(batch: Batch) -> Batch:
    """Payloads as parts of datagrams, which do not begin where a word might."""
    memory = np.zeros(len(batch) * WIDE + 1, np.uint8)
    wire = memory[1:].reshape(-1, WIDE)
    headers, words = parts_of(wire)
    opaque(headers)[:] = opaque(batch.headers)
    words[:] = batch.payloads
    return Batch(batch.headers, words, batch.full, batch.peers)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(PACKETS, min_size=1, max_size=40), min_size=1, max_size=4),
    base=st.sampled_from([0, 2**31 - 5, 2**32 - 8]),
    window=WINDOWS,
    between=BETWEEN,
)
def test_native_and_numpy_servers_agree(
    plan: ServerPlan,
    batches: list[list[Packet]],
    base: int,
    window: list[Packet],
    between: list[tuple[int, Packet]],
) -> None:
    """In the same order, too."""
    one = server(plan)
    with numpy_only():
        other = server(plan)
    for at, packet in between:
        window.insert(at, packet)
    for packets in (window, *batches):
        batch = as_received(Batch.concatenate([contribution(p, base) for p in packets]))
        for state in (one, other):
            state.on_packets(0.0, batch)
        assert pending_packets(one) == pending_packets(other)
        assert one.counters(1) == other.counters(1)
        assert one.foreign == other.foreign
        assert one.take_failures() == other.take_failures()


# --- what is sent ---


def raw(endpoint: Endpoint) -> list[bytes]:
    """Datagrams that are there."""
    batch = endpoint.receive() or Batch.empty(LANES)
    return [h.tobytes() + w.tobytes() for h, w in zip(batch.headers, batch.payloads, strict=True)]


@pytest.mark.skipif(not available().segment, reason="no UDP segmentation offload here")
@pytest.mark.parametrize("refused", [False, True], ids=["", "one refused"])
@pytest.mark.parametrize("cast", [False, True], ids=["each its own", "all the same"])
def test_trains_are_the_same_and_follow_one_that_the_socket_does_not_take(
    cast: bool, refused: bool
) -> None:
    n, nodes = 4 * MAX_SEGMENTS + 7, np.array([5, 0, 7], np.uint16)
    wire = np.zeros((3, n, WIDE), np.uint8)
    headers, words = parts_of(wire.reshape(-1, WIDE))
    opaque(headers)[:] = opaque(blank(3 * n, Op.RESULT))
    headers["lanes"] = LANES
    headers["seq"] = np.arange(3 * n) % n if cast else np.arange(3 * n)
    headers["sender"] = np.arange(3).repeat(n)
    headers["node"] = nodes.repeat(n)
    words[:] = headers["seq"][:, None]
    sent = [[bytes(one) for one in each] for each in wire]
    counted = []
    for only in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(loader.VARIABLE, str(int(only)))
            sender = Endpoint(("127.0.0.1", 0), lanes=LANES)
        receivers = [Endpoint(("127.0.0.1", 0), lanes=LANES) for _ in range(3)]
        try:
            addresses = [(r.ipv4, r.port) for r in receivers]
            if refused:  # to all at once: only for a socket that asked for it
                addresses[1] = 0xFFFFFFFF, addresses[1][1]
            peers, whole = peer_array(addresses), np.ones(3 * n, np.bool_)
            batch = Batch(headers, words, whole, peers.repeat(n), wire.reshape(-1, WIDE))
            if cast:
                batch = BroadcastBatch(wire[2].copy(), whole[:n], peers, nodes, ArrayPool())
            errors: list[str] = []
            for act in (lambda: sender.send(batch), *[sender.flush] * 10):  # noqa: B023
                try:
                    act()
                except PermissionError as error:
                    errors.append(str(error))
            found = [raw(receiver) for receiver in receivers]
            assert found == [sent[0], [] if refused else sent[1], sent[2]]
            assert len(errors) == (5 if refused else 0)  # one for each train
            assert all("255.255.255.255" in error for error in errors)
            counted.append((sender.counters.sent, sender.counters.send_calls))
        finally:
            for endpoint in (sender, *receivers):
                endpoint.close()
    assert counted[0] == counted[1]


def test_a_compiler_takes_the_sources() -> None:
    """Else numpy does all of it, alike and several times slower, which no other test shows."""
    assert loader.load_native() is not None


def test_structures_that_differ_from_those_of_c_are_refused() -> None:
    lib = loader.load_native()
    assert lib is not None
    size = ctypes.sizeof(structures("worker.h")["worker"])
    loader.check_constants(lib, {"worker_bytes": size})
    with pytest.raises(RuntimeError, match=r"root_bytes is .* in C and 7 in Python"):
        loader.check_constants(lib, {"worker_bytes": size, "root_bytes": 7})


def test_without_a_compiler_numpy_does_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    loader._loaded.cache_clear()
    loader._library.cache_clear()
    try:
        assert loader.load_native() is None
        assert "no-such-compiler" in caplog.text
        packets = Batch.concatenate(
            [contribution((at, r, 0, None, 0), 0) for at in range(WINDOW) for r in range(WORLD)]
        )
        state = server(replace(PLAN, servers=PLAN.servers[:1]))
        state.on_packets(0.0, packets)
        assert len(pending_packets(state)) == WINDOW * WORLD
    finally:
        loader._loaded.cache_clear()
        loader._library.cache_clear()
