# SPDX-License-Identifier: GPL-2.0-only
"""Tests that memory does not grow with packets, in process with a working controller and on
interfaces.

RACKHUB_PACKETS says how many; 10^7 with `make soak`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.p4rt.entries import bare, deletion, insertion, multicast_group
from tests.namespaces import needs_namespaces
from tests.packet.node.node_rig import inner, lanes, two_workers
from tests.packet.ports.flow_rig import plant
from tests.packet.ports.port_rig import SOL_UDP, UDP_GRO, pattern, receive_datagrams, send_train
from tests.packet.targets import InProcess

pytestmark = pytest.mark.timeout(3600)

IN_PROCESS = int(os.environ.get("RACKHUB_PACKETS", "200000"))
ON_INTERFACES = int(os.environ.get("RACKHUB_PACKETS", "100000"))
BATCH, BATCHES = 500, 10  # frames at once; times, then the controller's turn
SAMPLES = 10
# What Python's and C's heaps may be off by; a byte for each of 10^7 packets would be more.
SLACK = 4 << 20


def resident() -> int:
    """Bytes of memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sampled(count: int, some: Callable[[], int], used: Callable[[], int]) -> Iterator[int]:
    """Bytes in use after every tenth of `count` packets; some() lets some through."""
    done = 0
    for sample in range(1, SAMPLES + 1):
        while done < count * sample // SAMPLES:
            done += some()
        yield used()


def check(samples: list[int]) -> None:
    """The first tenth is for caches and pools to fill."""
    assert max(samples[1:]) - samples[1] < SLACK, samples


def test_in_process_with_a_controller_at_work() -> None:
    target = InProcess("aggregation")
    draw = random.Random(3)
    nodes = [two_workers(target), inner(target)]
    frames, ports = [], []
    for number in range(BATCH):
        node = nodes[number % 2]
        child = node.children[number // 2 % 2]
        packet = bytes(node.contribution(child, lanes(number), seq=number // 4, chunk=number // 4))
        if number % 5 == 4:  # spoilt
            spoilt = bytearray(packet)
            spoilt[draw.randrange(12, 60)] ^= 1 << draw.randrange(8)
            packet = bytes(spoilt[: draw.randrange(1, len(spoilt))])
        frames.append(packet)
        ports.append(child.port)
    pipeline = target.device.pipeline
    assert pipeline is not None
    info = target.plane.p4info
    counters = info.counter_entry("outcomes")
    act = {"port": 3, "mac": 3}
    routes = [
        info.table_entry("forwarding.routes", {"destination": (n << 8, 24)}, "forward", act)
        for n in range(50)
    ]
    group = multicast_group(60000, [(1, 1), (2, 2)])

    def some() -> int:
        for _ in range(BATCHES):
            pipeline.inject_batch(ports, frames)
        target.connection.write([insertion(one) for one in (*routes, group)])
        assert target.connection.read([counters])
        target.connection.write([deletion(bare(one)) for one in (*routes, group)])
        return BATCHES * BATCH

    check(list(sampled(IN_PROCESS, some, resident)))
    target.close()


@needs_namespaces
def test_on_interfaces() -> None:
    with plant() as made:
        sender, receiver = made.rig.udp(1), made.rig.udp(2)
        receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
        data = pattern(50 * 1000)

        def some() -> int:
            send_train(sender, receiver.getsockname(), 1000, data)
            return len(receive_datagrams(receiver, 50))

        check(list(sampled(ON_INTERFACES, some, made.resident)))
        counters = made.counters()
        assert counters[2]["tx_packets"] >= ON_INTERFACES
        assert made.process.poll() is None
