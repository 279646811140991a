# SPDX-License-Identifier: Apache-2.0
"""Tests known ways in which published in-network aggregators sum wrongly or hang.

Whole jobs over the compiled program on a simulated network; every test ends by comparing what
every worker got with the exact sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from controller.planning.tree_planner import TreeKind
from hosts.worker.transport import WorkerTransport
from protocol.frames import OVERHEAD
from protocol.header import Flag, Op, decode
from protocol.outcomes import Outcome
from protocol.payloads import sum_checks
from tests.history import Contacts
from tests.impaired_links import Impairments
from tests.packet.jobs.forged import contribution, send
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of, start
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import HOP_SECONDS, SwitchedNetwork

Start = Callable[..., Run]


@dataclass(frozen=True)
class Packet:
    """What tests look at in a frame that enters a link, header fields among it; `switch` and `port`
    are where the link ends, or begins if it ends at a host."""

    switch: str
    port: int
    frame: bytes

    def __post_init__(self) -> None:
        batch, malformed = decode([self.frame[OVERHEAD:]], [(0, 0)], LANES)
        assert malformed == 0
        object.__setattr__(self, "batch", batch)

    def __getattr__(self, name: str) -> int:
        return int(self.__dict__["batch"].headers[0][name])

    @property
    def values(self) -> list[int]:
        values: list[int] = self.__dict__["batch"].payloads[0].tolist()
        return values

    @property
    def checksum_holds(self) -> bool:
        batch = self.__dict__["batch"]
        return bool(sum_checks(batch.headers, batch.payloads, batch.full)[0])

    @property
    def op(self) -> Op:
        return Op(self.version_op & 15)

    def at(self, place: tuple[str, int]) -> bool:
        return (self.switch, self.port) == place


@pytest.fixture
def job() -> Iterator[Start]:
    """Starts a job of 5 workers in two racks; its slots serve several chunks each."""
    networks: list[SwitchedNetwork] = []

    def begin(chunks: int = 10, rounds: int = 2, window: int = 2, topology: str = "two racks"):
        network = network_of(topology, 1, Impairments())
        networks.append(network)
        started = start(
            network, topology, TreeKind.TWO_LEVEL, chunks, window=window, streams=1, delay=0.002
        )
        return Run(started, rounds, seed=21, odd=False)

    yield begin
    for network in networks:
        network.close()


def watch(run: Run, see: Callable[[Packet], bool]) -> None:
    """Shows each frame that enters a link; False drops it."""

    def tamper(node: str, port: int, frame: bytes) -> bytes | None:
        return frame if see(Packet(node, port, frame)) else None

    run.started.network.tamper = tamper


def place_of(started: StartedJob, rank: int) -> tuple[str, int]:
    """The switch and port that a worker is behind."""
    link = started.network.addressing.host_interfaces(started.workers[rank])[0]
    return link.switch, link.switch_port


def again(run: Run, packet: Packet, after: float = 0.0) -> None:
    """The network delivers a packet to the switch once more."""
    network = run.started.network
    network.at(network.now + after, lambda: network.carry(packet.switch, packet.port, packet.frame))


def finish(run: Run, skew: float = 0.0) -> Counter[Outcome]:
    """Runs to the end and checks every sum; what the switches counted."""
    network = run.started.network
    run.submit(skew, seed=1)
    assert network.run(lambda: run.done, LIMIT), run.waiting()
    run.check()
    assert run.started.reported == 0
    return Counter(network.outcomes())


SETTLED = 1.0  # virtual seconds, far more than a few round trips


def settle(run: Run) -> Counter[Outcome]:
    """Lets everything under way arrive; what the switches have counted."""
    run.started.network.run_for(SETTLED)
    return Counter(run.started.network.outcomes())


def retransmitted(run: Run) -> list[int]:
    return [transport.statistics.retransmitted for transport in run.started.transports]


def test_late_reordered_duplicate_after_the_slot_moved_on(job) -> None:
    """A slot that knows only which half of its window it serves takes a late duplicate for the
    chunk that it serves now, and the sum is silently wrong."""
    run = job()
    place = place_of(run.started, 0)
    kept: list[Packet] = []

    def see(packet: Packet) -> bool:
        if packet.at(place) and packet.op is Op.CONTRIBUTE and packet.lanes:
            if kept and packet.seq == kept[0].seq + 4:  # the same slot, now summing another chunk
                again(run, kept[0], 2 * HOP_SECONDS)
            elif not kept:
                kept.append(packet)
        return True

    watch(run, see)
    counted = finish(run, skew=0.5)
    assert counted[Outcome.STALE] == 1
    assert counted[Outcome.OTHER_CHUNK] == 0


def test_worker_restarted_mid_job_receives_no_old_sum(job) -> None:
    """A worker that starts again from number 0 is answered with sums of its former life, or spoils
    those of the others with what it sends under old numbers."""
    run = job(chunks=20)
    started, network = run.started, run.started.network
    old = started.transport(0).plan
    life: list[WorkerTransport] = []

    def restart() -> None:
        transport = WorkerTransport(old, Contacts(started.chunks, old.world), link_rate=0)
        life.append(transport)
        transport.submit(
            np.arange(started.chunks), np.ones((started.chunks, LANES), np.float32), LANES
        )
        network.attach(started.workers[0], started.ports[0], transport).poke()

    def die() -> None:
        assert any(run.seen[1]), "it has to die in the middle"
        started.kill(0)
        started.replan("worker 0 is gone")
        network.at(network.now + 0.001, restart)  # while the change is on its way
        network.at(network.now + 5.0, restart)  # long after it

    network.at(network.now + 0.05, die)
    finish(run)
    settle(run)
    assert len(life) == 2
    assert all(transport.statistics.sent > 0 for transport in life)
    assert all(len(transport.take_completed()) == 0 for transport in life)


def test_first_window_has_a_retransmission_timer(job) -> None:
    """Where only a result restarts the clock, the loss of the first packets is never noticed."""
    run = job(window=4)
    met: set[tuple[str, int, Op, int]] = set()

    def see(packet: Packet) -> bool:
        key = (packet.switch, packet.port, packet.op, packet.seq)
        first = packet.seq < 4 and key not in met
        met.add(key)
        return not first  # everything of the first window is lost once on every link

    watch(run, see)
    finish(run)
    assert all(count > 0 for count in retransmitted(run))


def test_late_duplicate_after_release_does_not_claim_the_slot_again(job) -> None:
    """Where a complete chunk frees its slot, a late duplicate takes the free slot for a chunk that
    no other worker will ever contribute to, for good."""
    run = job()
    place = place_of(run.started, 0)
    kept: list[Packet] = []

    def see(packet: Packet) -> bool:
        if packet.at(place) and packet.op is Op.CONTRIBUTE:
            kept.append(packet)
        return True

    def submit(number: int) -> None:
        for rank in range(run.started.world):
            run.started.submit(rank, np.arange(run.chunks), run.values[number, rank], LANES)

    watch(run, see)
    submit(0)
    before = settle(run)
    assert all(transport.idle for transport in run.started.transports)
    watch(run, lambda packet: True)
    for packet in kept:
        again(run, packet)
    counted = settle(run) - before
    # Two windows of numbers are still known, as the sums they are; all else is refused.
    assert counted[Outcome.REPLAYED] == 4
    assert counted[Outcome.STALE] == len(kept) - 4
    assert counted[Outcome.CLAIMED] == counted[Outcome.ADDED] == 0
    submit(1)  # and the job goes on over the same slots
    settle(run)
    assert run.done
    run.check()


@pytest.mark.parametrize("lost", [1, 2], ids=["the contribution", "and the next one, too"])
def test_one_loss_makes_one_worker_resend(lost: int, job) -> None:
    """Where everybody's timer runs while a chunk is incomplete, the loss of one packet makes all
    workers send theirs again."""
    run = job()
    place = place_of(run.started, 3)
    left = [lost]

    def see(packet: Packet) -> bool:
        hit = packet.at(place) and packet.op is Op.CONTRIBUTE and packet.chunk == 4
        if hit and packet.lanes and left[0]:
            left[0] -= 1
            return False
        return True

    watch(run, see)
    finish(run)
    assert retransmitted(run) == [0, 0, 0, lost, 0]


def test_numbers_wrap_at_the_next_level_too(job) -> None:
    """Where a leaf switch makes numbers of its own for what it sends up, they wrap at another time
    than the workers', and the level above takes new partial sums for old ones."""
    run = job(window=2)
    started, network = run.started, run.started.network
    results: dict[tuple[str, int], list[Packet]] = {}
    partial: list[Packet] = []

    def see(packet: Packet) -> bool:
        if packet.op is Op.RESULT and packet.node == 0:
            results.setdefault((packet.switch, packet.port), []).append(packet)
        elif packet.op is Op.CONTRIBUTE and packet.switch == "core0":
            partial.append(packet)
        return True

    watch(run, see)
    first = 2**32 - 7
    draw = np.random.default_rng(4)
    expected = []
    for number in range(14):
        seq = (first + number) % 2**32
        words = draw.integers(-(2**20), 2**20, (started.world, LANES))
        expected.append((seq, words.sum(axis=0).tolist()))
        for rank in range(started.world):
            batch = contribution(started, rank, words[rank], seq=seq, chunk=number % run.chunks)
            send(network, started.workers[rank], started.ports[rank], batch)
        settle(run)
        if number >= 4:  # from before the wrap, in the slot of a number behind it, and so on
            old = next(p for p in partial if p.seq == (seq - 4) % 2**32)
            again(run, old)
            settle(run)
    counted = network.outcomes()
    assert counted[Outcome.STALE] == 10
    assert counted[Outcome.COMPLETED] == 14
    assert len(results) == started.world
    for packets in results.values():
        assert [(packet.seq, packet.values) for packet in packets] == expected
        assert all(packet.checksum_holds for packet in packets)


