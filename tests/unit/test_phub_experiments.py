# SPDX-License-Identifier: Apache-2.0
"""Tests the experiments on PHub: shapes of their coarse points, and their parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.chunk_size.figures import imbalance
from experiments.chunk_size.jobs import KIB, MESSAGE
from experiments.common.phub import COPY_NS, MXNET, PBOX, SUM_RATE, job, topology
from experiments.phub_throughput.figures import in_sequence
from experiments.phub_throughput.jobs import MODELS
from experiments.zero_compute.figures import line_seconds

BREAKDOWN = next(model for model in MODELS if model.name == "resnet269-v2")


def quick(name: str, folder: Path) -> dict[str, Any]:
    """Runs the coarse points, whose claims must hold; returns figures by name."""
    found = CliRunner().invoke(
        main, ["experiment", name, "--quick", "--jobs", "1", "--json", "--to", str(folder)]
    )
    assert found.exit_code == 0, found.stderr
    for picture in (folder / name).glob("*.svg"):
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    return {one["id"]: one for one in json.loads(found.stdout)["figures"]}


@pytest.mark.timeout(300)
def test_phub_gains_by_traffic_and_by_software(tmp_path: Path) -> None:
    figures = quick("phub_throughput", tmp_path)
    traffic, enhanced, stock, switches = (
        figures[f"{name}.resnet18@10Gbit/s"]["ours"]
        for name in ("PHub/PShard", "PHub/MXNetIB", "PHub/MXNet", "switches/MXNet")
    )
    assert 1.3 < traffic < 1.75  # ResNet-18's bytes take longer than computing, sharded
    assert traffic < enhanced < stock
    assert switches == pytest.approx(stock, rel=0.03)
    assert "The plan's errors: PHub" in (tmp_path / "phub_throughput.md").read_text()


@pytest.mark.timeout(300)
def test_exchanges_without_computing_are_bounded_by_bytes(tmp_path: Path) -> None:
    figures = quick("zero_compute", tmp_path)
    assert 1.66 < figures["PHub/PShard@8"]["ours"] < 1.77
    assert figures["PHub/PShard@8"]["kind"] == "digitised"
    assert figures["PHub.linear"]["ours"] == pytest.approx(1, abs=0.05)
    assert figures["switches.linear@8"]["ours"] == pytest.approx(1, abs=0.05)


@pytest.mark.timeout(300)
def test_every_cell_of_the_table_of_bandwidths_is_the_published_one(tmp_path: Path) -> None:
    figures = quick("min_bandwidth", tmp_path)
    published = [one for one in figures.values() if one["paper"] is not None]
    assert len(published) == 16
    assert all(abs(one["ours"] - one["paper"]) <= 0.5 for one in published)
    for model in ("alexnet", "googlenet", "inception", "resnet269"):
        central, server, alone = (
            figures[f"{kind}.{model}"]["ours"] for kind in ("ncc", "inc-server", "inc")
        )
        assert central == pytest.approx(8 * server)
        assert alone == pytest.approx(server)


@pytest.mark.timeout(300)
def test_chunks_have_a_best_size(tmp_path: Path) -> None:
    figures = quick("chunk_size", tmp_path)
    assert figures["best"]["ours"] == 32
    assert figures["8KiB"]["ours"] == pytest.approx(530, rel=0.15)  # from the figure for 4 KiB
    assert figures["8KiB/32KiB"]["ours"] < 0.8
    assert figures["1024KiB/32KiB"]["ours"] < 0.9


def test_costs_are_those_of_the_posters_breakdown() -> None:
    """ResNet-269 with MXNet: 0.75 s of copies, 0.34 s of sums, and computing; with GoogleNet the
    same costs."""
    assert in_sequence(BREAKDOWN, 56, MXNET) == pytest.approx(0.35 + 0.75 + 0.34)
    costs = topology(MXNET, 10)["costs"]
    assert costs["host_per_byte"] == f"{COPY_NS:.4g} ns"
    assert costs["server_rate"] == f"{SUM_RATE:.4g} Gbit/s"
    assert topology(MXNET, 10, copies=2)["costs"]["host_per_byte"] == f"{2 * COPY_NS:.4g} ns"
    assert topology(PBOX, 10)["costs"].keys() == {"interrupt_interval"}
    assert len(topology(PBOX, 10)["links"]) == 9


def test_a_key_of_mxnet_fits_into_a_window() -> None:
    """VGG's longest key has 102,760,448 parameters, an eighth of it at each server."""
    found = job(MXNET, "vgg19", 268, 3)
    assert found["window"] * found["chunk_bytes"] >= 4 * 102_760_448 / 8


def test_a_message_takes_what_the_poster_has_for_4_kib() -> None:
    """270 exchanges a second of 8 workers, 46.77 MB each."""
    took = MESSAGE * 46_767_800 / (4 * KIB)
    assert 8 / took == pytest.approx(270)
    assert line_seconds() == pytest.approx(46_767_800 * 8 / 56e9)


@pytest.mark.parametrize(("size", "most"), [(0, 7.15), (4 << 20, 1.022), (32 << 10, 1.000)])
def test_balance_of_vgg19_on_ten_links(size: int, most: float) -> None:
    """From the notes on PHub's map of chunks to queue pairs: whole layers, 4 MiB, 32 KiB."""
    assert imbalance("vgg19", size, 10) == pytest.approx(most, abs=5e-3)
