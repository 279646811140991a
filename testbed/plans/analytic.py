# SPDX-License-Identifier: Apache-2.0
"""How long an iteration takes, in closed form: what no process could hold can still be planned.

A chunk passes links in a row, each of which takes a time to send it: a line of deterministic
servers. Of C chunks the last one arrives after

    fill + (C - 1) step                      where the window does not limit,
    fill (1 + (C - 1) // W) + step ((C - 1) mod W)      where fill > W step does,

fill: the time of a single chunk from a worker to the root and back, when nothing else is under way
but the other workers' of the same chunk: serialisation, propagation and switch latency of each hop;
step: the longest time that any link needs for a chunk; W: chunks in flight. Both are what
d(k) = max(d(k - 1) + step, d(k - W) + fill) comes to. docs/plan.md says what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controller.windows import MOST, SKEW
from testbed.plans.network import Line, ModelError, Network
from testbed.plans.placements import KINDS
from testbed.plans.traffic import Step, Traffic, baselines, placement

__all__ = ["Costs", "Prediction", "Work", "pipeline", "predictions", "rounds", "slots_for", "why"]

Message = dict[str, Any]
FRAMING = 24  # preamble, FCS and gap of Ethernet
# Timeouts of the transport (hosts.transport): at least, at most; each is twice the one before.
LEAST_RTO, MOST_RTO = 0.05, 1.0
_ENOUGH = 1e-12  # of a probability of yet another round


@dataclass(frozen=True)
class Work:
    """A tensor of so many chunks, each a frame of so many bytes (no FCS). compute: s, before it.
    slice: chunks in a row that go to the same server."""

    chunks: int
    frame_bytes: int
    compute: float = 0.0
    slice: int = 1

    def __post_init__(self) -> None:
        for name in ("chunks", "frame_bytes", "slice"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} of {getattr(self, name)}; allowed: 1 or more")
        if self.compute < 0:
            raise ModelError(f"{self.compute} s to compute; allowed: 0 and above")


@dataclass(frozen=True)
class Costs:
    """What else takes time.

    switch: s a packet in each switch. skew: s between the first and the last worker at a chunk.
    window: chunks of a stream in flight; 0: the controller's choice. slots: that a switch has.
    framing: whether preamble, FCS and gap take time on links.
    """

    switch: float = 0.0
    skew: float = 0.0
    window: int = 0
    slots: int = 0
    framing: bool = False


@dataclass(frozen=True)
class Prediction:
    """Of a placement, or a baseline, which has no tree.

    seconds: of an iteration. parts: what they are made of. bytes: by class of links, in the busier
    direction of the busiest link. slots: that each switch of the tree needs for its full rate, and
    those that 2W are. refused: why it cannot be had; without `bytes` there is no time either.
    """

    placement: str
    tree: str
    seconds: float = 0.0
    parts: dict[str, float] | None = None
    bytes: dict[str, int] | None = None
    bottleneck: str = ""
    window: int = 0
    slots_needed: int = 0
    slots_taken: int = 0
    limit: str = ""
    refused: str = ""

    @property
    def name(self) -> str:
        """As tables say it."""
        return f"{self.placement} ({self.tree})" if self.tree else self.placement

    def message(self) -> Message:
        """As JSON takes it."""
        return asdict(self)


def pipeline(chunks: int, step: float, fill: float, window: int | None) -> float:
    """Seconds until the last of so many chunks is back; see the module."""
    if window is None or fill <= window * step:
        return fill + (chunks - 1) * step
    return fill * (1 + (chunks - 1) // window) + step * ((chunks - 1) % window)


def slots_for(rate: float, round_trip: float, skew: float, packet_bits: float) -> int:
    """Slots that keep a link of that rate busy: 2 ceil(rate (RTT + skew) / packet bits).

    SwitchML (NSDI'21, section 3.6) has one of each for the bandwidth-delay product; the second is
    for results that may be asked for again.
    """
    # A hair less: 3.0000000000000004 packets are 3.
    return 2 * max(1, math.ceil(rate * (round_trip + skew) / packet_bits * (1 - 1e-12)))


def rounds(lossy: Iterable[tuple[float, int]]) -> list[float]:
    """Chances that a chunk needs at least 1, 2, .. timeouts.

    lossy: chance that an edge's packet or its answer is lost, and how many such edges. Edges fail
    independently, and a timeout repeats what was lost: P(K >= k) = 1 - prod (1 - p^k)^m.
    """
    pairs = [(chance, count) for chance, count in lossy if chance > 0 and count > 0]
    found: list[float] = []
    while pairs:
        power = len(found) + 1
        none = sum(count * math.log1p(-(chance**power)) for chance, count in pairs)
        more = -math.expm1(none)
        if more < _ENOUGH:
            break
        found.append(more)
    return found


def predictions(network: Network, work: Work, costs: Costs) -> list[Prediction]:
    """Of every placement with each of its trees, and of the baselines, quickest first.

    Those that this project cannot run are behind those that it can.
    """
    found = []
    for kind in KINDS:
        for tree in dict.fromkeys(kind.trees.values()):
            try:
                traffic = placement(network, kind, tree)
            except ModelError as error:
                found.append(Prediction(kind.name, tree, refused=str(error)))
                continue
            found.append(_predict(network, work, costs, kind.name, tree, traffic))
    for name, traffic in baselines(network).items():
        found.append(_baseline(network, work, costs, name, traffic))
    return sorted(found, key=lambda one: (bool(one.refused), not one.bytes, one.seconds))


def _predict(
    network: Network, work: Work, costs: Costs, name: str, tree: str, traffic: Traffic
) -> Prediction:
    bits = _bits(work, costs)
    lines = network.lines
    steps = {
        one: load * bits / (lines[one].rate * (1 - lines[one].loss))
        for one, load in traffic.loads.items()
    }
    slowest = max(steps, key=lambda one: steps[one])
    hosts = 1 if traffic.rooted else 2
    there = _way(network, traffic.hops, bits, work.slice, steps[slowest])
    both = there + _way(network, traffic.hops, bits)
    fill = both + costs.switch * (2 * len(traffic.hops) - hosts) + costs.skew
    window = costs.window or _window(network, work, traffic)
    lossy = [
        (1 - (1 - lines[one].loss) ** 2, count)
        for one, count in traffic.edges.items()
        if one in lines
    ]
    chances = rounds(lossy)
    waits = _waits(fill)
    stall = sum(chance * wait for chance, wait in zip(chances, waits, strict=False))
    last = [-math.expm1(min(window, work.chunks) * _log_not(chance)) for chance in chances]
    tail = sum(chance * wait for chance, wait in zip(last, waits, strict=False)) - stall
    moved = pipeline(work.chunks, steps[slowest], fill + stall, window)
    ideal = fill + (work.chunks - 1) * steps[slowest]
    lossless = pipeline(work.chunks, _without_loss(steps[slowest], lines[slowest]), fill, window)
    # What the slots and the window would have to be for the rate that the slowest link allows.
    rate = bits / steps[slowest] if steps[slowest] else 0.0
    needed = slots_for(rate, fill - costs.skew, costs.skew, bits)
    taken = 2 * window if traffic.switches else 0
    refused = traffic.refused
    if not refused and costs.slots and taken > costs.slots:
        refused = f"a window of {window} takes {taken} slots, a switch has {costs.slots}"
    return Prediction(
        name,
        tree,
        work.compute + moved + tail,
        {
            "compute": work.compute,
            "links": (work.chunks - 1) * _without_loss(steps[slowest], lines[slowest]),
            "fill": fill,
            "window": max(0.0, lossless - fill)
            - (work.chunks - 1) * _without_loss(steps[slowest], lines[slowest]),
            "loss": moved + tail - lossless,
        },
        _bytes(traffic, work),
        slowest,
        window,
        needed if traffic.switches else 0,
        taken,
        "window" if moved > ideal * (1 + 1e-9) and not stall else "loss" if stall else "links",
        refused,
    )


def _baseline(
    network: Network, work: Work, costs: Costs, name: str, traffic: Traffic
) -> Prediction:
    """Steps one after another, each (packets - 1) times its slowest link and one way's latency.

    Loss costs the bandwidth of what is sent again and no timeouts, which favours baselines.
    """
    bits = _bits(work, costs)
    seconds, links, fill = 0.0, 0.0, 0.0
    slowest: dict[str, float] = dict.fromkeys(traffic.loads, 0.0)
    for step, times in _grouped(traffic.steps):
        packets = math.ceil(work.chunks * step.share)
        each = {
            one: flows * bits / (network.lines[one].rate * (1 - network.lines[one].loss))
            for one, flows in step.flows.items()
        }
        busiest = max(each, key=lambda one: each[one])
        up = network.way(step.levels)
        hops = [(one, float(step.flows.get(one, 1))) for one in (*up, *reversed(up))]
        latency = _way(network, hops, bits) + costs.switch * (len(hops) - 1)
        links += times * (packets - 1) * each[busiest]
        fill += times * latency
        slowest[busiest] += times * (packets - 1) * each[busiest]
    seconds = work.compute + links + fill
    return Prediction(
        name,
        "",
        seconds,
        {"compute": work.compute, "links": links, "fill": fill, "window": 0.0, "loss": 0.0},
        _bytes(traffic, work),
        max(slowest, key=lambda one: slowest[one]),
        limit="latency" if fill > links else "links",
        refused="a baseline, which is not run by a job's placement",
    )


def _grouped(steps: tuple[Step, ...]) -> Iterable[tuple[Step, int]]:
    """Equal steps in a row are one object, many times: a ring has 2 (n - 1) of them."""
    if steps and all(step is steps[0] for step in steps):
        return [(steps[0], len(steps))]
    return [(step, 1) for step in steps]


def _way(
    network: Network,
    hops: Sequence[tuple[str, float]],
    bits: float,
    chunks: int = 1,
    step: float = 0.0,
) -> float:
    """Seconds over these links, until the last copy of the last of so many chunks is there, which
    come one every ``step``.

    Links work at the same time: copies that share one wait in line where that takes longest. With
    several servers a slice's chunks come to one of them faster than it takes them.
    """
    sends = [(bits / network.lines[name].rate, copies) for name, copies in hops]
    alone = sum(send for send, _ in sends) + sum(network.lines[name].delay for name, _ in hops)
    waits = ((copies * chunks - 1) * send - (chunks - 1) * step for send, copies in sends)
    return alone + max(0.0, *waits)


def _window(network: Network, work: Work, traffic: Traffic) -> int:
    """As ``controller.windows.choose_window`` does for one stream, by classes of links."""
    bits = 8 * work.frame_bytes
    names = [name for name, _ in traffic.hops]
    lines = [network.lines[name] for name in names]
    round_trip = 2 * sum(line.delay + bits / line.rate for line in lines)
    wanted = math.ceil(min(line.rate for line in lines) * (round_trip + SKEW) / bits)
    held = min(
        network.lines[name].queue_bytes / (flows * work.frame_bytes)
        for name, flows in traffic.flows.items()
    )
    held = MOST if math.isinf(held) else max(1, int(held))
    return min(1 << (wanted - 1).bit_length(), 1 << (held.bit_length() - 1), MOST)


def _waits(fill: float) -> list[float]:
    """Of timeouts in a row, each doubled (RFC 6298, 5.5)."""
    first = min(max(3 * fill, LEAST_RTO), MOST_RTO)  # SRTT + 4 RTTVAR of a first sample
    return [min(first * 2**k, MOST_RTO) for k in range(400)]


def _log_not(chance: float) -> float:
    return math.log1p(-chance) if chance < 1 else -math.inf


def _without_loss(step: float, line: Line) -> float:
    return step * (1 - line.loss)


def _bits(work: Work, costs: Costs) -> float:
    return 8.0 * (work.frame_bytes + (FRAMING if costs.framing else 0))


def _bytes(traffic: Traffic, work: Work) -> dict[str, int]:
    return {
        name: round(load * work.chunks * work.frame_bytes) for name, load in traffic.loads.items()
    }


def why(found: list[Prediction], network: Network) -> str:
    """A sentence: which placement is quickest, and what holds the next one back."""
    fit = [one for one in found if not one.refused and one.bytes]
    if not fit:
        return "none of the placements can be had here"
    best, *others = fit
    line = network.lines[best.bottleneck]
    text = (
        f"{best.name} wins with {best.seconds:.3g} s: its busiest link ({best.bottleneck},"
        f" {line.rate / 1e6:g} Mbit/s) carries {(best.bytes or {})[best.bottleneck] / 1e6:.4g} MB"
    )
    if best.limit != "links":
        text += f", and {best.limit} is what limits it"
    other = next((one for one in others if one.seconds > best.seconds * 1.001), None)
    if other is not None and other.bytes is not None:
        text += (
            f"; {other.name} takes {other.seconds / best.seconds:.3g} times as long, with"
            f" {other.bytes[other.bottleneck] / 1e6:.4g} MB on its busiest ({other.bottleneck})"
        )
    return text
