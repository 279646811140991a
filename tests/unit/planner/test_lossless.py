# SPDX-License-Identifier: Apache-2.0
"""Tests that without loss no worker queries: each packet is sent once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.simulation.virtual_session import run

RACK = "racks: [{workers: %d, servers: %d}]"
APART = "racks: [{workers: %d}, {workers: %d}, {workers: 0, servers: 1}]\ncores: 1"
PODS = """racks: [{workers: 1, count: 2}, {workers: 1, count: 2, servers: 1}]
cores: [{racks: 2, cores: 1}, 1]"""
# By name: links' rate and delay, racks, the job's layers, and what else the job says.
CASES = {
    "slow, many workers": (
        "1 Mbit/s", "1 us", RACK % (16, 4), "20 KiB", "placement: ncc, window: 64, streams: 4",
    ),
    "slowest": ("10 kbit/s", "0 ms", RACK % (8, 1), "3 KiB", "placement: ncs, window: 64"),
    "window of one": ("10 Mbit/s", "5 us", APART % (8, 8), "16 KiB", "placement: ncs, window: 1"),
    "server over racks": (
        "10 Mbit/s", "0 ms", "racks: [{workers: 1, count: 8}, {workers: 0, servers: 2}]\ncores: 2",
        "50 KiB", "tree: none, window: 64",
    ),
    "core, one after the other": (
        "100 Mbit/s", "1 us", APART % (8, 8), "8 KiB, 256 B, 24 KiB", "tree: core",
    ),
    "three levels": ("1 Gbit/s", "10 ms", PODS, "16 KiB", "tree: two-level, window: 16"),
    "streams": ("100 Gbit/s", "5 us", RACK % (4, 1), "200 KiB", "tree: tor, streams: 7"),
    "fastest": ("400 Gbit/s", "1 ms", RACK % (2, 4), "100 KiB", "placement: cs, window: 256"),
    "computes": ("10 Gbit/s", "5 us", RACK % (4, 1), "64 KiB", "tree: none, compute: 5 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_no_queries_without_loss(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, delay, racks, layers, more = CASES[name]
    topology = (
        f"name: r\ndefaults: {{rate: {rate}, delay: {delay}, queue_bytes: 16 MiB}}\n{racks}\n"
    )
    job = [
        "name: j", "workload: layers", f"layers: [{layers}]", "iterations: 3", *more.split(", "),
    ]  # fmt: skip
    files = {"topology.yaml": topology, "job.yaml": "\n".join(job) + "\n"}
    session = run(tmp_path, monkeypatch, files)
    summary = json.loads((session.run.path / "summary.json").read_text())
    assert summary["matches_reference"]
    assert summary["machine"]["queries"] == summary["chunks"]["retransmitted"] == 0
