# SPDX-License-Identifier: Apache-2.0
"""Experiment: PHub's table of minimum bandwidths, with columns for switches that sum, and what an
iteration takes at these rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from experiments.common.declaration import (
    Claim,
    Experiment,
    Figure,
    InRealTime,
    Plot,
    Point,
    Published,
    Results,
    Section,
    Table,
    Values,
)
from experiments.common.plots import curve, start, ticks
from observability import pictures
from planner.bandwidth import MODELS, Model, minimum, uplink
from planner.link_loads import HEADER_FRAME_BYTES
from specs.placements import KINDS
from workloads.architectures.registry import keys_of

if TYPE_CHECKING:
    from matplotlib import figure

__all__ = ["EXPERIMENT"]

WORKERS = 8
PUBLISHED = {  # poster of PHub: Gbit/s for 8 workers
    "AlexNet": (1232, 308, 1408, 176),
    "GoogleNet": (40, 10, 46, 6),
    "Inception": (44, 11, 50, 6),
    "ResNet-269": (122, 31, 140, 17),
}
_SIZES = {"AlexNet": 194, "GoogleNet": 38, "Inception": 91, "ResNet-269": 390}  # printed
_BY_SERVERS = KINDS[:4]
_IN_NETWORK = {"inc-server": "switches and a server", "inc": "switches alone"}
_RUN = next(model for model in MODELS if model.name == "GoogleNet")
_JOB = "googlenet-299"
_CHUNK_BYTES = 16_000
_FACTORS = (0.5, 1, 2, 4, 8)
_SHOWN = ("ncc", "cs", "inc")
_COARSE = ("cs", "inc")
_PRIORITY = "priority"
_ITERATIONS = 3
_UNEQUAL = 5e-3  # of bytes: servers' shares differ by slices, and a worker that waits may query
_FILL = 0.03  # of an exchange, that it takes until its first sums are back


def _needed(model: Model, kind: str) -> float:
    """Returns the bit/s, both directions, at the host with the most: of a server, or, where there
    is none, of a worker, which sends and receives its gradients once."""
    if kind == "inc":
        return 2 * model.rate
    return minimum(model, WORKERS, next(one for one in KINDS if one.name == kind))


def _framed() -> float:
    """Returns the bytes of frames over those of gradients: each has a header, and each key's last
    one is as long as others; once, a header for each agrees on exponents."""
    frames = sum(math.ceil(4 * key.parameters / _CHUNK_BYTES) for key in keys_of(_JOB))
    whole = _ITERATIONS * (_CHUNK_BYTES + HEADER_FRAME_BYTES) + HEADER_FRAME_BYTES
    return frames * whole / (_ITERATIONS * _RUN.size)


def points(quick: bool) -> Iterator[Point]:
    """Yields the points: an exchange alone, and iterations with computing."""
    for kind in KINDS:
        if not quick or kind.name in _COARSE:
            yield _point("exchange", kind.name, 1.0)
    for name in _COARSE[1:] if quick else _SHOWN:
        for factor in (1.0, 4.0) if quick else _FACTORS:
            yield _point("iteration", name, factor)
    for name in () if quick else _COARSE:
        yield _point(_PRIORITY, name, 1.0)


def _point(of: str, kind: str, factor: float) -> Point:
    """Returns a point whose links carry the minimum times a factor."""
    rate = factor * _needed(_RUN, kind) / 2  # a direction
    servers = WORKERS if kind == "ncs" else 1
    network = {
        "name": "bandwidth",
        "defaults": {
            "rate": f"{rate:.0f} bit/s",
            "delay": "10 us",
            "queue_bytes": "1 GiB",
            "mtu": 16_300,
        },
        "racks": [{"workers": WORKERS, "servers": servers}],
        "costs": {"interrupt_interval": f"{1e6 * 32 * 8 * _CHUNK_BYTES / rate:.6g} us"},
    }
    job: dict[str, Any] = {
        "name": "bandwidth",
        "workload": "model",
        "model": _JOB,
        "iterations": _ITERATIONS,
        "chunk_bytes": _CHUNK_BYTES,
        "window": 256,
        "placement": kind,
    }
    if kind == "inc-server":  # sizes have no steps to take at it
        job |= {"placement": {"servers": ["s0"]}, "tree": "tor"}
    elif kind != "inc":
        job["schedule"] = {"slice": _CHUNK_BYTES // 2}
    if of == _PRIORITY:
        job["schedule"] = {"order": "priority", "slice": _CHUNK_BYTES // 2}
        if kind != "inc":  # as P3's artifact does
            job["schedule"]["release"] = "slice"
    if of != "exchange":
        job["compute"] = {"iteration": f"{1e3 * _RUN.seconds:.6g} ms"}
    values: Values = {"of": of, "placement": kind, "factor": factor}
    return Point(values, network, job)


def measure(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of a run: the time of its last iteration but one, and how many copies of
    the gradients an iteration moves at the host with the most, both directions."""
    carried: dict[str, float] = {}
    for link in summary["links"]:
        for end in (link["from"], link["to"]):
            carried[end] = carried.get(end, 0) + link["bytes"]
    hosts = {name: sent for name, sent in carried.items() if not name.startswith("tor")}
    servers = {name: sent for name, sent in hosts.items() if name.startswith("s")}
    most = max(hosts.values()) if max(servers.values()) < min(hosts.values()) + 1 else 0
    return {
        "seconds": summary["seconds_per_iteration"][-2],
        "copies": max(most, *hosts.values()) / len(summary["seconds_per_iteration"]) / _RUN.size,
    }


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures: all 16 cells of the table, and those of switches."""
    found = []
    for model in MODELS:
        for kind, published in zip(_BY_SERVERS, PUBLISHED[model.name], strict=True):
            ours = _needed(model, kind.name) / 1e9
            found.append(
                Figure(
                    f"{kind.name}.{model.name.lower().replace('-', '')}",
                    f"{model.name}, {kind.name.upper()}: {kind.meaning}",
                    "Gbit/s",
                    Published(published, "poster", "table of minimum bandwidths, in whole Gbit/s"),
                    ours,
                    abs(ours - published) <= 0.5,
                    f"the formula gives {ours:.2f}",
                )
            )
        for name, text in _IN_NETWORK.items():
            found.append(
                Figure(
                    f"{name}.{model.name.lower().replace('-', '')}",
                    f"{model.name}, {text}",
                    "Gbit/s",
                    Published(None, "new", "nobody has published one"),
                    _needed(model, name) / 1e9,
                    True,
                )
            )
    return found


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    found = []
    for row in results.all(of="exchange"):
        name = str(row.values["placement"])
        formula = _needed(_RUN, name) / _RUN.rate
        framed = formula * _framed()
        copies, took = row.measures["copies"], row.measures["seconds"] / _RUN.seconds
        found.append(
            Claim(
                f"{name}: the busiest host moves {copies:.3f} gradients, {formula:g} in frames with"
                f" headers ({framed:.3f})",
                0 <= copies / framed - 1 < _UNEQUAL,
            )
        )
        found.append(
            Claim(
                f"{name}: at the table's rate an exchange takes {took:.3f} of computing's time:"
                f" that of frames, {_framed():.3f}, and until the first sums are back",
                1 <= took / _framed() < 1 + _FILL,
            )
        )
    for name in _SHOWN:
        times = _times(results, name)
        if times:
            found.append(
                Claim(
                    f"{name}: an iteration takes {times[0][1]:.2f} to {times[-1][1]:.2f} times its"
                    " computing, the less the more bandwidth there is",
                    all(one >= other for (_, one), (_, other) in pairwise(times))
                    and times[-1][1] < 1.1,
                )
            )
        near = [took for factor, took in times if factor == 2]
        found += [
            Claim(f"{name}: twice the minimum hides it: {took:.2f}", took < 1.02) for took in near
        ]
    return found


def _times(results: Results, kind: str) -> list[tuple[float, float]]:
    """Returns factors of the minimum, and the iteration's time over that of computing."""
    return [
        (float(row.values["factor"]), row.measures["seconds"] / _RUN.seconds)
        for row in results.all(of="iteration", placement=kind)
    ]


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    table = []
    for model in MODELS:
        cells = [
            f"{_needed(model, kind.name) / 1e9:.1f} ({published})"
            for kind, published in zip(_BY_SERVERS, PUBLISHED[model.name], strict=True)
        ]
        cells += [f"{_needed(model, name) / 1e9:.1f}" for name in _IN_NETWORK]
        racks = [f"{uplink(model, WORKERS, aggregated=one) / 1e9:.0f}" for one in (False, True)]
        size = f"{model.size / 2**20:.1f} ({_SIZES[model.name]})"
        table.append((model.name, size, f"{1e3 * model.seconds:.1f}", *cells, *racks))
    runs = [
        (
            f"`{row.values['placement']}`",
            f"{_needed(_RUN, str(row.values['placement'])) / 1e9:.1f}",
            f"{_needed(_RUN, str(row.values['placement'])) / _RUN.rate:.2f}",
            f"{row.measures['copies']:.2f}",
            f"{1e3 * row.measures['seconds']:.1f}",
        )
        for row in results.all(of="exchange")
    ]
    hidden = [
        (f"`{name}`", f"{factor:g}", f"{factor * _needed(_RUN, name) / 1e9:.1f}", f"{took:.2f}")
        for name in _SHOWN
        for factor, took in _times(results, name)
    ]
    urgent = "".join(
        f" With P3's order (`order: priority`), placement `{row.values['placement']}`, an iteration"
        f" at the minimum takes {row.measures['seconds'] / _RUN.seconds:.2f}."
        for row in results.all(of=_PRIORITY)
    )
    return [
        Section(
            "The table",
            [
                "Bandwidth in Gbit/s at one server's host, both directions added, with which the"
                " exchange of an iteration takes no longer than its computing: 8 workers,"
                " gradients of M bytes, T of computing. CC 2M(N-1)/T, CS 4M(N-1)/(TN), NCC"
                " 2MN/T, NCS 2M/T. Published ones in brackets; published sizes are MiB.",
                Table(
                    (
                        *("model", "MiB", "T ms", *(kind.name.upper() for kind in _BY_SERVERS)),
                        *(_IN_NETWORK[name] for name in _IN_NETWORK),
                        *("uplink of a rack", "where it sums"),
                    ),
                    table,
                ),
                "Times T are not published beside the table; these are those with which the sizes"
                " give its cells, one T for the four of a row. *Switches alone* is at a worker's"
                " host, as there is no server: the least that any placement needs anywhere, and no"
                " host needs more. A server under a switch that sums needs an N-th of NCC.",
            ],
        ),
        Section(
            "An exchange at these rates",
            [
                "GoogleNet in virtual time, nothing computed, links with half of the bandwidth"
                f" each way: an exchange should take T = {1e3 * _RUN.seconds:.1f} ms.",
                Table(
                    ("placement", "Gbit/s", "gradients", "measured, with headers", "exchange ms"),
                    runs,
                ),
            ],
        ),
        Section(
            "What it takes to hide communication",
            [
                Plot(
                    "hidden",
                    "Time of an iteration of GoogleNet over that of computing, against bandwidth;"
                    " dotted: the table's minimum of each placement.",
                    partial(_draw, results),
                ),
                Table(("placement", "times the minimum", "Gbit/s", "iteration / T"), hidden),
                "The minimum is a bound: at that rate bytes take as long as computing, but the"
                " gradients of the first layers leave last and are needed first. Here gradients"
                " leave in the order of the backward pass, and twice the minimum hides them."
                + urgent,
            ],
        ),
        Section(
            "What is assumed",
            [
                "No paper gives the times T beside the table. A row has four cells and one T, and"
                " each cell is in inverse proportion to it: half of T doubles them all, so no"
                " other T gives the published ones, and nothing else goes into them. Runs check"
                " that hosts move these bytes, and take that long; their delay (10 us), chunks"
                " (16 kB), windows (256) and packets at a time (32) are assumed. What they add to"
                f" an exchange is less than {100 * _FILL:.0f} %, which is claimed above.",
            ],
        ),
    ]


