# SPDX-License-Identifier: Apache-2.0
"""Computes the positions of a topology's drawing from its levels.

All lengths are in units of the drawing; the origin is the upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topologies.model.topology import Link, Topology

HOST_WIDTH, HOST_HEIGHT, HOST_GAP, BOX_PADDING = 66, 42, 10, 4  # a host is that wide at least
SWITCH_WIDTH, SWITCH_HEIGHT = 92, 36
RACK_PADDING, RACK_GAP = 18, 28
LEVEL_HEIGHT = 130  # least distance of levels of switches
LEVEL_SHARE = 0.11  # least distance as a share of the width, so that links are steep enough
CORE_GAP = 380  # between cores of a level, at most
CORE_STEP = SWITCH_WIDTH + 28  # between cores of pods, at least
HOSTS_BELOW_TOR = 96
MARGIN, TITLE_HEIGHT, FOOT_HEIGHT = 28, 72, 40
LEAST_WIDTH = 500
PORT_STEP = 14  # between links along a side of a switch
# Candidate positions of labels along links between switches, from the lower end: the first without
# overlaps is used, else the one with the fewest.
LABEL_AT = sorted((n / 50 for n in range(7, 44)), key=lambda share: abs(share - 0.30))
# Of the text of a label in its own direction, about (font of 10 px): of a letter, above and below.
LETTER_WIDTH, RATE_TOP = 5.8, -15.0
LINE_STEP = 13.0  # between lines of a label

Point = tuple[float, float]
Segment = tuple[Point, Point]


class Layout:
    """The layout of a topology whose hosts fit `letters` letters, and `lines` lines below each.

    between: lines at a link between switches, which are further apart for them.

    at: the centre of each node.
    frames: x, y, width and height of each rack's frame.
    """

    def __init__(self, topology: Topology, letters: int, lines: int, between: int) -> None:
        self.topology = topology
        self.at: dict[str, Point] = {}
        self.host_width = max(float(HOST_WIDTH), letters * LETTER_WIDTH + 2 * BOX_PADDING)
        self.lines, self.between = lines, between
        self.frames: list[tuple[float, float, float, float]] = []
        self.width = 0.0
        self.height = 0.0
        self._place()
        # Obstacles of labels besides links: outlines of switches, names of racks, other labels.
        self._outlines: list[Segment] = []
        for node in topology.switches:
            x, y = self.at[node.name]
            u, v = SWITCH_WIDTH / 2, SWITCH_HEIGHT / 2
            self._outlines += _outline(
                [(x - u, y - v), (x + u, y - v), (x + u, y + v), (x - u, y + v)]
            )
        for x, y, _, _ in self.frames:  # their names
            self._outlines.append(((x + 12, y + 14), (x + 12 + 8 * LETTER_WIDTH, y + 14)))

    def is_host(self, name: str) -> bool:
        """True if a node is a host."""
        return self.topology.by_name[name].level == 0

    def ends(self, link: Link) -> tuple[Point, Point]:
        """Returns a link's ends: at the top of the lower node and the bottom of the upper one."""
        (ax, ay), (bx, by) = self.at[link.a], self.at[link.b]
        half = (HOST_HEIGHT if self.is_host(link.a) else SWITCH_HEIGHT) / 2
        ups = [other for other in self.topology.links_of(link.a) if other.a == link.a]
        downs = [other for other in self.topology.links_of(link.b) if other.b == link.b]
        return (
            (ax + self._beside(link, ups), ay - half),
            (bx + self._beside(link, downs), by + SWITCH_HEIGHT / 2),
        )

    def _beside(self, link: Link, links: list[Link]) -> float:
        """Returns a link's offset on its side of a node, ordered by the links' other ends."""
        same = link.a if all(other.a == link.a for other in links) else link.b
        ordered = sorted(links, key=lambda other: self.at[other.other(same)][0])
        position = next(i for i, other in enumerate(ordered) if other is link)
        width = self.host_width if self.is_host(same) else SWITCH_WIDTH
        step = min(PORT_STEP, (width - 24) / max(len(links) - 1, 1))
        return (position - (len(links) - 1) / 2) * step

    def free_place(self, link: Link, slope: float, rate: str, faults: Sequence[str]) -> Point:
        """Finds the position on a link where its label has the fewest overlaps: the rate above the
        link, a line for each impairment below."""
        (ax, ay), (bx, by) = self.ends(link)
        if not rate and not faults:
            return ax, ay
        half = max(map(len, (rate, *faults))) * LETTER_WIDTH / 2
        top, bottom = RATE_TOP if rate else 3.0, 3.0 + LINE_STEP * len(faults) if faults else -3.0
        others = [self.ends(other) for other in self.topology.links if other is not link]
        cosine, sine = math.cos(math.radians(slope)), math.sin(math.radians(slope))

        def inward(point: Point, x: float, y: float) -> Point:
            """Transforms a point to the label's own coordinates."""
            right, down = point[0] - x, point[1] - y
            return right * cosine + down * sine, down * cosine - right * sine

        def in_the_way(share: float) -> int:
            x, y = ax + (bx - ax) * share, ay + (by - ay) * share
            return sum(
                _crosses((inward(a, x, y), inward(b, x, y)), half, top, bottom)
                for a, b in [*others, *self._outlines]
            )

        share = min(LABEL_AT, key=in_the_way)
        x, y = ax + (bx - ax) * share, ay + (by - ay) * share
        corners = [
            (x + u * cosine - v * sine, y + u * sine + v * cosine)
            for u, v in ((-half, top), (half, top), (half, bottom), (-half, bottom))
        ]
        self._outlines += _outline(corners)
        return x, y

    # --- inside ---

    def _place(self) -> None:
        topology = self.topology
        rows = [[node for node in topology.hosts if node.rack == tor.rack] for tor in topology.tors]
        least = SWITCH_WIDTH + 70
        for pods in self._levels():
            for racks, cores in pods.items():
                if len(pods) > 1:  # their cores are side by side with those of other pods
                    least = max(least, math.ceil(len(cores) * CORE_STEP / len(racks)) - RACK_GAP)
        widths = [2 * RACK_PADDING + max(self._row_width(len(row)), least) for row in rows]
        inner = sum(widths) + RACK_GAP * (len(widths) - 1)
        self.width = max(inner + 2 * MARGIN, LEAST_WIDTH)
        levels = self._levels()
        level_height = max(LEVEL_HEIGHT, LEVEL_SHARE * self.width)
        level_height += 2 * LINE_STEP * max(0, self.between - 1)
        top = MARGIN + TITLE_HEIGHT + SWITCH_HEIGHT / 2
        tor_y = top + len(levels) * level_height
        frame_top = tor_y - SWITCH_HEIGHT / 2 - RACK_PADDING
        hosts_bottom = tor_y + HOSTS_BELOW_TOR + HOST_HEIGHT / 2 + self.lines * LINE_STEP
        frame_bottom = hosts_bottom + RACK_PADDING
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
        for number, pods in enumerate(levels, 1):
            for racks, cores in pods.items():
                self._place_cores(racks, cores, tor_y - number * level_height)

    def _levels(self) -> list[dict[tuple[str, ...], list[str]]]:
        """Groups the cores of each level, lowest first, by the ToRs below them."""
        under: dict[str, tuple[str, ...]] = {tor.name: (tor.name,) for tor in self.topology.tors}
        levels: dict[int, dict[tuple[str, ...], list[str]]] = {}
        for core in self.topology.cores:
            below = [link.a for link in self.topology.links_of(core.name) if link.b == core.name]
            tors = tuple(dict.fromkeys(tor for name in below for tor in under[name]))
            under[core.name] = tors
            levels.setdefault(core.level, {}).setdefault(tors, []).append(core.name)
        return list(levels.values())

    def _place_cores(self, racks: Sequence[str], cores: Sequence[str], y: float) -> None:
        """Places cores side by side, centred above their racks."""
        middle, room = self.width / 2, self.width - 2 * MARGIN
        if len(racks) < self.topology.racks:
            first, last = self.at[racks[0]][0], self.at[racks[-1]][0]
            middle, room = (first + last) / 2, max(last - first, CORE_STEP * len(cores))
        step = min(room / len(cores), CORE_GAP)
        for position, core in enumerate(cores):
            self.at[core] = (middle + step * (position - (len(cores) - 1) / 2), y)

    def _row_width(self, hosts: int) -> float:
        return hosts * (self.host_width + HOST_GAP) - HOST_GAP


def _outline(corners: list[Point]) -> list[Segment]:
    return list(zip(corners, [*corners[1:], corners[0]], strict=True))


def _crosses(segment: Segment, half: float, top: float, bottom: float) -> bool:
    """True if a segment meets a box around the origin (clipped side by side, Liang and Barsky)."""
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
