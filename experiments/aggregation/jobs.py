# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: networks of one to three levels, and what is varied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.common.collectives import BASELINES
from experiments.common.declaration import Point, Values
from experiments.common.sensitivity import setting, variations

__all__ = [
    "ALL",
    "CHUNK_BYTES",
    "DELAYS",
    "EMULATED_LOSS",
    "FEW",
    "FEW_CHUNKS",
    "FRAME_BYTES",
    "HOPS",
    "INC",
    "LEVELS",
    "LOSSES",
    "MANY",
    "MEASURED",
    "QUICK_WORKERS",
    "RATE",
    "SEEDS",
    "SIZE",
    "SLOWER",
    "VARIED",
    "WINDOWS",
    "WORKERS",
    "WORKERS_LINKS",
    "points",
    "scaled",
]

INC = "in-network"
RATE = 10e9  # bit/s of all links
_DELAY = 1e-6
CHUNK_BYTES = 8192
FRAME_BYTES = CHUNK_BYTES + 60  # Ethernet, IPv4, UDP and the protocol's header
SIZE = 4_000_000
_WINDOW = 256
_MTU = 9000
_RACK = 32  # workers, and children that a switch can have

WORKERS = (8, 32, 128, 512, 1024)
QUICK_WORKERS = (8, 64)
# Workers with which baselines run; of more, the planner's closed form is drawn.
MEASURED = {
    "ring": (8, 32, 128),
    "halving-doubling": (8, 32, 128),
    "ps": (8, 32),
    "sharded-ps": (8, 32),
}
_WORKERS_OF_A_SERVER = 4

WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)
DELAYS = (5e-6, 20e-6)  # of a link, one way
HOPS = 4  # of a chunk to the root of two levels and back

LOSSES = (0.0, 0.0001, 0.001, 0.01, 0.03, 0.1, 0.3)  # of each link and direction
LEVELS = (1, 2, 3)
_LOSSY_ITERATIONS = 9
SLOWER = (1, 2, 4, 8)

FEW, MANY = 8, 32  # workers, where parameters vary
_NEAR_CHUNK, _LARGEST_MTU = 8_000, 16_370  # twice 8 KiB would not fit into a frame
VARIED = {
    "size": "bytes of gradients",
    "delay": "delay of a link",
    "chunk": "bytes of a chunk",
    "window": "window",
}

# The setting of a published implementation on BMv2.
FEW_CHUNKS = 42
EMULATED_LOSS = 0.3
SEEDS = (1, 2, 3, 4, 5)
ALL, WORKERS_LINKS = "all links", "workers' links"
_SMALL_RATE = "20 Mbit/s"


