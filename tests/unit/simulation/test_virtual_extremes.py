# SPDX-License-Identifier: Apache-2.0
"""Tests whole runs at the limits of links and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from emulation.nodes.processes import environment

CHUNKS = 20
RACK = """
name: rack
defaults: {rate: %s, delay: 2 us, queue_bytes: 1 MiB, mtu: %s}
racks: [{workers: 2, servers: 1}]
"""
SIZES = """
name: sizes
workload: layers
layers: [%s B]
iterations: 3
window: 64
payload: none
chunk_bytes: %s
tree: tor
"""


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, topology: str, job: str) -> dict[str, Any]:
    """The summary of a run."""
    monkeypatch.setenv("RACKHUB_RUNS", str(folder / "runs"))
    (folder / "t.yaml").write_text(topology)
    (folder / "j.yaml").write_text(job)
    files = [str(folder / "t.yaml"), "--job", str(folder / "j.yaml")]
    found = CliRunner().invoke(main, ["run", *files, "--clock", "virtual", "--json"])
    assert found.exit_code == 0, found.output
    report: dict[str, Any] = json.loads(found.stdout)
    return report


@pytest.mark.parametrize(
    ("rate", "bits", "mtu", "chunk"),
    [
        ("5 Mbit/s", 5 * 10**6, 1500, 1024),
        ("400 Gbit/s", 4 * 10**11, 1500, 1024),
        ("400 Gbit/s", 4 * 10**11, 9000, 8192),
    ],
)
def test_iteration_time_follows_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: str, bits: int, mtu: int, chunk: int
) -> None:
    """From the first bit at a worker to the last one back: all chunks on its line, then the last
    one's on the three others of its way to the server and back, and four delays."""
    result = ran(tmp_path, monkeypatch, RACK % (rate, mtu), SIZES % (CHUNKS * chunk, chunk))
    frame = 8 * (chunk + 32 + 42) / bits
    assert result["seconds_per_iteration"][-1] == pytest.approx(
        (CHUNKS + 3) * frame + 4 * 2e-6, rel=1e-9
    )
    assert result["chunks"]["retransmitted"] == 0


def test_very_slow_link_is_not_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk takes far longer than a timeout usually is, and it is not queried."""
    result = ran(tmp_path, monkeypatch, RACK % ("1 kbit/s", 1500), SIZES % (1024, 1024))
    way = 4 * 8 * (1024 + 32 + 42) / 1000
    assert result["seconds_per_iteration"][1:] == [pytest.approx(way + 4 * 2e-6, rel=1e-9)] * 2
    assert all(row["bytes"] == row["expected_bytes"] for row in result["links"])


# In a process of its own: what others did before would hide what this takes.
RUN = """
import sys
from pathlib import Path
from cli.main import main

code = main(["run", *sys.argv[1:], "--clock", "virtual"], standalone_mode=False)
assert not code, code
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""
FEW, MANY = 10, 50


@pytest.mark.parametrize("payload", ["none", "summed"])
def test_memory_is_bounded_by_packets_in_flight(tmp_path: Path, payload: str) -> None:
    """Five times as many packets, each of them traced, take no more memory: not 1 % of the bytes
    that they are more, which is 11 of each packet."""
    rack = RACK % ("10 Gbit/s", 1500)
    (tmp_path / "t.yaml").write_text(rack.replace("workers: 2", "workers: 4"))
    job = SIZES % (1024 * 1024, 1024)
    if payload == "summed":
        job = job.replace("payload: none\nchunk_bytes: 1024\n", "")
    job = job.replace("window: 64", "window: 256").replace("tree: tor", "tree: two-level")
    peaks = []
    for iterations in (FEW, MANY):
        (tmp_path / "j.yaml").write_text(job.replace("tions: 3", f"tions: {iterations}"))
        files = ("t.yaml", "--job", "j.yaml", "--trace", "trace.json")
        child = subprocess.run(
            [sys.executable, "-c", RUN, *files],
            cwd=tmp_path,
            env={**environment(), "RACKHUB_RUNS": str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        peaks.append(1024 * int(child.stdout.split()[-1]))
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    sent = sum(row["bytes"] for row in summary["links"]) * (MANY - FEW) / MANY
    assert sent > 300e6
    assert peaks[1] - peaks[0] < sent / 100
