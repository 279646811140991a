# SPDX-License-Identifier: Apache-2.0
"""Tests the aggregation program behind ports in virtual time: results depend only on packets'
times, and equal those of emulation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from benchmarks.forwarding import contenders, traffic
from controller.p4rt.connection import DeviceConnection, SwitchError
from controller.p4rt.entries import Entity, P4Info, clone_session, insertion
from controller.p4rt.fabric import of_2_32
from controller.p4rt.program import Program
from protocol.frames import ipv4_checksum
from protocol.header import HEADER_BYTES, Flag
from simulation.kernel.engine import Engine, Node
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, Train, train
from simulation.nodes.switch import SwitchNode
from switch.ports.paced_line import Line
from switch.ports.virtual_time import (
    Arrivals,
    Departures,
    FirstEvent,
    TimedPortsError,
    run_together,
)
from testbed.targets import CPU_PORT

WINDOW = 64
RATE = 10**10
BARE = 14 + 20 + 8 + HEADER_BYTES
PICOS_PER_BYTE = 800  # at RATE
SERVER_PORT = 5
LATENCY = 300_000


class Switch:
    """A node with the program, a tree of four workers and a way to the server."""

    def __init__(self, build: str = "aggregation", latency: int = LATENCY) -> None:
        path = contenders.build(build)
        self.node = SwitchNode("tor0", cpu_port=CPU_PORT, latency=latency)
        self.lines = self.node.lines
        self.p4info = P4Info.load(path.with_suffix(".p4info.txtpb"))
        self.connection = DeviceConnection("tor0", self.node.device)
        self.connection.open()
        self.connection.push(self.p4info.message, path.with_suffix(".json").read_bytes())
        needs = Program(self.p4info).needs(impaired=True, guarded=False, marked_above=0)
        self.install(*contenders.tree(self.p4info, WINDOW), needs)

    def install(self, *entities: Entity) -> None:
        self.connection.write([insertion(one) for one in entities])

    def lines_of(self, queue_bytes: int, rate: int = RATE) -> None:
        for port in range(1, SERVER_PORT + 1):
            self.lines.add(port, Line(8 * 10**12 // rate, queue_bytes=queue_bytes))

    def impair(self, port: int, **quality: float) -> None:
        """Both ways of a port, by the program's own tables."""
        entry = self.p4info.table_entry
        values = dict.fromkeys(("loss", "duplicate", "reorder", "corrupt"), 0)
        values |= {name: of_2_32(one) for name, one in quality.items()}
        for way, key in (("arrival", "ingress_port"), ("departure", "egress_port")):
            action = {"seed": 7 * port, **values}
            self.install(entry(f"{way}.impairments", {key: port}, f"{way}.impair", action))
        self.install(clone_session(port, [(port, 1)]))

    def to_server(self) -> None:
        route = {"destination": (traffic.SERVER_ADDRESS, 32)}
        action = {"port": SERVER_PORT, "mac": 1}
        self.install(self.p4info.table_entry("forwarding.routes", route, "forward", action))


@pytest.fixture
def switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    made = Switch(**getattr(request, "param", {}))
    yield made
    made.connection.close()
    made.node.close()


def contributions(worker: int, numbers: Sequence[int], job: int = traffic.JOB) -> np.ndarray:
    """(n, bytes) frames of a worker with those numbers."""
    made = np.repeat(np.frombuffer(traffic.packet(worker), np.uint8)[None], len(numbers), 0)
    result = np.array(numbers, ">u4").view(np.uint8).reshape(-1, 4)
    for offset in (traffic.NUMBER_AT, traffic.NUMBER_AT + 4):  # the chunk's, too
        made[:, offset : offset + 4] = result
    made[:, BARE - HEADER_BYTES + 2 : BARE - HEADER_BYTES + 4] = [job >> 8, job & 0xFF]
    made[:, 15] = 2  # ECN-capable
    made[:, 24:26] = 0
    made[:, 24:26] = list(ipv4_checksum(made[0, 14:34].tobytes()).to_bytes(2, "big"))
    return made


def arrivals(port: int, times: Sequence[int], frames: np.ndarray) -> Arrivals:
    lengths = np.full(len(frames), frames.shape[1], np.int64)
    return Arrivals(port, np.array(times, np.int64), frames, lengths)


