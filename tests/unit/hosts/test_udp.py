# SPDX-License-Identifier: Apache-2.0
"""Tests the UDP driver on real sockets: packets arrive whole and in order on every path."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from hosts.net.driver import drive
from hosts.net.offload import MAX_SEGMENTS, PLAIN, Offload, available, probe
from hosts.net.udp import Endpoint
from protocol.header import Batch, Op, blank, peer_array
from protocol.priorities import priority_of, stream_number

LANES = 256
SO_NO_CHECK = 11  # asm-generic/socket.h
DATAGRAM = 32 + 4 * LANES
LAZY, SOON, URGENT = (stream_number(priority, 0) for priority in (0, 3, 7))

paths = pytest.mark.parametrize("offload", [None, PLAIN], ids=["probed", "plain"])


def contributions(seqs: np.ndarray, to: list[Endpoint], lanes: int = LANES) -> Batch:
    """Packets numbered `seqs`, to the endpoints of `to` in turn; every fifth is header-only."""
    headers = blank(len(seqs), Op.CONTRIBUTE)
    headers["seq"] = seqs
    headers["lanes"] = np.where(seqs % 5 == 4, 0, lanes)
    payloads = np.repeat(seqs, lanes).reshape(-1, lanes).astype(">i4")
    peers = [(to[i % len(to)].ipv4, to[i % len(to)].port) for i in range(len(seqs))]
    return Batch(headers, payloads, headers["lanes"] != 0, peer_array(peers))


def endpoint(offload: Offload | None = None, **options: int) -> Endpoint:
    return Endpoint(("127.0.0.1", 0), lanes=LANES, offload=offload, **options)


def receive_all(receiver: Endpoint, sender: Endpoint, count: int) -> Batch:
    """Everything that `receiver` gets until it has `count` packets."""
    batches: list[Batch] = []
    deadline = time.monotonic() + 60
    while sum(map(len, batches)) < count and time.monotonic() < deadline:
        sender.flush()
        if (batch := receiver.receive()) is not None:
            batches.append(batch.select(np.arange(len(batch))))  # the next one comes in its place
        else:
            receiver.wait(0.01)
    return Batch.concatenate(batches)


@paths
def test_batches_arrive_whole_and_in_order(offload: Offload | None) -> None:
    seqs = np.arange(1000)
    with endpoint(offload) as sender, endpoint(offload) as receiver:
        sender.send(contributions(seqs, [receiver]))
        batch = receive_all(receiver, sender, len(seqs))
        assert batch.headers["seq"].tolist() == seqs.tolist()
        assert (batch.full == (seqs % 5 != 4)).all()
        assert (batch.payloads[batch.full] == seqs[batch.full, None]).all()
        assert (batch.peers == peer_array([(sender.ipv4, sender.port)])).all()
        assert receiver.counters.received == sender.counters.sent == len(seqs)
        assert receiver.counters.malformed == 0


@paths
def test_each_destination_gets_its_packets_in_order(offload: Offload | None) -> None:
    with (
        endpoint(offload) as sender,
        endpoint(offload) as a,
        endpoint(offload) as b,
        endpoint(offload) as c,
    ):
        to = [a, b, c]
        sender.send(contributions(np.arange(300), to))
        for i, receiver in enumerate(to):
            seqs = receive_all(receiver, sender, 100).headers["seq"].tolist()
            assert seqs == list(range(i, 300, 3))


@pytest.mark.skipif(not probe().segment, reason=f"no UDP_SEGMENT here: {probe().reason}")
def test_a_train_is_one_system_call_at_each_end() -> None:
    count = 8 * MAX_SEGMENTS
    with endpoint() as sender, endpoint() as receiver:
        batch = contributions(np.arange(count) * 5, [receiver])
        sender.send(batch)
        receive_all(receiver, sender, count)
        assert sender.counters.send_calls == count // MAX_SEGMENTS
        assert receiver.counters.receive_calls == count // MAX_SEGMENTS


@pytest.mark.skipif(not probe().segment, reason=f"no UDP_SEGMENT here: {probe().reason}")
def test_trains_are_cut_to_a_millisecond_of_the_link() -> None:
    link_rate = 100_000_000
    with endpoint(link_rate=link_rate) as sender, endpoint() as receiver:
        sender.send(contributions(np.arange(50) * 5, [receiver]))
        receive_all(receiver, sender, 50)
        wire_bits = 8 * (DATAGRAM + 42)
        per_train = link_rate // 1000 // wire_bits
        assert sender.counters.send_calls == math.ceil(50 / per_train)


@pytest.mark.skipif(not probe().segment, reason=f"no UDP_SEGMENT here: {probe().reason}")
def test_a_refused_train_goes_plain_and_so_does_all_that_follows() -> None:
    seqs = np.arange(200)
    with endpoint() as sender, endpoint() as receiver:
        # The kernel makes no trains for a socket that sends no checksums (EINVAL).
        sender._socket.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        for part in (seqs[:100], seqs[100:]):
            sender.send(contributions(part, [receiver]))
        assert receive_all(receiver, sender, 200).headers["seq"].tolist() == seqs.tolist()
        assert not sender.offload.segment
        assert "Invalid argument" in sender.offload.reason
        assert sender.counters.sent == sender.counters.send_calls == 200


def test_packets_larger_than_a_train_may_be_still_go() -> None:
    """At 1 Mbit/s a millisecond is shorter than a packet."""
    with endpoint(link_rate=1_000_000) as sender, endpoint() as receiver:
        sender.send(contributions(np.arange(20), [receiver]))
        assert len(receive_all(receiver, sender, 20)) == 20


def test_a_full_receive_buffer_holds_what_capacity_promises() -> None:
    """So a window of at most `capacity` packets is not lost while the host computes."""
    with endpoint(PLAIN) as sender, endpoint(receive_buffer=100_000) as receiver:
        count = receiver.capacity()
        assert count >= 10
        sender.send(contributions(np.arange(count) * 5, [receiver]))
        while not sender.flush():
            sender.wait(1)
        assert len(receive_all(receiver, sender, count)) == count


def test_malformed_datagrams_are_counted_and_left_out() -> None:
    with (
        endpoint() as sender,
        endpoint() as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        target = (receiver.address, receiver.port)
        for junk in (b"", b"x" * 31, b"x" * 32, bytes(DATAGRAM), os.urandom(1400)):
            stranger.sendto(junk, target)
        sender.send(contributions(np.arange(3), [receiver]))
        assert receive_all(receiver, sender, 3).headers["seq"].tolist() == [0, 1, 2]
        assert receiver.counters.malformed == 5


def test_the_environment_forces_plain_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKHUB_PLAIN", "1")
    assert available() == PLAIN
    monkeypatch.delenv("RACKHUB_PLAIN")
    assert available() == probe()


def test_a_port_in_use_is_named() -> None:
    with endpoint() as first, pytest.raises(OSError, match=f"127.0.0.1:{first.port}.*in use"):
        Endpoint((first.address, first.port))


def test_an_unreachable_destination_is_named() -> None:
    with endpoint() as sender, endpoint() as receiver:
        batch = contributions(np.arange(1), [receiver])
        batch.peers["ipv4"] = 0x0A_00_00_01  # not from a socket bound to loopback
        with pytest.raises(OSError, match=r"10\.0\.0\.1"):
            sender.send(batch)


class Echo:
    """Sends every packet back, and asks to be polled every `period` seconds."""

    def __init__(self, period: float = math.inf) -> None:
        self.period = period
        self.polls = 0
        self.seen: list[int] = []
        self.out: list[Batch] = []

    def on_packets(self, now: float, batch: Batch) -> None:
        self.seen += batch.headers["seq"].tolist()
        self.out.append(batch)

    def poll(self, now: float) -> tuple[Batch | None, float]:
        self.polls += 1
        batch = Batch.concatenate(self.out) if self.out else None
        self.out.clear()
        return batch, now + self.period


def test_drive_feeds_the_machine_and_sends_its_answers() -> None:
    machine = Echo()
    with endpoint() as host, endpoint() as peer:
        peer.send(contributions(np.arange(100), [host]))
        assert drive(machine, host, lambda: len(machine.seen) == 100 and not machine.out)
        assert receive_all(peer, host, 100).headers["seq"].tolist() == list(range(100))


def test_drive_waits_without_spinning() -> None:
    machine = Echo(period=0.05)
    with endpoint() as host:
        start = time.monotonic()
        cpu = time.thread_time()
        assert not drive(machine, host, lambda: False, deadline=start + 0.3)
        assert time.monotonic() - start >= 0.3
        assert machine.polls <= 8  # none after the deadline, however late it is noticed
        assert time.thread_time() - cpu < 0.1


def test_a_machine_that_is_always_due_does_not_take_the_core() -> None:
    machine = Echo(period=0.0)
    with endpoint() as host:
        drive(machine, host, lambda: False, deadline=time.monotonic() + 0.2)
    assert machine.polls <= 210


def test_wake_ends_a_wait_from_another_thread() -> None:
    stopped = threading.Event()
    with endpoint() as host:

        def stop() -> None:
            stopped.set()
            host.wake()

        timer = threading.Timer(0.05, stop)
        timer.start()
        assert drive(Echo(), host, stopped.is_set, deadline=time.monotonic() + 60)
        timer.join()


class Ticking(Endpoint):
    """Its time goes by in whole ticks, as virtual time does."""

    now = 0

    def wait(self, timeout: float, unhurried: float = 0.0) -> None:
        self.now += int(timeout / self.tick)


@pytest.mark.timeout(20)
def test_a_deadline_within_a_tick_comes() -> None:
    with Ticking(("127.0.0.1", 0), lanes=LANES) as host:
        deadline = 2.5 * host.tick
        ended = drive(
            Echo(), host, lambda: False, deadline=deadline, clock=lambda: host.now * host.tick
        )
        assert not ended
        assert host.now == 3


@paths
def test_the_kernel_says_how_long_datagrams_waited_to_be_read(offload: Offload | None) -> None:
    with endpoint(offload) as sender, endpoint(offload) as receiver:
        receiver.configure(LANES, 0, timed=True)
        for _ in range(100):  # the kernel begins to stamp soon after it is asked to
            sender.send(contributions(np.arange(20), [receiver]))
            assert sender.flush()
            sent = time.monotonic()
            while time.monotonic() < sent + 0.002:  # they are there: the loopback does not wait
                pass
            waited = time.monotonic() - sent
            batch = receiver.receive()
            assert batch is not None
            assert len(batch) == 20
            # A clock that is being set right runs faster or slower by at most 0.05 %.
            if receiver.queued > 0.99 * waited:
                break
        else:
            pytest.fail(f"{receiver.queued} s, and they waited for {waited} s")
        receiver.configure(LANES, 0)
        sender.send(contributions(np.arange(5), [receiver]))
        receive_all(receiver, sender, 5)
        assert receiver.queued == 0


def send_all(sender: Endpoint, receiver: Endpoint, stream: int, seqs: range) -> None:
    """Sends packets of a stream, a full one and a header by turns; on loopback they then wait in
    the receiver's socket."""
    headers = blank(len(seqs), Op.CONTRIBUTE)
    headers["stream"], headers["seq"] = stream, seqs
    headers["lanes"] = np.where(headers["seq"] % 2, 0, LANES)
    payloads = np.repeat(headers["seq"], LANES).reshape(-1, LANES).astype(">i4")
    peers = peer_array([(receiver.ipv4, receiver.port)] * len(seqs))
    sender.send(Batch(headers, payloads, headers["lanes"] != 0, peers))
    while not sender.flush():
        sender.wait(1)


