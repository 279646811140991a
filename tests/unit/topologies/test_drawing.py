# SPDX-License-Identifier: Apache-2.0
"""Tests drawings of topologies: all nodes and links, impairments, no overlaps."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from topologies.model.addressing import Addressing
from topologies.model.drawing import MOST_LABELS, Lane, draw
from topologies.model.spec import load, parse

SVG = "{http://www.w3.org/2000/svg}"
SHIPPED = sorted((Path(__file__).parents[3] / "topologies").glob("*.yaml"))
RACK = "{workers: 1, servers: 1, count: "
DRAWN = {path.stem: path.read_text() for path in SHIPPED} | {
    "pods": f"name: pods\nracks: [{RACK}3}}]\ncores: [{{racks: 2, cores: 2}}, 1]",
    "pods of one rack": f"name: pods\nracks: [{RACK}2}}]\ncores: [{{racks: 1, cores: 3}}, 1]",
}


def boxes(svg: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of every node."""
    found = []
    for rect in svg.iter(f"{SVG}rect"):
        if rect.get("class") in ("worker", "server", "switch", "core"):
            x, y, w, h = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
    return found


@pytest.mark.parametrize("text", DRAWN.values(), ids=DRAWN)
def test_every_node_and_link_is_there_and_nothing_overlaps(text: str) -> None:
    topology = parse(text)
    svg = ElementTree.fromstring(draw(topology))
    names = [t.text for t in svg.iter(f"{SVG}text") if t.get("class") == "name"]
    assert sorted(map(str, names)) == sorted(node.name for node in topology.nodes)
    assert len(list(svg.iter(f"{SVG}path"))) == len(topology.links)
    nodes = boxes(svg)
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    for number, (left, top, right, bottom) in enumerate(nodes):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        for other in nodes[:number]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart
    rates = [str(t.text) for t in svg.iter(f"{SVG}text") if t.get("class") == "rate"]
    values = [re.fullmatch(r"(?:(\d+) x )?(20 Mbit/s|10 Gbit/s)", rate) for rate in rates]
    switches = {node.name for node in topology.switches}
    between = sum({link.a, link.b} <= switches for link in topology.links)
    each = len(topology.links) - (between if between > MOST_LABELS else 0)
    assert sum(int(one[1] or 1) for one in values if one) == each


def test_parallel_links_share_a_label() -> None:
    topology = parse(
        "name: odd\nracks: [{workers: 2, servers: 2}, {workers: 2, servers: 1}]\ncores: 1\n"
        "links:\n"
        "  - {ends: [s0, tor0], add: true, loss: 1 %}\n"
        "  - {ends: [s0, tor0], add: true, loss: 1 %}\n"
        "  - {ends: [s0, tor0], add: true, rate: 5 Mbit/s}\n"
        "  - {ends: [s2, tor0], add: true, rate: 5 Mbit/s, reorder: 1 %}\n"
        "  - {ends: [s2, tor0], add: true, rate: 5 Mbit/s, reorder: 1 %}\n"
    )
    svg = ElementTree.fromstring(draw(topology))
    labels = [t for t in svg.iter(f"{SVG}text") if t.get("class") in ("rate", "fault")]
    values = [str(t.text) for t in labels]
    for text in ("3 x 20 Mbit/s", "2 x loss 1 %", "5 Mbit/s", "2 x 5 Mbit/s"):
        assert values.count(text) == 1
    assert "tor0: 2 x reorder 1 %" in values
    flat = [t for t in labels if not t.get("transform")]
    for number, one in enumerate(flat):
        for other in flat[:number]:
            far = abs(float(one.get("x", 0)) - float(other.get("x", 0)))
            # Letters of 10 px are about 5 px wide.
            below = abs(float(one.get("y", 0)) - float(other.get("y", 0))) >= 10
            assert below or far >= 2.5 * len(f"{one.text}{other.text}"), (one.text, other.text)


