# SPDX-License-Identifier: Apache-2.0
"""Feeds mutated packets to hosts' state machines while a job runs: each is counted once, has no
effect, and sums are exact.

Seeded. RACKHUB_HOSTILE_HOSTS says how many packets, RACKHUB_SEED from which seed.
"""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from hosts.net.offload import PLAIN, Offload, available, segment_size_message
from hosts.net.udp import _MOST_DATAGRAMS, Endpoint
from hosts.server.root_node import RootNode
from hosts.server.state import ServerState
from hosts.worker.core import Core
from hosts.worker.transport import WorkerTransport
from protocol.header import HEADER_BYTES, decode
from tests.unit.hosts.hostile_packets import mutated
from tests.unit.worker.simulated_job import Job

pytestmark = pytest.mark.timeout(3600)

PACKETS = int(os.environ.get("RACKHUB_HOSTILE_HOSTS", "10000"))
SEED = int(os.environ.get("RACKHUB_SEED", "0"))
PER_ARRIVAL = 8
STRANGER = (77777, 4711)
LANES = 4


def counted(machine: WorkerTransport | ServerState) -> Counter[str]:
    """Every cause that a packet can be counted for."""
    if isinstance(machine, ServerState):
        counts: Counter[str] = Counter(foreign=machine.foreign)
        for job in machine.jobs:
            counts.update(machine.counters(job))
        # Said of chunks, beside what is said of the packet that made them so.
        for of_chunk in ("completed", "direct_completed", "overflowed"):
            del counts[of_chunk]
        return counts
    statistics = machine.statistics
    return Counter(statistics.dropped) + Counter(
        duplicates=statistics.duplicates,
        wrong_checksum=statistics.wrong_checksum,
        states=statistics.states,
        results=statistics.completed + statistics.completed_direct + statistics.exponent_rounds,
        flagged=flagged(machine),
    )


def flagged(machine: WorkerTransport) -> int:
    """Results that sent a chunk to its server: it is asked for there, or complete."""
    return machine.statistics.completed_direct + int(np.count_nonzero(machine._slots.stage == 3))


# What counts, what C gets of the same arrays, and memory that is only used during a call.
_BUT = ("statistics", "_statistics", "counters", "_counters", "foreign", "native", "_workspace")
# Of the numbers that a worker's C code keeps: all but counts, addresses, and the number of passes.
_NUMBERS = (
    *("clear", "lost", "soonest", "since_loss", "news", "pending", "incomplete", "moved"),
    *("heap_length", "sums_length", "failed_length", "probed_length", "chosen_length"),
)


def held(value: Any, but: tuple[str, ...] = _BUT) -> Any:
    """All that an object holds, down to numbers."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, Mapping):
        return {key: held(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [held(inner) for inner in value]
    if isinstance(value, Core):
        numbers = [getattr(value._worker, name) for name in _NUMBERS]
        arrays = {name: held(one) for name, one in value._arrays.items() if name != "mark"}
        return numbers, arrays
    if isinstance(value, RootNode):  # all but counts and what is written before it is read
        arrays = {name: held(one) for name, one in value._arrays.items() if name != "forecast"}
        return arrays, held(value._failed), held(value.failures)
    if type(value).__module__.split(".")[0] in ("hosts", "protocol", "tests"):
        names = list(getattr(value, "__dict__", ())) or list(getattr(type(value), "__slots__", ()))
        return {name: held(getattr(value, name)) for name in names if name not in but}
    return value


def sizes(value: Any) -> int:
    """Entries of all dicts and lists, and elements of arrays: what could grow."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return len(value) + sum(sizes(inner) for inner in value.values())
    return len(value) + sum(sizes(inner) for inner in value) if isinstance(value, list) else 0


class Attack:
    """Gives each machine mutated copies of what arrives, just before it does."""

    def __init__(self, job: Job, source: Callable[[tuple[int, int]], tuple[int, int]], seed: int):
        self.job = job
        self.source = source
        self.draw = random.Random(seed)
        self.packets = 0
        self.malformed = 0
        self.causes: Counter[str] = Counter()
        self.rule = job.network.on_arrived
        job.network.on_arrived = self.arrived

    def arrived(
        self, source: tuple[int, int], destination: tuple[int, int], datagram: bytes
    ) -> None:
        machine = self.job.network._machines[destination]
        batch, malformed = self.packets_like(source, datagram)
        self.packets += PER_ARRIVAL
        self.malformed += malformed
        before = counted(machine)
        self.give(machine, batch)
        new = counted(machine) - before
        assert sum(new.values()) == len(batch), new
        self.causes += new
        self.rule(source, destination, datagram)

    def packets_like(self, source: tuple[int, int], datagram: bytes):
        copies = [mutated(datagram, self.draw) for _ in range(PER_ARRIVAL)]
        return decode(copies, [self.source(source)] * PER_ARRIVAL, LANES)

    def give(self, machine, batch) -> None:
        before = held(machine)
        machine.on_packets(self.job.network.now, batch)
        assert held(machine) == before


