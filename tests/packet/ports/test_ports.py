# SPDX-License-Identifier: Apache-2.0
"""Tests ports on real interfaces: packets pass unchanged, however the system batches them."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import struct
import threading

import pytest

from tests.namespaces import needs_namespaces
from tests.packet.ports.port_rig import (
    SOL_UDP,
    UDP_GRO,
    address,
    pattern,
    receive_datagrams,
    send_train,
    switched,
    udp_frame,
    wait_for,
)

pytestmark = needs_namespaces


def test_gso_in_joined_out_and_counted_as_on_the_wire() -> None:
    with switched() as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
        data = pattern(40 * 1056 + 77)
        send_train(sender, receiver.getsockname(), 1056, data)
        got = receive_datagrams(receiver, 41)
        assert [len(one) for one in got] == [1056] * 40 + [77]
        assert b"".join(got) == data
        statistics = setup.ports.statistics()
        wire = len(data) + 41 * 42  # each with its Ethernet, IPv4 and UDP header
        assert (statistics[1].rx_packets, statistics[1].rx_bytes) == (41, wire)
        assert (statistics[2].tx_packets, statistics[2].tx_bytes) == (41, wire)
        assert statistics[1].rx_frames == 1
        if statistics[2].joining:
            assert statistics[2].tx_frames < 41


def test_short_and_long_frames_keep_their_order() -> None:
    """Frames of one packet and of several are received apart, yet leave in the order they came in,
    also when they wait for a switch that was busy."""
    rounds, size, train = 40, 600, 5
    numbers = range(rounds * (train + 1))
    with switched() as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        setup.pipeline.native.sw_lock(setup.pipeline.handle)
        for n in numbers[:: train + 1]:
            sender.sendto(n.to_bytes(size, "big"), receiver.getsockname())
            several = b"".join(one.to_bytes(size, "big") for one in range(n + 1, n + 1 + train))
            send_train(sender, receiver.getsockname(), size, several)
        setup.pipeline.native.sw_unlock(setup.pipeline.handle)
        got = receive_datagrams(receiver, len(numbers))
        assert [int.from_bytes(one, "big") for one in got] == list(numbers)
        assert setup.ports.statistics()[1].rx_frames == 2 * rounds


@pytest.mark.parametrize(("mtu", "size", "count"), [(1500, 1400, 1500), (9000, 8192, 300)])
def test_a_burst_waits_for_a_busy_switch(mtu: int, size: int, count: int) -> None:
    slow = {"rate": 100_000_000, "queue_bytes": 8 << 20}  # or the receiver's buffer is too small
    with switched({2: slow}, mtu=mtu) as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        setup.pipeline.native.sw_lock(setup.pipeline.handle)
        for n in range(count):
            sender.sendto(n.to_bytes(size, "big"), receiver.getsockname())
        setup.pipeline.native.sw_unlock(setup.pipeline.handle)
        got = receive_datagrams(receiver, count)
        assert [int.from_bytes(one, "big") for one in got] == list(range(count))
        assert setup.ports.statistics()[1].rx_overrun == 0


def test_forced_plain_path_delivers_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACKHUB_PLAIN", "1")
    with switched() as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        data = pattern(30 * 900 + 5)
        send_train(sender, receiver.getsockname(), 900, data)
        assert b"".join(receive_datagrams(receiver, 31)) == data
        statistics = setup.ports.statistics()[2]
        assert not statistics.joining
        assert statistics.tx_frames == statistics.tx_packets == 31


@pytest.mark.parametrize("plain", [False, True])
def test_tcp_bulk_arrives_intact(plain: bool) -> None:
    with switched(plain=plain) as setup:
        rig, ports = setup.rig, setup.ports
        listener = rig.hosts[2].socket(socket.AF_INET, socket.SOCK_STREAM)
        rig.hosts[2].run(lambda: listener.bind((address(2), 0)))
        listener.listen()
        client = rig.hosts[1].socket(socket.AF_INET, socket.SOCK_STREAM)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        data = os.urandom(1 << 20) * 8
        with client, server:
            thread = threading.Thread(target=lambda: (client.sendall(data), client.close()))
            thread.start()
            digest = hashlib.sha256()
            while piece := server.recv(1 << 20):
                digest.update(piece)
            thread.join()
        assert digest.digest() == hashlib.sha256(data).digest()
        statistics = ports.statistics()
        assert statistics[1].rx_bad_offload == 0
        assert statistics[1].rx_frames < statistics[1].rx_packets  # TSO frames came in
        if plain:
            assert statistics[2].tx_frames == statistics[2].tx_packets
        elif statistics[2].joining:
            assert statistics[2].tx_frames < statistics[2].tx_packets


def test_joining_changes_nothing_on_the_wire() -> None:
    with switched({2: {"rate": 100_000_000}}) as setup:
        if not setup.ports.statistics()[2].joining:
            pytest.skip("no GSO here")
        # Without offloads the kernel takes joined frames apart before they reach the host.
        setup.rig.switch.command("ethtool", "-K", "s2", "tx", "off", "gso", "off")
        sender, receiver = setup.rig.raw(1), setup.rig.raw(2)
        frames = [
            udp_frame(
                1,
                2,
                pattern(100 if n == 40 else 500),  # a shorter one ends a run
                number=n + (7 if n >= 20 else 0),  # so does an identification that jumps
                summed=n % 3 > 0,
                ttl=64 if n < 50 else 63,
            )
            for n in range(60)
        ]
        frames.append(frames[-1][:-1] + b"!")  # its checksum is wrong now, and has to stay so
        for frame in frames:
            sender.send(frame)
        for n, frame in enumerate(frames):
            got = receiver.recv(2048)
            if frame[40:42] == bytes(2) and got[40:42] != bytes(2):
                right = udp_frame(1, 2, frame[42:])
                assert got[40:42] == right[40:42], n
                got = got[:40] + bytes(2) + got[42:]
            assert got == frame, n
        statistics = setup.ports.statistics()[2]
        assert statistics.tx_packets == len(frames)
        assert statistics.tx_frames < len(frames) / 2


@pytest.mark.parametrize("join", [False, True])
def test_packets_above_the_mtu_are_counted_and_dropped(join: bool) -> None:
    with switched({2: {"join": join}}) as setup:
        setup.rig.switch.ip("link set s2 mtu 600")
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        target = receiver.getsockname()
        send_train(sender, target, 1000, pattern(20 * 1000))
        wait_for(lambda: setup.ports.statistics()[2].tx_oversized == 20, "20 drops")
        sender.sendto(b"small enough", target)
        assert receiver.recv(100) == b"small enough"


def test_vlan_tag_survives() -> None:
    with switched() as setup:
        sender, receiver = setup.rig.raw(1), setup.rig.raw(2, offloads=True)
        plain = udp_frame(1, 2, pattern(300))
        tagged = plain[:12] + struct.pack("!2H", 0x8100, 0x6005) + plain[12:]
        sender.send(tagged)
        wait_for(lambda: setup.ports.statistics()[2].tx_packets == 1, "one packet")
        # The receiving kernel takes the tag out of the frame again.
        assert receiver.recv(2048)[10:] == plain
        assert setup.ports.statistics()[2].tx_bytes == len(tagged)


def test_lying_offload_headers_do_no_harm() -> None:
    with switched() as setup:
        sender = setup.rig.raw(1, offloads=True)
        randomly = random.Random(5)
        frame = udp_frame(1, 2, pattern(1400))
        refused = 0
        for _ in range(400):
            kind = randomly.choice([0, 1, 3, 4, 5, 5, 0x81, 0x85])
            header = struct.pack(
                "=2B4H",
                randomly.choice([0, 1, 2]),
                kind,
                randomly.choice([0, 14, 42, 60, 1400, 65535]),
                randomly.choice([0, 1, 7, 20, 536, 1400, 40000]),
                randomly.choice([0, 14, 34, 40, 1440, 60000]),
                randomly.choice([0, 6, 16, 1400, 65535]),
            )
            cut = frame[: randomly.choice([20, 34, 40, 42, 50, len(frame)])]
            try:
                sender.send(header + cut)
            except OSError:  # the sending kernel would not have it either
                refused += 1
        assert refused < 400
        udp, receiver = setup.rig.udp(1), setup.rig.udp(2)
        udp.sendto(b"still here", receiver.getsockname())
        assert receiver.recv(100) == b"still here"
