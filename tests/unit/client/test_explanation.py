# SPDX-License-Identifier: Apache-2.0
"""Tests a worker's outline of the chunks it waits for."""

from __future__ import annotations

import pytest

from protocol.header import Phase
from tests.unit.worker.lone_worker import contacted, lone, results_of, sent, state_of, submit


def test_outline_describes_oldest_chunks() -> None:
    transport = lone(window=4)
    contacted(transport, 10, 11, 12)  # numbers 0 to 5
    submit(transport, 10, 11, 12)
    assert len(sent(transport, 1.0)) == 3
    assert len(sent(transport, 3.0)) == 1  # asks about the oldest
    transport.on_packets(3.5, state_of(transport, 6, 10, Phase.AGGREGATING, 0b1))
    outline = transport.outline(5.0, 2)
    assert (outline.epoch, outline.world, outline.rank, outline.frozen) == (1, 2, 0, False)
    (stream,) = outline.streams
    assert (stream.stream, stream.node, stream.sender) == (0, 7, 0)
    assert (stream.following, stream.open) == (9, 3)
    assert stream.timeout == transport.round_trips.timeouts[0]
    first, second = stream.oldest
    assert (first.seq, first.chunk, first.sent) == (6, 10, 1)
    assert (first.sent_first, first.asked_last, first.heard) == pytest.approx((4.0, 2.0, 1.5))
    assert (first.node, first.phase, first.children) == (7, "AGGREGATING", 0b1)
    assert (second.seq, second.asked_last, second.phase) == (7, None, None)


def test_outline_omits_complete_chunks() -> None:
    transport = lone(window=4)
    contacted(transport, 10, 11, 12)
    submit(transport, 10, 11, 12)
    batch, _ = transport.poll(1.0)
    assert batch is not None
    transport.on_packets(1.1, results_of(batch.select([0, 2])))
    (stream,) = transport.outline(2.0, 8).streams
    assert [one.seq for one in stream.oldest] == [7]
    transport.freeze()
    assert transport.outline(2.0, 8).frozen
