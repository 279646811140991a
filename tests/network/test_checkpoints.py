# SPDX-License-Identifier: Apache-2.0
"""Tests that jobs resumed from a checkpoint end with the weights of uninterrupted ones.

On a testbed, as optimizer state is fetched from, and given to, servers across the data network; and
a worker's counts have to begin where the other job stopped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.network.testbeds import Rackhub

ADAM = "{name: adam, rate: 0.01, schedule: {kind: cosine, warmup: 2}, keys: {biases*: {rate: 0.1}}"


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    return Rackhub(tmp_path)


def test_job_resumed_from_checkpoint_matches_uninterrupted_run(rackhub: Rackhub) -> None:
    brief = rackhub.job.read_text().replace("{name: momentum, rate: 0.05}", "PLACE")
    files = []
    rackhub.json("up", rackhub.topology, "--target", "embedded")
    try:
        for at, more in (("workers", "gradients: float16"), ("servers", "tree: none")):
            job = rackhub.folder / f"{at}.yaml"
            text = brief.replace("PLACE", f"{ADAM}, at: {at}}}").replace("brief", at)
            job.write_text(f"{text}{more}\ncheckpoint: {{every: 5}}\n")
            whole = rackhub.json("submit", job)
            assert whole["matches_reference"] is True
            assert [one["iteration"] for one in whole["checkpoints"]] == [5, 10, 12]
            files.append(rackhub.latest() / whole["checkpoints"][0]["file"])
            gone_on = rackhub.json("submit", job, "--restore", files[-1])
            assert gone_on["weights_sha256"] == whole["weights_sha256"]
            assert gone_on["matches_reference"] is True
            assert gone_on["iterations_before"] == 5
            assert len(gone_on["seconds_per_iteration"]) == 7
            assert [one["iteration"] for one in gone_on["checkpoints"]] == [10, 12]
            if at == "workers":
                check_links(gone_on)
        # Servers that have such a state take steps with single gradients from there, too.
        apart = rackhub.folder / "apart.yaml"
        text = job.read_text().replace("name: servers", "name: apart")
        text = re.sub("checkpoint:.*", "consistency: asynchronous", text)
        apart.write_text(text)
        gone_on = rackhub.json("submit", apart, "--restore", files[-1])
        assert (gone_on["state"], gone_on["iterations_before"]) == ("done", 5)
        assert len(gone_on["seconds_per_iteration"]) == 7
        assert gone_on["staleness_seen"]["max"] >= 0
        over = rackhub.json("status", "--live")["jobs"]
        assert len(over) == 5
        assert {one["chunks_per_second"] for one in over} <= {0, None}  # nothing goes on
        for file, said in ((files[0], "another optimizer than adam at servers"), (job, "no check")):
            refused = rackhub.call("submit", job, "--restore", file)
            assert refused.returncode == 1
            assert f"error: --restore {file}: " in refused.stderr
            assert said in refused.stderr
    finally:
        rackhub.call("down")


def check_links(summary: dict[str, Any]) -> None:
    """Seven iterations' bytes, and no exponent round's."""
    assert summary["chunks"]["aggregated_in_network"] == 7 * (8 + 1 + 2 + 1)
    for row in summary["links"]:
        assert row["bytes"] == pytest.approx(row["expected_bytes"], rel=0.02), row