THREE_RACKS = "name: three\nracks: [{workers: 4, servers: 1}, {workers: 2}, {workers: 4}]\n"
CROSSING = [
    THREE_RACKS + "cores: 3\n",
    THREE_RACKS + "cores: 2\nuplinks: {rate: 20 Mbit/s, loss: 1 %}\n",
]


def straight(path: str) -> tuple[float, float, float, float]:
    """Ends of a path that is one line."""
    ax, ay, bx, by = map(float, re.findall(r"-?[\d.]+", path))
    return ax, ay, bx, by


def distance(x: float, y: float, line: tuple[float, float, float, float]) -> float:
    ax, ay, bx, by = line
    along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / math.dist((ax, ay), (bx, by)) ** 2
    along = min(1.0, max(0.0, along))
    return math.dist((x, y), (ax + along * (bx - ax), ay + along * (by - ay)))


@pytest.mark.parametrize(
    "text", [*CROSSING, *(path.read_text() for path in SHIPPED)], ids=range(2 + len(SHIPPED))
)
def test_no_link_crosses_what_is_written_on_another(text: str) -> None:
    svg = ElementTree.fromstring(draw(parse(text)))
    lines = [straight(p.get("d", "")) for p in svg.iter(f"{SVG}path")]
    for label in svg.iter(f"{SVG}text"):
        turned = re.match(r"rotate\((\S+) (\S+) (\S+)\)", label.get("transform", ""))
        if turned is None or "halo" in label.get("class", ""):
            continue
        slope, x, y = math.radians(float(turned[1])), float(turned[2]), float(turned[3])
        # The middle of its letters: 10 px high above the baseline, about 6 px wide.
        v = float(label.get("y", 0)) - 4 - y
        half = 5 * len(str(label.text)) / 2
        for u in (-half, 0, half):
            point = (
                x + u * math.cos(slope) - v * math.sin(slope),
                y + u * math.sin(slope) + v * math.cos(slope),
            )
            own, *others = sorted(distance(*point, line) for line in lines)
            assert own < 14
            assert all(other > 5 for other in others), label.text


def corners(label: ElementTree.Element) -> list[tuple[float, float]]:
    """Of the letters: 10 px high above the baseline, about 5 px wide."""
    x, y, half = float(label.get("x", 0)), float(label.get("y", 0)), 2.5 * len(str(label.text))
    x += half if label.get("class") == "racklabel" else 0
    turned = re.match(r"rotate\((\S+) (\S+) (\S+)\)", label.get("transform", ""))
    turn, cx, cy = (float(one) for one in turned.groups()) if turned else (0.0, x, y)
    cosine, sine = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    box = [(x + u - cx, y + v - cy) for u, v in ((-half, -8), (half, -8), (half, 0), (-half, 0))]
    return [(cx + u * cosine - v * sine, cy + u * sine + v * cosine) for u, v in box]


