# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub bench worker` with minimal durations."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from benchmarks.sampling import REST
from benchmarks.stages import stages
from benchmarks.throughput import STAGES, Throughput, worker
from cli.commands.bench.worker import _stage
from cli.main import main
from hosts.net.offload import probe


@pytest.mark.parametrize("plain", [False, True], ids=["gso", "plain"])
def test_a_worker_sums_its_tensor_and_counts_it(plain):
    core = min(os.sched_getaffinity(0))
    with worker(10_000, 256, 64, plain, core) as one:
        measured = one.run(0.05)  # which compares the sums
        profile = one.profile(0.05, core)
    assert measured.chunks == 40 * measured.rounds  # 39.06 chunks of 256
    if plain:
        assert measured.sent == measured.received == 1
    elif probe().segment and probe().coalesce:
        assert measured.sent > 1 < measured.received
    assert set(profile) <= {*STAGES, REST}
    assert sum(profile.values()) > 0


def test_every_stage_is_measured_by_itself():
    found = stages(256, 16, False, 0.01)
    names = ["copy", "submit", "contribute", "send", "receive", "take results"]
    assert [one["stage"] for one in found] == names
    for one in found:
        assert one["gb_per_second"] == pytest.approx(1024e-9 * one["chunks_per_second"])


def test_stage_without_measurable_time_has_no_rate(monkeypatch):
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    report = stages(256, 16, False, 0.01)
    assert {(one["gb_per_second"], one["chunks_per_second"]) for one in report} == {(None, None)}
    assert _stage(report[0])["rate"] == "-"


@pytest.mark.parametrize(("computed", "valid"), [(0.94, False), (0.96, True)])
def test_a_core_that_waits_makes_no_valid_figure(computed, valid):
    assert Throughput(1000, 1, 1.0, computed, 0, 0, 60.0, 60.0).valid is valid


def test_a_window_is_a_power_of_two():
    result = CliRunner().invoke(main, ["bench", "worker", "--window", "48"])
    assert result.exit_code == 2
    assert "48 is not a power of two" in result.output
