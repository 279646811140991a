# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub compare --clock emulated`: baselines as processes over TCP on the same links."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.network.testbeds import Rackhub

SIZE = 200_000  # bytes
WORKERS, SERVERS = 4, 2
WITHIN = 0.10  # of virtual time


def test_ring_and_servers_over_tcp(tmp_path: Path):
    """Right sums, and what they were made of was on the links: TCP's own headers and what is sent
    again come on top, so that there is a least and no most."""
    rackhub = Rackhub(tmp_path)
    report = rackhub.json(
        *("compare", rackhub.topology, "--clock", "emulated", "--target", "embedded"),
        *("--size", f"{SIZE} B", "--iterations", "1", "--only", "ring,sharded-ps"),
    )
    ring, servers = report["rows"]
    for row in (ring, servers):
        assert row["right"]
        # Virtual time has the same streams, which take more than links need at least.
        explained = row["seconds_in_virtual_time"]
        assert row["closed_form_seconds"] < explained
        assert row["cpu_bound"] is (abs(row["seconds"] / explained - 1) > WITHIN)
        assert row["seconds"] > 0
    sent = {(link["from"], link["core"]): link["bytes"] for link in ring["links"]}
    workers = [f"w{rank}" for rank in range(WORKERS)]
    for worker in workers:
        assert sent[worker, False] > 2 * (WORKERS - 1) / WORKERS * SIZE
    assert sent["s0", False] == sent["s1", False] == 0
    assert sent["tor0", True] > 2 * (WORKERS - 1) / WORKERS * SIZE
    sent = {(link["from"], link["core"]): link["bytes"] for link in servers["links"]}
    for worker in workers:
        assert sent[worker, False] > SIZE
    for server in ("s0", "s1"):
        assert sent[server, False] > WORKERS * SIZE / SERVERS
    assert not rackhub.processes()


def test_boxes_for_which_the_core_switch_sums(tmp_path: Path):
    """Right sums by real clients and streams at one host; one copy from each rack is on its uplink,
    in packets of in-network sums, of which some may be sent again."""
    rackhub = Rackhub(tmp_path)
    racks = tmp_path / "racks.yaml"
    racks.write_text(
        "name: racks\ndefaults: {rate: 20 Mbit/s}\n"
        "racks: [{workers: 2, servers: 1, count: 2}]\ncores: 1\n"
    )
    report = rackhub.json(
        *("compare", racks, "--clock", "emulated", "--target", "embedded"),
        *("--size", f"{SIZE // 4} B", "--iterations", "1", "--only", "box-switch"),
    )
    (row,) = report["rows"]
    assert row["right"]
    assert row["servers"] == ["s0", "s1"]
    assert SIZE // 4 < row["closed_form_core_bytes"] <= row["core_bytes"]
    assert row["core_bytes"] < 1.5 * row["closed_form_core_bytes"]
    assert not rackhub.processes()


def test_gloo_over_the_same_links(tmp_path: Path):
    """PyTorch's own all-reduce: right sums, and on every worker's link what a ring has to carry,
    with headers and notices of its own on top."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    rackhub = Rackhub(tmp_path)
    report = rackhub.json(
        *("compare", rackhub.topology, "--clock", "emulated", "--target", "embedded"),
        *("--size", f"{SIZE} B", "--iterations", "1", "--only", "gloo"),
    )
    (gloo,) = report["rows"]
    assert gloo["right"]
    assert gloo["seconds_in_virtual_time"] is gloo["cpu_bound"] is None
    links = {link["from"]: link for link in gloo["links"] if not link["core"]}
    for rank in range(WORKERS):
        sent = links[f"w{rank}"]
        assert 2 * (WORKERS - 1) / WORKERS * SIZE < sent["bytes"] < 1.25 * sent["expected_bytes"]
    assert not rackhub.processes()
