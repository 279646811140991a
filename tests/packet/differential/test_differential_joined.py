# SPDX-License-Identifier: GPL-2.0-only
"""Compares GSO frames in and joined frames out with BMv2, packet by packet."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import pytest

from switch.ports import PortOptions, Ports
from tests.namespaces import needs_namespaces
from tests.packet.differential import recordings
from tests.packet.differential.aggregation import trains
from tests.packet.differential.case import (
    Answer,
    Case,
    Embedded,
    by_port,
    differences,
    read_counters,
)
from tests.packet.ports.port_rig import Rig, checksum

pytestmark = needs_namespaces

HOSTS, HEADERS = 4, 42  # Ethernet, IPv4, UDP
NEEDS_CSUM, UDP_L4 = 1, 5  # struct virtio_net_hdr


def pseudo(frame: bytes, length: int) -> bytes:
    """What a UDP checksum covers besides the datagram."""
    return frame[26:34] + struct.pack("!2H", 17, length)


def joined(frames: list[bytes]) -> bytes:
    """A GSO frame of packets of one flow, behind the header of a packet socket."""
    payload = b"".join(one[HEADERS:] for one in frames)
    first, length = frames[0], 8 + len(payload)
    ip = first[14:16] + struct.pack("!H", 20 + length) + first[18:24] + bytes(2) + first[26:34]
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    partial = ~checksum(pseudo(first, length)) & 0xFFFF
    udp = first[34:38] + struct.pack("!2H", length, partial)
    size = len(first) - HEADERS
    header = struct.pack("=2B4H", NEEDS_CSUM, UDP_L4, HEADERS, size, 34, 6)
    return header + first[:14] + ip + udp + payload


def without_checksum(frame: bytes) -> bytes:
    """A UDP checksum of 0 may become the right one where packets are joined: both are 0 here."""
    datagram = frame[34:40] + bytes(2) + frame[42:]
    right = checksum(pseudo(frame, len(datagram)) + datagram) or 0xFFFF
    assert struct.unpack("!H", frame[40:42])[0] in (0, right)
    return frame[:40] + bytes(2) + frame[42:]


@contextlib.contextmanager
def on_interfaces(target: Embedded, join: bool) -> Iterator[tuple[Rig, Ports]]:
    rig = Rig(HOSTS)
    pipeline = target.device.pipeline
    options = {n: PortOptions(f"s{n}", join=join) for n in rig.hosts}
    ports = Ports(pipeline, options)
    try:
        rig.switch.run(ports.start)
        yield rig, ports
    finally:
        ports.stop()
        rig.close()


def exchange(case: Case, rig: Rig, join: bool, expected: Answer) -> Answer:
    """Sends the packets, run by run; what comes back, as if each had come of the run's last."""
    senders = {n: rig.raw(n, offloads=True) for n in rig.hosts}
    receivers: dict[int, socket.socket] = {n: rig.raw(n) for n in rig.hosts}
    answer, at = Answer(), 0
    for port, run in groupby(case.arrivals, key=lambda one: one[0]):
        frames = [frame for _, frame in run]
        for i in range(0, len(frames), 8):
            part = frames[i : i + 8]
            packets = [joined(part)] if join else [bytes(10) + one for one in part]
            for packet in packets:
                senders[port].send(packet)
        wanted = [out for one in expected.outputs[at : at + len(frames)] for out, _ in one]
        found = [(out, receivers[out].recv(4096)) for out in sorted(wanted)]
        answer.outputs += [[]] * (len(frames) - 1) + [found]
        at += len(frames)
    return answer


def by_run(case: Case, answer: Answer) -> Answer:
    """The same with all outputs of a run at its last packet."""
    outputs, at = [], 0
    for _, run in groupby(case.arrivals, key=lambda one: one[0]):
        count = len(list(run))
        together = [one for some in answer.outputs[at : at + count] for one in some]
        outputs += [[]] * (count - 1) + [by_port(together)]
        at += count
    return replace(answer, outputs=outputs)


@pytest.mark.parametrize("join", [False, True])
def test_trains_equal_their_packets(join: bool) -> None:
    case = trains()
    recorded = recordings.read(case)
    target = Embedded(case)
    try:
        with on_interfaces(target, join) as (rig, ports):
            if join and not ports.statistics()[1].joining:
                pytest.skip("no GSO here")
            for n in rig.hosts:  # the kernel takes joined frames apart before they reach the host
                rig.switch.command("ethtool", "-K", f"s{n}", "tx", "off", "gso", "off")
            answer = exchange(case, rig, join, recorded)
            statistics = ports.statistics()
        read_counters(case, target.connection, answer)
        answer.registers = target.registers()
    finally:
        target.close()
    for one in (answer, recorded):
        one.outputs = [[(port, without_checksum(f)) for port, f in some] for some in one.outputs]
    assert not differences(case, answer, by_run(case, recorded))
    assert (statistics[1].tx_frames < statistics[1].tx_packets) == join
    assert (statistics[1].rx_frames < statistics[1].rx_packets) == join