def departed_packets(found: Sequence[Departures]) -> dict[int, list[tuple[int, int, bytes]]]:
    """(end, length, what is stored) of every packet, by port."""
    ports: dict[int, list[tuple[int, int, bytes]]] = {}
    for one in found:
        ports.setdefault(one.port, []).extend(
            (end, length, frame.tobytes())
            for end, length, frame in zip(
                one.times.tolist(), one.lengths.tolist(), one.frames, strict=True
            )
        )
    return ports


def test_sums_leave_when_the_last_contribution_is_in(switch: Switch) -> None:
    switch.lines_of(1 << 20)
    sent = [
        arrivals(worker + 1, [10**6 * (1 + 4 * n + worker) for n in range(8)],
                 contributions(worker, range(8)))
        for worker in range(4)
    ]  # fmt: skip
    found = switch.lines.run(sent, 10**9)
    size = len(traffic.packet(0))
    for one in found:
        # Of each number the fourth worker's comes last, and it is the fourth of the trains.
        assert one.inputs.tolist() == list(range(24, 32))
        expected = [10**6 * (4 + 4 * n) + LATENCY + PICOS_PER_BYTE * size for n in range(8)]
        assert one.times.tolist() == expected
        assert all(traffic.wrong_sum(frame.tobytes()) is None for frame in one.frames)
    assert sorted(one.port for one in found) == [1, 2, 3, 4]


def test_departures_stay_as_they_are_while_the_switch_goes_on() -> None:
    """However many leave a port in a call: their memory is not that of the next ones, or of the
    switch."""
    switch, few = Switch(), Switch()
    numbers, rounds = 400, []
    for one in (switch, few):
        one.lines_of(1 << 24)
    for first in (0, numbers):
        times = [10**6 * (1 + 4 * n) for n in range(first, first + numbers)]
        sent = [
            arrivals(worker + 1, [at + 10**6 * worker for at in times],
                     contributions(worker, range(first, first + numbers)))
            for worker in range(4)
        ]  # fmt: skip
        rounds.append(switch.lines.run(sent, times[-1] + 10**7))
        alone: dict[int, list[tuple[int, int, bytes]]] = {}
        for n in range(numbers):
            part = [Arrivals(o.port, o.times[n : n + 1], o.frames[n : n + 1], o.lengths[n : n + 1])
                    for o in sent]  # fmt: skip
            for port, packets in departed_packets(
                few.lines.run(part, times[n] + 10**6 * 4)
            ).items():
                alone.setdefault(port, []).extend(packets)
        assert departed_packets(rounds[-1]) == alone
    for one in (switch, few):
        one.connection.close()
        one.node.close()
    for found in rounds:
        assert sorted(one.port for one in found) == [1, 2, 3, 4]
        assert all(len(one.frames) == numbers for one in found)
        assert all(traffic.wrong_sum(f.tobytes()) is None for one in found for f in one.frames)


def test_closed_switches_have_no_first_event() -> None:
    open_one, closed = Switch(), Switch()
    first = FirstEvent([open_one.lines, closed.lines])
    assert first.next() == NEVER
    for one in (closed, open_one):
        one.connection.close()
        one.node.close()
        with pytest.raises(TimedPortsError, match="closed"):
            first.next()


def test_departures_match_untimed_target(switch: Switch) -> None:
    """The same packets through the pipeline back to back: same outputs, port by port."""
    switch.lines_of(1 << 24)
    draw = random.Random(1)
    order = [(worker, n) for n in range(40) for worker in draw.sample(range(4), 4)]
    order += draw.choices(order, k=40)  # duplicates and replays
    sent = [
        arrivals(worker + 1, [at], contributions(worker, [n]))
        for at, (worker, n) in enumerate(order)
    ]
    timed = departed_packets(switch.lines.run(sent, 10**9))
    plain = Switch()
    frames = [one.frames[0].tobytes() for one in sent]
    assert plain.node.device.pipeline is not None
    plain.lines.attach(None)
    untimed: dict[int, list[bytes]] = {}
    for port, frame in plain.node.device.inject_batch([one.port for one in sent], frames, 0):
        untimed.setdefault(port, []).append(frame)
    assert {port: [frame for _, _, frame in one] for port, one in timed.items()} == untimed
    assert sum(map(len, untimed.values())) > 160
    plain.node.close()