def _draw(results: Results) -> figure.Figure:
    picture, axes = start(3.0)
    titles = {"inc": "switches alone", "cs": "CS", "ncc": "NCC (PBox)"}
    for number, (name, title) in enumerate(titles.items()):
        needed = _needed(_RUN, name) / 1e9
        found = [(factor * needed, took) for factor, took in _times(results, name)]
        if found:
            curve(axes, number, found, title)
            axes.axvline(needed, color=pictures.COLOURS[number], linewidth=1, linestyle=(0, (1, 2)))
    axes.plot([], [], color="#7f7f7f", linewidth=1, linestyle=(0, (1, 2)), label="the minimum")
    axes.axhline(1, color="#7f7f7f", linewidth=1, linestyle="-.", label="hidden")
    axes.set(xscale="log", ylim=(0, None))
    axes.set_xlabel("bandwidth at the host with the most (Gbit/s, both directions)")
    axes.set_ylabel("iteration over computing")
    ticks(axes, (3, 6, 12, 25, 50, 100, 200, 400), lambda value: f"{value:g}")
    axes.legend(loc="upper right")
    return picture


EXPERIMENT = Experiment(
    "Minimum bandwidths",
    "PHub's table of minimum bandwidths with columns for switches that sum, and iterations at"
    " these rates.",
    points,
    measure,
    figures,
    sections,
    claims,
    InRealTime(
        "Not run in real time. The table is arithmetic on bytes, which tests hold to the links of"
        " every placement, emulated ones, too ([placements](placements.md)); and whether computing"
        " hides communication is a matter of hundreds of Gbit/s, or of computing that is slowed"
        " down a thousand times to fit this machine's links, which would measure a sleep."
    ),
)
