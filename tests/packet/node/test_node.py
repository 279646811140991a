# SPDX-License-Identifier: GPL-2.0-only
"""Tests a switch as a node: contributions and sums, on every target."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from protocol.frames import ipv4_checksum
from protocol.header import PORT, Flag, Op
from protocol.outcomes import Outcome
from protocol.scapy_layer import Aggregation
from tests.packet.node.node_rig import (
    LANES,
    SERVER,
    added,
    checksum_holds,
    fill,
    lanes,
    mac,
    only,
    two_workers,
)


def test_root_sums_and_answers_every_worker(target, counted) -> None:
    node = two_workers(target)
    a, b = lanes(1), lanes(2)
    assert node.send(node.children[0], node.contribution(node.children[0], a, chunk=9)) == []
    output = node.send(
        node.children[1], node.contribution(node.children[1], b, chunk=9, max_exponent=4)
    )
    assert sorted(port for port, _ in output) == [1, 2]
    for port, frame in output:
        packet, child = Ether(frame), node.children[port - 1]
        result = packet[Aggregation]
        assert result.op == Op.RESULT
        assert result.values == added(a, b)
        assert (result.workers, result.children, result.chunk, result.seq) == (2, 0b11, 9, 0)
        assert (result.exponent, result.max_exponent, result.node) == (3, 4, 0)
        assert checksum_holds(packet)
        assert (packet[IP].src, packet[IP].dst) == (SERVER, child.address)
        assert (packet[UDP].sport, packet[UDP].dport) == (PORT, child.udp_port)
        assert packet.dst == mac(child.mac)
        assert ipv4_checksum(frame[14:34]) == 0
    assert counted() == {Outcome.CLAIMED: 1, Outcome.ADDED: 1, Outcome.COMPLETED: 1}


def test_sums_wrap_no_lane_into_its_neighbour(target) -> None:
    node = two_workers(target)
    a = [-1, 1, 2**31 - 1, -(2**31)] * (LANES // 4)
    b = [1, -1, -(2**31), 2**31 - 1] * (LANES // 4)
    node.send(node.children[0], node.contribution(node.children[0], a))
    output = node.send(node.children[1], node.contribution(node.children[1], b))
    assert [Ether(frame)[Aggregation].values for _, frame in output] == [added(a, b)] * 2


def test_duplicate_of_an_unfinished_chunk_is_dropped(target, counted) -> None:
    node = two_workers(target)
    packet = node.contribution(node.children[0], lanes(1))
    assert node.send(node.children[0], packet, packet) == []
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    assert Ether(output[0][1])[Aggregation].values == added(lanes(1), lanes(2))
    assert counted()[Outcome.DUPLICATE] == 1


def test_result_is_replayed_to_the_asking_child_alone(target, counted) -> None:
    node = two_workers(target)
    first = node.contribution(node.children[0], lanes(1))
    node.send(node.children[0], first)
    node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    port, packet = only(node.send(node.children[0], first))
    assert port == 1
    assert packet[Aggregation].op == Op.RESULT
    assert packet[Aggregation].values == added(lanes(1), lanes(2))
    assert packet[IP].dst == node.children[0].address
    assert counted()[Outcome.REPLAYED] == 1


def test_window_reuses_slots_and_older_chunks_are_stale(target, counted) -> None:
    node = two_workers(target)
    later = 2 * node.window  # the same slot as seq 0
    old = node.contribution(node.children[0], lanes(1))
    node.send(node.children[0], old)
    new = node.contribution(node.children[0], lanes(3), seq=later, chunk=5)
    assert node.send(node.children[0], new, old) == []
    output = node.send(
        node.children[1], node.contribution(node.children[1], lanes(4), seq=later, chunk=5)
    )
    assert Ether(output[0][1])[Aggregation].values == added(lanes(3), lanes(4))
    assert counted() == {
        Outcome.CLAIMED: 2,
        Outcome.STALE: 1,
        Outcome.ADDED: 1,
        Outcome.COMPLETED: 1,
    }


def test_numbers_wrap_around(target, counted) -> None:
    node = two_workers(target)
    last = 2**32 - 1
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=last))
    again = (last + 2 * node.window) % 2**32
    node.send(node.children[0], node.contribution(node.children[0], lanes(2), seq=again))
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), seq=last))
    assert counted() == {Outcome.CLAIMED: 2, Outcome.STALE: 1}


@pytest.mark.parametrize("change", ["chunk", "server"])
def test_another_chunk_or_server_under_the_same_number_is_dropped(target, counted, change) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1), chunk=1))
    wrong = node.contribution(node.children[1], lanes(2), chunk=2 if change == "chunk" else 1)
    if change == "server":
        wrong[IP].dst = "10.0.1.2"
    assert node.send(node.children[1], wrong) == []
    assert counted()[Outcome.OTHER_CHUNK] == 1


@pytest.mark.parametrize("what", ["job", "epoch"])
def test_stale_slot_of_other_job_or_epoch_is_overwritten(target, counted, what) -> None:
    """Registers cannot be cleared: their tags alone tell an old owner's sum from the new one's."""
    old = two_workers(target)
    later = 6 + 2 * old.window  # the same slot as seq 6
    fill(old, lanes(1), lanes(2), seq=later)
    fresh = {"job": old.job, "epoch": old.epoch + 1} if what == "epoch" else {}
    new = two_workers(target, base=old.base, **fresh)
    for seq in (6, later):
        output = fill(new, lanes(3), lanes(4), seq=seq)
        sums = [Ether(frame)[Aggregation].values for _, frame in output]
        assert sums == [added(lanes(3), lanes(4))] * 2
    assert counted() == {Outcome.CLAIMED: 3, Outcome.ADDED: 3, Outcome.COMPLETED: 3}


def test_same_number_in_another_epoch_is_another_chunk(target, counted) -> None:
    """An epoch that ended in the middle of a chunk: its contributions are not in the new sum."""
    old = two_workers(target)
    old.send(old.children[0], old.contribution(old.children[0], lanes(1)))
    new = two_workers(target, base=old.base, job=old.job, epoch=old.epoch + 1)
    output = fill(new, lanes(3), lanes(4))
    assert Ether(output[0][1])[Aggregation].values == added(lanes(3), lanes(4))
    assert counted() == {Outcome.CLAIMED: 2, Outcome.ADDED: 1, Outcome.COMPLETED: 1}


def test_exponent_round_is_header_only_and_finds_the_signed_maximum(target) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], None, max_exponent=-128))
    output = node.send(node.children[1], node.contribution(node.children[1], None, max_exponent=-3))
    assert len(output) == 2
    for _, frame in output:
        packet = Ether(frame)
        assert len(frame) == 14 + 20 + 8 + 32
        assert (packet[Aggregation].lanes, packet[Aggregation].max_exponent) == (0, -3)
        assert checksum_holds(packet)


def test_lane_overflow_flags_the_sum_and_drops_its_payload(target, counted) -> None:
    node = two_workers(target)
    big = [0] * (LANES - 1) + [2**31 - 1]
    one = [0] * (LANES - 1) + [1]
    node.send(node.children[0], node.contribution(node.children[0], big))
    output = node.send(node.children[1], node.contribution(node.children[1], one))
    assert len(output) == 2
    for _, frame in output:
        packet = Ether(frame)
        assert packet[Aggregation].flags == Flag.OVERFLOW
        assert len(frame) == packet[IP].len + 14 == 74
        assert packet[Aggregation].lanes == LANES
    assert counted()[Outcome.OVERFLOWED] == 1


@pytest.mark.parametrize("flag", [Flag.OVERFLOW, Flag.NONFINITE])
def test_flagged_contribution_flags_the_sum(target, flag) -> None:
    node = two_workers(target)
    flagged = node.contribution(
        node.children[0], None, flags=int(flag), lanes=LANES, max_exponent=90
    )
    node.send(node.children[0], flagged)
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    assert len(output) == 2
    for _, frame in output:
        result = Ether(frame)[Aggregation]
        assert result.flags == flag
        assert (result.max_exponent, result.workers, len(frame)) == (90, 2, 74)
    port, packet = only(node.send(node.children[0], flagged))
    assert (port, packet[Aggregation].flags) == (1, flag)


@pytest.mark.parametrize("other", [{"exponent": 4}, {"lanes": 200}], ids=str)
def test_another_exponent_or_length_than_the_slots_overflows(target, counted, other) -> None:
    node = two_workers(target)
    node.send(node.children[0], node.contribution(node.children[0], lanes(1)))
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(1), **other))
    assert [Ether(frame)[Aggregation].flags for _, frame in output] == [Flag.OVERFLOW] * 2
    assert [len(frame) for _, frame in output] == [74] * 2
    assert counted()[Outcome.OVERFLOWED] == 1


def test_result_reports_congestion_of_contributions(target) -> None:
    node = two_workers(target)
    packet = node.contribution(node.children[0], lanes(1))
    packet[IP].tos = 3
    node.send(node.children[0], packet)
    output = node.send(node.children[1], node.contribution(node.children[1], lanes(2)))
    assert [Ether(frame)[Aggregation].flags for _, frame in output] == [Flag.ECN] * 2
