# SPDX-License-Identifier: Apache-2.0
"""Tests the life cycle of ports: interfaces that come and go, program changes, the CPU port,
captures, errors."""

from __future__ import annotations

import ctypes
import logging
import queue
import socket
import struct
from pathlib import Path

import pytest

from switch.ports import NoPermission, NoSuchInterface, PortOptions, Ports, PortsError
from tests.namespaces import needs_namespaces
from tests.packet.ports.flow_rig import Flow
from tests.packet.ports.port_rig import (
    CPU_PORT,
    DISCARD,
    PATIENCE,
    Namespace,
    address,
    checksum,
    pattern,
    receive_datagrams,
    send_train,
    switched,
    udp_frame,
    wait_for,
    wired,
)

pytestmark = needs_namespaces


def test_lost_interface_stops_no_other_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "switch.ports")
    with switched(hosts=4) as setup:
        rig, ports = setup.rig, setup.ports
        rig.switch.ip("link del s2")
        wait_for(lambda: not ports.statistics()[2].present, "port 2 notices")
        rig.udp(1).sendto(b"lost", (address(2), 5000))
        wait_for(lambda: ports.statistics()[2].tx_down == 1, "a packet without a receiver")
        sender, receiver = rig.udp(3), rig.udp(4)
        sender.sendto(b"others go on", receiver.getsockname())
        assert receiver.recv(100) == b"others go on"

        rig.link(2, rig.hosts[2])
        rig.hosts[2].ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0")
        wait_for(lambda: ports.statistics()[2].present, "port 2 is back")
        sender, receiver = rig.udp(1), rig.udp(2)
        receiver.settimeout(0.05)

        def arrives() -> bool:
            sender.sendto(b"again", receiver.getsockname())
            try:
                return receiver.recv(100) == b"again"
            except TimeoutError:
                return False

        wait_for(arrives, "traffic through the new interface")
        assert "port 2 (s2) lost its interface" in caplog.text
        # Lines of the packet threads reach the log a moment later.
        wait_for(lambda: "port 2 (s2) is back" in caplog.text, "the log says so")


def test_news_of_an_interface_without_its_mtu_leave_the_mtu_as_it_was() -> None:
    """Wireless drivers send such; here it is root who tells it to who listens."""
    newlink, route, link_group = 16, 0, 1
    with switched(hosts=4) as setup:
        rig, ports = setup.rig, setup.ports

        def tell() -> None:
            listeners = []
            for line in Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:]:
                _, protocol, number, groups, *_ = line.split()
                if int(protocol) == route and int(groups, 16) & link_group:
                    listeners.append(int(number))
            info = struct.pack("BxHiII", 0, 1, socket.if_nametoindex("s2"), 0, 0)
            message = struct.pack("IHHII", 16 + len(info), newlink, 0, 0, 0) + info
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, route) as news:
                for number in listeners:
                    news.sendto(message, (number, 0))
            assert listeners

        rig.switch.run(tell)
        rig.switch.ip("link del s4")  # reported behind it, to the same listener
        wait_for(lambda: not ports.statistics()[4].present, "port 4 notices")
        send_train(rig.udp(1), (address(2), 5000), 100, pattern(20 * 100))
        wait_for(lambda: ports.statistics()[2].tx_packets == 20, "20 packets")
        assert ports.statistics()[2].tx_frames < 20  # they are joined as ever


