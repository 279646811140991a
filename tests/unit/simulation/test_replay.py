# SPDX-License-Identifier: Apache-2.0
"""Tests that a replay has the times of a run in virtual time, less costs that emulation lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.replay import replay
from specs import jobfile
from testbed.errors import JobError
from testbed.program import program_for
from tests.unit.simulation.virtual_session import run
from topologies.model.spec import parse

ITERATIONS = 9
JOB = f"name: job\nworkload: digits\nhidden: [16]\niterations: {ITERATIONS}\nbatch: 24\n"


def topology(loss: float = 0.0, more: str = "") -> str:
    """Of two racks."""
    links = f"seed: 2\ndefaults: {{rate: 2 Mbit/s, loss: {loss}}}\n"
    return f"name: small\n{links}racks: [{{workers: 2, servers: 1, count: 2}}]\ncores: 1\n{more}"


def replayed(text: str, job: str = JOB, seconds: float = 60.0) -> list[float]:
    return list(replay(parse(text), program_for([])[2], jobfile.parse(job), seconds))


@pytest.mark.parametrize(("loss", "iterations"), [(0.0, 3), (0.02, ITERATIONS - 1)])
def test_times_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float, iterations: int
) -> None:
    """Of some iterations without losses, as these are alike, and of all with."""
    files = {"topology.yaml": topology(loss), "job.yaml": JOB}
    took = run(tmp_path, monkeypatch, files).run.read_summary()["seconds_per_iteration"][1:]
    assert replayed(topology(loss)) == pytest.approx(took[:iterations], abs=1e-9)
    assert len(set(took)) == 1 or loss


def test_iterations_that_are_not_alike_are_repeated_further() -> None:
    """With priorities they alternate: the first three would not tell the usual one."""
    network = (
        "name: small\ndefaults: {rate: 10 Mbit/s, queue_bytes: 2 MiB}\n"
        "racks: [{workers: 3, servers: 1}]\n"
    )
    job = (
        "name: job\nworkload: layers\nlayers: [100 kB, 10 kB, 100 kB, 10 kB]\niterations: 7\n"
        "placement: cs\nwindow: 32\nschedule: {order: priority, slice: 2500, release: slice}\n"
    )
    times = replayed(network, job)
    assert max(times[:3]) > 1.01 * min(times[:3])
    assert len(times) == 6  # all but the first


def test_what_emulation_has_not_costs_nothing() -> None:
    costly = topology(more="costs: {framing: true, switch_latency: 10 ms}\n")
    assert replayed(costly, JOB + "compute: 50 ms\n") == replayed(topology())


def test_single_iteration_says_nothing() -> None:
    assert replayed(topology(), JOB.replace(str(ITERATIONS), "1")) == []


def test_a_resumed_job_ends_with_its_iterations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fewer than its file says; with losses none of them are alike."""
    job, before = JOB + "checkpoint: {every: 4}\n", 4
    files = {"topology.yaml": topology(0.02), "job.yaml": job}
    directory = run(tmp_path, monkeypatch, files).run
    restore = directory.path / directory.read_summary()["checkpoints"][0]["file"]
    file = jobfile.load(tmp_path / "job.yaml", restore)
    found = replay(parse(topology(0.02)), program_for([])[2], file, 1e6)
    assert len(found) == ITERATIONS - before - 1


def test_time_limit_ends_it() -> None:
    assert replayed(topology(), seconds=0.0) == []


def test_job_that_is_refused_is_an_error() -> None:
    with pytest.raises(JobError, match="window"):
        replayed(topology(), JOB + "window: 32768\nstreams: 128\n")
