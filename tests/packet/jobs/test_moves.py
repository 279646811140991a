# SPDX-License-Identifier: Apache-2.0
"""Tests that parameters and optimizer state follow the chunk map while a job trains, with real
switches, job table and state machines, under loss, duplication, reordering and crashes.

A failing run is repeated by `python -m tests.packet.jobs.moves SEED ROUNDS [faulty]`.
"""

from __future__ import annotations

from itertools import count

import pytest

from tests.packet.jobs.moves import play

MOVES = 500
MOST_MOVES = 100_000


def _play(moves: int, rounds: int, first: int) -> None:
    """Plays runs until chunks have moved so often; every third has crashes."""
    seeds = count(first)
    while moves > 0:
        for faulty in (False, False, True):
            outcome = play(next(seeds), rounds, faulty=faulty)
            moves -= outcome.moved
            assert faulty or outcome.epochs == 1


def test_moves_lose_no_step_and_take_none_twice() -> None:
    _play(MOVES, 20, 0)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_many_moves_lose_no_step_and_take_none_twice() -> None:
    _play(MOST_MOVES, 200, 1000)
