# SPDX-License-Identifier: Apache-2.0
"""`rackhub bench virtual`, with numbers too small to mean anything."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from testbed.cli.main import main

pytestmark = pytest.mark.unit


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the profile needs a second core")
def test_what_was_measured_is_told_in_the_form_that_scripts_read() -> None:
    """That all packets arrive and sums are right is what the command itself sees to, or it fails.
    300 is no multiple of the window, and more than the frames that lie ready."""
    small = ("--rounds", "1", "--chunks", "300", "--window", "16")
    result = CliRunner().invoke(main, ["bench", "virtual", *small, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["network"]
    assert [(one["chunks"], one["window"]) for one in told] == [("payload", 16), ("headers", 16)]
    for one in told:
        assert one["packet_hops"] == 2 * 4 * 300
        assert one["packet_hops_per_second"]["low"] > 0
        assert one["engine_rounds"] < 300
