# SPDX-License-Identifier: Apache-2.0
"""Tests the experiment on P3: the shapes of its coarse points, and how a trace is read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from cli.main import main
from experiments.p3.models import MODELS, VGG, compute, line_seconds
from experiments.p3.traced import BINS, link_use

IDS = [
    "gain.resnet50@4Gbit/s", "gain.sockeye@4Gbit/s", "gain.vgg19@15Gbit/s", "slice.optimum",
    "inc+p3.vgg19@15Gbit/s",
]  # fmt: skip


@pytest.mark.timeout(600)
def test_coarse_points_have_the_published_shapes(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        main, ["experiment", "p3", "--quick", "--json", "--to", str(tmp_path)]
    )
    assert found.exit_code == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["experiment"] == "p3"
    figures = {one["id"]: one for one in told["figures"]}
    assert list(figures) == IDS
    for name in IDS[:3]:
        assert figures[name]["kind"] == "abstract"
        assert figures[name]["ours"] > 5  # P3 gains where bytes take as long as computing
        assert (figures[name]["why"] is None) is figures[name]["holds"]
    assert figures["gain.resnet50@4Gbit/s"]["holds"]
    assert figures["inc+p3.vgg19@15Gbit/s"]["paper"] is None
    assert figures["inc+p3.vgg19@15Gbit/s"]["ours"] >= figures["gain.vgg19@15Gbit/s"]["ours"]
    rows = (tmp_path / "results.csv").read_text().splitlines()
    assert rows[0].startswith("of,model,rate,policy,seconds,")
    page = (tmp_path / "p3.md").read_text()
    assert "coarse points" in page
    assert "ResNet-50 | 10 |" in page
    ten = next(line for line in page.splitlines() if line.startswith("| ResNet-50 | 10 |"))
    assert float(ten.split("|")[6]) < 1  # links hardly matter
    for picture in ("gain", "slices", "placements"):
        assert ElementTree.parse(tmp_path / "p3" / f"{picture}.svg").getroot().tag.endswith("svg")


def test_times_of_layers_add_up_to_the_iteration() -> None:
    (sockeye,) = (model for model in MODELS if model.name.startswith("sockeye"))
    content, files = compute(sockeye, 2.0)
    assert content == {"layers": "layers.yaml"}
    rows = [line for line in files["layers.yaml"].splitlines() if "_seconds" in line]
    total = sum(float(line.split(": ")[1]) for line in rows)
    assert total == pytest.approx(2 * sockeye.seconds)
    assert compute(VGG, 0.5)[0] == {"iteration": f"{VGG.seconds * 500:.6g} ms"}


def test_bytes_on_a_link_are_those_of_the_notes() -> None:
    """862.0 MB each way of VGG-19, 459.7 ms at 15 Gbit/s (2M(N-1)/N)."""
    assert line_seconds(VGG, 15) == pytest.approx(0.4597, abs=5e-5)


def event(phase: str, ts: float, **more: object) -> dict[str, object]:
    return {"ph": phase, "pid": 1, "ts": ts, **more}


def test_link_use_is_the_mean_of_each_part_of_an_iteration() -> None:
    def computed(name: str, iteration: int, begin: float, end: float) -> list[dict[str, object]]:
        what = {"name": name, "cat": "compute", "args": {"iteration": iteration}, "tid": 1}
        return [event("B", begin, **what), event("E", end, tid=1)]

    def busy(name: str, pid: int, ts: float, percent: float) -> dict[str, object]:
        return {**event("C", ts, name=name, args={"%": percent}), "pid": pid}

    begin, end = 1e6, 1e6 + BINS * 10.0
    half = (begin + end) / 2
    found = link_use(
        [
            {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "w0"}},
            {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "tor0"}},
            *computed("forward layer1", 3, begin - 5, begin),
            *computed("backward layer1", 3, begin, begin + 100),
            *computed("forward layer1", 4, end - 100, end),
            busy("eth0 to tor0, busy", 1, begin - 50, 100),
            busy("eth0 to tor0, busy", 1, half + 5, 0),
            busy("eth1 to w0, busy", 2, end - 10, 50),
            busy("eth2 to w1, busy", 2, begin, 100),
        ]
    )
    assert found["seconds"] == pytest.approx(BINS * 1e-5)
    assert found["backward"] == [pytest.approx((0, 1e-4))]
    assert found["send"][: BINS // 2 + 1] == [100] * (BINS // 2) + [50]
    assert not any(found["send"][BINS // 2 + 1 :])
    assert found["receive"] == [0] * (BINS - 1) + [50]
