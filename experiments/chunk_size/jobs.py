# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: a PBox and eight workers that compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.common.declaration import InRealTime, Point, Real, Values
from experiments.common.phub import (
    LINKS,
    PBOX,
    SWITCHES,
    WORKERS,
    System,
    job,
    model_bytes,
    topology,
)
from experiments.common.sensitivity import FACTORS

__all__ = [
    "ASSIGNMENTS",
    "BEST",
    "CORES",
    "IN_REAL_TIME",
    "KIB",
    "LINK_COUNTS",
    "MESSAGE",
    "MODEL",
    "PUBLISHED",
    "RATE",
    "SIZES",
    "TALL",
    "VARIED",
    "WIDE",
    "WINDOW_BYTES",
    "points",
]

MODEL = "resnet18-v2"
RATE = 56  # Gbit/s
KIB = 1024
# Exchanges a second of eight workers by KiB of a chunk, read off the poster's plot (+-15).
PUBLISHED = {
    4: 270, 8: 530, 16: 730, 32: 765, 64: 740, 128: 705, 256: 640, 512: 475, 1024: 380, 2048: 180,
}  # fmt: skip
SIZES = (*PUBLISHED, 4096)
_COARSE = (8, 32, 1024)
BEST = 32
# What a message takes of a worker's host, each way: with chunks of 4 KiB nothing else counts.
MESSAGE = WORKERS / PUBLISHED[4] / (model_bytes(MODEL) / (4 * KIB))  # seconds
LINK_COUNTS = (1, 2, 4, 8)  # and ten, as all others have
VARIED = {"message": (8, 16, 32), "window": (128, 1024)}  # KiB of a chunk, by parameter
WINDOW_BYTES = 8 << 20  # of a worker in flight
# Chunks of 8 KiB a second that a core sums, tall and wide: docs/results/benchmarks.md.
TALL, WIDE = (8e-9 * 8192 * rate for rate in (173_000, 154_000))  # Gbit/s
CORES = 3  # at each link: 30, of which PHub's artifact has 28
ASSIGNMENTS = ("balanced", "hashed", "keys")
_PACKET = 8 * KIB
_JUMBO = 16_000
_INTERVAL = f"{32 * 8 * _PACKET / (RATE * 1e3):.4g} us"  # 32 packets at a time
_ITERATIONS = 2  # the first also agrees on exponents


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the shortest runs first."""
    for size in _COARSE if quick else SIZES:
        yield _point({"of": "size", "size": size}, size)
    for links in LINK_COUNTS[-2:-1] if quick else LINK_COUNTS:
        yield _point({"of": "links", "size": BEST, "links": links}, BEST, links=links)
    if quick:
        return
    for packet in (4, 8, _JUMBO / KIB):
        yield _point({"of": "switches", "size": packet}, packet, SWITCHES)
    yield _point({"of": "elision", "size": BEST}, BEST, server={"ablate": ["elision"]})
    for factor in FACTORS:
        for size in VARIED["message"]:
            values: Values = {"of": "message", "size": size, "factor": factor}
            yield _point(values, size, message=factor * MESSAGE)
        for size in VARIED["window"]:
            values = {"of": "window", "size": size, "factor": factor}
            yield _point(values, size, window=factor * WINDOW_BYTES)
    for pipeline, rate in (("tall", TALL), ("wide", WIDE)):
        yield _on_cores(ASSIGNMENTS[0], pipeline, rate)
    for assign in ASSIGNMENTS[1:]:
        yield _on_cores(assign, "tall", TALL)


def _point(
    values: Values,
    size: float,
    system: System = PBOX,
    *,
    links: int = LINKS,
    message: float = MESSAGE,
    window: float = WINDOW_BYTES,
    **more: Any,
) -> Point:
    """Returns a point.

    Args:
        size: KiB of a chunk, which is a message. links: Of the server's host.
        message: Seconds of one at a worker. window: Bytes in flight. more: Keys of the job.
    """
    size_bytes = round(size * KIB)
    packet = size_bytes if system is SWITCHES else min(_PACKET, size_bytes)
    network = topology(system, RATE)
    network["links"] = network["links"][: links - 1]
    network["costs"] = {
        "interrupt_interval": _INTERVAL,
        "host_per_packet": f"{1e6 * message * packet / size_bytes:.6g} us",
    }
    content = {
        **job(system, MODEL, 0, _ITERATIONS),
        "chunk_bytes": packet,
        "window": 1 << round(window / packet).bit_length() - 1,
        **more,
    }
    if system is not SWITCHES:
        content["schedule"] = {"slice": size_bytes // 4, "release": "slice"}
    return Point(values, network, content)


def _on_cores(assign: str, pipeline: str, rate: float) -> Point:
    """Returns a point whose cores sum at a rate."""
    network = topology(PBOX, RATE)
    network["racks"][0]["server_cores"] = CORES
    network["costs"] = {"interrupt_interval": _INTERVAL, "server_rate": f"{rate:.4g} Gbit/s"}
    content = {
        **job(PBOX, MODEL, 0, _ITERATIONS),
        "window": 512,
        "schedule": {"slice": _JUMBO // 2, "release": "slice", "assign": assign},
        "server": {"pipeline": pipeline},
    }
    values: Values = {"of": "cores", "size": BEST, "assign": assign, "pipeline": pipeline}
    return Point(values, network, content)


def _real(size: int) -> Real:
    """Returns a small setting: four workers, and a server that answers slices of so many KiB."""
    network = {
        "name": "chunk-size",
        "defaults": {"rate": "10 Mbit/s"},
        "racks": [{"workers": 4, "servers": 1}],
        "links": [{"ends": ["s0", "tor0"], "rate": "40 Mbit/s"}],
    }
    content = {
        "name": "chunk-size",
        "workload": "layers",
        "layers": ["128 KiB"],
        "iterations": 8,
        "placement": "ncc",
        "window": 128,
        "schedule": {"slice": size * KIB // 4, "release": "slice"},
    }
    return Real(f"{size} KiB", network, content)


IN_REAL_TIME = InRealTime(
    "Four workers and a PBox, links of 10 Mbit/s and 40 Mbit/s to it, one key of 128 KiB, whose"
    " slices the server answers when they are complete. Packets have 1 KiB there, which the"
    " program of switches fixes, and no message costs what it costs PHub's hosts. So only one half"
    " of the curve is to be seen: larger slices are answered later.",
    [_real(size) for size in (4, 32, 128)],
)