def received(receiver: Endpoint) -> tuple[int, list[int]]:
    """Receives once; returns the stream, which all packets have, and the numbers."""
    batch = receiver.receive()
    assert batch is not None
    (stream,) = set(batch.headers["stream"].tolist())
    return stream, batch.headers["seq"].tolist()


@pytest.fixture
def by_priority() -> Iterator[tuple[Endpoint, Endpoint]]:
    """A sender, and an endpoint that receives by priority."""
    with endpoint() as sender, endpoint() as receiver:
        receiver.configure(LANES, 0, by_priority=True)
        yield sender, receiver


def test_urgent_packets_are_received_before_those_that_came_first(
    by_priority: tuple[Endpoint, Endpoint],
) -> None:
    sender, receiver = by_priority
    send_all(sender, receiver, LAZY, range(100))
    send_all(sender, receiver, SOON, range(100, 150))
    send_all(sender, receiver, LAZY, range(150, 200))
    send_all(sender, receiver, URGENT, range(200, 210))
    assert received(receiver) == (URGENT, [*range(200, 210)])
    # Later ones overtake those that were read before, and lazy ones stay in order.
    send_all(sender, receiver, LAZY, range(210, 220))
    send_all(sender, receiver, URGENT, range(220, 230))
    assert received(receiver) == (URGENT, [*range(220, 230)])
    send_all(sender, receiver, SOON, range(230, 240))
    assert received(receiver) == (SOON, [*range(100, 150)])
    assert received(receiver) == (SOON, [*range(230, 240)])
    assert received(receiver) == (LAZY, [*range(100), *range(150, 200)])
    assert received(receiver) == (LAZY, [*range(210, 220)])
    assert receiver.receive() is None
    assert receiver.counters.received == 240


