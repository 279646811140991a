# SPDX-License-Identifier: Apache-2.0
"""Tests that parameters and optimizer state follow the chunk map while a job trains, with real
switches, job table and state machines, under loss, duplication, reordering and crashes.

A failing run is repeated by `python -m tests.packet.jobs.moves SEED ROUNDS [faulty | VICTIM
STAGE]`.
"""

from __future__ import annotations

from itertools import count

import pytest

from tests.packet.jobs.aims import AIMS
from tests.packet.jobs.moves import play

MOVES = 500
MOST_MOVES = 100_000


def _play(moves: int, rounds: int, few: int, first: int) -> None:
    """Plays runs until chunks have moved so often, and a victim has died at each stage.

    rounds: of runs without crashes. few: of others, in which moves are rarer.
    """
    seeds = count(first)
    # Runs in which nothing dies go on with what is left.
    while moves > 0:
        for aim in AIMS:
            outcome = play(next(seeds), few, aim=aim)
            moves -= outcome.moved
            assert outcome.kills + outcome.restarts > 0, f"{aim}: not met"
        moves -= play(next(seeds), few, faulty=True).moved
        for _ in range(len(AIMS)):
            if moves > 0:
                outcome = play(next(seeds), rounds)
                moves -= outcome.moved
                assert outcome.epochs == 1


def test_moves_lose_no_step_and_take_none_twice() -> None:
    _play(MOVES, 20, 4, 0)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_many_moves_lose_no_step_and_take_none_twice() -> None:
    _play(MOST_MOVES, 200, 20, 1000)
