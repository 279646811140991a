# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub bench server` with minimal durations."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from cli.main import main
from hosts.net.offload import available


@pytest.mark.skipif(not available().segment, reason="no UDP segmentation offload here")
def test_every_worker_gets_every_result_and_report_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That results are right and complete is what the load itself sees to, or the command fails."""
    monkeypatch.setattr("benchmarks.common._largest_cache", lambda: 1 << 20)  # it may be 500 MB
    small = ("--rounds", "1", "--seconds", "0.05", "--workers", "3", "--optimizer", "nesterov")
    result = CliRunner().invoke(main, ["bench", "server", *small, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["valid"] else 1)
    assert report["optimizer"].startswith("nesterov")
    for name in ("tall", "wide", "adder", "echo"):
        assert report[name]["chunks_per_second"]["median"] > 0
    for name in ("server_to_adder", "server_to_echo", "echo_to_adder", "tall_to_wide"):
        assert report[name]["low"] <= report[name]["median"] <= report[name]["high"]


def test_steps_can_be_left_out_only_where_there_are_some() -> None:
    result = CliRunner().invoke(main, ["bench", "server", "--ablate", "optimizer"])
    assert result.exit_code == 2
    assert "needs an --optimizer to leave out" in result.output
