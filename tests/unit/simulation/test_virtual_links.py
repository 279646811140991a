# SPDX-License-Identifier: Apache-2.0
"""Tests links in virtual time: trains equal their packets one by one, and every loss is counted."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.frames import ipv4_checksum
from simulation.errors import CausalityError, LinkError, TrainError
from simulation.links.link import Link, LinkSpec
from simulation.links.trains import NEVER, SECOND, Train, joined, train
from switch.ports.paced_line import address
from topologies.model.topology import LinkQuality

MTU, JUMBO = 1500, 9000
STORED = 42
# From a modem to a fast switch's port; 3 and 7 leave parts of a picosecond over.
RATES = [1_000, 33_600, 20_000_000, 3_000_000_007, 10**10, 70_000_000_001, 4 * 10**11]
EXPERIENCED = 3


def test_addresses_are_those_of_arrays_of_any_kind() -> None:
    whole = np.zeros((16, 80), np.uint8)
    kept = whole[:]
    kept.flags.writeable = False
    for array in (whole, whole[3:, 8:], kept, np.zeros(0, np.int64), np.frombuffer(bytes(8), "i8")):
        assert address(array) == array.ctypes.data


def frames(count: int, stored: int = STORED, tos: int = 2) -> np.ndarray:
    """IPv4 over Ethernet with a right checksum; the last two bytes are the packet's number."""
    header = struct.pack(">BBHHHBBH8s", 0x45, tos, 28, 0, 0, 64, 17, 0, bytes(range(8)))
    checksum = ipv4_checksum(header)
    header = header[:10] + checksum.to_bytes(2, "big") + header[12:]
    made = np.zeros((count, stored), np.uint8)
    made[:, 12] = 8
    made[:, 14:34] = np.frombuffer(header, np.uint8)
    made[:, -2] = np.arange(count) >> 8
    made[:, -1] = np.arange(count) & 0xFF
    return made


def numbers(trains: list[Train]) -> list[int]:
    """Which packets these are."""
    return [int(row[-2]) << 8 | int(row[-1]) for one in trains for row in one.frames]


def times(trains: list[Train]) -> list[int]:
    return [at for one in trains for at in one.times.tolist()]


def sent(link: Link, packets: list[tuple[int, int]], cuts: list[int], **fields: object) -> None:
    """Packets (time, length), cut into trains before those numbers."""
    made = frames(len(packets))
    whole = train([at for at, _ in packets], made, [size for _, size in packets], **fields)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(packets)), len(packets)})
    for first, end in pairwise(bounds):
        link.send(whole.select(slice(first, end)))


def fitting(packets: list[tuple[int, int]]) -> int:
    """The MTU that these need."""
    return MTU if max(size for _, size in packets) <= MTU + 14 else JUMBO