def test_packets_that_are_overtaken_keep_their_payloads(
    by_priority: tuple[Endpoint, Endpoint],
) -> None:
    sender, receiver = by_priority
    send_all(sender, receiver, LAZY, range(0, 200, 2))
    send_all(sender, receiver, SOON, range(200, 220, 2))
    first = receiver.receive()
    send_all(sender, receiver, LAZY, range(300, 500, 2))  # into the memory of the first
    second, third = receiver.receive(), receiver.receive()
    assert first is not None
    assert second is not None
    assert third is not None
    for batch, seqs in ((first, range(200, 220, 2)), (second, range(0, 200, 2))):
        assert batch.headers["seq"].tolist() == [*seqs]
        assert batch.full.all()
        assert (batch.payloads == np.array(seqs)[:, None]).all()
    assert third.headers["seq"].tolist() == [*range(300, 500, 2)]


def test_a_wait_ends_while_packets_are_kept(by_priority: tuple[Endpoint, Endpoint]) -> None:
    sender, receiver = by_priority
    send_all(sender, receiver, LAZY, range(10))
    send_all(sender, receiver, URGENT, range(10, 20))
    assert received(receiver) == (URGENT, [*range(10, 20)])
    receiver.wait(math.inf)
    assert received(receiver) == (LAZY, [*range(10)])


