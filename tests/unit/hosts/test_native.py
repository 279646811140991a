# SPDX-License-Identifier: Apache-2.0
"""Tests the C code of hosts against numpy, bit by bit."""

from __future__ import annotations

import ctypes
import socket

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
    VERSION,
    Batch,
    Op,
    blank,
    decode,
    opaque,
    parts_of,
    peer_array,
)
from switch.compiler import CompilerError

LANES = 8
WIDE = HEADER_BYTES + 4 * LANES


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
def test_datagrams_are_decoded_as_the_header_says(rounds: list[list[bytes]]) -> None:
    """Over what came before, which may be longer."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind(("127.0.0.1", 0))
    source = int.from_bytes(socket.inet_aton("127.0.0.1"), "big"), sender.getsockname()[1]
    with sender, Endpoint(("127.0.0.1", 0), lanes=LANES) as endpoint:
        received = malformed = 0
        for pieces in rounds:
            for piece in pieces:
                sender.sendto(piece, (endpoint.address, endpoint.port))
            found = endpoint.receive()
            assert (found is None) == (not pieces)
            if found is not None:
                wanted, bad = decode(pieces, [source] * len(pieces), LANES)
                assert same(found, wanted)
                received, malformed = received + len(wanted), malformed + bad
        assert endpoint.counters.received == received
        assert endpoint.counters.malformed == malformed


# --- what is sent ---


def raw(endpoint: Endpoint) -> list[bytes]:
    """Datagrams that are there."""
    batch = endpoint.receive() or Batch.empty(LANES)
    return [h.tobytes() + w.tobytes() for h, w in zip(batch.headers, batch.payloads, strict=True)]


@pytest.mark.skipif(not available().segment, reason="no UDP segmentation offload here")
@pytest.mark.parametrize("refused", [False, True], ids=["", "one refused"])
@pytest.mark.parametrize(
    ("cast", "mixed"),
    [(True, 0), (False, 0), (False, 1), (False, 2), (False, 9)],
    ids=["all the same", "each its own", "by ones", "by twos", "by nines"],
)
def test_trains_are_the_same_and_follow_one_that_the_socket_does_not_take(
    cast: bool, mixed: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mixed: so many packets of a destination are one after the other; 0: all are."""
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
    for singly in (False, True):
        sender = Endpoint(("127.0.0.1", 0), lanes=LANES)
        if singly:  # as what the socket has not taken
            monkeypatch.setattr(sender, "_send_natively", lambda *_: 0)
        receivers = [Endpoint(("127.0.0.1", 0), lanes=LANES) for _ in range(3)]
        try:
            addresses = [(r.ipv4, r.port) for r in receivers]
            if refused:  # to all at once: only for a socket that asked for it
                addresses[1] = 0xFFFFFFFF, addresses[1][1]
            peers, whole = peer_array(addresses), np.ones(3 * n, np.bool_)
            batch = Batch(headers, words, whole, peers.repeat(n), wire.reshape(-1, WIDE))
            if mixed:
                order = np.argsort(np.tile(np.arange(n) // mixed, 3), kind="stable")
                rows = wire.reshape(-1, WIDE)[order]
                batch = Batch(*parts_of(rows), whole, peers.repeat(n)[order], rows)
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


def test_structures_that_differ_from_those_of_c_are_refused() -> None:
    lib = loader.load_native()
    size = ctypes.sizeof(structures("worker.h")["worker"])
    loader.check_constants(lib, {"worker_bytes": size})
    with pytest.raises(RuntimeError, match=r"root_bytes is .* in C and 7 in Python"):
        loader.check_constants(lib, {"worker_bytes": size, "root_bytes": 7})


def test_a_server_without_a_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    loader.load_native.cache_clear()
    try:
        with pytest.raises(CompilerError, match=r"'no-such-compiler': install .* apt install"):
            ServerState()
    finally:
        loader.load_native.cache_clear()