def test_all_zero_chunk_inf_and_nan(job) -> None:
    """An all-zero chunk has no largest exponent to scale by, and casts of inf and NaN to integers
    are whatever the processor makes of them; either spoils the scale of the others."""
    run = job(chunks=6, rounds=3)
    run.values[:, :, 0] = 0  # always zero
    run.values[0, :, 1] = 0  # zero at first, so that nothing is known about its scale
    run.values[1, 2, 2, 17] = np.inf
    run.values[1, 0, 3, 5], run.values[1, 4, 3, 5] = np.inf, -np.inf
    run.values[2, 1, 4, 255] = np.nan
    finish(run)
    direct = run.flags[0].reshape(run.rounds, run.chunks) & Flag.DIRECT != 0
    assert direct[:, [0, 5]].sum() == 0
    assert [direct[1, 2], direct[1, 3], direct[2, 4]] == [True] * 3
    assert not direct[0, 2:].any()
    got = run.got[0].reshape(run.rounds, run.chunks, LANES)
    assert (got[:, 0] == 0).all()
    assert got[1, 2, 17] == np.inf
    assert np.isnan(got[1, 3, 5])
    assert np.isnan(got[2, 4, 255])
    assert np.isfinite(got[2, 4, :255]).all()


def test_changed_number_of_workers(job) -> None:
    """Where the number of workers is fixed when the switch is set up, one that dies stops the rest
    for ever; where it is not, sums of different workers are averaged over the same number."""
    run = job(chunks=30)
    started, network = run.started, run.started.network

    def die() -> None:
        started.kill(2)
        started.replan("worker 2 is gone")

    network.at(network.now + 0.1, die)
    finish(run, skew=0.01)
    for rank in started.staying:
        # Each sum says who is in it.
        assert {len(started.worlds[which]) for which in run.workers[rank].tolist()} == {4, 5}
    assert started.worlds == [(0, 1, 2, 3, 4), (0, 1, 3, 4)]