@paths
def test_what_is_kept_for_later_is_bounded(offload: Offload | None) -> None:
    """Beyond the bound urgent packets wait for lazy ones, and nothing is lost."""
    lazy, urgent, rounds = 100, 5, 30
    bound = 2 << 20
    found: dict[int, list[int]] = {LAZY: [], URGENT: []}
    kept, turns = 0, []
    with endpoint(offload) as sender, endpoint(offload) as receiver:
        receiver.configure(LANES, 0, by_priority=True)
        for turn in range(rounds):
            send_all(sender, receiver, LAZY, range(turn * lazy, (turn + 1) * lazy))
            send_all(sender, receiver, URGENT, range(turn * urgent, (turn + 1) * urgent))
            full = kept * DATAGRAM >= bound
            stream, seqs = received(receiver)
            assert stream == (LAZY if full else URGENT)
            found[stream] += seqs
            turns.append(stream)
            kept = receiver.counters.received - sum(map(len, found.values()))
            assert kept * DATAGRAM < 2 * bound  # a call reads at most as much again
        assert set(turns) == {LAZY, URGENT}
        while (batch := receiver.receive()) is not None:
            found[int(batch.headers["stream"][0])] += batch.headers["seq"].tolist()
    assert found == {LAZY: [*range(rounds * lazy)], URGENT: [*range(rounds * urgent)]}


class Answers(Echo):
    """Notes what each call brought, and how many answers had been sent by then."""

    def __init__(self, host: Endpoint) -> None:
        super().__init__()
        self.host = host
        self.calls: list[tuple[int, int, int]] = []

    def on_packets(self, now: float, batch: Batch) -> None:
        super().on_packets(now, batch)
        (priority,) = set(priority_of(batch.headers["stream"]).tolist())
        self.calls.append((priority, len(batch), self.host.counters.sent))


def test_answers_to_urgent_packets_leave_before_the_others_are_taken(
    by_priority: tuple[Endpoint, Endpoint],
) -> None:
    peer, host = by_priority
    for stream, seqs in ((LAZY, range(50)), (SOON, range(50, 80)), (URGENT, range(80, 100))):
        send_all(peer, host, stream, seqs)
    machine = Answers(host)
    assert drive(machine, host, lambda: len(machine.seen) == 100 and not machine.out)
    assert machine.calls == [(7, 20, 0), (3, 30, 20), (0, 50, 50)]
    seqs = receive_all(peer, host, 100).headers["seq"].tolist()
    assert seqs == [*range(80, 100), *range(50, 80), *range(50)]


def test_time_until_packets_are_returned_counts_as_queued(
    by_priority: tuple[Endpoint, Endpoint],
) -> None:
    sender, receiver = by_priority
    receiver.configure(LANES, 0, by_priority=True, timed=True)
    send_all(sender, receiver, LAZY, range(10))
    send_all(sender, receiver, URGENT, range(10))
    received(receiver)
    read = time.monotonic()
    before = receiver.queued
    while time.monotonic() < read + 0.002:
        pass
    waited = time.monotonic() - read
    received(receiver)
    assert receiver.queued >= before + waited
