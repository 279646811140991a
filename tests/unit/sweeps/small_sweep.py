# SPDX-License-Identifier: Apache-2.0
"""A sweep of three minimal runs."""

from __future__ import annotations

import csv
from pathlib import Path

TEXT = """
name: small
topology: small.yaml
job: tiny.yaml
axes:
  topology.defaults.rate: [100 Mbit/s, 1 Gbit/s, 10 Gbit/s]
"""
TOPOLOGY = "name: small\nracks: [{workers: 2, servers: 1}]\n"
JOB = "name: tiny\niterations: 2\nbatch: 64\nhidden: [8]\n"


def written(folder: Path) -> Path:
    """The sweep's file."""
    (folder / "small.yaml").write_text(TOPOLOGY)
    (folder / "tiny.yaml").write_text(JOB)
    path = folder / "sweep.yaml"
    path.write_text(TEXT)
    return path


def rows(folder: Path) -> list[dict[str, str]]:
    """Its table, without what depends on the machine."""
    with (folder / "results.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k != "wall_time_s"} for row in found]