@pytest.mark.parametrize("direct", [False, True], ids=["integers", "direct"])
def test_packets_of_unknown_peers_are_ignored(direct: bool) -> None:
    """Packets that are right but for one to three fields, from an address that is no member's."""
    seed = SEED
    causes: Counter[str] = Counter()
    packets = 0
    while packets < PACKETS:
        job = Job(world=3, servers=2, window=2, chunks=6, lanes=LANES, seed=seed)
        attack = Attack(job, lambda _: STRANGER, seed)
        values = job.random_values(seed)
        if direct:
            values[:, ::2, 0] = np.inf
        job.round(values)
        job.round(values * np.float32(0.5))
        packets += attack.packets
        causes += attack.causes
        seed += 1
    wanted = {"foreign", "wrong_source", "stale", "other_epoch", "unexpected", "no_such_node"}
    assert wanted <= causes.keys(), causes
    assert not causes.keys() & {"results", "states", "claimed", "added", "direct_added"}


def test_malicious_member_packets_are_harmless() -> None:
    """As if the network had changed fields on the way, which the UDP checksum is there for, and is
    not after a switch: only what the protocol's own checksum covers, or what is no sum, may differ.

    Flags, lanes and max_exponent are not covered: one who can set these in a server's or worker's
    name can send its job's chunks to the server in float32, or to a wider scale.
    """
    seed = SEED
    packets = 0
    causes: Counter[str] = Counter()
    while packets < PACKETS:
        job = Job(world=3, servers=2, window=2, chunks=6, lanes=LANES, seed=seed)
        attack = FromMembers(job, lambda source: source, seed)
        job.round(job.random_values(seed))
        job.round(job.random_values(seed) * np.float32(0.5))
        packets += attack.packets
        causes += attack.causes
        seed += 1
        grown = [sizes(held(machine)) for machine in (*job.workers, *job.servers)]
        assert max(grown) < attack.bound, grown
    assert {"wrong_checksum", "bad_checksum", "foreign", "stale", "not_a_child"} <= causes.keys()


class FromMembers(Attack):
    bound = 1 << 20

    def packets_like(self, source: tuple[int, int], datagram: bytes):
        keep = ("flags", "max_exponent", "lanes")
        copies = [mutated(datagram, self.draw, keep) for _ in range(PER_ARRIVAL)]
        return decode(copies, [source] * PER_ARRIVAL, LANES)

    def give(self, machine, batch) -> None:
        machine.on_packets(self.job.network.now, batch)
        # A chunk that fails twice is reported; here nothing but the attack makes it fail.
        machine.take_failures()


def test_a_server_holds_nothing_of_jobs_it_does_not_serve() -> None:
    state = ServerState()
    draw = random.Random(SEED)
    before = held(state)
    for _ in range(PACKETS // 1000):
        batch, malformed = decode(
            [b"\x11\0" + draw.randbytes(HEADER_BYTES - 10) + bytes(8) for _ in range(1000)],
            [(draw.randrange(1 << 32), draw.randrange(1 << 16)) for _ in range(1000)],
            0,
        )
        assert malformed == 0
        state.on_packets(0.0, batch)
        assert state.poll(0.0)[0] is None
    assert state.foreign == PACKETS // 1000 * 1000
    assert held(state) == before


# -- sockets --------------------------------------------------------------------------------------


def garbage(draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return draw.randbytes(draw.choice([0, 1, 31, 32, 33, 1055, 1056, 1057, 1400]))
    header = bytes([0x10 | draw.randrange(16), draw.randrange(256)]) + draw.randbytes(30)
    return header + draw.randbytes(draw.choice([0, 0, 1024, 1024, 1, 1023, 1025]))


@pytest.mark.parametrize("offload", [None, PLAIN], ids=["probed", "plain"])
def test_a_socket_survives_whatever_is_sent_to_it(offload: Offload | None) -> None:
    """Each datagram is a packet or counted as malformed, in trains of uneven sizes too."""
    draw = random.Random(SEED)
    segment = (offload or available()).segment
    with (
        Endpoint(("127.0.0.1", 0), lanes=256, offload=offload) as endpoint,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect((endpoint.address, endpoint.port))
        for _ in range(max(1, PACKETS // 1000)):
            sent = 0
            for _ in range(40):  # no more than the smallest receive buffer holds
                if segment and draw.random() < 0.5:
                    size, count, rest = draw.randrange(1, 1400), draw.randrange(1, 9), draw.random()
                    data = draw.randbytes(size * count + int(rest * size))
                    sender.sendmsg([data], [segment_size_message(size)])
                    sent += -(-len(data) // size)
                else:
                    sender.send(garbage(draw))
                    sent += 1
            got = received = 0
            before = endpoint.counters.malformed
            while got < sent:
                batch = endpoint.receive()
                if batch is None:
                    endpoint.wait(10.0)
                    continue
                received += len(batch)
                got = received + endpoint.counters.malformed - before
            assert got == sent


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES])
def test_a_flood_of_small_datagrams_is_read_in_portions(size: int) -> None:
    """Empty ones fill no buffer: without a bound reading them would end with the flood alone."""
    with (
        Endpoint(("127.0.0.1", 0), lanes=256, offload=PLAIN, receive_buffer=1 << 26) as endpoint,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.connect((endpoint.address, endpoint.port))
        for _ in range(_MOST_DATAGRAMS + 1000):
            sender.send(bytes(size))
        endpoint.receive()
        first = endpoint.counters.malformed
        endpoint.receive()
        held = endpoint.counters.malformed  # all, unless the kernel's limit on buffers is low
        assert first == min(held, _MOST_DATAGRAMS)
        if endpoint.receive_buffer >= 1 << 24:
            assert held == _MOST_DATAGRAMS + 1000