def apart(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> bool:
    """True if a side of one of two rectangles separates them."""
    for box in (one, other):
        for (ax, ay), (bx, by) in pairwise(box):
            first, second = ([(bx - ax) * x + (by - ay) * y for x, y in b] for b in (one, other))
            if max(first) < min(second) or max(second) < min(first):
                return True
    return False


def test_labels_of_many_impaired_links_do_not_overlap() -> None:
    every = "loss: 1 %, duplicate: 2 %, reorder: 3 %, corrupt: 0.5 %"
    ends = [*((f"w{n}", "tor0") for n in range(6)), ("tor1", "core0"), ("tor1", "core1")]
    text = "name: bad\nracks: [{workers: 6, servers: 1}, {workers: 4}]\ncores: 2\nlinks:\n"
    text += "".join(f"  - {{ends: [{low}, {high}], {every}}}\n" for low, high in ends)
    svg = ElementTree.fromstring(draw(parse(text)))
    kinds = ("rate", "fault", "name", "racklabel")
    labels = [t for t in svg.iter(f"{SVG}text") if t.get("class") in kinds]
    assert sum(t.get("class") == "fault" for t in labels) == 4 * len(ends)
    assert max(y for t in labels for _, y in corners(t)) < float(svg.get("height", 0))
    for number, one in enumerate(labels):
        for other in labels[:number]:
            assert apart(corners(one), corners(other)), (one.text, other.text)


def test_of_a_hundred_thousand_workers_the_first_racks_are_drawn() -> None:
    topology = load(SHIPPED[0].parent / "planned" / "hundred-thousand.yaml")
    text = draw(topology)
    assert len(text) < 1_000_000
    svg = ElementTree.fromstring(text)
    texts = {str(t.text) for t in svg.iter(f"{SVG}text")}
    racks = sum(p.get("class") == "rack" for p in svg.iter(f"{SVG}rect"))
    assert 1 < racks < 32
    (facts,) = (text for text in texts if "100,000 workers" in text)
    assert f"drawn: the first {racks} racks" in facts
    # Each node that is drawn has its whole way up.
    assert {"w0", "s0", "tor0", *(node.name for node in topology.cores if node.index == 0)} <= texts
    top = topology.cores[-1].name
    assert top in texts
    hosts = len(boxes(svg)) - racks - 3
    assert len(list(svg.iter(f"{SVG}path"))) == hosts + racks + 2


def test_impaired_and_uneven_links_stand_out() -> None:
    text = draw(
        parse(
            "name: odd\nracks: [{workers: 2, servers: 1}, {workers: 1}]\ncores: 1\n"
            "links:\n"
            "  - {ends: [w1, tor0], loss: 1 %}\n"
            "  - {from: tor1, to: core0, rate: 5 Mbit/s, reorder: 0.02}\n"
        )
    )
    svg = ElementTree.fromstring(text)
    impaired = [p for p in svg.iter(f"{SVG}path") if "impaired" in str(p.get("class"))]
    assert len(impaired) == 2
    result = {t.text for t in svg.iter(f"{SVG}text")}
    assert {"loss 1 %", "↑reorder 2 %", "↑5 Mbit/s ↓20 Mbit/s"} <= result
    titles = "\n".join(str(t.text) for t in svg.iter(f"{SVG}title"))
    assert "w1  10.0.0.2" in titles
    assert "tor1 to core0: rate 5e+06" in titles


def test_each_direction_of_a_link_can_be_shown_on_its_right_side() -> None:
    text = (
        "name: two\nracks: [{workers: 2, servers: 1}, {workers: 1}]\ncores: 1\n"
        "links: [{ends: [w1, tor0], loss: 1 %}, {ends: [s0, tor0], add: true}]\n"
    )
    topology = parse(text)
    addressing = Addressing(topology)
    ports = [port for node in topology.switches for port in addressing.ports(node.name)]
    ways = {(port.switch, port.interface) for port in ports}
    ways |= {(port.peer, port.peer_interface) for port in ports}
    lanes = {(n, i): Lane(f"load-{n}", 2.5, f"{n} by {i}") for n, i in ways}
    svg = ElementTree.fromstring(draw(topology, lanes, style=False))
    assert svg.find(f"{SVG}style") is None
    drawn = {str(p[0].text): p for p in svg.iter(f"{SVG}path")}
    # Both links of the server have theirs.
    assert drawn.keys() == {f"{node} by {interface}" for node, interface in ways}
    assert len(drawn) == 2 * (3 + 1 + 1 + 2)
    for port in ports:
        if port.switch > port.peer:
            continue  # from its other end
        there = drawn[f"{port.switch} by {port.interface}"]
        back = drawn[f"{port.peer} by {port.peer_interface}"]
        assert there.get("class") == f"lane load-{port.switch}" + (
            " impaired" if port.outgoing.impaired else ""
        )
        ends = [straight(str(lane.get("d"))) for lane in (there, back)]
        # Both lead up; the upward sender is on the right of the downward sender.
        up = 0 if port.link.a == port.switch else 1
        (ax, ay, bx, by), (cx, cy, _, _) = ends[up], ends[1 - up]
        assert by < ay
        assert (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) < 0


def test_the_same_topology_gives_the_same_picture() -> None:
    assert draw(load(SHIPPED[0])) == draw(load(SHIPPED[0]))
