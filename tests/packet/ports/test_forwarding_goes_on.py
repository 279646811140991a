# SPDX-License-Identifier: Apache-2.0
"""Tests that a switch process keeps forwarding a flow under hostile hosts and controllers,
reports clear errors, and stops cleanly."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from tests.namespaces import needs_namespaces
from tests.packet.p4runtime.p4rt_support import (
    DELETE,
    INFO,
    INSERT,
    JSON_PATH,
    MODIFY,
    P4,
    action,
    entry,
    lpm,
)
from tests.packet.p4runtime.p4rt_targets import ROOT
from tests.packet.ports.flow_rig import Flow, Plant, Primary, plant
from tests.packet.ports.port_rig import pattern, udp_frame

pytestmark = needs_namespaces

UDP_L4, TCPV4, TCPV6, ECN = 5, 1, 4, 0x80
FRAMES = [udp_frame(3, n, pattern(size)) for n in (1, 2) for size in (10, 1400, 9000, 60000)]
LONGEST = udp_frame(3, 2, pattern(65000))


@pytest.fixture(scope="module")
def running() -> Iterator[Plant]:
    with plant() as made:
        yield made


def routes(first: int, count: int, port: int = 4) -> list[p4rt.TableEntry]:
    act = action("forward", port=port)
    return [entry("routes", {"source": lpm(n << 16, 32)}, act) for n in range(first, first + count)]


def offload_header(draw: random.Random) -> bytes:
    """A struct virtio_net_hdr that seldom fits its frame."""
    return struct.pack(
        "=2B4H",
        draw.choice([0, 1, 1, 1, 2]),
        draw.choice([0, 0, TCPV4, 3, TCPV6, UDP_L4, UDP_L4, TCPV4 | ECN, UDP_L4 | ECN]),
        draw.choice([0, 14, 42, 54, 60, 1400, 65535]),
        draw.choice([0, 1, 7, 8, 20, 536, 1400, 40000, 65535]),
        draw.choice([0, 14, 34, 34, 34, 40, 1440, 60000]),
        draw.choice([0, 6, 6, 16, 1400, 65535]),
    )


def lying_frame(draw: random.Random) -> bytes:
    """UDP, TCP or IPv6 for host 1 or 2, with a field that is not true, and any length."""
    frame = bytearray(draw.choice(FRAMES))
    if draw.random() < 0.4:
        frame[23] = 6
        frame[46] = draw.randrange(16) << 4
    if draw.random() < 0.2:
        frame[12:15] = b"\x86\xdd\x60"
        frame[20] = draw.choice([6, 17])
    for _ in range(draw.choice([0, 1, 2])):
        frame[draw.randrange(12, 50)] = draw.choice([0, 255, draw.randrange(256)])
    if draw.random() < 0.2:
        frame[12:12] = struct.pack("!2H", 0x8100, draw.randrange(1 << 16))
    if draw.random() < 0.3:
        del frame[draw.choice([1, 13, 14, 20, 34, 42, 50]) :]
    return bytes(frame)


def test_malformed_frames_are_harmless(running: Plant) -> None:
    draw = random.Random(11)
    rig = running.rig
    for name, place in (("s3", rig.switch), ("eth0", rig.hosts[3])):
        place.ip(f"link set {name} mtu 65535")
    seen: Counter[str] = Counter()
    before = running.counters()
    with Flow(rig) as flow, rig.raw(3, offloads=True) as lying, rig.raw(3) as plain:
        for n in range(1500):
            try:
                lying.send(offload_header(draw) + lying_frame(draw))
                seen["lying"] += 1
            except OSError:  # the kernel of the sender would not have it either
                seen["refused"] += 1
            if n % 10 == 0:
                size = draw.choice([1, 13, 14, 60, 1514, 16384, 16385, 65535])
                try:
                    plain.send(LONGEST[:size])
                    seen["sizes"] += 1
                except OSError:
                    seen["refused"] += 1
            if n % 250 == 0:
                flow.goes_on()
        flow.goes_on()
    counters = running.counters()
    assert seen["lying"] > 150, seen
    assert seen["sizes"] > 100, seen
    # How many get as far as the switch, and joined or not, is the sending kernel's choice.
    assert counters[3]["rx_frames"] > before[3]["rx_frames"] + 200
    assert sum(counters[n]["tx_oversized"] - before[n]["tx_oversized"] for n in (1, 2)) > 0
    assert counters[2]["tx_errors"] == 0
    assert running.process.poll() is None


def noise(draw: random.Random) -> bytes:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\0\4\0\0\0\0\0"
    length = draw.choice([0, 9, 100, 0xFFFFFF])
    head = length.to_bytes(3, "big") + bytes([draw.randrange(12), draw.randrange(256)])
    frame = head + draw.randbytes(4) + draw.randbytes(min(length, 2000))
    return draw.choice(
        [b"", draw.randbytes(300), preface, preface + settings, preface + settings + frame, frame]
    )


def test_noise_on_controller_socket(running: Plant) -> None:
    draw = random.Random(12)
    path = running.address.removeprefix("unix:")
    with Flow(running.rig) as flow:
        for n in range(300):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(path)
                try:
                    for _ in range(draw.choice([1, 2, 5])):
                        one.sendall(noise(draw))
                except OSError:
                    continue  # it hung up, as it should
            if n % 50 == 0:
                flow.goes_on()
        running.controller.write(*((INSERT, one) for one in routes(1, 2)))
        assert len(running.controller.read(entry("routes"))) == 2
        running.controller.write(*((DELETE, one) for one in routes(1, 2)))
        flow.goes_on()


def bad_programs() -> dict[str, bytes]:
    good = JSON_PATH.read_bytes()
    endless = json.loads(good)
    endless["register_arrays"][0]["size"] = 1 << 61
    unknown = json.loads(good)
    unknown["pipelines"][0]["init_table"] = "nowhere"
    return {
        "no JSON": b"\x00\xff\xfe garbage",
        "half": good[: len(good) // 2],
        "brackets": b"[" * 200_000,
        "a list": b"[1, 2]",
        "nothing in it": b"{}",
        "no end of cells": json.dumps(endless).encode(),
        "a table that is not there": json.dumps(unknown).encode(),
        "another program's": (P4 / "state.json").read_bytes(),
    }


def test_programs_that_are_none_are_refused_with_a_reason(running: Plant) -> None:
    controller = running.controller
    with Flow(running.rig) as flow:
        for name, program in bad_programs().items():
            with pytest.raises(grpc.RpcError) as refused:
                controller.push(
                    p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=program)
                )
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, name
            assert refused.value.details(), name
            flow.goes_on()
        other = p4rt.ForwardingPipelineConfig(p4info=INFO, p4_device_config=JSON_PATH.read_bytes())
        other.p4info.tables[0].match_fields[0].bitwidth = 32
        with pytest.raises(grpc.RpcError) as refused:
            controller.push(other)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "width is 32 in the P4Info" in refused.value.details()
        flow.goes_on()


def test_entries_change_while_packets_flow(running: Plant) -> None:
    controller = running.controller
    with Flow(running.rig) as flow:
        for n in range(2):
            some = routes(1 + 300 * n, 300)
            controller.write(*((INSERT, one) for one in some))
            flow.goes_on()
            controller.write(*((MODIFY, one) for one in routes(1 + 300 * n, 300, 5)))
            assert len(controller.read(entry("routes"))) == 300
            controller.write(*((DELETE, one) for one in some))
            with pytest.raises(grpc.RpcError) as refused:
                controller.write(*((DELETE, one) for one in some))
            assert refused.value.code() == grpc.StatusCode.UNKNOWN
            # Too many for an error each; what can be said of them is.
            assert "300 of 300" in refused.value.details()
            assert "element 0: NOT_FOUND: " in refused.value.details()
        assert controller.read(entry("routes")) == []
        flow.goes_on()


# Writes batches of five hundred for ever; says a line before each.
VANISHING = """
import sys
from tests.packet.ports.flow_rig import Primary
from tests.packet.p4runtime.p4rt_support import DELETE, INSERT
from tests.packet.ports.test_forwarding_goes_on import routes
controller = Primary(sys.argv[1], (0, int(sys.argv[2])))
entries = routes(1, 500)
while True:
    for kind in (INSERT, DELETE):
        print("batch", flush=True)
        controller.write(*((kind, one) for one in entries))
