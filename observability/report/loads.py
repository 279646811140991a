# SPDX-License-Identifier: Apache-2.0
"""Builds the report's table of link loads, and the drawing of the topology with them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

from observability.messages.report import LinkLoad
from observability.messages.summary import Link
from observability.wording import deviation, sending_ends
from topologies.model.addressing import Addressing
from topologies.model.drawing import Lane, draw
from topologies.model.topology import LinkQuality, Topology
from topologies.model.units import rate_text, size_text

# Upper ends of the classes of load, the same in all reports; class 0 is for links without load.
CLASSES = (0.05, 0.2, 0.5, 0.8, 1.0)
# Larger deviations from the closed form stand out; relative to it, or to the largest expected load
# where none was expected.
TOLERANCE = 0.02
_SHRUNK = 0.6
_WIDTHS = (1.2, 1.8, 2.3, 2.8, 3.3, 3.8)


@dataclass(frozen=True)
class Loads:
    """Link loads for the report.

    rows: of the table.
    drawing: SVG; empty if the topology is unknown.
    classes: names of the load classes.
    of_rate: loads are shares of the links' rates, not of the largest load.
    """

    rows: list[LinkLoad]
    drawing: str
    classes: list[str]
    of_rate: bool


def loads(topology: Topology | None, links: list[Link], seconds: float | None) -> Loads:
    """Classifies links of a summary, which carried their bytes in ``seconds`` (None: unknown)."""
    rates = _rates(topology) if topology is not None else {}
    shares = [_share(row, rates, seconds) for row in links]
    of_rate = bool(links) and all(
        share is not None or row["bytes"] is None for row, share in zip(links, shares, strict=True)
    )
    if not of_rate:
        fullest = max((row["bytes"] or 0 for row in links), default=0)
        shares = [
            None if row["bytes"] is None else row["bytes"] / fullest if fullest else 0.0
            for row in links
        ]
    wanted = [row["expected_bytes"] for row in links if row["expected_bytes"] is not None]
    rows = [
        LinkLoad(
            sender=sender,
            to=row["to"],
            bytes=row["bytes"],
            packets=row["packets"],
            expected_bytes=row["expected_bytes"],
            unknown=row["unknown"],
            share=share,
            level=None if share is None else _level(share),
            deviation=deviation(row),
            off=_off(row, max(wanted, default=0)),
        )
        for row, sender, share in zip(links, sending_ends(links), shares, strict=True)
    ]
    classes = [f"{100 * low:g} to {100 * high:g} %" for low, high in pairwise((0.0, *CLASSES))]
    drawing = "" if topology is None else _drawing(topology, links, rows)
    return Loads(rows, drawing, classes, of_rate)


def size(count: float | None) -> str:
    """Formats a number of bytes."""
    return "unknown" if count is None else size_text(count, 4)


def _rates(topology: Topology) -> dict[tuple[str, str], LinkQuality]:
    """Returns the quality of each link direction, by sending node and interface."""
    addressing = Addressing(topology)
    found = {}
    for node in topology.switches:
        for port in addressing.ports(node.name):
            found[port.switch, port.interface] = port.outgoing
            found[port.peer, port.peer_interface] = port.incoming
    return found


def _share(
    row: Link, rates: dict[tuple[str, str], LinkQuality], seconds: float | None
) -> float | None:
    quality = rates.get((row["from"], row["interface"]))
    if quality is None or not seconds or row["bytes"] is None:
        return None
    return 8 * row["bytes"] / (quality.rate * seconds)


def _level(share: float) -> int:
    """Returns the class of a load; the last one also has what is above a link's rate."""
    return 0 if share == 0 else 1 + bisect_left(CLASSES[:-1], share)


def _off(row: Link, largest: int) -> bool:
    carried, wanted = row["bytes"], row["expected_bytes"]
    if carried is None or wanted is None:
        return False
    return abs(carried - wanted) > TOLERANCE * (wanted or largest)


def _drawing(topology: Topology, links: list[Link], rows: list[LinkLoad]) -> str:
    """Returns SVG of a topology with its loads; a minimum width keeps it readable."""
    ends = [(link["from"], link["interface"]) for link in links]
    by_sender = dict(zip(ends, rows, strict=True))
    lanes = {
        (node, interface): _lane(node, quality, by_sender.get((node, interface)))
        for (node, interface), quality in _rates(topology).items()
    }
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    svg = ElementTree.fromstring(draw(topology, lanes, style=False))
    svg.set("style", f"min-width: {_SHRUNK * float(svg.get('width', 0)):.0f}px")
    return ElementTree.tostring(svg, encoding="unicode")


def _lane(node: str, quality: LinkQuality, row: LinkLoad | None) -> Lane:
    if row is None or row["level"] is None or row["share"] is None:
        why = f": {row['unknown']}" if row is not None and row["unknown"] else ""
        return Lane("load-unknown", _WIDTHS[1], f"{node}: bytes unknown{why}")
    lines = [f"{row['sender']} to {row['to']}: {size(row['bytes'])}"]
    if row["packets"] is not None:
        lines[0] += f" in {row['packets']:,} packets"
    lines.append(f"{100 * row['share']:.3g} % of {rate_text(quality.rate, 4)}")
    if row["expected_bytes"] is not None:
        lines.append(f"expected {size(row['expected_bytes'])} ({row['deviation']})")
    return Lane(f"load-{row['level']}", _WIDTHS[row["level"]], "\n".join(lines))