def test_number_of_workers_is_not_taken_from_the_packet(job) -> None:
    """A switch that counts workers as packets tell it completes a sum that others are missing in,
    as soon as one says that it is all of them."""
    run = job()
    place = place_of(run.started, 1)
    network = run.started.network
    forged = [0]

    def tamper(node: str, port: int, frame: bytes) -> bytes:
        packet = Packet(node, port, frame)
        if packet.at(place) and packet.op is Op.CONTRIBUTE and not packet.flags & Flag.RETRANSMIT:
            forged[0] += 1
            at = OVERHEAD + 20
            return frame[:at] + (5).to_bytes(2, "big") + frame[at + 2 :]
        return frame

    network.tamper = tamper
    counted = finish(run)
    assert counted[Outcome.WRONG_WORKERS] == forged[0] > 0


def test_switch_reboot_with_partial_sums(job) -> None:
    """A switch that comes back with empty registers counts retransmitted contributions as if
    the others were still to come; and what it had sent up already is counted twice."""
    run = job(chunks=40, window=16)
    started, network = run.started, run.started.network
    lost: Counter[Outcome] = Counter()

    outcomes = network.fabric.outcomes

    def die() -> None:
        lost.update(outcomes("tor0"))
        network.break_switch("tor0")
        network.call(network.now + 0.1, back)

    def back() -> None:
        network.repair_switch("tor0")
        started.replan("tor0 has restarted")

    def see(packet: Packet) -> bool:
        # Rack 0 is ahead: its sums are partial while rack 1 is late; one worker in it is later.
        if packet.at(place_of(started, 1)) and packet.epoch == 1 and packet.chunk % 3 == 1:
            return False
        return not (packet.switch == "tor1" and packet.epoch == 1 and packet.chunk % 2 == 1)

    watch(run, see)
    network.at(network.now + 0.15, die)
    finish(run)
    assert lost[Outcome.PARTIAL_SENT] > lost[Outcome.RESULT_DOWN], "no sum was partial"
    assert lost[Outcome.CLAIMED] > lost[Outcome.PARTIAL_SENT], "no sum was incomplete"
    assert started.job.epoch > 1


def test_result_lost_to_one_worker_while_others_move_on(job) -> None:
    """Where a slot is free as soon as its result is out, a worker that lost the result finds
    another worker's chunk there, and waits for ever or takes the wrong sum."""
    run = job(window=2)
    place = place_of(run.started, 4)
    lost = Counter()
    ahead: list[int] = []

    def see(packet: Packet) -> bool:
        if packet.op is Op.RESULT and packet.at(place) and packet.lanes and packet.chunk == 3:
            lost[packet.seq] += 1
            return lost[packet.seq] > 2
        if packet.op is Op.CONTRIBUTE and packet.at(place_of(run.started, 0)) and lost:
            ahead.append(packet.seq - min(lost))
        return True

    watch(run, see)
    counted = finish(run)
    assert len(lost) == run.rounds
    assert counted[Outcome.REPLAYED] >= 2 * run.rounds
    assert retransmitted(run)[:4] == [0] * 4
    assert max(ahead) > 0, "no worker moved on"
