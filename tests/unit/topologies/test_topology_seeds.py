# SPDX-License-Identifier: Apache-2.0
"""Tests that seeds determine which packets bad links affect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from specs.sweepfile import load
from sweeps import code
from sweeps.execution import execute
from sweeps.trials import trials
from tests.unit.simulation.virtual_session import run

BAD = """
name: {name}
seed: {seed}
defaults: {{rate: 10 Gbit/s, delay: 1 us, loss: 2 %, duplicate: 1 %, reorder: 1 %}}
racks: [{{workers: 2, servers: 1}}]
"""
JOB = """
name: job
workload: layers
layers: [64 KiB]
iterations: 2
"""


def test_the_same_seed_gives_the_same_bytes_whatever_the_name_and_another_one_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(name: str, seed: int) -> tuple[bytes, dict[str, Any]]:
        folder = tmp_path / f"{name}-{seed}"
        files = {"topology.yaml": BAD.format(name=name, seed=seed), "job.yaml": JOB}
        session = run(folder, monkeypatch, files)
        summary = json.loads((session.run.path / "summary.json").read_text())
        assert summary["matches_reference"] is True
        assert (summary["topology"], summary["topology_seed"]) == (name, seed)
        result = [summary[part] for part in ("links", "chunks", "seconds_per_iteration", "virtual")]
        result[-1].pop("trace")
        return (folder / "trace.json").read_bytes(), result

    first = played("rack", 1)
    assert played("renamed", 1) == first
    trace, result = played("rack", 2)
    assert trace != first[0]
    assert result[0] != first[1][0]


def test_seeds_of_a_sweep_are_draws_of_losses_too(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(BAD.format(name="rack", seed=7))
    (tmp_path / "job.yaml").write_text(f"{JOB}seed: 7\n")

    def outcomes(axis: str) -> list[dict[str, Any]]:
        sweep = tmp_path / "sweep.yaml"
        sweep.write_text(f"name: s\ntopology: topology.yaml\njob: job.yaml\n{axis}\n")
        found = trials(load(sweep))
        assert len({trial.id for trial in found}) == 2
        played = [execute(code.digest(), one.order, "here") for one in found]
        assert not any(one.error for one in played)
        return [one.summary for one in played if one.summary is not None]

    one, two = outcomes("seeds: [1, 2]")
    assert [(s["seed"], s["topology_seed"]) for s in (one, two)] == [(1, 1), (2, 2)]
    assert one["links"] != two["links"]
    assert one["weights_sha256"] != two["weights_sha256"]
    # Each alone: other losses of the same training, another training with the same losses.
    lossy = outcomes("axes: {topology.seed: [1, 2]}")
    assert [s["links"] for s in lossy] == [one["links"], two["links"]]
    assert lossy[0]["weights_sha256"] == lossy[1]["weights_sha256"]
    again = outcomes("axes: {job.seed: [1, 2]}")
    assert [(s["seed"], s["topology_seed"]) for s in again] == [(1, 7), (2, 7)]
    assert [s["weights_sha256"] for s in again] == [s["weights_sha256"] for s in (one, two)]


def test_a_seed_of_the_command_line_takes_the_place_of_the_files(
    tmp_path: Path, runs: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    messages = []
    for seed, options in ((2, ()), (1, ("--topology-seed", "2"))):
        topology = tmp_path / f"{seed}.yaml"
        topology.write_text(BAD.format(name="rack", seed=seed))
        words = ["run", str(topology), "--job", str(tmp_path / "job.yaml"), "--clock", "virtual"]
        ran = CliRunner().invoke(main, [*words, "--json", *options])
        assert ran.exit_code == 0, ran.output
        summary = json.loads(ran.stdout)
        assert summary["topology_seed"] == 2
        messages.append((summary["links"], summary["seconds_per_iteration"]))
    assert messages[0] == messages[1]