"""


def test_controller_disconnect_during_batch(running: Plant) -> None:
    """Of its last batch all stands or nothing; another controller takes over."""
    with Flow(running.rig) as flow:
        for n in range(2):
            with subprocess.Popen(
                [sys.executable, "-c", VANISHING, running.address, str(10 + 2 * n)],
                cwd=ROOT, stdout=subprocess.PIPE, text=True,
            ) as vanishing:  # fmt: skip
                assert vanishing.stdout is not None
                for _ in range(1 + n):
                    assert vanishing.stdout.readline() == "batch\n"
                time.sleep(0.004 * n)  # any moment of the batch will do
                vanishing.kill()
            flow.goes_on()
            successor = Primary(running.address, (0, 11 + 2 * n))
            try:
                left = successor.read(entry("routes"))
                assert len(left) in (0, 500)
                if left:
                    successor.write(*((DELETE, one) for one in left))
                successor.write(*((INSERT, one) for one in routes(5000, 2)))
                successor.write(*((DELETE, one) for one in routes(5000, 2)))
            finally:
                successor.close()
            flow.goes_on()


def test_counters_are_logged_at_exit(running: Plant) -> None:
    """The last test of this switch."""
    with Flow(running.rig) as flow:
        flow.goes_on()
    counters = running.counters()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    log = running.log.read_text()
    for port in (1, 2, 3):
        [line] = [one for one in log.splitlines() if f" port {port}: " in one]
        result = dict(word.split("=") for word in line.split(f" port {port}: ")[1].split())
        for name in ("rx_packets", "tx_packets", "rx_bytes"):
            assert int(result.get(name, "0")) == counters[port][name], (port, name)
    assert "program: received=" in log
    assert "Traceback" not in log
