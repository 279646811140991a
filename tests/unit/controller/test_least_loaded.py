# SPDX-License-Identifier: Apache-2.0
"""Tests that the balancer least-loaded makes bytes equal, once for each set of servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from controller.planning.balancing.balancer import Load, Measurements
from controller.planning.balancing.least_loaded import LeastLoaded
from protocol.balance import Balance
from protocol.partition import Moved
from protocol.trees import TreeKind
from tests.unit.simulation.virtual_session import run

CHUNKS = (8, 8, 8, 8, 8, 8, 2, 1)


def moves(
    balancer: LeastLoaded, owners: Sequence[int], rates: dict[int, float], epoch: int = 1
) -> list[Moved | None]:
    load = Load(tuple(owners), CHUNKS, 1000, rates, (), moving=False, spares={7: 1.0})
    measured = Measurements(
        "", 0.0, epoch, False, "", TreeKind.NONE, 8, 1, frozenset(), (), {}, {}, lambda: False,
        load=load,
    )  # fmt: skip
    return [move.moved for move in balancer.observe(measured)]


def test_it_moves_until_bytes_are_equal_and_again_when_servers_change() -> None:
    balancer = LeastLoaded(Balance("least-loaded"))
    unequal = [0] * len(CHUNKS)
    (first,) = moves(balancer, unequal, {0: 1.0, 1: 100.0})
    assert moves(balancer, unequal, {0: 1.0, 1: 100.0}) == [first], "workers were too fast for it"
    equal = [dict(first).get(one, 0) for one in range(len(CHUNKS))]
    loads = [sum(n for n, at in zip(CHUNKS, equal, strict=True) if at == s) for s in (0, 1)]
    assert max(loads) - min(loads) <= 2, "speeds do not count"
    assert moves(balancer, equal, {0: 1.0, 1: 100.0}) == []
    assert moves(balancer, unequal, {0: 1.0, 1: 100.0}) == [], "what others moved stays"
    assert len(moves(balancer, equal, {0: 1.0, 1: 1.0, 2: 1.0})) == 1
    assert len(moves(balancer, unequal, {0: 1.0, 1: 100.0}, epoch=2)) == 1


def test_a_job_of_hashed_keys_gets_equal_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights are the reference's, or the run would fail."""
    caplog.set_level("INFO")
    topology = "name: star\nracks: [{workers: 2, servers: 2}]\n"
    job = (
        "name: digits\nhidden: [32]\nbatch: 32\niterations: 8\ncompute: 5 ms\ntree: none\n"
        "schedule: {slice: whole, assign: hashed}\nbalance: least-loaded\n"
    )
    session = run(tmp_path, monkeypatch, {"topology.yaml": topology, "job.yaml": job})
    (summary,) = json.loads(session.run.summary.read_text())["jobs"]
    assert summary["matches_reference"] is True
    assert len(summary["plans"]) == 1
    assert caplog.text.count(": equal bytes at all servers") == 1
    assert caplog.text.count("the new chunk map holds from round") == 1
