# SPDX-License-Identifier: Apache-2.0
"""Tests that in-network all-reduce time does not grow with workers, as each link carries each
chunk once."""

from __future__ import annotations

import io
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from observability.progress_view import View
from protocol.frames import OVERHEAD
from protocol.header import HEADER_BYTES
from simulation.running import run_virtually

HERE = Path(__file__).resolve().parents[3]
CHUNK = 1024
RATE, HOST_DELAY, CORE_DELAY = 10e9, 5e-6, 10e-6
LARGE = str(HERE / "topologies" / "thousand-%s-levels.yaml")
TOPOLOGY = """
name: racks
defaults: {rate: 10 Gbit/s, delay: 5 us, queue_bytes: 4 MiB, ecn_bytes: 0 KiB}
racks: [{workers: 4, servers: 1}, {workers: 4}]
cores: 1
uplinks: {rate: 10 Gbit/s, delay: 10 us}
"""
JOB = """
name: allreduce
workload: layers
layers: [{size}]
iterations: 1
payload: none
window: 2048
streams: 1
"""


class Run:
    """seconds: of the all-reduce. loads: bytes of each direction of each link, by its ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, topology: Path, job: Path):
        monkeypatch.setenv("RACKHUB_RUNS", str(folder / "runs"))
        view = View(Console(file=io.StringIO()))
        directory, fine = run_virtually(topology, [job], view)
        summary: dict[str, Any] = json.loads((directory.path / "summary.json").read_text())
        assert fine
        self.workers = summary["workers"]
        self.chunks = summary["chunks"]
        (self.seconds,) = summary["seconds_per_iteration"]
        self.loads = {(row["from"], row["to"]): row["bytes"] for row in summary["links"]}
        for row in summary["links"]:
            assert row["bytes"] == row["expected_bytes"]

    def check(self, size: int, hops: int) -> None:
        """hops: links between a worker and the root of the tree."""
        chunks = -(-size // CHUNK)
        assert self.chunks["aggregated_in_network"] == chunks
        assert self.chunks["retransmitted"] == self.chunks["served_by_server"] == 0
        head = OVERHEAD + HEADER_BYTES
        each = chunks * (head + head + CHUNK)  # the exponents' round, then the sum's
        for (sender, receiver), load in self.loads.items():
            assert load == (0 if "s0" in (sender, receiver) else each)
        # The link is the bound, and the first and the last chunk have a round trip beside it.
        # (A window's exponent rounds take longer than a round trip, so no link waits between.)
        bound = each * 8 / RATE
        way = HOST_DELAY + (hops - 1) * CORE_DELAY + hops * (head + CHUNK) * 8 / RATE
        assert bound < self.seconds < bound + 2 * 2 * way


@pytest.mark.timeout(600)
def test_the_time_does_not_grow_with_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1_200_000
    (tmp_path / "job.yaml").write_text(JOB.format(size="1200 kB"))
    (tmp_path / "eight.yaml").write_text(TOPOLOGY)
    found = []
    for workers, topology, hops in ((8, tmp_path / "eight.yaml", 2), (1024, LARGE % "three", 3)):
        run = Run(tmp_path / str(workers), monkeypatch, Path(topology), tmp_path / "job.yaml")
        assert run.workers == workers
        run.check(size, hops)
        found.append(run.seconds)
    few, many = found
    assert many == pytest.approx(few, rel=0.05)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "hops"), [("two", 2), ("three", 3)])
def test_a_thousand_workers_take_as_long_as_eight(
    name: str, hops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = HERE / "jobs" / "allreduce.yaml"
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    few = Run(tmp_path, monkeypatch, tmp_path / "topology.yaml", job)
    few.check(4_000_000, 2)
    many = Run(tmp_path, monkeypatch, Path(LARGE % name), job)
    assert (few.workers, many.workers) == (8, 1024)
    many.check(4_000_000, hops)
    assert many.seconds == pytest.approx(few.seconds, rel=0.05)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB
