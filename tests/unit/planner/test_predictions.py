# SPDX-License-Identifier: Apache-2.0
"""Tests predictions of the analytic model against runs in virtual time: bytes and iteration time.

More points, and larger ones: `rackhub experiment predictions`.
"""

from __future__ import annotations

import pytest

from experiments.predictions.points import Point, measure

KIB = 1024
COSTS = "framing: true, switch_latency: 1 us, host_per_packet: 0.3 us, host_per_byte: 0.1 ns"
POINTS = [
    # One chunk in flight; windows that limit; a link that does; sums on their way to a server.
    (Point("", workers=2, chunk=KIB, size=16 * KIB, window=1), 1e-6),
    (Point("", workers=2, chunk=KIB, size=64 * KIB, window=4, delay=50e-6), 1e-6),
    (Point("", racks=3, workers=2, up=2.5e9, chunk=KIB, size=32 * KIB), 1e-6),
    (Point("", "inc-server", "tor", workers=2, servers=1, chunk=KIB, size=64 * KIB), 1e-6),
    (Point("", "inc", "core", workers=2, servers=1, chunk=KIB, size=64 * KIB), 1e-6),
    # Nodes that take time for packets; a server process that takes longest.
    (Point("", workers=2, chunk=KIB, size=64 * KIB, costs=COSTS), 1e-6),
    (Point("", "inc-server", "tor", workers=2, servers=1, chunk=KIB, size=64 * KIB,
           costs="host_per_packet: 1 us, server_rate: 2 Gbit/s"), 0.01),
    # Windows that hold two slices, for three servers, and one.
    (Point("", "ncs", "none", racks=1, workers=4, servers=3, chunk=KIB, size=224 * KIB), 0.01),
    (Point("", "ncs", "none", racks=1, workers=3, servers=3, chunk=KIB, size=96 * KIB,
           window=32, costs="server_rate: 4 Gbit/s"), 0.01),
    # Servers alone, where copies of a chunk queue.
    (Point("", "ncs", "none", racks=1, workers=2, servers=2, chunk=KIB, size=128 * KIB), 0.01),
    (Point("", "ncc", "none", workers=2, servers=1, chunk=KIB, size=64 * KIB), 0.01),
    # Servers beside some workers, two levels of cores, windows that limit; few slices, two cores.
    (Point("", "ncs", "none", 4, 2, chunk=KIB, size=64 * KIB, window=4, beside=2,
           cores="[{racks: 2, cores: 1}, 1]"), 0.01),
    (Point("", "ncs", "none", 3, 2, chunk=KIB, size=72 * KIB, beside=2, cores="2"), 0.01),
    (Point("", "cs", "none", workers=2, chunk=KIB, size=72 * KIB, window=4), 0.02),
    # Streams that share lines unequally.
    (Point("", "sharded-ps", "", 4, 2, chunk=KIB, size=256 * KIB, beside=2, cores="2"), 0.01),
    # A box in each rack.
    (Point("", "box-ring", "", 2, 4, beside=2), 0.1),
    (Point("", "box-switch", "", 2, 4, beside=2, chunk=KIB), 0.12),
]  # fmt: skip


@pytest.mark.parametrize(("point", "within"), POINTS, ids=[point.name for point, _ in POINTS])
def test_a_run_takes_as_long_as_predicted_and_carries_as_much(point: Point, within: float) -> None:
    result = measure(point)
    assert result.wrong == {}
    assert result.again == 0
    assert result.measured > 0
    assert result.predicted == pytest.approx(result.measured, rel=within)