def scaled(workers: int) -> dict[str, Any]:
    """Returns the topology of so many workers in two levels, and a server for each four up to 32
    workers, then as many as these have: more workers at each make queues too short."""
    racks = max(2, workers // _RACK)
    each = workers // racks
    servers = max(1, each // _WORKERS_OF_A_SERVER) if workers <= _RACK else 1
    return _network({"racks": [{"workers": each, "servers": servers, "count": racks}], "cores": 1})


def _network(shape: dict[str, Any], delay: float = _DELAY, **of_links: Any) -> dict[str, Any]:
    return {
        "name": "aggregation",
        "defaults": {
            "rate": f"{RATE:.0f} bit/s",
            "delay": f"{delay * 1e6:g} us",
            "queue_bytes": "8 MiB",
            "mtu": _MTU,
            **of_links,
        },
        **shape,
    }


def _levels(levels: int, workers: int) -> dict[str, Any]:
    """Returns racks and cores of a tree of so many levels of switches."""
    if levels == 1:
        return {"racks": [{"workers": workers, "servers": 1}]}
    racks = 2 if levels == 2 else 4
    shape: dict[str, Any] = {
        "racks": [
            {"workers": workers // racks, "servers": 1},
            {"workers": workers // racks, "count": racks - 1},
        ],
        "cores": 1,
    }
    if levels == 3:
        shape["cores"] = [{"racks": 2, "cores": 1}, 1]
    return shape


def _job(size: int = SIZE, **more: Any) -> dict[str, Any]:
    return {
        "name": "aggregation",
        "workload": "layers",
        "layers": [f"{size} B"],
        "iterations": 2,  # the first also agrees on exponents
        "payload": "none",
        "chunk_bytes": CHUNK_BYTES,
        "window": _WINDOW,
        "tree": "two-level",
        **more,
    }


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the longest runs first, so that few are left to wait for at the end."""
    yield from _workers(quick)
    yield from _stragglers(quick)
    yield from _losses(quick)
    yield from _windows(quick)
    yield from _published(quick)
    if not quick:
        yield from _sensitivity()


def _sensitivity() -> Iterator[Point]:
    for parameter, factor, of in variations(VARIED, base=True):
        content = _job(
            int(SIZE * of["size"]),
            window=int(_WINDOW * of["window"]),
            chunk_bytes=int(_NEAR_CHUNK * of["chunk"]),
        )
        for workers in (FEW, MANY):
            network = scaled(workers)
            network["defaults"] |= {
                "delay": f"{1e6 * _DELAY * of['delay']:g} us",
                "mtu": _LARGEST_MTU,
            }
            values: Values = {**setting(parameter, factor), "workers": workers, "slower": 1}
            yield Point({**values, "way": INC}, network, content)
            if workers == FEW:
                slow = {"ends": ["w0", "tor0"], "rate": f"{RATE / SLOWER[-1]:.0f} bit/s"}
                values = {**values, "slower": SLOWER[-1]}
                yield Point({**values, "way": INC}, {**network, "links": [slow]}, content)
            else:
                yield Point({**values, "way": "ring"}, network, content, by=BASELINES["ring"])


def _workers(quick: bool) -> Iterator[Point]:
    for workers in (QUICK_WORKERS if quick else WORKERS)[::-1]:
        network = scaled(workers)
        job = _job(SIZE // 4 if quick else SIZE)
        values: Values = {"of": "workers", "workers": workers}
        for name, by in BASELINES.items():
            if workers in ((QUICK_WORKERS[0],) if quick else MEASURED[name]):
                yield Point({**values, "way": name}, network, job, by=by)
        yield Point({**values, "way": INC}, network, job)


def _windows(quick: bool) -> Iterator[Point]:
    for delay in DELAYS[:1] if quick else DELAYS:
        network = _network(_levels(2, 4 if quick else 8), delay)
        for window in WINDOWS[1:-1:2] if quick else WINDOWS:
            job = _job(SIZE // 8 if quick else SIZE // 2, window=window, streams=1)
            yield Point({"of": "window", "delay": delay, "window": window}, network, job)


def _losses(quick: bool) -> Iterator[Point]:
    for levels in LEVELS[:2] if quick else LEVELS:
        for loss in (0.0, 0.01, 0.1) if quick else LOSSES:
            network = _network(_levels(levels, 8), loss=loss)
            job = _job(SIZE // 8 if quick else SIZE // 2, iterations=_LOSSY_ITERATIONS)
            yield Point({"of": "loss", "levels": levels, "loss": loss}, network, job)


def _stragglers(quick: bool) -> Iterator[Point]:
    for slower in SLOWER[::3] if quick else SLOWER:
        slow = {"ends": ["w0", "tor0"], "rate": f"{RATE / slower:.0f} bit/s"}
        network = {**scaled(8), "links": [slow]}
        job = _job(SIZE // 4 if quick else SIZE)
        values: Values = {"of": "straggler", "slower": slower}
        for name, by in BASELINES.items():
            if name != "ps" and not quick:
                yield Point({**values, "way": name}, network, job, by=by)
        yield Point({**values, "way": INC}, network, job)


def _published(quick: bool) -> Iterator[Point]:
    """Yields two workers, 42 chunks and many losses, each with several seeds of losses."""
    if quick:
        return
    for clock, lossy in (("virtual", ALL), ("virtual", WORKERS_LINKS), ("emulated", ALL)):
        real = clock == "emulated"
        for levels in (0, *LEVELS):  # 0: a server sums, no switch does
            for seed in SEEDS[:1] if real else SEEDS:
                network = {
                    "name": "aggregation",
                    "seed": seed,
                    "defaults": {"rate": _SMALL_RATE, "loss": EMULATED_LOSS},
                    **_pair(levels or 1),
                }
                if lossy == WORKERS_LINKS:
                    network["uplinks"] = {"loss": 0}
                    network["links"] = [{"ends": ["s0", "tor0"], "loss": 0}]
                job = {
                    "name": "aggregation",
                    "workload": "layers",
                    "layers": [f"{FEW_CHUNKS} KiB"],
                    "iterations": 4,
                    "tree": "two-level" if levels else "none",
                }
                yield Point(
                    {
                        **{"of": "published", "clock": clock, "lossy": lossy},
                        **{"levels": levels, "seed": seed},
                    },
                    network,
                    job,
                    by="experiments.common.emulated:run" if real else "",
                    emulated=real,
                )


def _pair(levels: int) -> dict[str, Any]:
    """Returns two workers under the root of a tree of so many levels."""
    if levels == 1:
        return {"racks": [{"workers": 2, "servers": 1}]}
    racks: list[dict[str, Any]] = [{"workers": 1, "servers": 1}, {"workers": 1}]
    if levels == 2:
        return {"racks": racks, "cores": 1}
    return {"racks": racks, "cores": [{"racks": 1, "cores": 1}, 1]}
