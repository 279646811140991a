# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub bench virtual` with minimal sizes."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from cli.main import main


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the profile needs a second core")
def test_json_report_of_measurements() -> None:
    """That all packets arrive and sums are right is what the command itself sees to, or it fails.
    300 is no multiple of the window, and more than the frames that lie ready."""
    small = ("--rounds", "1", "--chunks", "300", "--window", "16", "--no-resnet")
    small += ("--exchange-chunks", "100", "--exchange-window", "16")
    result = CliRunner().invoke(main, ["bench", "virtual", *small, "--json"])
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    kinds = {"payload": 10, "headers": 10, "priorities": 10, "slow": 22}  # and links of a tree
    for one, (what, links) in zip(whole["exchanges"], kinds.items(), strict=True):
        assert (one["what"], one["chunks"], one["packet_hops"]) == (what, 100, 2 * links * 100)
        assert one["packet_hops_per_second"]["low"] > 0
        assert 0.9 < sum(one["profile"].values()) < 1.1
    found = whole["network"]
    assert [(one["chunks"], one["window"]) for one in found] == [("payload", 16), ("headers", 16)]
    for one in found:
        assert one["packet_hops"] == 2 * 4 * 300
        assert one["packet_hops_per_second"]["low"] > 0
        assert one["engine_rounds"] < 300


def test_a_window_that_jobs_cannot_have_is_refused_before_anything_is_measured() -> None:
    result = CliRunner().invoke(main, ["bench", "virtual", "--exchange-window", "48"])
    assert (result.exit_code, "measuring" in result.output) == (2, False)
    assert "48 is not a power of two" in result.output
