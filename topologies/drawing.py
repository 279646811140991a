# SPDX-License-Identifier: Apache-2.0
"""A topology as a picture: SVG, cores above ToRs above hosts, one frame per rack.

A topology's levels give its layout, so none has to be computed. Rates stand on the links between
switches and in the hosts; what a link does to packets is written where it does. Names, addresses
and all link properties come up where the mouse rests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from xml.etree import ElementTree

from topologies.addressing import Addressing
from topologies.topology import Link, LinkQuality, Node, Topology

__all__ = ["Lane", "draw"]

HOST_WIDTH, HOST_HEIGHT, HOST_GAP, BOX_PADDING = 66, 42, 10, 4  # a host is that wide at least
SWITCH_WIDTH, SWITCH_HEIGHT = 92, 36
RACK_PADDING, RACK_GAP = 18, 28
LEVEL_HEIGHT = 130  # from a level of switches to the next, at least
LEVEL_SHARE = 0.11  # of the width: links across a wide picture would lie flat
CORE_GAP = 380  # between cores of a level, at most
HOSTS_BELOW_TOR = 96
MARGIN, TITLE_HEIGHT, FOOT_HEIGHT = 28, 72, 40
LEAST_WIDTH = 500
PORT_STEP = 14  # between links along a side of a switch
LABEL_STEP = 13  # between labels of links that join the same two nodes
LANE_STEP = 2.6  # of each direction of a link to its side, where they are drawn apart
# Labels of links between switches lie along them, this far up from the lower end: the first place
# where no other link or label is in the way, else the one where least is.
LABEL_AT = sorted((n / 50 for n in range(7, 44)), key=lambda share: abs(share - 0.30))
# Of the text of a label in its own direction, about (font of 10 px): of a letter, above and below.
LETTER_WIDTH, RATE_BOX, FAULT_BOX = 5.8, (-15.0, -3.0), (3.0, 15.0)
# With more links than that between switches the most usual rate is told once, below.
MOST_LABELS = 12

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

Point = tuple[float, float]
Segment = tuple[Point, Point]


@dataclass(frozen=True)
class Lane:
    """How one direction of a link is drawn: classes for the style sheet, width, and what comes up
    where the mouse rests."""

    classes: str
    width: float
    title: str


def draw(
    topology: Topology, lanes: Mapping[tuple[str, str], Lane] | None = None, *, style: bool = True
) -> str:
    """SVG text of a topology.

    lanes: the two directions of each link, side by side, by the node and interface that send (those
    on the right as seen by who sends). style: False where a page has its own for these classes.
    """
    return _Drawing(topology, lanes).text(style)


class _Drawing:
    def __init__(self, topology: Topology, lanes: Mapping[tuple[str, str], Lane] | None) -> None:
        self.topology = topology
        self.lanes = lanes
        self.addressing = Addressing(topology)
        self.at: dict[str, Point] = {}  # middle of each node
        # What all hosts' boxes have room for: the longest text in any of them.
        longest = max((len(self._in_box(node)) for node in topology.hosts), default=0)
        self.host_width = max(float(HOST_WIDTH), longest * LETTER_WIDTH + 2 * BOX_PADDING)
        self.frames: list[tuple[float, float, float, float]] = []  # x, y, width, height
        self.width = 0.0
        self.height = 0.0
        self._place()
        between = [_rates(link) for link in topology.links if not self._is_host(link.a)]
        crowded = len(between) > MOST_LABELS
        self.usual = Counter(between).most_common(1)[0][0] if crowded else ""
        # What labels have to keep clear of besides links: outlines of switches, and of labels.
        self.outlines: list[Segment] = []
        for node in topology.switches:
            x, y = self.at[node.name]
            u, v = SWITCH_WIDTH / 2, SWITCH_HEIGHT / 2
            self.outlines += _outline(
                [(x - u, y - v), (x + u, y - v), (x + u, y + v), (x - u, y + v)]
            )

    def _is_host(self, name: str) -> bool:
        return self.topology.by_name[name].level == 0

    # --- layout ---

    def _place(self) -> None:
        topology = self.topology
        rows = [[node for node in topology.hosts if node.rack == tor.rack] for tor in topology.tors]
        widths = [
            2 * RACK_PADDING + max(self._row_width(len(row)), SWITCH_WIDTH + 70) for row in rows
        ]
        inner = sum(widths) + RACK_GAP * (len(widths) - 1)
        self.width = max(inner + 2 * MARGIN, LEAST_WIDTH)
        levels = sorted({node.level for node in topology.cores}, reverse=True)
        level_height = max(LEVEL_HEIGHT, LEVEL_SHARE * self.width)
        top = MARGIN + TITLE_HEIGHT + SWITCH_HEIGHT / 2
        for number, level in enumerate(levels):
            cores = [node for node in topology.cores if node.level == level]
            step = min((self.width - 2 * MARGIN) / len(cores), CORE_GAP)
            for position, core in enumerate(cores):
                x = self.width / 2 + step * (position - (len(cores) - 1) / 2)
                self.at[core.name] = (x, top + number * level_height)
        tor_y = top + len(levels) * level_height
        frame_top = tor_y - SWITCH_HEIGHT / 2 - RACK_PADDING
        frame_bottom = tor_y + HOSTS_BELOW_TOR + HOST_HEIGHT / 2 + RACK_PADDING
        self.height = frame_bottom + FOOT_HEIGHT
        x = (self.width - inner) / 2
        for tor, row, width in zip(topology.tors, rows, widths, strict=True):
            self.frames.append((x, frame_top, width, frame_bottom - frame_top))
            self.at[tor.name] = (x + width / 2, tor_y)
            first = x + (width - self._row_width(len(row)) + self.host_width) / 2
            for position, host in enumerate(row):
                place = first + position * (self.host_width + HOST_GAP)
                self.at[host.name] = (place, tor_y + HOSTS_BELOW_TOR)
            x += width + RACK_GAP

    # --- the picture, back to front ---

    def text(self, style: bool) -> str:
        svg = ElementTree.Element(
            "svg",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            width=f"{self.width:g}",
            height=f"{self.height:g}",
        )
        ElementTree.SubElement(svg, "title").text = f"Topology {self.topology.name}"
        if style:
            ElementTree.SubElement(svg, "style").text = STYLE
            _element(svg, "rect", width="100%", height="100%", fill="#ffffff")
        self._title(svg)
        for number, (x, y, width, height) in enumerate(self.frames):
            _element(svg, "rect", "rack", x=x, y=y, width=width, height=height, rx=10)
            _text(svg, "racklabel", x + 12, y + 18, f"rack {number}")
        for link in self.topology.links:
            self._line(svg, link)
        for node in self.topology.nodes:
            self._node(svg, node)
        for host in self.topology.hosts:
            self._host_labels(svg, host)
        for link in self.topology.links:
            if not self._is_host(link.a):
                self._labels(svg, link)
        self._foot(svg)
        ElementTree.indent(svg)
        return ElementTree.tostring(svg, encoding="unicode") + "\n"

    def _title(self, svg: ElementTree.Element) -> None:
        topology = self.topology
        facts = [
            _count(topology.racks, "rack"),
            _count(len(topology.workers), "worker"),
            _count(len(topology.servers), "server"),
            _count(len(topology.cores), "core switch", "core switches"),
        ]
        _text(svg, "title", MARGIN, MARGIN + 14, topology.name)
        _text(svg, "facts", MARGIN, MARGIN + 34, " · ".join(facts))

    def _ends(self, link: Link) -> tuple[Point, Point]:
        """Where a link leaves its lower node (at the top) and enters the upper (at the bottom)."""
        (ax, ay), (bx, by) = self.at[link.a], self.at[link.b]
        half = (HOST_HEIGHT if self._is_host(link.a) else SWITCH_HEIGHT) / 2
        ups = [other for other in self.topology.links_of(link.a) if other.a == link.a]
        downs = [other for other in self.topology.links_of(link.b) if other.b == link.b]
        return (
            (ax + self._beside(link, ups), ay - half),
            (bx + self._beside(link, downs), by + SWITCH_HEIGHT / 2),
        )

    def _beside(self, link: Link, links: list[Link]) -> float:
        """Offset of a link on its side of a node, in the order of where the links lead."""
        same = link.a if all(other.a == link.a for other in links) else link.b
        ordered = sorted(links, key=lambda other: self.at[other.other(same)][0])
        position = next(i for i, other in enumerate(ordered) if other is link)
        width = self.host_width if self._is_host(same) else SWITCH_WIDTH
        step = min(PORT_STEP, (width - 24) / max(len(links) - 1, 1))
        return (position - (len(links) - 1) / 2) * step

    def _line(self, svg: ElementTree.Element, link: Link) -> None:
        if self.lanes is not None:
            self._two_lanes(svg, link, self.lanes)
            return
        classes = ["link"]
        if not self._is_host(link.a):
            classes.append("uplink")
        if link.forward.impaired or link.backward.impaired:
            classes.append("impaired")
        line = _element(svg, "path", " ".join(classes), d=self._path(link, 0.0))
        ElementTree.SubElement(line, "title").text = self._describe(link)

    def _path(self, link: Link, aside: float) -> str:
        """A link from its lower end to its upper one, moved to its right by so much."""
        (ax, ay), (bx, by) = self._ends(link)
        length = math.dist((ax, ay), (bx, by)) or 1.0
        right, down = -(by - ay) / length * aside, (bx - ax) / length * aside
        ax, ay, bx, by = (round(n, 2) for n in (ax + right, ay + down, bx + right, by + down))
        nodes = self.topology.by_name
        if self._is_host(link.a) and nodes[link.a].rack != nodes[link.b].rack:
            bend = (ay - by) * 0.5  # above the hosts between, whose links are straight
            return f"M{ax:g},{ay:g} C{ax:g},{ay - bend:g} {bx:g},{by + bend:g} {bx:g},{by:g}"
        return f"M{ax:g},{ay:g} L{bx:g},{by:g}"

    def _two_lanes(
        self, svg: ElementTree.Element, link: Link, lanes: Mapping[tuple[str, str], Lane]
    ) -> None:
        # The interfaces at both ends of this very link, which may have another beside it.
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
        x, y = self.at[node.name]
        width: float = SWITCH_WIDTH
        height = SWITCH_HEIGHT
        kind = "switch" if node.rack is not None else "core"
        if node.level == 0:
            width, height, kind = self.host_width, HOST_HEIGHT, node.kind
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
            _text(group, "rate", x, y + 13, self._in_box(node))
        else:
            _text(group, "name", x, y + 5, node.name)

    def _alike(self, host: Node) -> tuple[Link, ...]:
        """The host's first link, and others to the same switch that have its rates."""
        first, *others = self.topology.links_of(host.name)
        same = (one for one in others if (one.b, _rates(one)) == (first.b, _rates(first)))
        return (first, *same)

    def _in_box(self, host: Node) -> str:
        links = self._alike(host)
        return _times(len(links), _rates(links[0]))

    def _host_labels(self, svg: ElementTree.Element, host: Node) -> None:
        """Faults, and rates that its box does not tell: once for all links to a switch that share
        them, one below the other."""
        told = self._alike(host)
        labels: dict[str, dict[tuple[str, str], list[Link]]] = {}
        for link in self.topology.links_of(host.name):
            here = labels.setdefault(link.b, {})
            if not any(link is one for one in told):
                here.setdefault(("rate", _rates(link)), []).append(link)
            if faults := _faults(link):
                here.setdefault(("fault", faults), []).append(link)
        nodes = self.topology.by_name
        for switch, texts in labels.items():
            share = 0.5 if nodes[switch].rack == host.rack else 0.8  # there it comes from the side
            for number, ((kind, text), links) in enumerate(texts.items()):
                ends = [self._ends(link) for link in links]
                x, y = (
                    sum(a[n] + share * (b[n] - a[n]) for a, b in ends) / len(ends) for n in (0, 1)
                )
                down = LABEL_STEP * (number - (len(texts) - 1) / 2) + 3
                _label(svg, kind, x, y + down, _times(len(links), text))

    def _row_width(self, hosts: int) -> float:
        return hosts * (self.host_width + HOST_GAP) - HOST_GAP

    def _labels(self, svg: ElementTree.Element, link: Link) -> None:
        faults = _faults(link)
        (ax, ay), (bx, by) = self._ends(link)
        slope = math.degrees(math.atan((by - ay) / (bx - ax))) if bx != ax else -90.0
        rate = _rates(link) if _rates(link) != self.usual else ""
        x, y = self._free_place(link, slope, rate, faults)
        turn = f"rotate({slope:.1f} {x:g} {y:g})"
        if rate:
            _label(svg, "rate", x, y - 5, rate, transform=turn)
        if faults:
            _label(svg, "fault", x, y + 12, faults, transform=turn)

    def _free_place(self, link: Link, slope: float, rate: str, faults: str) -> Point:
        """Where on a link its label is crossed by as little as can be."""
        (ax, ay), (bx, by) = self._ends(link)
        texts = [(text, box) for text, box in ((rate, RATE_BOX), (faults, FAULT_BOX)) if text]
        if not texts:
            return ax, ay
        half = max(len(text) for text, _ in texts) * LETTER_WIDTH / 2
        top, bottom = min(box[0] for _, box in texts), max(box[1] for _, box in texts)
        others = [self._ends(other) for other in self.topology.links if other is not link]
        cosine, sine = math.cos(math.radians(slope)), math.sin(math.radians(slope))

        def inward(point: Point, x: float, y: float) -> Point:
            """A point as the label sees it: from its own place, along its own direction."""
            right, down = point[0] - x, point[1] - y
            return right * cosine + down * sine, down * cosine - right * sine

        def in_the_way(share: float) -> int:
            x, y = ax + (bx - ax) * share, ay + (by - ay) * share
            return sum(
                _crosses((inward(a, x, y), inward(b, x, y)), half, top, bottom)
                for a, b in [*others, *self.outlines]
            )

        share = min(LABEL_AT, key=in_the_way)
        x, y = ax + (bx - ax) * share, ay + (by - ay) * share
        corners = [
            (x + u * cosine - v * sine, y + u * sine + v * cosine)
            for u, v in ((-half, top), (half, top), (half, bottom), (-half, bottom))
        ]
        self.outlines += _outline(corners)
        return x, y

    def _foot(self, svg: ElementTree.Element) -> None:
        """Properties that all links share, so that nothing has to be said on each."""
        every = [q for link in self.topology.links for q in (link.forward, link.backward)]
        parts = []
        for name, words in _WORDS.items():
            values = {getattr(quality, name) for quality in every}
            if len(values) == 1:
                parts.append(words(values.pop()))
        text = "all links: " + " · ".join(parts) if parts else ""
        if self.usual:
            between = f"between switches, unless shown: {self.usual}"
            text = f"{text}; {between}" if text else between
        _text(svg, "foot", MARGIN, self.height - 16, text)

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


