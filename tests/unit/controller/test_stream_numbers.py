# SPDX-License-Identifier: Apache-2.0
"""Tests how many streams a job gets."""

from __future__ import annotations

import pytest

from controller.planning.stream_numbers import most_streams, wanted_streams
from protocol.balance import Balance
from protocol.propagation import USUAL, Propagation


@pytest.mark.parametrize(
    ("asked", "policy", "servers", "streams"),
    [
        (0, "static", 4, 0),  # as few as the trees allow
        (0, "psld", 4, 4),
        (0, "psld", 1000, most_streams(USUAL)),
        (2, "psld", 4, 2),
        (2, "static", 4, 2),
    ],
)
def test_a_measured_server_has_a_stream_of_its_own(
    asked: int, policy: str, servers: int, streams: int
) -> None:
    assert wanted_streams(asked, Balance(policy), servers, USUAL) == streams


def test_classes_leave_fewer_streams_for_each() -> None:
    classes = Propagation(order="priority", classes=8, in_network=True)
    assert wanted_streams(0, Balance("psld"), 100, classes) == most_streams(classes) == 16
