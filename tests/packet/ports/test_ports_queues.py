# SPDX-License-Identifier: Apache-2.0
"""Tests queues, rates and priorities of ports on real interfaces."""

from __future__ import annotations

import socket
import struct
import time
from functools import partial

import pytest

from tests.namespaces import needs_namespaces
from tests.p4 import corpus
from tests.packet.ports.port_rig import (
    pattern,
    receive_datagrams,
    send_train,
    switched,
    udp_frame,
    wait_for,
)
from tests.packet.programs.test_corpus_replication import ENDLESS, FORWARD, frame

pytestmark = needs_namespaces

SO_TIMESTAMPNS = 35
SIZE = 1000
WIRE = SIZE + 42


def arrivals(receiver: socket.socket, count: int) -> list[float]:
    """When the kernel got each of `count` datagrams (s)."""
    times = []
    for _ in range(count):
        _, ancillary, *_ = receiver.recvmsg(2048, 64)
        seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2])
        times.append(seconds + nanoseconds / 1e9)
    return times


@pytest.mark.parametrize("join", [False, True])
def test_rate_is_kept(join: bool) -> None:
    rate, count, lead = 40_000_000, 1500, 60
    with switched({2: {"rate": rate, "queue_bytes": 4 << 20, "join": join}}) as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        data = pattern(30 * SIZE)
        for _ in range(count // 30):
            send_train(sender, receiver.getsockname(), SIZE, data)
        times = arrivals(receiver, count)[lead:]

        def measured(first: int, last: int) -> float:
            return (last - first) * WIRE * 8 / (times[last] - times[first])

        # Never faster, but for the 10 ms that a thread which was not run may catch up; a busy
        # machine may well be slower, though not all the time.
        assert measured(0, len(times) - 1) < 1.06 * rate
        assert max(measured(n, n + 300) for n in range(len(times) - 300)) > 0.8 * rate
        statistics = setup.ports.statistics()[2]
        assert statistics.tx_queue_full == 0
        # The program sees the depth that the port reports.
        deepest = setup.pipeline.register("Depart.deepest_queue", 2)
        assert deepest == statistics.queue_packets_max - 1
        assert deepest > 20  # a train comes at once, however busy the sender's machine


def test_a_round_trip_is_that_of_the_closed_form() -> None:
    """Each link delivers a frame when its last bit is there, as links in virtual time do: those to
    the switch, whose senders are not shaped here, and those from it."""
    rate, train = 800_000, 3
    line = WIRE * 8 / rate  # 10.4 ms
    expected = (train + 1) * line  # the last of a train, then one more line
    paced = {"rate": rate, "rate_in": rate}
    with switched({1: paced, 2: paced}) as setup:
        near, far = setup.rig.udp(1), setup.rig.udp(2)
        there_and_back = []
        # What makes a packet late is the machine, so one in time is enough; none may be early.
        while not there_and_back or min(there_and_back) > 1.1 * 2 * expected:
            assert len(there_and_back) < 100, there_and_back
            begin = time.monotonic()
            send_train(near, far.getsockname(), SIZE, pattern(train * SIZE))
            receive_datagrams(far, train)
            send_train(far, near.getsockname(), SIZE, pattern(train * SIZE))
            receive_datagrams(near, train)
            there_and_back.append(time.monotonic() - begin)
            # The target lets go what a timer would tell of too late, within 50 us a line.
            assert there_and_back[-1] > 2 * expected - 4 * 50e-6
        assert setup.ports.statistics()[1].rx_packets == train * len(there_and_back)


def test_queue_is_bounded_and_drops_are_counted() -> None:
    rate, sent = 1_000_000, 50
    with switched({2: {"rate": rate, "queue_bytes": 20 * WIRE}}) as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        begin = time.monotonic()
        send_train(sender, receiver.getsockname(), SIZE, pattern(sent * SIZE))

        def dealt_with() -> bool:
            port = setup.ports.statistics()[2]
            return port.tx_queue_full + port.queue_packets + port.tx_packets >= sent - 1

        wait_for(dealt_with, "every packet is queued or dropped")
        left = (time.monotonic() - begin) * rate / (8 * WIRE)  # at most, while the others came
        statistics = setup.ports.statistics()[2]
        assert statistics.queue_bytes_max == 20 * WIRE
        # One is on its way already when the queue begins to fill.
        dropped = statistics.tx_queue_full
        assert sent - 21 - left <= dropped <= sent - 21
        assert len(receive_datagrams(receiver, sent - dropped)) == sent - dropped


def test_slow_port_delays_no_other() -> None:
    with switched({2: {"rate": 20_000}}, hosts=4) as setup:
        rig, ports = setup.rig, setup.ports
        slow, slow_end = rig.udp(1), rig.udp(2)
        fast, fast_end = rig.udp(3), rig.udp(4)
        send_train(slow, slow_end.getsockname(), SIZE, pattern(60 * SIZE))  # 25 s of the rate
        wait_for(lambda: ports.statistics()[2].queue_packets > 0, "a backlog")
        for n in range(100):
            fast.sendto(b"%d" % n, fast_end.getsockname())
            assert fast_end.recv(100) == b"%d" % n
        # All hundred were there and back in the time of 40 of the slow port's.
        assert ports.statistics()[2].queue_packets > 20


def test_packets_that_never_stop_leave_room_for_others() -> None:
    with switched(hosts=3, program=partial(corpus, "replication", 512)) as setup:
        endless, sender = setup.rig.raw(3), setup.rig.raw(2)
        receiver, pipeline = setup.rig.raw(1), setup.pipeline

        def flooded() -> bool:
            for _ in range(50):
                endless.send(frame(ENDLESS))
            return pipeline.stats()["rounds_lost"] > 100

        wait_for(flooded, "more packets go round than there is room for")
        for n in range(100):
            sender.send(frame(FORWARD, 0, b"number %d" % n))
            assert receiver.recv(2048).endswith(b"number %d" % n)


def test_higher_priority_overtakes() -> None:
    with switched({2: {"rate": 2_000_000}}) as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        target = receiver.getsockname()
        place = 50
        # On a busy machine the urgent one may come when the others have left; it is never ahead of
        # them where priorities are not kept, so once is enough.
        for _ in range(20):
            sender.setsockopt(0, 1, 0)  # IP_TOS
            send_train(sender, target, SIZE, pattern(50 * SIZE))  # 0.2 s
            sender.setsockopt(0, 1, 0xE0)  # class selector 7
            sender.sendto(b"urgent", target)
            got = receive_datagrams(receiver, 51)
            assert len([one for one in got if len(one) == SIZE]) == 50
            place = got.index(b"urgent")
            if place < 45:
                break
        assert place < 45


def test_idle_ports_cost_nothing() -> None:
    with switched({2: {"rate": 1_000_000}}) as setup:
        sender, receiver = setup.rig.raw(1), setup.rig.raw(2)
        sender.send(udp_frame(1, 2, b"x" * 20))
        receiver.recv(100)
        before = time.process_time()
        time.sleep(0.3)  # what is measured is that nothing happens
        assert time.process_time() - before < 0.1
