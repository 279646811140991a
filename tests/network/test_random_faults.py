# SPDX-License-Identifier: Apache-2.0
"""Runs the random simultaneous faults of ``make soak`` for half a minute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from experiments.reliability.soak import command, play_round
from observability.progress_view import View

# A round of half a minute; ``make soak`` draws others.
SEEDS = (1,)

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_several_at_a_time(seed: int, tmp_path: Path, runs: Path) -> None:
    with View(Console(file=sys.stderr)) as view:
        line = play_round(seed, "embedded", tmp_path, view)
    assert line.problems == [], f"repeat it: {command(seed, 'embedded')}"
