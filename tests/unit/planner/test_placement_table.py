# SPDX-License-Identifier: Apache-2.0
"""Tests the table of placements: its closed forms match the trees, and it detects wrong results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from controller.planning.tree_planner import TreeKind, plan_trees
from experiments.placements import larger
from experiments.placements.experiment import play_virtually
from experiments.placements.page import page
from experiments.placements.rows import ITERATIONS, ROWS, TOPOLOGY, Row, judge, workload
from observability import links
from observability.links import Carried
from observability.progress_view import View
from planner.link_loads import Workload, expected
from specs.jobfile import parse as parse_job
from specs.placements import KINDS
from topologies.model.addressing import Addressing
from topologies.model.spec import parse
from workloads.workloads import shapes

ADDRESSING = Addressing(parse(TOPOLOGY))
CHUNKS = 128


def ran(row: Row) -> tuple[Workload, dict[str, Any]]:
    """The summary of a row's job that put on each link just what its trees say."""
    file = parse_job(yaml.safe_dump(row.job))
    place = file.place(ADDRESSING.topology)
    work = workload(file.spec, tuple(shapes(file.spec).values()), 256, 32)
    addresses = [ADDRESSING.address(name) for name in place.servers]
    trees = plan_trees(
        ADDRESSING.topology, ADDRESSING, place.workers, addresses, TreeKind.of(file.spec.tree)
    )
    carried = dict.fromkeys(_every_direction(), Carried(0, 0))
    for way, load in expected(ADDRESSING, trees, place.servers, work).items():
        carried[way] = Carried(load.bytes, load.packets)
    summary = {
        "links": links.rows(ADDRESSING, carried, None),
        "matches_reference": True,
        "chunks": {
            "aggregated_in_network": 0 if row.tree == "none" else CHUNKS * ITERATIONS,
            "in_float32": 0,
            "retransmitted": 0,
        },
        "seconds_per_iteration": [0.1] * ITERATIONS,
    }
    return work, summary


def _every_direction() -> list[links.Direction]:
    topology = ADDRESSING.topology
    ports = [port for switch in topology.switches for port in ADDRESSING.ports(switch.name)]
    ends = [end for host in topology.hosts for end in ADDRESSING.host_interfaces(host.name)]
    return [links.Direction(port.switch, port.interface) for port in ports] + [
        links.Direction(end.node, end.interface) for end in ends
    ]


def changed(summary: Mapping[str, Any], source: str, to: str, factor: float) -> dict[str, Any]:
    rows = [
        {**row, "bytes": int(row["bytes"] * factor)}
        if (row["from"], row["to"]) == (source, to)
        else row
        for row in summary["links"]
    ]
    return {**summary, "links": rows}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_closed_forms_are_what_trees_put_on_links(row: Row) -> None:
    work, summary = ran(row)
    assert work.chunks == CHUNKS
    line = judge(row, "embedded", work, summary)
    assert line.problems == []
    assert line.server == line.server_expected
    assert line.up == line.down == line.rack_expected


def test_every_placement_has_its_rows() -> None:
    assert {row.placement for row in ROWS} == {kind.name for kind in KINDS}
    trees = [row.tree for row in ROWS if row.placement == "inc-server"]
    assert trees == ["two-level", "tor", "core"]


def test_failed_checks_are_reported() -> None:
    row = next(row for row in ROWS if row.name == "ncs-none")
    work, summary = ran(row)
    for bad, says in (
        ({**summary, "matches_reference": False}, "the weights are not"),
        (changed(summary, "tor1", "core0", 1.03), "a rack sends"),
        (changed(summary, "tor2", "s0", 1.2), "a server host has"),
        ({**summary, "chunks": {**summary["chunks"], "aggregated_in_network": 1}}, "switches made"),
    ):
        line = judge(row, "embedded", work, bad)
        (problem,) = line.problems
        assert problem.startswith(says)
    lost = {**summary, "links": [{**row, "bytes": None} for row in summary["links"]]}
    assert len(judge(row, "embedded", work, lost).problems) == 3


def trained(loss: float) -> dict[str, Any]:
    return {
        "matches_reference": True,
        "test_loss": loss,
        "test_accuracy": 0.5,
        "seconds_per_iteration": [0.1],
    }


def test_half_precision_may_not_cost_more_than_a_hundredth_of_the_loss() -> None:
    full = larger.judge(larger.Row("cc", "float32"), "embedded", trained(2.0))
    fine = larger.judge(larger.Row("cc", "float16"), "embedded", trained(2.01))
    bad = larger.judge(larger.Row("cc", "float16"), "embedded", trained(1.97))
    other = larger.judge(larger.Row("cc", "float16"), "bmv2", trained(9.0))
    larger.compare([full, fine, other])
    larger.compare([full, bad])
    assert (full.problems, fine.problems, other.problems) == ([], [], [])
    assert bad.problems == ["its loss is 1.50% from that with float32 gradients"]
    unlike = larger.judge(larger.ROWS[0], "bmv2", {**trained(2.0), "matches_reference": False})
    assert unlike.problems == ["the weights are not the reference's"]


class Brief(Row):
    """A row whose job has two iterations."""

    @property
    def job(self) -> dict[str, Any]:
        return {**super().job, "iterations": 2}


def test_in_virtual_time_a_row_has_what_its_formula_says(runs: Path, tmp_path: Path) -> None:
    rows = [Brief("inc", "two-level")]
    with View(Console(quiet=True)) as view:
        lines, more = play_virtually(rows, [], "virtual time", tmp_path, view)
    (line,) = lines
    assert (line.problems, line.matches, more) == ([], True, [])
    assert line.up == line.down == line.rack_expected
    assert line.in_network == 2 * CHUNKS - (line.in_float32 or 0)
    assert 0 < (line.seconds or 0) < 0.05  # 128 chunks at 50 Mbit/s take 0.0225 s


def test_the_page_has_a_line_for_each() -> None:
    machine = {"cpus": 2, "processor": "one", "kernel": "6.1"}
    lines = [judge(row, "embedded", *ran(row)) for row in ROWS]
    more = [larger.judge(row, "embedded", trained(2.0)) for row in larger.ROWS]
    text = page(lines, more, machine, " --target embedded")
    for one in larger.ROWS:
        assert f"| {one.placement} | embedded | {one.gradients} | same | 2.00000 |" in text
    for row in ROWS:
        assert f"| `{row.placement}` | `{row.tree}` |" in text
    assert "| `ncc` | `none` | 1 | same | 8.000 | 8.000 | 2.000 | 2.000 | 2.000 |" in text
