# SPDX-License-Identifier: Apache-2.0
"""Tests that what waits for a host's link leaves by priority, in order within each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.data.array_pool import ArrayPool
from hosts.net.broadcast_batch import BroadcastBatch
from hosts.net.priority_queue import PriorityQueue, split_by_priority
from protocol.header import Batch, Op, blank, packet_bytes, parts_of, peer_array
from protocol.priorities import priority_of, stream_number

LANES = 4
PEERS = [(0x0A000001, 1), (0x0A000002, 2)]

streams = st.integers(0, 255)
# Streams of items to add, or None to take one.
steps = st.lists(st.one_of(streams, st.none()), max_size=100)


@given(steps)
def test_the_most_urgent_item_leaves_first_and_the_oldest_among_equals(
    steps: list[int | None],
) -> None:
    queue: PriorityQueue[tuple[int, int]] = PriorityQueue(lambda item: item[0])
    waiting: list[tuple[int, int]] = []
    for number, stream in enumerate(steps):
        if stream is not None:
            queue.append((stream, number))
            waiting.append((stream, number))
        elif waiting:
            first = min(waiting, key=lambda item: (-priority_of(item[0]), item[1]))
            assert queue[0] == first
            assert queue.popleft() == first
            waiting.remove(first)
        assert bool(queue) == bool(waiting)


def test_what_is_put_back_is_the_first_of_its_priority() -> None:
    queue: PriorityQueue[tuple[int, str]] = PriorityQueue(lambda item: item[0])
    lazy, urgent = stream_number(1, 0), stream_number(6, 0)
    queue.extend([(lazy, "b"), (urgent, "d")])
    queue.extendleft([(urgent, "c"), (lazy, "a")])
    assert [queue.popleft()[1] for _ in range(4)] == ["c", "d", "a", "b"]
    with pytest.raises(IndexError):
        queue.popleft()
    queue.append((lazy, "e"))
    queue.clear()
    assert not queue


def batch_of(numbers: list[int]) -> Batch:
    headers = blank(len(numbers), Op.RESULT)
    headers["stream"], headers["seq"] = numbers, np.arange(len(numbers))
    payloads = np.zeros((len(numbers), LANES), ">i4")
    peers = peer_array([PEERS[0]] * len(numbers))
    return Batch(headers, payloads, np.zeros(len(numbers), np.bool_), peers)


@given(st.lists(streams, min_size=1, max_size=40))
def test_a_batch_is_split_by_priority(numbers: list[int]) -> None:
    parts = split_by_priority(batch_of(numbers))
    found = [int(seq) for part in parts for seq in part.headers["seq"]]
    assert found == sorted(range(len(numbers)), key=lambda n: (-priority_of(numbers[n]), n))
    for part in parts:
        assert len(np.unique(priority_of(part.headers["stream"]))) == 1


def broadcast(numbers: list[int]) -> BroadcastBatch:
    packets = np.zeros((len(numbers), packet_bytes(LANES)), np.uint8)
    headers, _ = parts_of(packets)
    headers["stream"], headers["seq"] = numbers, np.arange(len(numbers))
    whole = np.zeros(len(numbers), np.bool_)
    return BroadcastBatch(packets, whole, peer_array(PEERS), np.zeros(2, np.uint16), ArrayPool())


def test_results_for_all_are_split_and_written_out_only_if_they_differ() -> None:
    lazy, urgent = stream_number(0, 0), stream_number(7, 0)
    same = broadcast([urgent, urgent])
    assert split_by_priority(same) == [same]
    first, second = split_by_priority(broadcast([lazy, urgent, lazy]))
    assert first.headers["seq"].tolist() == [1, 1]
    assert second.headers["seq"].tolist() == [0, 2, 0, 2]
    assert second.peers.tolist() == [PEERS[0], PEERS[0], PEERS[1], PEERS[1]]
