# SPDX-License-Identifier: Apache-2.0
"""Tests that losses at data centre rates cost round trips rather than timeouts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hosts.worker.epoch_transfer import hands_over
from simulation.links.trains import SECOND
from tests.unit.simulation.virtual_session import run
from tests.unit.worker.test_releases import Case, Played

ELEMENTS = 100_000  # 391 chunks: 0.35 ms, some ten round trips
ROUND_TRIP = 3e-5  # four links of 5 us, 1 KiB on two of them and a few packets that wait
TIMEOUT = 1e-3  # the least


def played(
    elements: int = ELEMENTS, rounds: int = 3, **bad: Any
) -> tuple[list[float], list[dict[str, int]]]:
    """Seconds of each all-reduce but the first, and each worker's statistics."""
    case = Case("10 Gbit/s", "0.005 ms", "4 MiB", elements=elements, rounds=rounds, **bad)
    found = Played(case, trains=True)
    ends = [
        max(found.sums[rank, n, "values"][0] for rank in (0, 1)) / SECOND
        for n in range(case.rounds)
    ]
    took = [after - before for before, after in pairwise(ends)]
    return took, [statistics for statistics, *_ in found.known.values()]


def test_many_losses_in_a_window_cost_no_timeout_each() -> None:
    (smooth, _), asked = played()
    assert all(one["queries"] == one["retransmitted"] == 0 for one in asked)
    took, statistics = played(loss=0.01)
    lost = sum(one["retransmitted"] for one in statistics)
    assert lost > 20
    # A timeout where nothing follows what was lost: at the end, perhaps once more for its repair.
    assert max(took) < 1.5 * smooth + 2 * TIMEOUT
    assert sum(took) - 2 * smooth < lost * TIMEOUT / 10


def test_losses_at_the_ends_do_not_make_timeouts_longer() -> None:
    """Of rounds of 16 chunks, which are all at the end of one, where timers have to ring."""
    (smooth, _), _ = played(elements=4_096)
    took, _ = played(elements=4_096, rounds=60, window=16, loss=0.1)
    waited = [seconds - smooth for seconds in took]
    assert sum(seconds > TIMEOUT for seconds in waited) > 10
    # Six queries in a row that show nothing new, each timeout twice as long as the one before.
    assert max(waited) < 63 * TIMEOUT
    assert sum(waited) < len(waited) * 4 * TIMEOUT


def test_reordering_alone_leads_to_no_retransmission_and_few_queries() -> None:
    (smooth, _), _ = played()
    took, statistics = played(reorder=0.05)
    assert max(took) < smooth + ROUND_TRIP
    for one in statistics:
        assert one["retransmitted"] == 0
        assert one["queries"] < 0.05 * one["sent"]


# Seeds are chosen so that a chunk fails its check twice while a sum is there that no worker has
# got: in training, or while a server with an optimizer is given the initial parameters.
CORRUPT = {
    "topology.yaml": """
name: corrupt
defaults: {rate: 2 Mbit/s, delay: 1 us, reorder: 0.1 %, corrupt: 1 %}
racks: [{workers: 3, servers: 1, server_cores: 2}]
""",
    "job.yaml": """
name: job
workload: layers
layers: [132 B, 7376 B, 6188 B, 8016 B]
iterations: 2
seed: 36
window: 256
""",
}
CORRUPT_FIRST = {
    "topology.yaml": """
name: r
defaults: {rate: 400 Gbit/s, delay: 5 us, queue_bytes: 1 MiB, reorder: 0.1 %, corrupt: 2 %}
racks: [{workers: 2, servers: 1}]
seed: 8
""",
    "job.yaml": """
name: job
workload: digits
hidden: [4]
batch: 8
iterations: 1
seed: 61
optimizer: {name: sgd, rate: 0.05, at: servers}
poison: 1
placement: inc-server
""",
}