def test_interface_that_moves_away_and_back_and_one_of_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Into another namespace and back, twice; then it is gone, and another takes its name."""
    caplog.set_level(logging.INFO, "switch.ports")
    with switched(hosts=4) as setup:
        rig, ports = setup.rig, setup.ports
        with Flow(rig, 3, 4) as others:
            for n in range(2):
                rig.switch.ip(f"link set s2 netns {rig.hosts[3].id}")
                wait_for(lambda: not ports.statistics()[2].present, "port 2 notices")
                others.goes_on()
                # While it is away others take its number and more.
                rig.switch.ip(f"link add taken{n} type veth peer name peer{n}")
                rig.hosts[3].ip(f"link set s2 netns {rig.switch.id}")
                wait_for(lambda: ports.statistics()[2].present, "port 2 is back")
                others.goes_on()
                rig.switch.ip("link set s2 up")
                wait_for(lambda: rig.switch.sends("s2"), "s2 sends")
                with Flow(rig, 1, 2) as through:
                    through.goes_on()
            rig.switch.ip("link del s2")
            wait_for(lambda: not ports.statistics()[2].present, "port 2 notices again")
            rig.switch.ip("link add s2 type veth peer name far")  # of the same name, and down
            wait_for(lambda: ports.statistics()[2].present, "port 2 has the other")
            rig.switch.ip("link del s2")
            wait_for(lambda: not ports.statistics()[2].present, "and lost it")
            rig.link(2, rig.hosts[2])
            rig.hosts[2].ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0")
            wait_for(lambda: ports.statistics()[2].present, "port 2 is back again")
            with Flow(rig, 1, 2) as through:
                through.goes_on()
            others.goes_on()
        assert caplog.text.count("port 2 (s2) lost its interface") == 4
        assert caplog.text.count("port 2 (s2) is back") == 4


def test_another_program_under_running_ports() -> None:
    with switched() as setup:
        rig, ports = setup.rig, setup.ports
        sender, receiver = rig.udp(1), rig.udp(2)
        ports.attach(None)
        sender.sendto(b"dropped", receiver.getsockname())
        wait_for(lambda: ports.statistics()[1].rx_no_program == 1, "a packet without a program")
        other = wired()
        try:
            ports.attach(other)
            sender.sendto(b"forwarded", receiver.getsockname())
            assert receiver.recv(100) == b"forwarded"
            assert ports.statistics()[1].rx_packets == 2
            assert other.stats()["received"] == 1
        finally:
            ports.attach(None)
            other.close()


def test_cpu_port() -> None:
    seen: queue.Queue[bytes] = queue.Queue()
    with switched(cpu_port=CPU_PORT, on_packet_in=seen.put) as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        sender.sendto(b"for the controller", (address(2), DISCARD))
        frame = seen.get(timeout=PATIENCE)
        assert frame[42:] == b"for the controller"
        out = udp_frame(1, 2, b"from the controller", port=receiver.getsockname()[1])
        setup.ports.packet_out(out)
        assert receiver.recv(100) == b"from the controller"
        statistics = setup.ports.statistics()[CPU_PORT]
        assert (statistics.rx_packets, statistics.rx_bytes) == (1, len(out))
        assert (statistics.tx_packets, statistics.tx_bytes) == (1, len(frame))
    with pytest.raises(PortsError, match="stopped"):
        setup.ports.packet_out(out)


def records(path: Path) -> list[tuple[int, bytes]]:
    """(nanoseconds, packet) of a pcap file."""
    data = path.read_bytes()
    magic, *_, link_type = struct.unpack("=I2H4I", data[:24])
    assert (magic, link_type) == (0xA1B23C4D, 1)  # nanoseconds; Ethernet
    found, at = [], 24
    while at < len(data):
        seconds, nanoseconds, kept, length = struct.unpack("=4I", data[at : at + 16])
        assert kept == length
        found.append((seconds * 10**9 + nanoseconds, data[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return found


def test_captures_have_each_packet_as_on_the_wire(tmp_path: Path) -> None:
    with switched(pcap_dir=tmp_path) as setup:
        sender, receiver = setup.rig.udp(1), setup.rig.udp(2)
        send_train(sender, receiver.getsockname(), 700, pattern(10 * 700 + 1))
        receive_datagrams(receiver, 11)
    arrived, left = records(tmp_path / "s1_in.pcap"), records(tmp_path / "s2_out.pcap")
    packets = [one for _, one in arrived]
    assert [one for _, one in left] == packets
    assert [len(one) for one in packets] == [742] * 10 + [43]
    ids = [struct.unpack("!H", one[18:20])[0] for one in packets]
    assert ids == [(ids[0] + n) % 65536 for n in range(11)]
    for one in packets:
        ip, udp = one[14:34], one[34:]
        assert struct.unpack("!H", ip[2:4])[0] == len(one) - 14
        assert checksum(ip) == 0
        assert struct.unpack("!H", udp[4:6])[0] == len(udp)
        assert udp[6:8] != bytes(2)
        assert checksum(ip[12:] + struct.pack("!2H", 17, len(udp)) + udp) == 0
    times = [time for time, _ in arrived + left]
    assert max(times) - min(times) < 10**9
    assert records(tmp_path / "s1_out.pcap") == records(tmp_path / "s2_in.pcap") == []


def test_interface_that_does_not_exist() -> None:
    place = Namespace()
    ports = Ports(None, {3: PortOptions("nothing0")})
    with pytest.raises(NoSuchInterface, match=r"port 3 \(nothing0\)"):
        place.run(ports.start)
    place.close()


def test_no_permission_for_raw_sockets() -> None:
    place = Namespace()
    place.ip("link add s1 type veth peer name s2")
    # Capabilities belong to threads: this one loses all of its own.
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert place.run(lambda: ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())) == 0
    ports = Ports(None, {1: PortOptions("s1", join=False)})
    with pytest.raises(NoPermission, match="CAP_NET_RAW"):
        place.run(ports.start)
    place.close()