def bad_links(switch: Switch) -> None:
    for port in (1, 2, 3):
        switch.impair(port, loss=0.05, duplicate=0.1, reorder=0.1, corrupt=0.05)
    switch.impair(SERVER_PORT, duplicate=0.1, reorder=0.2)
    switch.to_server()
    entry = switch.p4info.table_entry
    switch.install(entry("congestion.thresholds", {"egress_port": SERVER_PORT}, "mark_above",
                         {"depth": 3}))  # fmt: skip
    switch.lines_of(8 * 1200)


def flows(seed: int) -> list[Arrivals]:
    """Four workers' packets, of the tree and of a job that is only forwarded, faster than the line
    to the server can take them."""
    draw, made = random.Random(seed), []
    for worker in range(4):
        at, times, numbers, jobs = 0, [], [], []
        for n in range(60):
            at += draw.choice([0, 1, 200_000, 900_000, 1_500_000])
            times.append(at)
            numbers.append(n)
            jobs.append(draw.choice([traffic.JOB, 99]))
        frames = np.concatenate(
            [contributions(worker, [n], job) for n, job in zip(numbers, jobs, strict=True)]
        )
        made.append(arrivals(worker + 1, times, frames))
    return made


def until(one: Arrivals, first: int, end: int) -> Arrivals:
    rows = slice(*np.searchsorted(one.times, [first, end], "left"))
    return Arrivals(one.port, one.times[rows], one.frames[rows], one.lengths[rows])


