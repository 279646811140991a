# SPDX-License-Identifier: Apache-2.0
"""What the analytic model predicts against runs in virtual time: bytes, and an iteration's time.

More points, and larger ones: `python -m experiments.predictions`.
"""

from __future__ import annotations

import pytest

from experiments.predictions.points import Point, measure

KIB = 1024
POINTS = [
    # One chunk in flight; windows that limit; a link that does; sums on their way to a server.
    (Point("", workers=2, chunk=KIB, size=16 * KIB, window=1), 1e-6),
    (Point("", workers=2, chunk=KIB, size=64 * KIB, window=4, delay=50e-6), 1e-6),
    (Point("", racks=3, workers=2, up=2.5e9, chunk=KIB, size=32 * KIB), 1e-6),
    (Point("", "inc-server", "tor", workers=2, servers=1, chunk=KIB, size=64 * KIB), 1e-6),
    (Point("", "inc", "core", workers=2, servers=1, chunk=KIB, size=64 * KIB), 1e-6),
    # Servers alone, where copies of a chunk queue.
    (Point("", "ncs", "none", racks=1, workers=2, servers=2, chunk=KIB, size=128 * KIB), 0.01),
    (Point("", "ncc", "none", workers=2, servers=1, chunk=KIB, size=64 * KIB), 0.01),
]


@pytest.mark.parametrize(("point", "within"), POINTS, ids=[point.name for point, _ in POINTS])
def test_a_run_takes_as_long_as_predicted_and_carries_as_much(point: Point, within: float) -> None:
    result = measure(point)
    assert result.wrong == {}
    assert result.again == 0
    assert result.measured > 0
    assert result.predicted == pytest.approx(result.measured, rel=within)
