# SPDX-License-Identifier: Apache-2.0
"""Tests the traffic manager: order, bounds and pace of queues, without interfaces or clock."""

from __future__ import annotations

import ctypes

import pytest

from switch.ports.interfaces import load_driver

SECOND = 10**9


class Packet(ctypes.Structure):
    """struct sw_packet of runtime/target.h."""

    _fields_ = [
        ("next", ctypes.c_void_p),
        ("port", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
        ("length", ctypes.c_uint32),
        ("enq_qdepth", ctypes.c_uint32),
        ("deq_qdepth", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("enq_us", ctypes.c_uint64),
        ("tm", ctypes.c_void_p),
    ]


FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Queue:
    """One port, number 1, of a traffic manager; packets have names."""

    def __init__(
        self, limit: int = 1 << 20, rate: int = 0, pool: int = 100, deepest: int = 0
    ) -> None:
        self.native = load_driver()
        self.native.tm_dequeue.restype = ctypes.c_void_p
        self.native.tm_enqueue.restype = ctypes.c_void_p
        self.native.tm_ready_ns.restype = ctypes.c_uint64
        self.memory = (ctypes.c_uint64 * 1024)()  # struct traffic_manager
        self.port = (ctypes.c_uint64 * 64)()  # struct tm_port
        self.packets: dict[str, Packet] = {}
        self.freed: list[str] = []
        self.free = FREE(lambda _, packet: self.freed.append(self.name(packet)))
        self.native.tm_init(self.memory, None, pool, self.free)
        self.native.tm_port_init(self.port, ctypes.c_uint64(limit), deepest, ctypes.c_uint64(rate))
        self.memory[1] = ctypes.addressof(self.port)  # ports[1]

    def name(self, at: int) -> str:
        return next(name for name, one in self.packets.items() if ctypes.addressof(one) == at)

    def put(
        self, name: str, length: int = 100, priority: int = 0, port: int = 1, now: int = 0
    ) -> bool:
        packet = self.packets[name] = Packet(port=port, priority=priority, length=length)
        micro = ctypes.c_uint64(now // 1000)
        return bool(self.native.tm_enqueue(self.memory, ctypes.byref(packet), micro))

    def get(self) -> str | None:
        at = self.native.tm_dequeue(self.memory, self.port)
        return self.name(at) if at else None

    def get_all(self) -> list[str]:
        return list(iter(self.get, None))

    def ready(self) -> int:
        return int(self.native.tm_ready_ns(self.port))

    def charge(self, length: int, now: int) -> None:
        self.native.tm_charge(self.memory, self.port, length, ctypes.c_uint64(now))


def test_first_in_first_out_with_depths_as_simple_switch_counts_them() -> None:
    queue = Queue()
    for name in "abc":
        assert queue.put(name)
    assert [queue.packets[name].enq_qdepth for name in "abc"] == [0, 1, 2]
    assert queue.get_all() == ["a", "b", "c"]
    assert [queue.packets[name].deq_qdepth for name in "abc"] == [2, 1, 0]


def test_depths_and_limits_are_of_one_priority() -> None:
    # As in BMv2's QueueingLogicPriRL: each priority has its own size and capacity, and a full one
    # takes nothing from another.
    queue = Queue(deepest=2)
    assert [queue.put(f"low{n}") for n in range(3)] == [True, True, False]
    assert [queue.put(f"high{n}", priority=1) for n in range(3)] == [True, True, False]
    assert queue.freed == ["low2", "high2"]
    assert [queue.packets[f"high{n}"].enq_qdepth for n in range(2)] == [0, 1]
    assert queue.get_all() == ["high0", "high1", "low0", "low1"]
    assert [queue.packets[f"high{n}"].deq_qdepth for n in range(2)] == [1, 0]
    assert queue.packets["low0"].deq_qdepth == 1


def test_seven_goes_first_and_zero_last() -> None:
    queue = Queue()
    for name, priority in [("a", 0), ("b", 7), ("c", 3), ("d", 7), ("e", 0), ("f", 9)]:
        assert queue.put(name, priority=priority)
    assert queue.get_all() == ["b", "d", "f", "c", "a", "e"]


def test_full_queue_drops_what_arrives() -> None:
    queue = Queue(limit=250)
    assert [queue.put(name) for name in "abc"] == [True, True, False]
    assert queue.freed == ["c"]
    assert queue.put("small", length=50)
    assert queue.get_all() == ["a", "b", "small"]
    assert not queue.put("never fits", length=251)


def test_higher_priority_takes_the_place_of_the_latest_lower() -> None:
    queue = Queue(limit=300)
    for name in "abc":
        assert queue.put(name)
    assert queue.put("urgent", priority=5)
    assert queue.freed == ["c"]
    # What would not fit even then displaces nothing.
    assert not queue.put("too long", length=250, priority=5)
    assert queue.freed == ["c", "too long"]
    assert queue.get_all() == ["urgent", "a", "b"]


def test_one_port_leaves_packets_of_the_pool_to_others() -> None:
    queue = Queue(pool=20)
    taken = [queue.put(str(n)) for n in range(20)]
    assert taken == [True] * 10 + [False] * 10


def test_packet_for_a_port_that_does_not_exist_is_freed() -> None:
    queue = Queue()
    assert not queue.put("a", port=2)
    assert not queue.put("b", port=600)
    assert queue.freed == ["a", "b"]


@pytest.fixture
def paced() -> Queue:
    return Queue(rate=8_000_000)  # 1 byte a microsecond


def test_a_packet_has_left_when_its_last_bit_has(paced: Queue) -> None:
    now = SECOND
    for name in "abcd":
        paced.put(name, now=now)
    # One is on the line at once, the others wait behind each other.
    assert [paced.packets[name].enq_qdepth for name in "abcd"] == [0, 0, 1, 2]
    assert paced.ready() == now + 100_000
    # Served late, it keeps its schedule ...
    now += 150_000
    assert paced.get() == "a"
    paced.charge(100, now)
    assert paced.ready() == SECOND + 200_000
    # ... by the bytes that egress has made of it, ...
    assert paced.get() == "b"
    paced.charge(1000, now)
    assert paced.ready() == SECOND + 1_200_000
    # ... but does not save up time for more than 10 ms of it.
    now += SECOND
    assert paced.get() == "c"
    paced.charge(100, now)
    assert paced.ready() == now - 10_000_000 + 100_000


def test_idle_time_gives_no_credit(paced: Queue) -> None:
    for now in (SECOND, 5 * SECOND):
        paced.put("a", now=now)
        assert paced.ready() == now + 100_000
        paced.get()
        paced.charge(100, now + 100_000)
        assert paced.ready() == 2**64 - 1
    # Nor does what egress drops: the next one has the line from when it came.
    paced.put("dropped", now=10 * SECOND)
    paced.put("b", now=10 * SECOND + 40_000)
    paced.get()
    paced.charge(0, 10 * SECOND + 100_000)
    assert paced.ready() == 10 * SECOND + 140_000


def test_a_packet_on_the_line_is_neither_overtaken_nor_dropped() -> None:
    """The queue holds what waits; egress of the one that leaves may clone into its own port."""
    queue = Queue(limit=200, rate=8_000_000)
    assert [queue.put(name) for name in "abcd"] == [True, True, True, False]
    assert queue.put("urgent", priority=7)
    assert queue.freed == ["d", "c"]
    assert queue.get() == "a"
    assert not queue.put("clone")
    queue.charge(100, 100_000)
    assert queue.put("clone")
    order = []
    while (name := queue.get()) is not None:
        order.append(name)
        queue.charge(100, 1_000_000)
    assert order == ["urgent", "b", "clone"]
    assert queue.ready() == 2**64 - 1


def test_empty_port_is_never_ready() -> None:
    assert Queue().ready() == 2**64 - 1
