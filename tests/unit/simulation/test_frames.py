# SPDX-License-Identifier: Apache-2.0
"""Tests that simulated hosts write and read frames as one-by-one functions of the protocol do."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.data.array_pool import ArrayPool
from hosts.net.broadcast_batch import BroadcastBatch
from protocol.frames import OVERHEAD, Interface, NotForHostsError, from_frame, to_frames
from protocol.header import (
    HEADER_BYTES,
    Batch,
    Op,
    WireBatch,
    blank,
    carries_payload,
    encode,
    packet_bytes,
    parts_of,
    peer_array,
)
from protocol.priorities import priority_of
from simulation.nodes.frames import Datagrams, Demultiplexer, Framing

LANES = 3
HOST = 0x0A000001
OTHER = 0x0A000002  # of the same host
INTERFACE = Interface(b"\2\0\0\0\0\1", b"\2\0\0\0\0\2", HOST)
PORT = 5000
PEERS = [(0x0A000101, 4000), (0x0A000102, 4001), (HOST, 4002), (OTHER, PORT)]


def drawn(random: np.random.Generator, n: int) -> Batch:
    """Packets of any kind, with payloads where their headers say so."""
    headers = blank(n, Op.CONTRIBUTE)
    headers["version_op"] += random.integers(0, 4, n).astype(np.uint8)
    headers["stream"] = random.choice([0, 5, 130, 150, 255], n)
    headers["seq"] = random.integers(0, 1 << 32, n)
    headers["lanes"] = random.choice([0, 2, LANES], n)
    words = random.integers(-(1 << 31), 1 << 31, (n, LANES)).astype(">i4")
    peers = peer_array([PEERS[i] for i in random.integers(0, len(PEERS), n)])
    return Batch(headers, words, carries_payload(headers), peers)


def kinds(random: np.random.Generator, n: int) -> list[Batch]:
    """The same packets as arrays, in wire format, and in wire format with room before each."""
    batch = drawn(random, n)
    room = np.zeros((n, OVERHEAD + packet_bytes(LANES)), np.uint8)
    wire = room[:, OVERHEAD:]
    headers, words = parts_of(wire)
    headers[:], words[:] = batch.headers, batch.payloads
    return [
        batch,
        WireBatch(wire.copy(), batch.full, batch.peers),
        WireBatch(wire, batch.full, batch.peers, room),
    ]


def whole(frames: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    return [row[:length].tobytes() for row, length in zip(frames, lengths.tolist(), strict=True)]


def in_order(batch: Batch, by_priority: bool) -> tuple[list[bytes], int]:
    """The frames in the order that they are to be written in, and how many are for this host."""
    frames = to_frames(batch, INTERFACE, PORT)
    local = np.isin(batch.peers["ipv4"], [HOST, OTHER])
    priorities = priority_of(batch.headers["stream"].astype(int)) if by_priority else 0 * local
    rows = sorted(range(len(frames)), key=lambda row: (local[row], -priorities[row]))
    return [frames[row] for row in rows], int(local.sum())


@pytest.mark.parametrize("by_priority", [False, True])
def test_written_frames_are_those_of_single_packets(by_priority: bool) -> None:
    random = np.random.default_rng(1)
    framing = Framing(INTERFACE, PORT, [HOST, OTHER])
    for n in [0, 1, 2, *random.integers(1, 40, 60).tolist()]:
        for batch in kinds(random, n):
            expected, local = in_order(batch, by_priority)
            priorities = priority_of(batch.headers["stream"].astype(int))
            away = ~np.isin(batch.peers["ipv4"], [HOST, OTHER])
            found = framing.frames(batch, by_priority=by_priority)
            assert whole(found.frames, found.lengths) == expected
            assert found.local == local
            if by_priority:
                assert found.counts == [int((away & (priorities == p)).sum()) for p in range(8)]
            assert sum(found.counts) == n - local
            assert sum(found.totals) == sum(map(len, expected[: n - local]))


def test_results_for_many_are_written_for_each() -> None:
    random = np.random.default_rng(2)
    framing = Framing(INTERFACE, PORT, [HOST])
    for n in (1, 2, 7):
        packets = np.zeros((n, packet_bytes(LANES)), np.uint8)
        headers, words = parts_of(packets)
        batch = drawn(random, n)
        headers[:], words[:] = batch.headers, batch.payloads
        nodes = np.array([0, 700, 3], np.uint16)
        peers = peer_array([PEERS[2], PEERS[0], PEERS[1]])
        casts = [
            BroadcastBatch(packets.copy(), batch.full, peers, nodes, ArrayPool()) for _ in range(2)
        ]
        written_out = Batch(*(getattr(casts[0], name) for name in ("headers", "payloads")),
                            casts[0].full, casts[0].peers)  # fmt: skip
        expected, local = in_order(written_out, True)
        found = framing.frames(casts[1], by_priority=True)
        assert (whole(found.frames, found.lengths), found.local) == (expected, local)
        assert not hasattr(casts[1], "__dict__")


def test_arrived_frames_go_to_their_endpoints_in_order() -> None:
    """Also among frames that are none of UDP, damaged, or for nobody here."""
    random = np.random.default_rng(3)
    endpoints = [(HOST, PORT), (HOST, PORT + 1), (OTHER, PORT)]
    for count in (0, 1, 3):
        sorter = Demultiplexer()
        sorter.listen(endpoints[:count])
        for n in [1, *random.integers(1, 30, 60).tolist()]:
            batch = drawn(random, n)
            targets = [*endpoints, (HOST, PORT + 2), (OTHER, PORT + 1)]
            batch.peers[:] = peer_array([targets[i] for i in random.integers(0, 5, n)])
            frames = to_frames(batch, INTERFACE, 4000)
            for row in np.flatnonzero(random.random(n) < 0.2).tolist():
                damaged = bytearray(frames[row])
                damaged[random.integers(12, OVERHEAD)] ^= 1 << int(random.integers(0, 8))
                frames[row] = bytes(damaged)
            lengths = np.array([len(one) for one in frames])
            rows = np.zeros((n, int(lengths.max())), np.uint8)
            for row, one in enumerate(frames):
                rows[row, : len(one)] = np.frombuffer(one, np.uint8)
            expected: dict[int, list[bytes]] = {}
            for one in frames:
                try:
                    target = from_frame(one).destination
                except NotForHostsError:
                    continue
                if target in endpoints[:count]:
                    expected.setdefault(endpoints.index(target), []).append(one)
            parts, others = sorter.sort(rows, lengths, 7)
            assert {place: whole(one.frames, one.lengths) for place, one in parts} == expected
            assert [place for place, _ in parts] == list(expected)
            assert others == n - sum(map(len, expected.values()))
            assert all(one.at == 7 for _, one in parts)
            runs, others = sorter.sort(rows, lengths, 7, runs=True)
            assert [one for _, run in runs for one in whole(run.frames, run.lengths)] == [
                one for one in frames if any(one in mine for mine in expected.values())
            ]
            for place, run in runs:
                assert set(whole(run.frames, run.lengths)) <= set(expected[place])
            assert others == n - sum(map(len, expected.values()))


def test_packets_are_read_as_they_were_written() -> None:
    """Malformed ones, cut or with an unknown op, are counted and left out."""
    random = np.random.default_rng(4)
    framing = Framing(INTERFACE, PORT, [HOST])
    for n in random.integers(1, 30, 60).tolist():
        batch = drawn(random, n)
        batch.peers[:] = peer_array([(HOST, PORT)])
        spoilt = random.random(n) < random.choice([0, 0.2])
        batch.headers["version_op"][spoilt] = 0x1F
        frames = to_frames(batch, INTERFACE, PORT)
        lengths = np.array([len(one) for one in frames])
        rows = np.zeros((n, int(lengths.max())), np.uint8)
        for row, one in enumerate(frames):
            rows[row, : len(one)] = np.frombuffer(one, np.uint8)
        found, malformed = framing.decode(Datagrams(rows, lengths), LANES)
        good = Batch(batch.headers[~spoilt], batch.payloads[~spoilt], batch.full[~spoilt],
                     batch.peers[~spoilt])  # fmt: skip
        assert malformed == spoilt.sum()
        assert [bytes(one) for one in encode(found)] == [bytes(one) for one in encode(good)]
        assert {(int(one["ipv4"]), int(one["port"])) for one in found.peers} <= {(HOST, PORT)}


def test_packets_without_content_have_the_length_of_those_with_it() -> None:
    framing = Framing(INTERFACE, PORT, [HOST])
    framing.empty_lanes = LANES
    batch = drawn(np.random.default_rng(5), 20)
    empty = Batch(batch.headers, batch.payloads[:, :0], batch.full, batch.peers)
    found = framing.frames(empty)
    expected = np.where(batch.full, packet_bytes(LANES), HEADER_BYTES) + OVERHEAD
    order = np.argsort(np.isin(batch.peers["ipv4"], [HOST]), kind="stable")
    assert found.lengths.tolist() == expected[order].tolist()
    assert found.frames.shape[1] == OVERHEAD + HEADER_BYTES
