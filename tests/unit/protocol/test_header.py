# SPDX-License-Identifier: Apache-2.0
"""Tests the wire format and the codec's rejection of malformed packets."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.header import (
    FLAGGED,
    HEADER,
    HEADER_BYTES,
    LARGEST_DATAGRAM,
    Batch,
    Flag,
    Op,
    Phase,
    blank,
    carries_payload,
    decode,
    decode_wire,
    encode,
    encode_runs,
    parts_of,
    peer_array,
    phases,
)

LANES = 16


def random_batch(n: int, seed: int, lanes: int = LANES) -> Batch:
    """Well-formed packets with random fields."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (n, HEADER_BYTES), dtype=np.uint8)
    raw[:, 0] = 1 << 4 | rng.integers(1, 5, n)
    headers = raw.reshape(-1).view(HEADER)
    headers["lanes"][rng.random(n) < 0.3] = 0
    headers["flags"][rng.random(n) < 0.5] &= np.uint8(~FLAGGED & 0xFF)
    payloads = rng.integers(-(2**31), 2**31, (n, lanes)).astype(">i4")
    peers = peer_array([(int(rng.integers(1, 4)), 47110) for _ in range(n)])
    return Batch(headers, payloads, carries_payload(headers), peers)


def test_every_field_is_at_its_place_on_the_wire() -> None:
    headers = blank(1, Op.CONTRIBUTE)
    values = {
        "flags": 0x42,
        "job": 0x0102,
        "epoch": 0x0304,
        "stream": 5,
        "sender": 6,
        "seq": 0x0708090A,
        "chunk": 0x0B0C0D0E,
        "children": 0x0F101112,
        "workers": 0x1314,
        "exponent": -3,
        "max_exponent": -128,
        "lanes": 2,
        "node": 0x1718,
        "checksum": 0x191A1B1C,
    }
    for name, value in values.items():
        headers[name] = value
    payload = np.array([[1, -2]], ">i4")
    batch = Batch(headers, payload, carries_payload(headers), peer_array([(1, 2)]))
    expected = struct.pack("!BBHHBBIIIHbbHHIii", 0x11, *values.values(), 1, -2)
    assert encode(batch) == [expected]


def test_a_payload_follows_exactly_from_the_header() -> None:
    cases = {
        (Op.CONTRIBUTE, 0, 4): True,
        (Op.RESULT, Flag.ECN | Flag.RETRANSMIT, 4): True,
        (Op.CONTRIBUTE, 0, 0): False,  # exponent round
        (Op.CONTRIBUTE, Flag.OVERFLOW, 4): False,
        (Op.RESULT, Flag.NONFINITE, 4): False,
        (Op.CONTRIBUTE, Flag.DIRECT | Flag.OVERFLOW, 4): True,
        (Op.RESULT, Flag.DIRECT | Flag.NONFINITE, 4): True,
        (Op.QUERY, 0, 4): False,
        (Op.STATE, Flag.DIRECT, 4): False,
    }
    for (op, flags, lanes), expected in cases.items():
        headers = blank(1, op)
        headers["flags"] = flags
        headers["lanes"] = lanes
        assert carries_payload(headers)[0] == expected, (op, flags, lanes)


@given(st.integers(0, 40), st.integers(0, 2**32), st.sampled_from([0, 1, LANES]))
@settings(max_examples=40, deadline=None)
def test_decoding_what_was_encoded_gives_the_same_packets(n: int, seed: int, lanes: int) -> None:
    batch = random_batch(n, seed, lanes)
    datagrams = encode(batch)
    back, malformed = decode(datagrams, batch.peers, lanes)
    assert malformed == 0
    assert (back.headers == batch.headers).all()
    assert (back.full == batch.full).all()
    assert (back.peers == batch.peers).all()
    assert (back.payloads[back.full] == batch.payloads[batch.full]).all()


