# SPDX-License-Identifier: Apache-2.0
"""Tests `rackhub plan`: the published table, and topology links against the closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from planner.collectives import COLLECTIVES
from protocol.trees import TreeKind
from specs.placements import KINDS
from tests.conftest import ROOT
from tests.unit.planner.test_bandwidth import PUBLISHED

N, RACKS, SERVERS = 8, 4, 8
EACH = N // RACKS
# 1 MiB: 1,024 chunks of 256 values, 32 slices of 32, so that every server has the same.
SIZE, CHUNKS, FRAME = 1 << 20, 1024, 14 + 20 + 8 + 32 + 1024
U = CHUNKS * FRAME
TOPOLOGY = """\
name: even
defaults: {rate: 20 Mbit/s}
racks:
  - {workers: 2, servers: 2}
  - {workers: 2, servers: 2}
  - {workers: 2, servers: 2}
  - {workers: 2, servers: 2}
cores: 1
"""


def plan(*arguments: str | Path) -> Any:
    """What the command prints as JSON."""
    result = CliRunner().invoke(main, ["plan", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_the_published_table_comes_out_with_the_network_beside_it() -> None:
    result = plan("--rack", "4")
    assert [row["model"] for row in result["models"]] == list(PUBLISHED)
    for told_row in result["models"]:
        row = told_row["bit_per_s"]
        found = [row[name] / 1e9 for name in ("cc", "cs", "ncc", "ncs")]
        # Printed in whole Gbit/s.
        assert found == pytest.approx(PUBLISHED[told_row["model"]], abs=0.5)
        assert row["inc"] == 0
        assert row["worker"] == row["ncs"] == row["inc-server"] == row["uplink_aggregated"]
        assert row["uplink"] == 4 * row["uplink_aggregated"]


def test_custom_model() -> None:
    (row,) = plan("--size", "194 MB", "--seconds", "17.6 ms", "--workers", "16")["models"]
    row = row["bit_per_s"]
    assert row["ncc"] == pytest.approx(2 * 16 * 194e6 * 8 / 17.6e-3)
    assert row["cs"] == pytest.approx(4 * 15 / 16 * 194e6 * 8 / 17.6e-3)


def test_links_of_a_topology_carry_what_the_closed_forms_say(tmp_path: Path) -> None:
    """U of design 11 is M in whole frames; here one direction of it."""
    file = tmp_path / "even.yaml"
    file.write_text(TOPOLOGY)
    result = plan(file, "--size", str(SIZE), "--seconds", "2 s")
    found = {(row["placement"], row["tree"]): row for row in result["placements"]}

    def busiest(placement: str, tree: str) -> list[float]:
        row = found[placement, tree]
        return [
            row[part]["bytes"] / U if row[part] else 0 for part in ("worker", "server", "uplink")
        ]

    away = (RACKS - 1) / RACKS
    # Workers in other racks have the central server's rack's uplink to share.
    assert busiest("cc", "none") == [1, N - 1, N - EACH]
    assert busiest("ncc", "none") == [1, N, N - EACH]
    # T_flat: hosts 2 (N - 1) / N, uplinks 2 n (r - 1) / r.
    assert busiest("cs", "none") == [0, 2 * (N - 1) / N, 2 * EACH * away]
    assert busiest("ncs", "none") == [1, N / SERVERS, 2 * EACH * away]
    assert busiest("inc", "two-level") == [1, 0, 1]
    # The sum goes down to the server's rack, and its parameters up again.
    assert busiest("inc-server", "two-level-server") == [1, 1, 2]
    assert busiest("inc-server", "tor") == [1, RACKS, RACKS - 1]
    assert "pass no core" in found["inc", "core"]["refused"]
    # Two-level over a switch root: max(M / Bw, M / Bu).
    assert found["inc", "two-level"]["seconds_on_links"] == pytest.approx(8 * U / 20e6)
    assert found["inc", "two-level"]["fits"] is True
    central = found["ncc", "none"]
    assert central["fits"] is False
    assert (central["bottleneck"]["to"], central["servers"]) == ("s0", ["s0"])


def test_impossible_placements_are_reported() -> None:
    result = CliRunner().invoke(main, ["plan", str(ROOT / "topologies" / "two-racks.yaml")])
    line = (
        "not here: inc (core), inc-server (core-server): packets from w0 to s0 pass no core, only"
        " tor0"
    )
    assert line in result.stdout.splitlines()
    assert result.stdout.count("not here") == 1
    # The analytic model has them in its table all the same, and says why they are refused.
    output = [line for line in result.stdout.splitlines() if line.startswith("refused: ")]
    assert len(output) == 1
    assert output[0].startswith("refused: inc (core), inc-server (core-server): ")


def test_every_word_of_a_plan_is_explained() -> None:
    result = CliRunner().invoke(main, ["plan", str(ROOT / "topologies" / "two-racks.yaml")])
    rows = result.stdout.partition("Placements, trees (in brackets: ")[2].splitlines()[1:]
    explained = {
        word: meaning for word, _, meaning in (row.partition("  ") for row in rows) if word
    }
    words = {kind.name for kind in KINDS} | {f"({kind})" for kind in TreeKind} | set(COLLECTIVES)
    assert set(explained) == words
    assert all(meaning.strip() for meaning in explained.values())


def test_a_jobs_own_placement_comes_first(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: x\niterations: 5\nplacement: {kind: cc, workers: [w0, w1, w4, w5]}\n")
    result = plan(ROOT / "topologies" / "two-racks.yaml", "--job", job)
    first, second = result["placements"][:2]
    assert first["placement"] == "as the file says"
    assert result["workers"] == ["w0", "w1", "w4", "w5"]
    assert {**first, "placement": "cc"} == second
    assert first["fits"] is None


def test_the_largest_gradients_have_a_time(tmp_path: Path) -> None:
    (tmp_path / "even.yaml").write_text(TOPOLOGY)
    result = plan(tmp_path / "even.yaml", "--size", "1000 TB")
    assert result["placements"] == []  # 30 billion slices are not added up one by one
    times = {one["placement"]: one["seconds"] for one in result["model"]["predictions"]}
    for name in ("inc", "ncs"):
        assert times[name] > 8e15 / 20e6


def test_one_worker_with_servers_of_its_own_has_nothing_to_send(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: one\nracks: [{workers: 1, servers: 1}]\ncores: 0\n")
    result = CliRunner().invoke(main, ["plan", str(tmp_path / "one.yaml"), "--size", "1 MB"])
    assert result.exit_code == 0
    assert "cc (none) wins with 0 s an iteration" in result.stdout
    assert " as long" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "1 MB"], "--size and --seconds go together"),
        (["--model", "AlexNet", "--size", "1 MB"], "leave --size, --seconds and --job out"),
        (["--workers", "1"], "'--workers': 1 is not in the range x>=2"),
        (["--size", "some", "--seconds", "1"], 'write it like "194 MB"'),
        (["--size", "0", "--seconds", "1"], "'0' is nothing"),
        (["topologies/two-racks.yaml", "--size", "2000 TB"], "2 PB; allowed: up to 1 PB"),
        (["topologies/two-racks.yaml", "--workers", "4"], "leave --workers and --rack out"),
        (["--job", "jobs/digits.yaml"], "--job needs a TOPOLOGY"),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], says: str) -> None:
    paths = [str(ROOT / one) if one.endswith(".yaml") else one for one in arguments]
    result = CliRunner().invoke(main, ["plan", *paths])
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
