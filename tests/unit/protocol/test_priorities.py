# SPDX-License-Identifier: Apache-2.0
"""Tests that a stream's number says its network priority."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from protocol.header import HEADER, Op, blank
from protocol.priorities import (
    CLASSED,
    PRIORITIES,
    STREAMS_OF_A_PRIORITY,
    priority_of,
    stream_number,
)

EVERY = list(product(range(PRIORITIES), range(STREAMS_OF_A_PRIORITY)))


def test_numbers_of_jobs_without_classes_have_the_lowest_priority() -> None:
    assert {priority_of(stream) for stream in range(CLASSED)} == {0}


def test_numbers_of_jobs_with_classes_say_their_priority_each_once() -> None:
    numbers = [stream_number(priority, index) for priority, index in EVERY]
    assert sorted(numbers) == list(range(CLASSED, 256))
    assert [priority_of(number) for number in numbers] == [priority for priority, _ in EVERY]


def test_headers_of_packets_have_the_priorities_of_their_streams() -> None:
    headers = blank(256, Op.CONTRIBUTE)
    headers["stream"] = np.arange(256)
    assert headers.dtype == HEADER
    assert priority_of(headers["stream"]).tolist() == [priority_of(n) for n in range(256)]


@pytest.mark.parametrize(("priority", "index"), [(-1, 0), (8, 0), (0, -1), (7, 16)])
def test_a_number_that_no_stream_can_have_is_an_error(priority: int, index: int) -> None:
    with pytest.raises(ValueError, match="it must be 0 to"):
        stream_number(priority, index)
