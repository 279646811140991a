# SPDX-License-Identifier: Apache-2.0
"""Tests topologies that a program builds or loads."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import rackhub
from tests.conftest import ROOT
from topologies.model import spec

TWO_RACKS = ROOT / "topologies" / "two-racks.yaml"


def test_keywords_build_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "racks.yaml"
    file.write_text(
        "name: mixed\n"
        "defaults: {rate: 10 Gbit/s, delay: 5 us, mtu: 9000}\n"
        "uplinks: {rate: 40 Gbit/s}\n"
        "racks: [{workers: 4, servers: 1}, {workers: 2, servers: 1, server_cores: 2}]\n"
        "cores: [2, 1]\n"
        "links: [{ends: [w0, tor0], loss: 1 %}]\n"
        "costs: {switch_latency: 1 us}\n"
        "seed: 3\n"
    )
    built = rackhub.Topology.build(
        "mixed",
        racks=[{}, {"workers": 2, "server_cores": 2}],
        cores=[2, 1],
        link={"rate": "10 Gbit/s", "delay": 5e-6, "mtu": 9000},
        uplink="40 Gbit/s",
        links=[{"ends": ("w0", "tor0"), "loss": 0.01}],
        costs={"switch_latency": "1 us"},
        seed=np.int64(3),  # type: ignore[arg-type]
    )
    loaded = rackhub.Topology.load(file)
    assert (built.model.nodes, built.links) == (loaded.model.nodes, loaded.links)
    assert (built.model.costs, built.model.seed) == (loaded.model.costs, loaded.model.seed)
    built.save(file)
    again = rackhub.Topology.load(file)
    assert again == built
    assert len({again, built}) == 1
    assert spec.load(file).links == built.links


def test_racks_alike_are_counted() -> None:
    built = rackhub.Topology.build(racks=3, workers=2, servers=1, cores=2)
    assert [node.name for node in built.workers] == [f"w{n}" for n in range(6)]
    assert [node.name for node in built.servers] == ["s0", "s1", "s2"]
    assert [node.name for node in built.switches] == ["tor0", "tor1", "tor2", "core0", "core1"]
    assert len(built.links) == 9 + 3 * 2
    alone = rackhub.Topology.build(racks=1)
    assert [node.name for node in alone.switches] == ["tor0"]


def test_files_and_names_are_loaded() -> None:
    by_name, by_path = rackhub.Topology.load("two-racks"), rackhub.Topology.load(TWO_RACKS)
    assert by_name == by_path
    assert by_path.to_yaml() == TWO_RACKS.read_text()


def test_a_changed_topology_is_another_one() -> None:
    before = rackhub.Topology.load(TWO_RACKS)
    faster = before.replace(defaults={"rate": "1 Gbit/s"}, uplinks={"rate": "2 Gbit/s"}, seed=7)
    assert before.links[0].forward.rate == 20_000_000
    assert {link.forward.rate for link in faster.links} == {10**9, 2 * 10**9}
    assert faster.links[0].forward.queue_bytes == before.links[0].forward.queue_bytes
    assert faster.model.seed == 7


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"racks": 0}, "Topology.build: racks: should be at least 1, not 0"),
        ({"workers": -1}, "Topology.build: workers: should be at least 0, not -1"),
        ({"servers": 0}, "Topology.build: racks: no servers in any rack; a job needs at least one"),
        ({"racks": [{}, {"workers": 300}]}, "Topology.build: racks[1].workers: should be at most"),
        ({"racks": [{}], "workers": 300}, "Topology.build: workers: should be at most 250"),
        ({"link": "fast"}, "Topology.build: link: 'fast' is not understood"),
        ({"uplink": {"speed": 1}}, "Topology.build: uplink.speed: unknown field; allowed here: ra"),
        (
            {"links": [{"ends": ["w0", "w1"], "mtu": 900}]},
            "Topology.build: links[0]: w0 and w1",
        ),
        ({"cores": 0}, "Topology.build: cores: 2 racks and no core to join them"),
        ({"name": "a b"}, "Topology.build: name: 'a b' should be letters"),
    ],
)
def test_errors_name_keywords(keywords: dict[str, object], expected: str) -> None:
    with pytest.raises(rackhub.TopologyError) as caught:
        rackhub.Topology.build(**keywords)  # type: ignore[arg-type]
    (first, *_) = str(caught.value).splitlines()
    assert first.startswith(expected)


def test_errors_of_files_name_lines_and_those_of_names_list_them(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("name: wrong\nracks:\n  - {workers: -1}\n")
    with pytest.raises(rackhub.TopologyError, match=r"wrong.yaml:3: racks\[0\].workers: should"):
        rackhub.Topology.load(file)
    with pytest.raises(rackhub.TopologyError, match=r"absent\.yaml: no such file"):
        rackhub.Topology.load(tmp_path / "absent.yaml")
    with pytest.raises(rackhub.TopologyError, match=r"three-racks: is no file, .* two-racks"):
        rackhub.Topology.load("three-racks")
    with pytest.raises(rackhub.TopologyError, match=r"Topology.replace: racks: needs at least 1"):
        rackhub.Topology.load("two-racks").replace(racks=[])


def test_notebooks_show_the_drawing() -> None:
    built = rackhub.Topology.build(racks=1, workers=2)
    shown = built._repr_svg_()
    texts = {part.text for part in ElementTree.fromstring(shown).iter() if part.text}
    assert {"w0", "w1", "s0", "tor0"} <= texts
    assert repr(built) == "<Topology built: 2 workers, 1 servers, 1 switches>"
