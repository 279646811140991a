# SPDX-License-Identifier: Apache-2.0
"""Tests that nodes running ahead of each other behave as in lockstep."""

from __future__ import annotations

import ast
import inspect
import random
import signal
import zlib
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.errors import CausalityError, DeadlockError, LinkError
from simulation.kernel import engine
from simulation.kernel.engine import Engine, Node
from simulation.links import impairments, marking, queues, trains
from simulation.links import link as links
from simulation.links.link import LinkSpec
from simulation.links.trains import NEVER, Train, train
from simulation.nodes import switch as switch_node
from switch.ports import paced_line, virtual_time

SIZE = 64
LATENCY = 5_000_000
END = 500_000_000  # ps


class Gossip(Node):
    """Answers packets with packets, sets timers and calls others, all by what it has seen so far:
    whatever came in another order or at another time would make it do something else."""

    def __init__(self, name: str, engine: Engine, chatty: bool) -> None:
        super().__init__(name)
        self.engine = engine
        self.log: list[tuple[int, str, int]] = []
        self.state = zlib.crc32(name.encode())
        self.alarm = 0 if chatty else NEVER
        self.waiting: list[tuple[int, int, int, int, int]] = []
        self.taken = 0

    def next(self) -> int:
        packet = self.waiting[0][0] if self.waiting else NEVER
        return min(self.alarm, self.next_call(), packet)

    def see(self, at: int, what: str, value: int) -> None:
        self.now = at
        self.log.append((at, what, value))
        self.state = zlib.crc32(f"{at} {what} {value}".encode(), self.state)

    def run(self, until: int) -> None:
        for link, port, one in self.arrivals(until):
            for at, row in zip(one.times.tolist(), one.frames, strict=True):
                noticed = -(-at // self.interval) * self.interval
                value = int.from_bytes(row[-4:].tobytes(), "big")
                # Of one link several trains may have come; their packets keep their order.
                self.taken += 1
                self.waiting.append((noticed, link, self.taken, value, port))
        waiting = self.waiting
        waiting.sort()
        while True:
            packet = waiting[0][0] if waiting else NEVER
            first = min(self.next_call(), packet, self.alarm)
            if first >= until:
                break
            if first == self.next_call():
                self.answer()
            elif first == packet:
                _, _, _, value, port = waiting.pop(0)
                self.see(packet, f"port {port}", value)
                self.react()
            else:
                self.alarm = NEVER
                self.see(first, "alarm", 0)
                self.react()
        self.now = until

    def react(self) -> None:
        if self.now > END:
            return
        choice = self.state % 16
        ports = sorted(self.ports)
        if choice < 9:
            port = ports[self.state // 16 % len(ports)]
            count = 1 + choice // 4
            rows = np.zeros((count, SIZE), np.uint8)
            rows[:, -4:] = np.frombuffer(self.state.to_bytes(4, "big"), np.uint8)
            self.ports[port].send(train(self.now, rows))
        if choice in (3, 10, 11):
            peer = self.engine.nodes[self.state // 64 % len(self.engine.nodes)]
            value = self.state
            at = self.now + LATENCY + self.state % 7
            self.engine.post(self, peer, at, lambda: peer.see(at, "call", value))
        if self.alarm == NEVER:
            self.alarm = self.now + 1 + self.state % 40_000_000


class Counting(Gossip):
    """Calls others when it has seen so many packets since its last call, and says so."""

    every = 9

    def __init__(self, name: str, engine: Engine, chatty: bool) -> None:
        super().__init__(name, engine, chatty)
        self.left = self.every
        self.says = True

    def outlook(self) -> tuple[int, int]:
        return (NEVER, self.left - 1) if self.says else super().outlook()

    def see(self, at: int, what: str, value: int) -> None:
        super().see(at, what, value)
        self.left -= what.startswith("port")

    def react(self) -> None:
        if self.now > END:
            return
        rows = np.zeros((1 + self.state % 2, SIZE), np.uint8)
        rows[:, -4:] = np.frombuffer(self.state.to_bytes(4, "big"), np.uint8)
        self.ports[0].send(train(self.now, rows))
        if self.left <= 0:
            self.left = self.every
            peer = self.engine.nodes[self.state // 64 % len(self.engine.nodes)]
            value = self.state
            at = self.now + LATENCY + self.state % 7
            self.engine.post(self, peer, at, lambda: peer.see(at, "call", value))
        if self.alarm == NEVER:
            self.alarm = self.now + 1 + self.state % 40_000_000


def counted(says: bool, **options: object) -> tuple[list[list[tuple[int, str, int]]], int]:
    engine = Engine(LATENCY, **options)  # type: ignore[arg-type]
    nodes = [Counting(f"n{i}", engine, True) for i in range(6)]
    for node in nodes:
        node.says = says
        engine.add(node)
    for a, b in zip(nodes[::2], nodes[1::2], strict=True):
        engine.connect(a, 0, b, 0, LinkSpec(10**8))
    engine.run(lambda: engine.settled() > END)
    return [[one for one in node.log if one[0] <= END] for node in nodes], engine.rounds


def test_nodes_that_say_when_they_may_call_let_others_run_ahead() -> None:
    """The same happens, in fewer rounds."""
    logs, rounds = counted(True)
    assert sum(what == "call" for log in logs for _, what, _ in log) > 10
    assert counted(True, span=LATENCY // 5, order=lambda nodes: nodes[::-1])[0] == logs
    asked, more = counted(False)
    assert asked == logs
    assert rounds < more


def test_a_node_cannot_be_called_in_its_past() -> None:
    engine, a, b = pair(None, LinkSpec(10**9))
    b.now = 2 * LATENCY
    with pytest.raises(CausalityError, match="a calls b for 5000000 ps, which is at 10000000 ps"):
        engine.post(a, b, LATENCY, lambda: None)


def ring(
    seed: int, span: int, order: Callable[[list[Node]], list[Node]] | None
) -> tuple[list[list[tuple[int, str, int]]], Engine]:
    """Five nodes in a ring and across, over links of all kinds; what each has seen."""
    draw = random.Random(seed)
    engine = Engine(LATENCY, span, order)
    nodes = [Gossip(f"n{i}", engine, chatty=draw.random() < 0.5 or i == 0) for i in range(5)]
    for node in nodes:
        node.eager = draw.random() < 0.3
        node.interval = draw.choice([1, 1, 3_000, 7_000_001])
        engine.add(node)
    pairs = [(i, (i + 1) % 5) for i in range(5)] + [(0, 2)]
    for number, (a, b) in enumerate(pairs):
        spec = LinkSpec(
            draw.choice([10**7, 10**9, 3_000_000_007, 4 * 10**11]),
            delay=draw.choice([0, 1, 3_000, 2_000_000]),
            queue_bytes=2000,
            loss=0.1,
            duplicate=0.1,
            reorder=0.2,
            seed=seed,
            priorities=draw.random() < 0.4,
        )
        engine.connect(nodes[a], number, nodes[b], number, spec)
    engine.run(lambda: all(node.now > END for node in nodes))
    return [[one for one in node.log if one[0] <= END] for node in nodes], engine


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 10**6))
def test_runs_do_not_depend_on_rounds_or_the_order_of_nodes(seed: int) -> None:
    shuffled = random.Random(seed)
    seen, engine = ring(seed, 10**10, None)
    lockstep, stepped = ring(seed, 1, lambda nodes: shuffled.sample(nodes, len(nodes)))
    assert seen == lockstep
    assert sum(map(len, seen)) > 50
    assert engine.rounds < stepped.rounds
    for one in engine.links:
        counters = one.counters
        assert counters.sent + counters.duplicated == (
            counters.arrived + counters.lost + one.under_way
        )


@pytest.mark.parametrize(
    "module",
    [engine, impairments, paced_line, links, marking, queues, switch_node, trains, virtual_time],
)
def test_simulation_uses_no_clock_threads_or_randomness(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                for one in node.names}  # fmt: skip
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"asyncio", "datetime", "random", "secrets", "threading", "time"}
    assert ".random" not in inspect.getsource(module)


class Quiet(Node):
    """Sends what it is given at the beginning; notes what arrives and how much at once."""

    def __init__(self, name: str, sends: Train | None = None) -> None:
        super().__init__(name)
        self.sends = sends
        self.got: list[int] = []
        self.most = 0

    def next(self) -> int:
        return self.next_call() if self.sends is None else 0

    def run(self, until: int) -> None:
        while self.next_call() < until:
            self.answer()
        if self.sends is not None:
            self.ports[0].send(self.sends)
            self.sends = None
        found = [at for _, _, one in self.arrivals(until) for at in one.times.tolist()]
        self.most = max(self.most, len(found))
        self.got += found
        self.now = until

    def waits(self) -> str:
        return "for an answer"


def pair(sends: Train | None, spec: LinkSpec) -> tuple[Engine, Quiet, Quiet]:
    engine, a, b = Engine(LATENCY), Quiet("a", sends), Quiet("b")
    engine.add(a)
    engine.add(b)
    engine.connect(a, 0, b, 0, spec)
    return engine, a, b


def test_queued_packets_arrive_as_one_batch() -> None:
    """Ninety packets wait, so ninety departures are certain, whatever the sender does."""
    sends = train(0, np.zeros((90, SIZE), np.uint8))
    engine, _, b = pair(sends, LinkSpec(10**10, delay=1, queue_bytes=10_000))
    engine.run(lambda: len(b.got) == 90)
    assert b.most == 90
    assert b.got == [51_200 * (i + 1) + 1 for i in range(90)]


def test_priorities_are_decided_when_the_sender_is_past() -> None:
    """A later packet of a higher class overtakes what waits, though nodes run ahead."""
    at = [0, 0, 0, 60_000]
    sends = train(at, np.zeros((4, SIZE), np.uint8), priorities=[0, 0, 0, 7])
    engine, _, b = pair(sends, LinkSpec(10**10, priorities=True))
    order: list[int] = []
    engine.links[0].on_departure = lambda one, came: order.extend(one.priorities.tolist())
    engine.run(lambda: len(b.got) == 4)
    assert order == [0, 0, 7, 0]
    assert b.got == [51_200 * (i + 1) for i in range(4)]


def test_deadlock_is_an_error_that_names_waiters() -> None:
    engine, _, _ = pair(None, LinkSpec(10**9))
    with pytest.raises(DeadlockError, match=r"a at 0 ps waits for an answer; b at 0 ps waits"):
        engine.run(lambda: False)


def test_ctrl_c_ends_a_run_after_the_round() -> None:
    engine, a, b = pair(None, LinkSpec(10**9))
    calls: list[str] = []

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        calls.append("ended")

    engine.post(a, b, engine.control_latency, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(lambda: False)
    assert calls == ["ended"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_calls_come_in_the_order_of_time_then_caller() -> None:
    engine, a, b = pair(None, LinkSpec(10**9))
    calls: list[str] = []
    for source, name, at in ((b, "b1", 3), (a, "a1", 3), (b, "b2", 1), (a, "a2", 3)):
        engine.post(source, b, LATENCY + at, lambda name=name: calls.append(name))
    engine.run(lambda: len(calls) == 4)
    assert calls == ["b2", "a1", "a2", "b1"]


def test_a_call_takes_its_time() -> None:
    engine, a, b = pair(None, LinkSpec(10**9))
    with pytest.raises(CausalityError, match="that takes 5000000 ps"):
        engine.post(a, b, LATENCY - 1, lambda: None)


def test_idle_time_costs_no_rounds() -> None:
    """An hour until the next call: the engine goes there, however short the links are."""
    engine, a, b = pair(None, LinkSpec(10**9))
    hour = 3600 * 10**12
    done: list[int] = []
    engine.post(a, b, hour, lambda: done.append(b.now))
    engine.run(lambda: bool(done))
    assert done == [hour]
    assert engine.rounds == 1


def test_links_of_the_same_port_or_node_are_refused() -> None:
    engine, a, b = pair(None, LinkSpec(10**9))
    with pytest.raises(LinkError, match=r"port 0 of a has a link: a:0->b:0"):
        engine.connect(a, 0, b, 1, LinkSpec(10**9))
    with pytest.raises(LinkError, match="a: a link from a node to itself"):
        engine.connect(a, 1, a, 2, LinkSpec(10**9))