# Properties of links in words, by field.
_WORDS: dict[str, Callable[[float], str]] = {
    "delay": lambda value: f"delay {1000 * value:g} ms",
    "queue_bytes": lambda value: f"queue {_size(int(value))}",
    "ecn_bytes": lambda value: f"ECN above {_size(int(value))}" if value else "no ECN",
    "mtu": lambda value: f"MTU {value:g}",
}


def _outline(corners: list[Point]) -> list[Segment]:
    return list(zip(corners, [*corners[1:], corners[0]], strict=True))


def _crosses(segment: Segment, half: float, top: float, bottom: float) -> bool:
    """Whether a segment meets a box around the origin (clipped side by side, Liang and Barsky)."""
    (ax, ay), (bx, by) = segment
    first, last = 0.0, 1.0
    for start, step, low, high in ((ax, bx - ax, -half, half), (ay, by - ay, top, bottom)):
        if step == 0:
            if not low <= start <= high:
                return False
            continue
        enter, leave = sorted(((low - start) / step, (high - start) / step))
        first, last = max(first, enter), min(last, leave)
    return first <= last


def _times(number: int, text: str) -> str:
    return text if number == 1 else f"{number} x {text}"


def _rates(link: Link) -> str:
    up, down = _rate(link.forward), _rate(link.backward)
    if up == down:
        return up
    return f"↑{up} ↓{down}"


def _rate(quality: LinkQuality) -> str:
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if quality.rate >= factor:
            return f"{quality.rate / factor:.4g} {unit}"
    return f"{quality.rate} bit/s"


def _size(count: int) -> str:
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor and count % (factor // 4) == 0:
            return f"{count / factor:g} {unit}"
    return f"{count} B"


def _faults(link: Link) -> str:
    """Impairments in words; directions told apart only where they differ."""
    words = []
    for name in ("loss", "duplicate", "reorder", "corrupt"):
        up, down = getattr(link.forward, name), getattr(link.backward, name)
        if up == down and up:
            words.append(f"{name} {100 * up:g} %")
        else:
            words += [f"↑{name} {100 * up:g} %"] if up else []
            words += [f"↓{name} {100 * down:g} %"] if down else []
    return ", ".join(words)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number or 'no'} {one if number == 1 else many or one + 's'}"


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
    """Text on top of links; its halo is an element of its own, as not all viewers order paint."""
    _text(parent, f"{kind} halo", x, y, text, **more)
    _text(parent, kind, x, y, text, **more)
