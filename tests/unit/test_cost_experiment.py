# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment on throughput per dollar: its sums, its shapes, and errors in prices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.cost.jobs import BOX, SHARDED, SWITCH
from experiments.cost.prices import FILE, read
from topologies.model.documents import DocumentError

PRICES = {
    **{"gpu": 1.0, "machine": 10.0, "nic_10": 100.0, "port_10": 1_000.0},
    **{"box": 1e6, "programmable": 3.0, "nic_40": 0.0, "port_40": 0.0},
}


@pytest.mark.timeout(300)
def test_less_traffic_is_more_throughput_for_a_price(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main, ["experiment", "cost", "--quick", "--jobs", "1", "--json", "--to", str(tmp_path)]
    )
    assert found.exit_code == 0, found.stderr  # claims: faster, and most per dollar with a switch
    figures = {one["id"]: one for one in json.loads(found.stdout)["figures"]}
    box, switch = figures["perdollar.pbox.small"], figures["perdollar.switch.small"]
    assert box["kind"] == "abstract"
    assert (box["why"] is None) is box["holds"]
    assert switch["ours"] > max(1.2, box["ours"])  # the same speed, and no box to pay
    assert switch["ours"] <= 1.75  # 2 (N - 1) / N times the traffic, and computing
    text = (tmp_path / "cost.md").read_text()
    assert "| `box` |" in text
    assert text.count("**assumed**") == 3
    picture = ElementTree.parse(tmp_path / "cost" / "sensitivity.svg").getroot()
    assert picture.tag.endswith("svg")


def test_a_rack_costs_its_parts() -> None:
    worker = 10 + 4 * 1 + 100 + 1_000
    assert SHARDED.dollars(PRICES) == 8 * worker
    assert SWITCH.dollars(PRICES) == 8 * (worker + 3)
    assert BOX.dollars(PRICES) == 8 * worker + 1e6 + 5 * 100 + 10 * 1_000
    fast = replace(BOX, rate=40)
    assert fast.dollars({**PRICES, "nic_40": 7.0}) == 8 * (10 + 4 + 7) + 1e6 + 10 * 7


def test_each_price_has_a_source_and_a_date_or_is_assumed() -> None:
    for one in read().items().values():
        assert one.assumed or (one.source.startswith("https://") and one.date)


def test_a_wrong_price_is_named_with_its_line(tmp_path: Path) -> None:
    text = FILE.read_text()
    line = text.splitlines().index("  dollars: 188") + 1
    bad = tmp_path / "prices.yaml"
    bad.write_text(text.replace("dollars: 188", "dollars: -1"))
    with pytest.raises(DocumentError, match=f"prices.yaml:{line}: port_10.dollars: "):
        read(bad)