@pytest.mark.parametrize("steps", [1, 7, 300])
def test_batches_change_nothing(switch: Switch, steps: int) -> None:
    """With losses, duplicates, reordering, full queues and marks: one call or many."""
    bad_links(switch)
    whole = Switch()
    bad_links(whole)
    sent = flows(5)
    last = max(int(one.times[-1]) for one in sent) + 1
    expected = departed_packets(whole.lines.run(sent, NEVER))
    found: dict[int, list[tuple[int, int, bytes]]] = {}
    bounds = [last * step // steps for step in range(steps)] + [last]
    for first, end in zip(bounds, [*bounds[1:], NEVER], strict=True):
        for port, packets in departed_packets(
            switch.lines.run([until(one, first, end) for one in sent], end)
        ).items():
            found.setdefault(port, []).extend(packets)
    assert found == expected
    assert switch.lines.next() == NEVER, "nothing goes round any more"
    counters = switch.lines.counters(SERVER_PORT)
    assert counters == whole.lines.counters(SERVER_PORT)
    assert counters.dropped > 0
    marked = [bool(frame[15] & 3 == 3) for _, _, frame in expected[SERVER_PORT]]
    assert 10 < sum(marked) < len(marked)
    assert all(ipv4_checksum(frame[14:34]) == 0 for _, _, frame in expected[SERVER_PORT])
    whole.node.close()


def crossed(threads: int) -> list[dict[int, list[tuple[int, int, bytes]]]]:
    """Sends packets of four workers each through two switches, and every other one on to a server
    through a third, by wires of 1 ms, in which each forwards thousands; returns what leaves."""
    delay, sent = 10**9, []
    switches = [*leaves, core] = [Switch() for _ in range(3)]
    for one in switches:
        one.lines_of(1 << 18)
        one.to_server()
    for number, one in enumerate(leaves):
        one.lines.wire(SERVER_PORT, core.lines, number + 1, delay, 2 * number)
        core.lines.wire(number + 1, one.lines, SERVER_PORT, delay, 2 * number + 1)
        trains = []
        for worker in range(4):
            frames = contributions(worker, np.arange(3000).repeat(2).tolist())
            frames[1::2] = contributions(worker, [0], job=99)
            times = np.arange(len(frames)) * 700_000 + 1000 * worker + number
            trains.append(arrivals(worker + 1, times.tolist(), frames))
        sent.append(trains)
    sent.append([])
    given = [(one.lines, trains) for one, trains in zip(switches, sent, strict=True)]
    came = run_together(given, delay, NEVER, threads)
    for one in switches:
        one.connection.close()
        one.node.close()
    return [departed_packets(found) for found in came.departures]


def test_threads_change_nothing() -> None:
    alone = crossed(1)
    assert crossed(4) == alone
    assert [len(found) for found in alone] == [4, 4, 1]
    assert all(len(packets) == 3000 for found in alone[:2] for packets in found.values())
    assert len(alone[2][SERVER_PORT]) > 3000


def test_a_long_queue_marks_and_a_full_one_drops(switch: Switch) -> None:
    """As of a port in emulation (test_congestion.py), but to the packet: 20 wait behind the one
    that is being sent; what finds more than 6 of them is marked."""
    size, depth = len(traffic.packet(0)), 6
    switch.to_server()
    switch.install(
        switch.p4info.table_entry(
            "congestion.thresholds", {"egress_port": SERVER_PORT}, "mark_above", {"depth": depth}
        )
    )
    switch.lines_of(20 * size)
    frames = contributions(0, range(40), job=99)
    (one,) = switch.lines.run([arrivals(1, [0] * 40, frames)], NEVER)
    assert one.inputs.tolist() == list(range(21))
    assert one.times.tolist() == [LATENCY + PICOS_PER_BYTE * size * (n + 1) for n in range(21)]
    marked = [bool(frame[BARE - HEADER_BYTES + 1] & Flag.ECN) for frame in one.frames]
    assert marked == [n > depth + 1 for n in range(21)]
    assert [frame[15] & 3 == 3 for frame in one.frames] == marked
    assert switch.lines.counters(SERVER_PORT).dropped == 19


@pytest.mark.parametrize("switch", [{"build": "aggregation_headers"}], indirect=True)
def test_chunks_without_content_take_the_time_of_whole_ones(switch: Switch) -> None:
    """Headers of what is not stored are those of zeros that are; so are lengths and times."""
    whole = Switch("aggregation_headers")
    results = []
    for one, stored in ((switch, BARE), (whole, None)):
        one.lines_of(1 << 20)
        sent = []
        for worker in range(4):
            frames = contributions(worker, range(6))
            frames[:, BARE:] = 0
            times = np.arange(6) * 10**6 + worker
            lengths = np.full(6, frames.shape[1])
            sent.append(Arrivals(worker + 1, times, frames[:, :stored], lengths))
        results.append(departed_packets(one.lines.run(sent, NEVER)))
    bare, full = results
    assert sorted(bare) == sorted(full) == [1, 2, 3, 4]
    for port, packets in full.items():
        assert [(end, length) for end, length, _ in bare[port]] == [
            (end, length) for end, length, _ in packets
        ]
        assert [stored for _, _, stored in bare[port]] == [frame[:BARE] for _, _, frame in packets]
        assert not any(any(frame[BARE:]) for _, _, frame in packets)
    whole.node.close()


def test_unroutable_packets_are_counted(switch: Switch) -> None:
    switch.lines.add(1, Line(PICOS_PER_BYTE))
    switch.to_server()
    frames = contributions(0, range(3), job=99)
    assert switch.lines.run([arrivals(1, [1, 2, 3], frames)], NEVER) == []
    assert switch.lines.no_port == 3
    switch.lines.attach(None)
    assert switch.lines.run([arrivals(1, [4], frames[:1])], NEVER) == []
    assert switch.lines.no_program == 1
    with pytest.raises(TimedPortsError, match="port 1 has a line already"):
        switch.lines.add(1, Line(1))
    with pytest.raises(TimedPortsError, match=r"ports are 0 \.\. 510"):
        switch.lines.add(511, Line(1))


def test_priorities_are_for_a_queue_that_knows_them(switch: Switch) -> None:
    """A clone has that of its session. On a line that is first in, first out this is an error; else
    each queue entry gets it."""
    switch.to_server()
    switch.impair(SERVER_PORT, duplicate=1.0)
    pipeline = switch.node.device.pipeline
    assert pipeline is not None
    pipeline.set_clone_session(SERVER_PORT, [(SERVER_PORT, 1)], priority=3)
    switch.lines.add(SERVER_PORT, Line(PICOS_PER_BYTE), "outside")
    frames = contributions(0, range(2), job=99)
    (one,) = switch.lines.run([arrivals(1, [5, 6], frames)], NEVER)
    assert one.priorities.tolist() == [0, 3, 0, 3]
    assert one.times.tolist() == [LATENCY + 5, LATENCY + 5, LATENCY + 6, LATENCY + 6]
    paced = Switch()
    paced.to_server()
    paced.impair(SERVER_PORT, duplicate=1.0)
    assert paced.node.device.pipeline is not None
    paced.node.device.pipeline.set_clone_session(SERVER_PORT, [(SERVER_PORT, 1)], priority=3)
    paced.lines_of(1 << 20)
    with pytest.raises(TimedPortsError, match="must have queues"):
        paced.lines.run([arrivals(1, [5, 6], frames)], NEVER)
    paced.node.close()


@pytest.mark.parametrize("rate", [RATE, 3 * 10**9 + 7])  # whole picoseconds a byte, and not
@pytest.mark.parametrize("room", [4000, 1 << 20])
def test_a_switchs_own_priorities_are_those_of_a_link(room: int, rate: int) -> None:
    """The same packets leave at the same times, however a run is divided, and as many are dropped.
    Each packet has a clone of a higher priority."""
    random_ = random.Random(room + rate)
    link = Link(LinkSpec(rate, queue_bytes=room, priorities=True), "tor0->s0")
    times = sorted(random_.randrange(40 * 10**6) for _ in range(60))
    frames = contributions(0, range(60), job=99)
    lengths = np.array([random_.randrange(100, frames.shape[1]) for _ in times])
    found = []
    for queue, cuts in (("outside", []), ("strict", []), ("strict", sorted(times)[::7])):
        switch = Switch()
        switch.to_server()
        switch.impair(SERVER_PORT, duplicate=0.5)
        pipeline = switch.node.device.pipeline
        assert pipeline is not None
        pipeline.set_clone_session(SERVER_PORT, [(SERVER_PORT, 1)], priority=3)
        switch.lines.add(SERVER_PORT, link.line, queue)  # type: ignore[arg-type]
        came: list[Departures] = []
        at = 0
        for until in [*cuts, NEVER]:
            last = int(np.searchsorted(times, until))
            rows = slice(at, last)
            given = [Arrivals(1, np.array(times[rows]), frames[rows], lengths[rows])]
            came += switch.lines.run(given if last > at else [], until)
            at = last
        assert switch.lines.next() == NEVER
        dropped = switch.lines.counters(SERVER_PORT)
        left: list[Departures] | list[Train] = came
        if queue == "outside":
            for one in came:
                link.send(Train(one.times, one.frames, one.lengths, one.priorities))
            link.settle(NEVER)
            left, dropped = link.take(NEVER), link.queue_counters()
        packets = [
            (int(at), int(length), int(priority), bytes(frame[:length]))
            for one in left
            for at, length, priority, frame in zip(
                one.times, one.lengths, one.priorities, one.frames, strict=True
            )
        ]
        found.append((packets, dropped))
        switch.node.close()
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert (found[0][1].dropped > 0) == (room == 4000)
    assert [row[2] for row in found[0][0]] != sorted(row[2] for row in found[0][0])


def test_a_killed_switch_loses_what_waits_in_its_queues() -> None:
    """What has begun to leave is not lost, and a switch that was started again forwards nothing
    before it has a program."""
    switch = Switch(latency=0)
    switch.to_server()
    node, took = switch.node, BARE * PICOS_PER_BYTE
    switch.lines.add(SERVER_PORT, Line(8 * 10**12 // RATE, queue_bytes=1 << 20), "strict")
    frames = contributions(0, range(6), job=99)[:, :BARE]
    left = switch.lines.run([arrivals(1, [0] * 5, frames[:5])], took + took // 2)
    assert [end for end, _, _ in departed_packets(left)[SERVER_PORT]] == [took, 2 * took]
    node.kill()
    node.start()
    assert switch.lines.next() == NEVER
    assert switch.lines.counters(SERVER_PORT).dropped == 3
    assert switch.lines.run([arrivals(1, [2 * took], frames[5:])], NEVER) == []
    assert switch.lines.no_program == 1
    assert node.device.pipeline is None
    with pytest.raises(SwitchError, match="FAILED_PRECONDITION"):
        _reconnected(switch).read([switch.p4info.table_entry("forwarding.routes", {})])
    node.close()


def _reconnected(switch: Switch) -> DeviceConnection:
    connection = DeviceConnection("tor0", switch.node.device)
    connection.open()
    return connection


class Worker(Node):
    """Contributes chunk after chunk, so many at a time; checks every sum.

    size: packets of a train.
    """

    def __init__(self, number: int, chunks: int, size: int) -> None:
        super().__init__(f"w{number}")
        self.frames = contributions(number, range(chunks))
        self.size = size
        self.sent = 0
        self.start = 1000 * number
        self.log: list[tuple[int, int]] = []

    def next(self) -> int:
        return min(self.start, self.next_call())

    def run(self, until: int) -> None:
        if self.start < until:
            self.contribute(np.full(WINDOW, self.start))
            self.start = NEVER
        for _, _, one in self.arrivals(until):
            for at, frame in zip(one.times.tolist(), one.frames, strict=True):
                content = frame.tobytes()
                assert traffic.wrong_sum(content) is None
                number = int.from_bytes(content[traffic.NUMBER_AT : traffic.NUMBER_AT + 4], "big")
                self.log.append((at, number))
            self.contribute(one.times)
        self.now = until

    def contribute(self, times: np.ndarray) -> None:
        for at in range(0, len(times), self.size):
            rows = self.frames[self.sent : self.sent + len(times[at : at + self.size])]
            if len(rows):
                self.sent += len(rows)
                self.ports[0].send(train(times[at : at + len(rows)], rows))


def job(size: int, span: int) -> tuple[list[list[tuple[int, int]]], Engine]:
    engine, switch = Engine(span=span), Switch()
    workers = [Worker(number, 200, size) for number in range(4)]
    for node in (*workers, switch.node):
        engine.add(node)
    for number, worker in enumerate(workers):
        spec = LinkSpec(RATE, delay=500_000, queue_bytes=1 << 17, framing=True)
        engine.connect(worker, 0, switch.node, number + 1, spec)
    engine.run(lambda: all(len(worker.log) == 200 for worker in workers))
    switch.connection.close()
    switch.node.close()
    return [worker.log for worker in workers], engine


def test_an_all_reduce_in_trains_is_that_of_single_packets() -> None:
    seen, engine = job(WINDOW, 10**10)
    single, stepped = job(1, 1)
    assert seen == single
    assert engine.rounds * 20 < stepped.rounds
    for link, other in zip(engine.links, stepped.links, strict=True):
        counters = link.counters
        assert counters == other.counters
        assert counters.sent == counters.arrived == 200
        assert (counters.dropped, counters.lost) == (0, 0)
    # The line is what bounds it: 200 chunks of 1,098 bytes and framing, and the way there and back.
    ends = [log[-1][0] for log in seen]
    frame = (len(traffic.packet(0)) + 24) * PICOS_PER_BYTE
    first = 2 * (frame + 500_000) + LATENCY
    assert all(199 * frame + first <= end <= 199 * frame + first + 3000 for end in ends)


def test_control_call_sees_earlier_arrivals_only(switch: Switch) -> None:
    """The controller deletes the route at a moment: packets up to then are forwarded."""
    engine, source, sink = Engine(), Idle("a"), Idle("b")
    for node in (source, sink, switch.node):
        engine.add(node)
    spec = LinkSpec(RATE)
    engine.connect(source, 0, switch.node, 1, spec)
    engine.connect(sink, 0, switch.node, SERVER_PORT, spec)
    at = engine.control_latency

    def route() -> None:
        switch.to_server()

    engine.post(source, switch.node, at, route)
    frames = contributions(0, range(4), job=99)
    size = frames.shape[1] * PICOS_PER_BYTE
    # The last bits arrive before, at, and after the call.
    source.ports[0].send(train([at - size - 1, at, at + 1, at + 2], frames))
    engine.run(lambda: len(sink.got) == 3)
    assert [row[traffic.NUMBER_AT + 3] for row in sink.got] == [1, 2, 3]


class Idle(Node):
    """Keeps what arrives."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.got: list[np.ndarray] = []

    def run(self, until: int) -> None:
        self.got += [row for _, _, one in self.arrivals(until) for row in one.frames]
        self.now = until