@st.composite
def traffic(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[int]]:
    """A rate, packets whose gaps are around what they take to send, and where to cut the train."""
    rate = draw(st.sampled_from(RATES))
    longest = draw(st.sampled_from([MTU, JUMBO])) + 14
    sizes = draw(st.lists(st.integers(STORED, longest), min_size=1, max_size=60))
    usual = 800 * 8 * SECOND // rate
    gaps = draw(
        st.lists(
            st.sampled_from([0, 0, 1, usual // 3, usual, usual + 1, 2 * usual, 30 * usual]),
            min_size=len(sizes),
            max_size=len(sizes),
        )
    )
    at, packets = draw(st.integers(0, 10**15)), []
    for gap, size in zip(gaps, sizes, strict=True):
        at += gap
        packets.append((at, size))
    cuts = draw(st.lists(st.integers(1, 59), max_size=60))
    return rate, packets, cuts


def reference(
    rate: int, packets: list[tuple[int, int]], limit: int, framing: bool, mark_above: int
) -> list[tuple[int, int, bool]]:
    """Packet by packet, with fractions: (number, when its last bit left, whether it is marked)."""
    free, waiting, left = Fraction(0), [], []
    for number, (at, size) in enumerate(packets):
        waiting = [(start, bytes_) for start, bytes_ in waiting if start > at]
        held = sum(bytes_ for _, bytes_ in waiting)
        if held + size > limit:
            continue
        start = max(free, Fraction(at))
        wire = max(size, 60) + (24 if framing else 0)
        free = start + Fraction(8 * SECOND * wire, rate)
        waiting.append((int(start), size))  # whole picoseconds, as a node knows the time
        left.append((number, int(free), held > mark_above))
    return left


@settings(deadline=None, max_examples=150)
@given(traffic(), st.booleans(), st.integers(1, 12), st.integers(0, 6))
def test_a_train_is_its_packets_one_by_one(flow, framing: bool, room: int, threshold: int) -> None:
    rate, packets, cuts = flow
    mtu = fitting(packets)
    limit, mark_above = room * (mtu + 14), 1 + threshold * 700
    spec = LinkSpec(
        rate, delay=5_000, queue_bytes=limit, ecn_bytes=mark_above, mtu=mtu, framing=framing
    )
    link = Link(spec, "a->b")
    sent(link, packets, cuts)
    taken = link.take(NEVER)
    expected = reference(rate, packets, limit, framing, mark_above)
    assert numbers(taken) == [number for number, _, _ in expected]
    assert times(taken) == [end + 5_000 for _, end, _ in expected]
    marks = [int(row[15]) & 3 == EXPERIENCED for one in taken for row in one.frames]
    assert marks == [marked for _, _, marked in expected]
    assert all(ipv4_checksum(row[14:34].tobytes()) == 0 for one in taken for row in one.frames)
    counters = link.counters
    assert counters.sent == counters.arrived == len(expected)
    assert counters.sent + counters.dropped == len(packets)
    assert counters.sent_bytes + counters.dropped_bytes == sum(size for _, size in packets)
    assert counters.marked == sum(marks)


@settings(deadline=None, max_examples=100)
@given(traffic(), st.lists(st.integers(0, 7), min_size=60, max_size=60), st.integers(1, 5))
def test_strict_priorities_are_those_of_a_queue_by_hand(flow, classes, room: int) -> None:
    rate, packets, cuts = flow
    mtu = fitting(packets)
    limit, classes = room * (mtu + 14), classes[: len(packets)]
    link = Link(LinkSpec(rate, queue_bytes=limit, mtu=mtu, priorities=True), "a->b")
    sent(link, packets, cuts, priorities=classes)
    link.settle(NEVER)
    taken = link.take(NEVER)
    free, waiting, left, lost = Fraction(0), [], [], 0

    def serve(until: float) -> None:
        nonlocal free
        while waiting and max(free, min(at for _, _, at, _ in waiting)) <= until:
            now = max(free, min(at for _, _, at, _ in waiting))
            there = [one for one in waiting if one[2] <= now]
            chosen = min(there, key=lambda one: (-one[0], one[1]))
            waiting.remove(chosen)
            free = now + Fraction(8 * SECOND * max(chosen[3], 60), rate)
            left.append((chosen[1], int(free)))

    for number, (at, size) in enumerate(packets):
        serve(at)
        firm = sum(one[3] for one in waiting if one[0] >= classes[number])
        if firm + size > limit:
            lost += 1
            continue
        while sum(one[3] for one in waiting) + size > limit:
            waiting.remove(min(waiting, key=lambda one: (one[0], -one[1])))
            lost += 1
        waiting.append((classes[number], number, at, size))
    serve(float("inf"))
    assert list(zip(numbers(taken), times(taken), strict=True)) == left
    assert link.counters.dropped == lost
    assert link.counters.sent + lost == len(packets)
    assert link.undecided == 0


@settings(deadline=None, max_examples=60)
@given(traffic(), st.integers(0, 2**32), st.booleans())
def test_faults_marks_and_priorities_are_a_packets_own(flow, seed: int, strict: bool) -> None:
    """However a flow is cut into trains and fetched, the fate of each packet is that of
    it by itself: the same ones are lost, doubled, late, marked and overtaken, at the same times."""
    rate, packets, cuts = flow
    spec = LinkSpec(
        rate, delay=7, queue_bytes=1 << 16, ecn_bytes=2000, mtu=fitting(packets), loss=0.2,
        duplicate=0.2, reorder=0.2, seed=seed, priorities=strict,
    )  # fmt: skip
    classes = np.random.default_rng(seed).integers(0, 8, len(packets)).tolist()
    one, other = Link(spec, "a->b"), Link(spec, "a->b")
    for link, parts_of in ((one, cuts), (other, list(range(len(packets))))):
        sent(link, packets, parts_of, priorities=classes)
        link.settle(NEVER)
    whole, parts = one.take(NEVER), []
    for step in [*sorted({*times(whole)})[::3], NEVER]:
        assert other.head >= (parts[-1].times[-1] if parts else 0)
        parts += other.take(step)
    assert numbers(whole) == numbers(parts)
    assert times(whole) == times(parts) == sorted(times(whole))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(
            (row for train in whole for row in train.frames),
            (row for train in parts for row in train.frames),
            strict=True,
        )
    )
    assert one.counters == other.counters
    counters = one.counters
    assert counters.sent + counters.duplicated == counters.arrived + counters.lost
    assert one.under_way == other.under_way == 0


def test_faults_happen_as_often_as_they_should() -> None:
    spec = LinkSpec(10**10, queue_bytes=1 << 24, loss=0.1, duplicate=0.05, reorder=0.02)
    link, n = Link(spec, "a->b"), 20_000
    link.send(train(0, frames(n)))
    counters = link.counters
    for count, of, probability in (
        (counters.lost, n, 0.1),
        (counters.duplicated, n - counters.lost, 0.05),
        (counters.reordered, n - counters.lost, 0.02),
    ):
        deviation = (of * probability * (1 - probability)) ** 0.5
        assert abs(count - of * probability) < 5 * deviation
    arrived = numbers(link.take(NEVER))
    behind = sum(a > b for a, b in pairwise(arrived))
    # Two next to each other may both be late, and then keep their order.
    assert 0.8 * counters.reordered < behind <= counters.reordered


def test_links_of_one_seed_have_draws_of_their_own() -> None:
    lost = []
    for name in ("a->b", "b->a"):
        link = Link(LinkSpec(10**9, queue_bytes=1 << 24, loss=0.5, seed=3), name)
        link.send(train(0, frames(200)))
        lost.append(numbers(link.take(NEVER)))
    assert lost[0] != lost[1]


def test_only_packets_in_flight_are_kept() -> None:
    """A thousand trains through a link that is emptied as it fills: it never holds two of them."""
    link = Link(LinkSpec(10**9, queue_bytes=1 << 20), "a->b")
    made = frames(64)
    for turn in range(1000):
        link.send(train(turn * SECOND // 1000, made))
        assert link.under_way == 64
        link.take((turn + 1) * SECOND // 1000)
        assert link.under_way == 0
        assert link.head == NEVER
    assert link.counters.arrived == 64_000


def test_a_sender_knows_when_there_is_room() -> None:
    """Ten frames of 1,000 bytes at 1 Gbit/s, 8 us each: one is on the line, nine wait."""
    link = Link(LinkSpec(10**9, queue_bytes=10_000), "a->b")
    link.send(train(0, frames(10), 1000))
    assert link.waiting(0) == 9_000
    assert link.waiting(8_000_000) == 8_000
    assert link.room(1_000) == 0
    assert link.room(1_001) == 8_000_000
    assert link.room(10_000) == 72_000_000
    assert link.room(10_001) == NEVER
    link.send(train(link.room(3_000), frames(3), 1000))
    assert link.counters.dropped == 0
    assert link.counters.queue_most == 10_000


def test_chunks_may_occupy_the_wire_without_content() -> None:
    link = Link(LinkSpec(10**9), "a->b")
    link.send(train(0, frames(2), 1000))
    (taken,) = link.take(NEVER)
    assert taken.times.tolist() == [8_000_000, 16_000_000]
    assert taken.frames.shape == (2, STORED)
    assert link.counters.sent_bytes == 2000


def test_what_the_mtu_forbids_is_dropped_and_counted() -> None:
    link = Link(LinkSpec(10**9, queue_bytes=1 << 16, mtu=9000), "a->b")
    link.send(train([0, 0, 5], frames(3), [9014, 9015, 60]))
    assert numbers(link.take(NEVER)) == [0, 2]
    assert link.counters.oversized == 1


def test_framing_counts_preamble_checksum_and_gap() -> None:
    """A packet of 1,000 bytes takes 1,024 byte times, one of 40 those of the shortest frame: 84."""
    for framing, expected in ((False, [8000, 8480]), (True, [8192, 8864])):
        link = Link(LinkSpec(10**9, framing=framing), "a->b")
        link.send(train(0, frames(2, 40), [1000, 40]))
        assert times(link.take(NEVER)) == [1000 * end for end in expected]
        assert link.counters.wire_bytes * 8 == expected[-1]


def test_marks_need_ecn_capable_packets() -> None:
    """Without ECN in the sender's header nothing changes (RFC 3168, section 5)."""
    for tos, becomes in ((0, 0), (1, 3), (2, 3), (3, 3), (0xB9, 0xBB)):
        link = Link(LinkSpec(10**9, ecn_bytes=1), "a->b")
        made = frames(3, tos=tos)
        link.send(train(0, made))
        (taken,) = link.take(NEVER)
        assert taken.frames[:, 15].tolist() == [tos, tos, becomes]
        assert ipv4_checksum(taken.frames[2, 14:34].tobytes()) == 0
        assert (made[:, 15] == tos).all(), "the sender's own memory stays as it is"


def test_a_topologys_link_leaves_to_the_program_what_the_program_does() -> None:
    quality = LinkQuality(rate=10**10, delay=2e-6, loss=0.1, reorder=0.2, corrupt=0.1, mtu=9000)
    spec = LinkSpec.of(quality, framing=True)
    assert (spec.rate, spec.delay, spec.mtu, spec.framing) == (10**10, 2_000_000, 9000, True)
    assert (spec.queue_bytes, spec.ecn_bytes, spec.loss, spec.reorder) == (131072, 0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rate": 0}, "rate of 0 bit/s"),
        ({"delay": -1}, "delay of -1 ps"),
        ({"queue_bytes": 1000}, "holds no packet of MTU 1500; allowed: at least 1514 B"),
        ({"rate": 1000, "queue_bytes": 1 << 32}, "takes more than 1000000 s to empty"),
        ({"loss": 1.5}, "loss of 1.5; allowed: 0 to 1"),
    ],
)
def test_links_that_cannot_be_are_refused(fields, text: str) -> None:
    with pytest.raises(LinkError, match=text):
        LinkSpec(**{"rate": 10**9, **fields})


def test_invalid_train_is_rejected() -> None:
    link = Link(LinkSpec(10**9), "a->b")
    rows, lengths = frames(2), np.full(2, 100)
    with pytest.raises(TrainError, match="order of their times"):
        link.send(Train(np.array([5, 4]), rows, lengths))
    with pytest.raises(TrainError, match="shorter than an Ethernet header"):
        link.send(Train(np.array([4, 5]), rows, np.array([100, 13])))
    with pytest.raises(TrainError, match="2 times, 3 frames"):
        train([4, 5], frames(3))
    link.send(Train(np.array([4, 5]), rows, lengths))
    with pytest.raises(CausalityError, match="before the last one"):
        link.send(Train(np.array([4, 5]), rows, lengths))
    assert link.counters.sent == 2


def test_trains_become_one_whatever_is_stored_of_their_frames() -> None:
    parts = [train(at, frames(2, stored)) for at, stored in ((1, 50), (2, 50), (3, 60), (4, 50))]
    one = joined(parts)
    assert one.times.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert one.lengths.tolist() == [50, 50, 50, 50, 60, 60, 50, 50]
    assert one.stored == 60
    stored = [frame for part in parts for frame in part.frames]
    for found, frame in zip(one.frames, stored, strict=True):
        assert found.tobytes() == frame.tobytes() + bytes(60 - len(frame))
