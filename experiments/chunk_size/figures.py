# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from experiments.chunk_size.jobs import (
    BEST,
    CORES,
    KIB,
    MESSAGE,
    MODEL,
    PUBLISHED,
    RATE,
    WINDOW_BYTES,
)
from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.common.phub import LINKS, WORKERS, model_bytes
from protocol.assignment.registry import ASSIGNMENTS
from workloads.architectures.registry import keys_of

__all__ = ["claims", "figures", "imbalance", "line_seconds", "rates", "seconds", "varied_rate"]

_SOURCE = "plot on the poster, read off (+-15 of 765)"
_NEAR = 0.15  # of a published one, read off by 0.02 to 0.1
_SAME = 0.02
_BYTES = 4
_SHAPES = (8, 256, 1024, 2048)


def seconds(results: Results, size: int = BEST, of: str = "size", **values: float) -> float:
    """Returns the time of an exchange."""
    return float(results.get("seconds", of=of, size=size, **values))


def varied_rate(results: Results, of: str, size: int, factor: float) -> float:
    """Returns exchanges a second of all workers, with a parameter times a factor."""
    varied = {"factor": factor} if factor != 1 else {}
    return WORKERS / seconds(results, size, of if varied else "size", **varied)


def rates(results: Results) -> dict[int, float]:
    """Returns exchanges a second of all workers, by KiB of a chunk."""
    return {
        int(row.values["size"]): WORKERS / row.measures["seconds"] for row in results.all(of="size")
    }


def line_seconds(links: int = LINKS) -> float:
    """Returns how long the bytes of an exchange take on a worker's link, or on the server's."""
    return max(1.0, WORKERS / links) * 8 * model_bytes(MODEL) / (RATE * 1e9)


def imbalance(model: str, size: int, bins: int, assign: str = "balanced") -> float:
    """Returns the most bytes of a bin over the mean.

    Args:
        size: Bytes of a slice; 0: keys are whole.
    """
    rows = []
    for number, key in enumerate(keys_of(model)):
        whole = _BYTES * key.parameters
        step = size or whole
        rows += [(number, first, min(step, whole - first)) for first in range(0, whole, step)]
    slices = np.array(rows, np.int64)
    loads = np.bincount(ASSIGNMENTS[assign](slices, bins), slices[:, 2], bins)
    return float(loads.max() / loads.mean())


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    found = rates(results)
    most = max(found, key=lambda size: found[size])
    yield Figure(
        "best",
        "chunk with the most exchanges a second; holds if the published one is within 2 % of it",
        "KiB",
        Published(BEST, "digitised", _SOURCE),
        most,
        found[BEST] > (1 - _SAME) * found[most],
        f"with {BEST} KiB there are {found[BEST]:.0f}, with {most} KiB {found[most]:.0f}",
    )
    yield Figure(
        "8KiB",
        "exchanges a second with chunks of 8 KiB, where messages bound them; holds within 15 %",
        "a second",
        Published(PUBLISHED[8], "digitised", _SOURCE),
        found[8],
        abs(found[8] / PUBLISHED[8] - 1) <= _NEAR,
        f"messages take {1e3 * MESSAGE * model_bytes(MODEL) / (8 * KIB):.1f} ms",
    )
    for size in _SHAPES:
        if size in found:
            paper, ours = PUBLISHED[size] / PUBLISHED[BEST], found[size] / found[BEST]
            spread = imbalance(MODEL, size * KIB, LINKS)
            yield Figure(
                f"{size}KiB/{BEST}KiB",
                f"exchanges a second with chunks of {size} KiB over those with {BEST} KiB; holds"
                " within 15 %",
                "x",
                Published(paper, "digitised", _SOURCE),
                ours,
                abs(ours / paper - 1) <= _NEAR,
                f"{found[size]:.0f} a second, published {PUBLISHED[size]}; with {BEST} KiB"
                f" {found[BEST]:.0f}, published {PUBLISHED[BEST]}, as here only links bound it"
                f" there. Messages take {1e3 * MESSAGE * model_bytes(MODEL) / (size * KIB):.1f} ms"
                f" of {1e3 * seconds(results, size):.1f}; a worker has"
                f" {WINDOW_BYTES // KIB // size} chunks in flight; the busiest of ten links has"
                f" {spread:.2f} times the mean",
            )
    if results.quick:
        return
    new = Published(None, "new", "nobody has published one")
    yield Figure(
        "no-elision",
        "time of an exchange of 32 KiB chunks without pull elision over that with it",
        "x", new, seconds(results, of="elision") / seconds(results), True,
    )  # fmt: skip
    tall, wide = (
        results.get("seconds", of="cores", assign="balanced", pipeline=one)
        for one in ("tall", "wide")
    )
    yield Figure(
        "wide/tall", "time of an exchange where 30 cores sum wide over tall", "x", new, wide / tall,
        True,
    )  # fmt: skip
    keys = results.get("seconds", of="cores", assign="keys")
    yield Figure(
        "keys/balanced", "time of an exchange where each key is at one of 30 cores over chunks at"
        " the least loaded", "x", new, keys / tall, True,
    )  # fmt: skip


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    found = rates(results)
    small = [found[size] for size in sorted(found) if size <= BEST]
    large = [found[size] for size in sorted(found) if size >= BEST]
    held = [
        Claim(
            "the smaller chunks are below 32 KiB, the fewer exchanges",
            all(one < other for one, other in pairwise(small)),
        ),
        Claim(
            "the larger chunks are above 32 KiB, the fewer exchanges, within 2 %",
            all(other < (1 + _SAME) * one for one, other in pairwise(large))
            and large[-1] < 0.9 * large[0],
        ),
        Claim(
            f"chunks of 32 KiB are at {CORES * LINKS} cores within"
            f" {100 * (imbalance(MODEL, BEST * KIB, CORES * LINKS) - 1):.1f} % of the mean, whole"
            f" keys at {imbalance(MODEL, 0, CORES * LINKS):.1f} times it",
            imbalance(MODEL, BEST * KIB, CORES * LINKS) < 1.02
            and imbalance(MODEL, 0, CORES * LINKS) > 2,
        ),
        Claim(
            "no packet was retransmitted",
            not any(row.measures["retransmitted"] for row in results.rows),
        ),
    ]
    for row in results.all(of="links"):
        links, took = int(row.values["links"]), row.measures["seconds"]
        held.append(
            Claim(
                f"with {links} links an exchange takes {1e3 * took:.1f} ms, bytes alone"
                f" {1e3 * line_seconds(links):.1f}",
                1 <= took / line_seconds(links) < 1.1,
            )
        )
    if not results.quick:
        balanced = results.get("seconds", of="cores", assign="balanced", pipeline="tall")
        keys = results.get("seconds", of="cores", assign="keys")
        held += [
            Claim(
                "without pull elision exchanges take longer, with whole keys at cores, too",
                seconds(results, of="elision") > seconds(results) and keys > balanced,
            ),
        ]
    return held