@given(st.integers(1, 200), st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_runs_are_trains_of_equal_packets_to_one_peer(n: int, seed: int, most: int) -> None:
    batch = random_batch(n, seed)
    runs = encode_runs(batch, most)
    assert all(1 <= run.count <= most for run in runs)
    assert all(len(run.buffer) == run.count * run.segment <= LARGEST_DATAGRAM for run in runs)
    # As a receiver with UDP_GRO sees them.
    back, malformed = decode(
        [run.buffer for run in runs],
        [run.peer for run in runs],
        LANES,
        [run.segment for run in runs],
    )
    assert malformed == 0
    assert (back.headers == batch.headers).all()
    assert (back.peers["ipv4"] == batch.peers["ipv4"]).all()
    assert (back.payloads[back.full] == batch.payloads[batch.full]).all()


def test_a_run_never_exceeds_a_datagram_of_the_largest_size() -> None:
    batch = random_batch(1, 0, 2048)
    headers = np.repeat(blank(1, Op.CONTRIBUTE), 30)
    headers["lanes"] = 1
    batch = Batch(
        headers,
        np.repeat(batch.payloads, 30, axis=0),
        carries_payload(headers),
        np.repeat(batch.peers, 30),
    )
    runs = encode_runs(batch)
    assert sum(run.count for run in runs) == 30
    assert max(len(run.buffer) for run in runs) <= LARGEST_DATAGRAM


def test_joined_batches_encode_as_their_parts() -> None:
    parts = [random_batch(5, seed) for seed in range(3)]
    joined = Batch.concatenate(parts)
    assert encode(joined) == [datagram for part in parts for datagram in encode(part)]
    native = Batch(joined.headers, joined.payloads.astype(np.int32), joined.full, joined.peers)
    assert encode(native) == encode(joined)  # values count, whatever their byte order


@given(st.integers(0, 20), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 16]))
@settings(max_examples=40, deadline=None)
def test_datagrams_in_one_piece_are_decoded_as_others_are(n: int, seed: int, lanes: int) -> None:
    # Some that should have no payload, of an unknown op or another version among them.
    wire = np.random.default_rng(seed).integers(0, 256, (n, HEADER_BYTES + 4 * lanes), np.uint8)
    wire[: 2 * n // 3, 0] = 1 << 4 | Op.RESULT
    peers = peer_array([(i, 47110) for i in range(n)])
    expected, bad = decode([row.tobytes() for row in wire], peers, lanes)
    found, malformed = decode_wire(wire, peers)
    assert malformed == bad
    assert encode(found) == encode(expected)
    for name in ("headers", "payloads", "full", "peers"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_batch_in_one_piece_is_sent_from_where_it_is() -> None:
    wire = np.arange(3 * (HEADER_BYTES + 4 * LANES), dtype=np.uint8).reshape(3, -1)
    wire[:, 0], wire[:, 1] = 1 << 4 | Op.CONTRIBUTE, 0
    headers, words = parts_of(wire)
    batch = Batch(headers, words, np.ones(3, np.bool_), peer_array([(1, 2)] * 3), wire)
    [run] = encode_runs(batch)
    assert np.shares_memory(np.frombuffer(run.buffer, np.uint8), wire)
    assert bytes(run.buffer) == wire.tobytes()


def test_malformed_datagrams_are_counted_and_the_others_kept() -> None:
    good = encode(random_batch(3, 7))
    wrong_version = bytes([2 << 4 | 1]) + good[0][1:]
    unknown_op = bytes([1 << 4 | 9]) + good[0][1:]
    full = bytearray(HEADER_BYTES + 4 * LANES)
    full[0] = 1 << 4 | Op.CONTRIBUTE
    full[25] = 3  # lanes
    bad = [wrong_version, unknown_op, b"", b"x", bytes(full[:-1]), bytes(full[:HEADER_BYTES])]
    longer = bytes(full) + b"\0"
    datagrams = [good[0], *bad, good[1], longer, good[2]]
    batch, malformed = decode(datagrams, [(1, 1)] * len(datagrams), LANES)
    assert malformed == len(bad) + 1
    assert encode(batch) == good


def test_the_short_tail_of_a_coalesced_buffer_is_a_packet_too() -> None:
    full = bytearray(HEADER_BYTES + 4 * LANES)
    full[0] = 1 << 4 | Op.CONTRIBUTE
    full[25] = 3
    query = bytes([1 << 4 | Op.QUERY]) + bytes(HEADER_BYTES - 1)
    batch, malformed = decode([bytes(full) * 2 + query], [(9, 9)], LANES, [len(full)])
    assert malformed == 0
    assert batch.full.tolist() == [True, True, False]


def test_a_state_tells_its_phase() -> None:
    headers = blank(3, Op.STATE)
    headers["flags"] = [0x00, 0x10, 0x24]
    assert phases(headers).tolist() == [Phase.AGGREGATING, Phase.PARTIAL, Phase.FINAL]
