# SPDX-License-Identifier: Apache-2.0
"""Draws a topology, or the first racks of a large one, as SVG: cores above ToRs above hosts, one
frame per rack.

``topologies.model.layout`` computes positions, ``topologies.model.wording`` the labels. Links
between switches and hosts show their rates, impaired links their impairments. Tooltips have names,
addresses and all properties of links.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from xml.etree import ElementTree

from topologies.model import wording
from topologies.model.addressing import Addressing
from topologies.model.layout import (
    HOST_HEIGHT,
    LINE_STEP,
    MARGIN,
    SWITCH_HEIGHT,
    SWITCH_WIDTH,
    Layout,
)
from topologies.model.topology import Link, Node, Topology

LANE_STEP = 2.6  # sideways offset of each direction, if they are drawn separately
# With more links than that between switches the most common label is shown once, at the bottom.
MOST_LABELS = 12
# Of a topology with more hosts than the first only the first racks are drawn, with about as many
# hosts as the second: a picture of all would have tens of megabytes, and nothing to be seen.
MOST_HOSTS, FEW_HOSTS = 5_000, 60

STYLE = """
text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1e293b; }
.title { font-size: 20px; font-weight: 600; }
.facts, .foot { font-size: 12px; fill: #64748b; }
.name { font-size: 14px; font-weight: 600; text-anchor: middle; }
.rate { font-size: 10px; fill: #475569; text-anchor: middle; }
.rack { fill: #f8fafc; stroke: #cbd5e1; stroke-width: 1; }
.racklabel { font-size: 11px; fill: #94a3b8; }
.worker { fill: #dbeafe; stroke: #3b82f6; }
.server { fill: #fef3c7; stroke: #d97706; }
.switch { fill: #e2e8f0; stroke: #475569; stroke-width: 1.5; }
.core { fill: #cbd5e1; stroke: #334155; stroke-width: 1.5; }
.link { fill: none; stroke: #64748b; stroke-width: 1.5; }
.uplink { stroke-width: 2.5; }
.impaired { stroke: #dc2626; stroke-dasharray: 6 4; }
.fault { font-size: 10px; fill: #b91c1c; text-anchor: middle; }
.halo { stroke: #ffffff; stroke-width: 4; stroke-linejoin: round; }
"""


@dataclass(frozen=True)
class Lane:
    """The style of one direction of a link: CSS classes, width and tooltip."""

    classes: str
    width: float
    title: str


def draw(
    topology: Topology, lanes: Mapping[tuple[str, str], Lane] | None = None, *, style: bool = True
) -> str:
    """Draws a topology and returns the SVG text.

    lanes: styles of the directions of links, by sending node and interface; each direction is drawn
        on its sender's right side. None: one line a link.
    style: include the style sheet.
    """
    return _Drawing(topology, lanes).text(style)


class _Drawing:
    def __init__(self, topology: Topology, lanes: Mapping[tuple[str, str], Lane] | None) -> None:
        self.whole = topology
        self.topology = topology = _first_racks(topology)
        self.lanes = lanes
        self.addressing = Addressing(self.whole)
        self.faults = {node.name: wording.faults_at(topology, node) for node in topology.hosts}
        texts = [wording.in_box(topology, node) for node in topology.hosts]
        texts += [text for lines in self.faults.values() for text in lines]
        between = [
            (wording.rates(link), wording.faults(link))
            for link in topology.links
            if topology.by_name[link.a].level
        ]
        crowded = len(between) > MOST_LABELS
        self.usual = Counter(between).most_common(1)[0][0] if crowded else None
        self.layout = Layout(
            topology,
            max(map(len, texts), default=0),
            max(map(len, self.faults.values()), default=0),
            max(
                (len(faults) for rate, faults in between if (rate, faults) != self.usual), default=0
            ),
        )

    # --- the picture, back to front ---

    def text(self, style: bool) -> str:
        svg = ElementTree.Element(
            "svg",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {self.layout.width:g} {self.layout.height:g}",
            width=f"{self.layout.width:g}",
            height=f"{self.layout.height:g}",
        )
        ElementTree.SubElement(svg, "title").text = f"Topology {self.topology.name}"
        if style:
            ElementTree.SubElement(svg, "style").text = STYLE
            _element(svg, "rect", width="100%", height="100%", fill="#ffffff")
        self._title(svg)
        for number, (x, y, width, height) in enumerate(self.layout.frames):
            _element(svg, "rect", "rack", x=x, y=y, width=width, height=height, rx=10)
            _text(svg, "racklabel", x + 12, y + 18, f"rack {number}")
        for link in self.topology.links:
            self._line(svg, link)
        for node in self.topology.nodes:
            self._node(svg, node)
        for host in self.topology.hosts:
            self._host_labels(svg, host)
        for link in self.topology.links:
            if not self.layout.is_host(link.a):
                self._labels(svg, link)
        self._foot(svg)
        ElementTree.indent(svg)
        return ElementTree.tostring(svg, encoding="unicode") + "\n"

    def _title(self, svg: ElementTree.Element) -> None:
        topology = self.whole
        facts = [
            _count(topology.racks, "rack"),
            _count(len(topology.workers), "worker"),
            _count(len(topology.servers), "server"),
            _count(len(topology.cores), "core switch", "core switches"),
        ]
        if self.topology is not topology:
            facts.append(f"drawn: the first {_count(self.topology.racks, 'rack')}, and cores above")
        _text(svg, "title", MARGIN, MARGIN + 14, topology.name)
        _text(svg, "facts", MARGIN, MARGIN + 34, " · ".join(facts))

    def _line(self, svg: ElementTree.Element, link: Link) -> None:
        if self.lanes is not None:
            self._two_lanes(svg, link, self.lanes)
            return
        classes = ["link"]
        if not self.layout.is_host(link.a):
            classes.append("uplink")
        if link.forward.impaired or link.backward.impaired:
            classes.append("impaired")
        line = _element(svg, "path", " ".join(classes), d=self._path(link, 0.0))
        ElementTree.SubElement(line, "title").text = self._describe(link)

    def _path(self, link: Link, aside: float) -> str:
        """Builds the path of a link from its lower to its upper end, shifted to the right."""
        (ax, ay), (bx, by) = self.layout.ends(link)
        length = math.dist((ax, ay), (bx, by)) or 1.0
        right, down = -(by - ay) / length * aside, (bx - ax) / length * aside
        ax, ay, bx, by = (round(n, 2) for n in (ax + right, ay + down, bx + right, by + down))
        nodes = self.topology.by_name
        if self.layout.is_host(link.a) and nodes[link.a].rack != nodes[link.b].rack:
            bend = (ay - by) * 0.5  # above the hosts between, whose links are straight
            return f"M{ax:g},{ay:g} C{ax:g},{ay - bend:g} {bx:g},{by + bend:g} {bx:g},{by:g}"
        return f"M{ax:g},{ay:g} L{bx:g},{by:g}"

    def _two_lanes(
        self, svg: ElementTree.Element, link: Link, lanes: Mapping[tuple[str, str], Lane]
    ) -> None:
        # The interfaces of this link, as others may join the same nodes.
        port = next(port for port in self.addressing.ports(link.b) if port.link is link)
        interfaces = {port.switch: port.interface, port.peer: port.peer_interface}
        for end, quality, aside in (
            (link.a, link.forward, LANE_STEP),
            (link.b, link.backward, -LANE_STEP),
        ):
            lane = lanes[end, interfaces[end]]
            kind = f"lane {lane.classes}{' impaired' if quality.impaired else ''}"
            path = self._path(link, aside)
            line = _element(svg, "path", kind, d=path, **{"stroke-width": lane.width})
            ElementTree.SubElement(line, "title").text = lane.title

    def _node(self, svg: ElementTree.Element, node: Node) -> None:
        x, y = self.layout.at[node.name]
        width: float = SWITCH_WIDTH
        height = SWITCH_HEIGHT
        kind = "switch" if node.rack is not None else "core"
        if node.level == 0:
            width, height, kind = self.layout.host_width, HOST_HEIGHT, node.kind
        group = ElementTree.SubElement(svg, "g")
        addresses = (
            [str(item.ipv4) for item in self.addressing.host_interfaces(node.name)]
            if node.level == 0
            else [str(self.addressing.switch_address(node.name))]
        )
        units = self.topology.units_of(node.name) if node.level == 0 else ()
        more = f"  {len(units)} server processes" if len(units) > 1 else ""
        ElementTree.SubElement(group, "title").text = f"{node.name}  {', '.join(addresses)}{more}"
        _element(
            group,
            "rect",
            kind,
            x=x - width / 2,
            y=y - height / 2,
            width=width,
            height=height,
            rx=6 if node.level == 0 else 4,
        )
        if node.level == 0:
            _text(group, "name", x, y - 3, node.name)
            _text(group, "rate", x, y + 13, wording.in_box(self.topology, node))
        else:
            _text(group, "name", x, y + 5, node.name)

    def _host_labels(self, svg: ElementTree.Element, host: Node) -> None:
        """Lists impairments below the host's box, and labels links with rates that the box does not
        show; links to the same switch with equal rates share a label."""
        x, y = self.layout.at[host.name]
        for number, text in enumerate(self.faults[host.name], 1):
            _text(svg, "fault", x, y + HOST_HEIGHT / 2 + number * LINE_STEP, text)
        told = wording.alike(self.topology, host)
        labels: dict[str, dict[str, list[Link]]] = {}
        for link in self.topology.links_of(host.name):
            if not any(link is one for one in told):
                labels.setdefault(link.b, {}).setdefault(wording.rates(link), []).append(link)
        nodes = self.topology.by_name
        for switch, texts in labels.items():
            share = 0.5 if nodes[switch].rack == host.rack else 0.8  # there it comes from the side
            for number, (text, links) in enumerate(texts.items()):
                ends = [self.layout.ends(link) for link in links]
                x, y = (
                    sum(a[n] + share * (b[n] - a[n]) for a, b in ends) / len(ends) for n in (0, 1)
                )
                down = LINE_STEP * (number - (len(texts) - 1) / 2) + 3
                _label(svg, "rate", x, y + down, wording.times(len(links), text))

    def _labels(self, svg: ElementTree.Element, link: Link) -> None:
        rate, faults = wording.rates(link), wording.faults(link)
        if (rate, faults) == self.usual:
            return
        if self.usual is not None and rate == self.usual[0]:
            rate = ""
        (ax, ay), (bx, by) = self.layout.ends(link)
        slope = math.degrees(math.atan((by - ay) / (bx - ax))) if bx != ax else -90.0
        x, y = self.layout.free_place(link, slope, rate, faults)
        turn = f"rotate({slope:.1f} {x:g} {y:g})"
        if rate:
            _label(svg, "rate", x, y - 5, rate, transform=turn)
        for number, text in enumerate(faults, 1):
            _label(svg, "fault", x, y - 1 + number * LINE_STEP, text, transform=turn)

    def _foot(self, svg: ElementTree.Element) -> None:
        """Lists the properties that all links share."""
        every = [q for link in self.topology.links for q in (link.forward, link.backward)]
        parts = []
        for name, words in wording.SHARED.items():
            values = {getattr(quality, name) for quality in every}
            if len(values) == 1:
                parts.append(words(values.pop()))
        text = "all links: " + " · ".join(parts) if parts else ""
        if self.usual:
            rate, faults = self.usual
            between = f"between switches, unless shown: {', '.join((rate, *faults))}"
            text = f"{text}; {between}" if text else between
        _text(svg, "foot", MARGIN, self.layout.height - 16, text)

    def _describe(self, link: Link) -> str:
        lines = [f"{link.a} - {link.b}"]
        for a, b, quality in ((link.a, link.b, link.forward), (link.b, link.a, link.backward)):
            settings = {
                name: value
                for name, value in asdict(quality).items()
                if value or name in ("rate", "delay")
            }
            words = ", ".join(f"{name} {value:g}" for name, value in settings.items())
            lines.append(f"{a} to {b}: {words}")
        return "\n".join(lines)


def _first_racks(topology: Topology) -> Topology:
    """Returns a topology that is small enough to draw: this one, or its first racks and the cores
    above them."""
    if len(topology.hosts) <= MOST_HOSTS:
        return topology
    hosts = Counter(node.rack for node in topology.hosts)
    kept: dict[str, Node] = {}
    room = FEW_HOSTS
    for tor in topology.tors:
        room -= hosts[tor.rack]
        if kept and room < 0:
            break
        kept[tor.name] = tor
    racks = {tor.rack for tor in kept.values()}
    kept |= {node.name: node for node in topology.hosts if node.rack in racks}
    for switch in topology.switches:  # lowest first
        if any(link.b == switch.name and link.a in kept for link in topology.links_of(switch.name)):
            kept[switch.name] = switch
    nodes = tuple(node for node in topology.nodes if node.name in kept)
    links = tuple(link for link in topology.links if link.a in kept and link.b in kept)
    return replace(topology, nodes=nodes, links=links)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{f'{number:,}' if number else 'no'} {one if number == 1 else many or one + 's'}"


def _element(
    parent: ElementTree.Element, tag: str, kind: str = "", **attributes: float | str
) -> ElementTree.Element:
    values = {
        name: value if isinstance(value, str) else f"{value:g}"
        for name, value in attributes.items()
    }
    if kind:
        values["class"] = kind
    return ElementTree.SubElement(parent, tag, values)


def _text(
    parent: ElementTree.Element, kind: str, x: float, y: float, text: str, **more: str
) -> None:
    _element(parent, "text", kind, x=x, y=y, **more).text = text


def _label(
    parent: ElementTree.Element, kind: str, x: float, y: float, text: str, **more: str
) -> None:
    """Adds text on top of links, with a separate halo, as not all viewers support paint-order."""
    _text(parent, f"{kind} halo", x, y, text, **more)
    _text(parent, kind, x, y, text, **more)
