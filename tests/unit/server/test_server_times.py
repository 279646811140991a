# SPDX-License-Identifier: Apache-2.0
"""Tests what a server measures of its own times, by a clock that the test sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hosts.server.state import ServerState
from hosts.server.times import Watch
from protocol import jobs_pb2
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES, Batch, Flag, Op, packet_bytes
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address, ServerPlan
from tests.unit.server.test_server import LANES, NODE, PLAN, WORKERS, packet

pytestmark = pytest.mark.unit

QUEUED, WORKED = 0.5, 0.25  # seconds
MEASURED = replace(PLAN, counts=(2,), measures=True)


class Timed:
    """A server whose packets waited for `QUEUED` seconds, and keep it busy for `WORKED`."""

    def __init__(self, plan: ServerPlan) -> None:
        self.now = 10.0
        self.state = ServerState(watch=Watch(self._tick, lambda: QUEUED))
        self.state.install(plan)

    def _tick(self) -> float:
        self.now += WORKED
        return self.now

    def take(self, *batches: Batch) -> None:
        self.state.on_packets(self.now, Batch.concatenate(list(batches)))

    def reports(self) -> list[jobs_pb2.ServerMeasured]:
        return [request.server_measured for _, request in self.state.take_reports()]


def contribution(rank: int, chunk: int, **fields: int) -> Batch:
    """A worker's to stream 1, whose children are the workers."""
    fields = {"stream": 1, "sender": rank, "seq": chunk, "chunk": chunk, **fields}
    return packet(Op.CONTRIBUTE, WORKERS[rank], [rank] * LANES, node=NODE, **fields)


def test_a_round_of_sums_is_reported_with_its_times_and_bytes() -> None:
    server = Timed(MEASURED)
    assert server.state.measures
    for rank in range(3):
        server.take(contribution(rank, 0), contribution(rank, 1))
    assert server.state.quiet == 2
    server.take(contribution(3, 0))
    assert not server.reports()
    assert server.state.quiet == 1
    server.take(contribution(3, 1))
    (report,) = server.reports()
    assert not server.reports()
    frame = OVERHEAD + packet_bytes(LANES)
    assert report.sums == report.summing == 2
    assert report.handled == pytest.approx(2 * (QUEUED + WORKED))
    assert report.queued == pytest.approx(2 * QUEUED)
    assert report.received_bytes == report.sent_bytes == 8 * frame
    assert report.optimized == 0


def test_a_round_is_of_the_chunks_that_a_map_leaves() -> None:
    servers = (*PLAN.servers, Address(1001, 5))
    plan = replace(MEASURED, servers=servers, counts=(1,) * 8)
    server = Timed(plan)
    mine = np.flatnonzero(plan.server_of(np.arange(8)) == 0).tolist()
    assert server.state.quiet == len(mine) == 4
    server.state.own(1, 1, (), tuple((chunk, 1) for chunk in mine[1:]))
    assert server.state.quiet == 1
    for rank in range(4):
        server.take(contribution(rank, mine[0], seq=0))
    assert server.reports()


def test_headers_without_payload_count_as_short_frames_and_are_no_sums() -> None:
    server = Timed(MEASURED)
    for rank in range(4):
        server.take(contribution(rank, 0, lanes=0, max_exponent=3))
    assert server.state.quiet == 2
    for rank in range(4):
        server.take(contribution(rank, 0, seq=2), contribution(rank, 1, seq=1))
    (report,) = server.reports()
    assert report.sums == 2
    short = OVERHEAD + HEADER_BYTES
    assert report.received_bytes == 4 * short + 8 * (short + 4 * LANES)


def test_direct_sums_are_measured() -> None:
    server = Timed(MEASURED)
    words = np.array([1.0] * LANES, ">f4").view(">i4").tolist()
    for chunk in range(2):
        for rank in range(4):
            server.take(
                packet(
                    Op.CONTRIBUTE,
                    WORKERS[rank],
                    words,
                    stream=1,
                    sender=rank,
                    seq=chunk,
                    chunk=chunk,
                    flags=Flag.DIRECT,
                    node=0,
                )
            )
    assert server.state.counters(1)["direct_completed"] == 2
    (report,) = server.reports()
    assert report.sums == 2
    assert report.queued == pytest.approx(2 * QUEUED)


# Of two slices, the first is this server's.
OPTIMIZED = replace(
    MEASURED,
    servers=(*PLAN.servers, Address(1001, 5)),
    optimizer=OptimizerPlan("sgd", rate=1.0),
    counts=(1, 1),
)
(MINE,), (OTHER,) = (np.flatnonzero(OPTIMIZED.server_of(np.arange(2)) == rank) for rank in range(2))


def initial(chunk: int) -> list[Batch]:
    """Initial parameters of a chunk, from all workers."""
    words = np.array([1.0] * LANES, ">f4").view(">i4").tolist()
    fields = {"stream": 1, "chunk": int(chunk), "seq": int(chunk), "flags": Flag.DIRECT, "node": 0}
    return [packet(Op.CONTRIBUTE, WORKERS[rank], words, sender=rank, **fields) for rank in range(4)]


def test_results_that_wait_for_the_backup_are_handled_until_it_has_them() -> None:
    server = Timed(OPTIMIZED)
    server.take(*initial(MINE))
    (update,) = server.state.take_updates()
    server.now += 7
    server.state.replicated(update)
    (report,) = server.reports()
    assert report.handled > 7 + QUEUED
    assert report.sent_bytes == 4 * (OVERHEAD + packet_bytes(LANES))


def test_sums_that_wait_for_parameters_on_their_way_are_handled_until_these_are_here() -> None:
    server = Timed(OPTIMIZED)
    server.state.own(1, 1, (), ((int(OTHER), 0),))
    server.take(*initial(OTHER))
    assert not server.state.take_updates()
    (task,) = server.state.take_moves(server.now)
    other = ServerState()
    other.install(replace(OPTIMIZED, rank=1))
    server.now += 7
    caller = OPTIMIZED.servers[0].ipv4
    part = other.move(caller, task.to_message(1))
    server.state.moved(task, [part], server.now)
    (update,) = server.state.take_updates()
    server.state.replicated(update)
    ((_, message),) = server.state.take_reports()
    assert message.WhichOneof("what") == "moved_here"
    server.take(*initial(MINE))
    (report,) = server.reports()
    assert report.handled > 7 + 2 * QUEUED
    assert report.sent_bytes == 4 * (OVERHEAD + packet_bytes(LANES))


def test_who_is_not_asked_measures_nothing() -> None:
    server = Timed(replace(MEASURED, measures=False))
    for rank in range(4):
        server.take(contribution(rank, 0), contribution(rank, 1))
    assert not server.state.measures
    assert server.state.quiet == float("inf")
    assert server.now == 10, "it has looked at the clock"
    assert not server.reports()