@pytest.mark.parametrize("files", [CORRUPT, CORRUPT_FIRST], ids=["training", "initial"])
def test_persistent_corruption_triggers_replan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    """Sums made in an epoch that ended are made once more: then counts of switches say nothing."""
    session = run(tmp_path, monkeypatch, files)
    summary = json.loads((session.run.path / "summary.json").read_text())
    assert len(summary["plans"]) > 1
    assert summary["matches_reference"]
    assert summary["chunks"]["aggregated_in_network"] is None
    assert "replanned" in summary["chunks"]["unknown"]
    assert all(row["expected_bytes"] is None for row in summary["links"])


# At one of two workers few results arrive, and a timeout is as long as on a slow link.
FAR_BEHIND = {
    "topology.yaml": """
name: far
seed: 5
defaults: {rate: 1 Mbit/s, delay: 1 us}
racks: [{workers: 2, servers: 1}]
links: [{from: tor0, to: w1, loss: 98 %}]
""",
    "job.yaml": """
name: job
workload: layers
layers: [10 kB]
iterations: 1
patience: 3600 s
payload: none
""",
}


def test_a_worker_that_leaves_hands_over_what_others_may_lack_without_payload_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = run(tmp_path, monkeypatch, FAR_BEHIND)
    summary = json.loads((session.run.path / "summary.json").read_text())
    assert summary["jobs"][0]["state"] == "done"
    log = (session.run.logs / "virtual.log").read_text()
    assert "left, the others have not" in log  # else this shows nothing


def test_result_without_payload_is_handed_over_by_eight() -> None:
    """If there are so many: of each chunk, whatever the number of workers; and not many more."""
    for world in (*range(1, 40), 100, 1024):
        holders = sum(hands_over(40, rank, world).astype(int) for rank in range(world))
        assert (holders >= min(world, 8)).all(), world
        assert (holders < 16).all(), world


LEVELS = {
    1: "racks: [{workers: 2, servers: 1}]",
    2: "racks: [{workers: 1, servers: 1}, {workers: 1}]\ncores: 1",
    3: "racks: [{workers: 1, servers: 1}, {workers: 1}]\ncores: [{racks: 1, cores: 1}, 1]",
}


def iterations(
    folder: Path, monkeypatch: pytest.MonkeyPatch, levels: int, loss: str, count: int
) -> list[float]:
    """Seconds of iterations but the first: 42 chunks, 2 workers, every link loses so many."""
    session = run(
        folder,
        monkeypatch,
        {
            "topology.yaml": f"name: deep\ndefaults: {{rate: 20 Mbit/s, loss: {loss}}}\n"
            f"{LEVELS[levels]}\n",
            "job.yaml": "name: few\nworkload: layers\nlayers: [43008 B]\npayload: none\n"
            f"iterations: {count + 1}\n",
        },
    )
    summary = json.loads((session.run.path / "summary.json").read_text())
    return list(summary["seconds_per_iteration"][1:])


@pytest.mark.parametrize(("levels", "most"), [(1, 0.6), (2, 1.0), (3, 1.5)])
def test_heavy_loss_costs_little_more_with_each_level(
    levels: int, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = iterations(tmp_path, monkeypatch, levels, "30 %", 10)
    assert sum(took) / len(took) < most


def test_heavy_loss_on_fast_links_does_not_wait_for_doubled_timeouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """49 chunks, 8 workers: an iteration without loss takes 0.09 ms, a timeout at least 1 ms. With
    every timeout in a row doubled some iterations take more than a second."""
    session = run(
        tmp_path,
        monkeypatch,
        {
            "topology.yaml": "name: fast\ndefaults: {rate: 10 Gbit/s, delay: 5 us, loss: 30 %}\n"
            "racks: [{workers: 8, servers: 1}]\n",
            "job.yaml": "name: few\nworkload: layers\nlayers: [50 kB]\npayload: none\n"
            "iterations: 10\n",
        },
    )
    summary = json.loads((session.run.path / "summary.json").read_text())
    took = summary["seconds_per_iteration"][1:]
    assert max(took) < 0.1
    assert sum(took) / len(took) < 0.04


def test_no_job_gives_up_while_half_of_the_packets_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(iterations(tmp_path, monkeypatch, 3, "49 %", 2)) == 2
