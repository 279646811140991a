# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.common.phub import (
    COPY_NS,
    MXNET,
    MXNET_IB,
    PBOX,
    PSHARD,
    SUM_RATE,
    SWITCHES,
    WORKERS,
    model_bytes,
)
from experiments.common.sensitivity import setting
from experiments.zero_compute.jobs import COLLECTIVES, MANY, MODEL, PLANNED, RATE

__all__ = ["PUBLISHED", "claims", "counts", "exchanges", "figures", "line_seconds", "seconds"]

# Exchanges a second of 8 workers together, read off the poster's plot (+-5).
PUBLISHED = {
    PBOX.name: 790, PSHARD.name: 407, MXNET_IB.name: 203, COLLECTIVES[0]: 170, COLLECTIVES[1]: 128,
    MXNET.name: 105,
}  # fmt: skip
_SOURCE = "plot on the poster, read off"
_NEAR = 0.05


def line_seconds(copies: float = 1.0) -> float:
    """Returns how long copies of the gradients take on a link."""
    return copies * 8 * model_bytes(MODEL) / (RATE * 1e9)


def seconds(results: Results, system: str, workers: int) -> float:
    """Returns the time of an exchange: of the run if there is one, else the planned one."""
    rows = {str(row.values["of"]): row for row in results.all(system=system, workers=workers)}
    return float(rows["run" if "run" in rows else PLANNED].measures["seconds"])


def counts(results: Results, system: str) -> list[int]:
    """Returns the numbers of workers of a system's points."""
    return sorted({int(row.values["workers"]) for row in results.all(system=system)})


def exchanges(results: Results, system: str, workers: int) -> float:
    """Returns exchanges a second, of all workers together."""
    return workers / seconds(results, system, workers)


def varied_ratio(results: Results, system: str, parameter: str, factor: float) -> float:
    """Returns the exchanges of PHub over those of a system, eight workers, with a parameter times a
    factor."""
    if factor == 1:
        return seconds(results, system, WORKERS) / seconds(results, PBOX.name, WORKERS)
    slow, fast = (
        results.get("seconds", **setting(parameter, factor), system=one)
        for one in (system, PBOX.name)
    )
    return float(slow / fast)


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    fast = exchanges(results, PBOX.name, WORKERS)
    for name, published in PUBLISHED.items():
        if WORKERS not in counts(results, name) or name == PBOX.name:
            continue
        ratio = fast / exchanges(results, name, WORKERS)
        paper = PUBLISHED[PBOX.name] / published
        ours = 1e3 * seconds(results, name, WORKERS)
        theirs = 1e3 * WORKERS / published
        yield Figure(
            f"PHub/{name}@8".replace(" ", ""),
            f"exchanges a second of PHub over those of {name}, 8 workers",
            "x",
            Published(paper, "digitised", _SOURCE),
            ratio,
            ratio >= paper,
            f"an exchange takes {ours:.1f} ms, of which a link's bytes take"
            f" {1e3 * line_seconds(1.75):.1f}; published {theirs:.1f} ms. PHub's takes"
            f" {1e3 * seconds(results, PBOX.name, WORKERS):.1f} ms, published"
            f" {1e3 * WORKERS / PUBLISHED[PBOX.name]:.1f}. {_REASONS.get(name, '')}",
        )
    many = counts(results, PBOX.name)
    linear = exchanges(results, PBOX.name, WORKERS) / exchanges(results, PBOX.name, many[0])
    yield Figure(
        "PHub.linear",
        f"exchanges a second of PHub with 8 workers over {many[0]}, over linear growth",
        "x",
        Published(790 / 110 / 8, "digitised", f"{_SOURCE}: 110 with 1 worker, 790 with 8"),
        linear * many[0] / WORKERS,
        linear * many[0] / WORKERS >= 790 / 110 / 8,
        "PHub's ten links carry eight workers",
    )
    most = counts(results, SWITCHES.name)
    least = exchanges(results, SWITCHES.name, most[0]) / most[0]
    yield Figure(
        f"switches.linear@{most[-1]}",
        f"exchanges a second with switches that sum, {most[-1]} workers over {most[0]}, over linear"
        " growth",
        "x",
        Published(None, "new", "nobody has published one"),
        exchanges(results, SWITCHES.name, most[-1]) / most[-1] / least,
        True,
    )


_REASONS = {
    PSHARD.name: "Less traffic alone gives at most 1.75.",
    COLLECTIVES[0]: (
        "A ring's bytes alone take 1.75 times PHub's; gloo's software, of which no cost is"
        " published, takes the rest."
    ),
    COLLECTIVES[1]: (
        "Halving and doubling moves as many bytes as a ring; gloo's software, of which no cost is"
        " published, takes the rest."
    ),
}


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    flat = [seconds(results, SWITCHES.name, one) for one in counts(results, SWITCHES.name)]
    pbox = [seconds(results, PBOX.name, n) for n in counts(results, PBOX.name) if n <= WORKERS]
    ratio = seconds(results, PSHARD.name, WORKERS) / seconds(results, PBOX.name, WORKERS)
    found = [
        Claim(
            "with switches an exchange takes as long with the most workers as with the fewest:"
            f" {1e3 * min(flat):.2f} to {1e3 * max(flat):.2f} ms",
            max(flat) / min(flat) < 1 + _NEAR,
        ),
        Claim(
            "PBox: up to eight workers an exchange takes as long as with the fewest:"
            f" {1e3 * min(pbox):.2f} to {1e3 * max(pbox):.2f} ms",
            max(pbox) / min(pbox) < 1 + _NEAR,
        ),
        Claim(
            f"PBox over PShard, 8 workers: {ratio:.2f}, at most 1.75 and nearly so",
            1.75 * (1 - _NEAR) < ratio <= 1.75 * 1.01,
        ),
        Claim(
            "no packet was retransmitted, and collectives' sums and bytes are right",
            all(row.measures["right"] for row in results.rows),
        ),
    ]
    for name in COLLECTIVES:
        for row in results.all(of="run", system=name):
            workers = int(row.values["workers"])
            took = row.measures["seconds"]
            bound = line_seconds(2 * (workers - 1) / workers)
            found.append(
                Claim(
                    f"{name}, {workers} workers: {1e3 * took:.2f} ms, its bytes alone"
                    f" {1e3 * bound:.2f}",
                    bound <= took < bound * (1 + 2 * _NEAR),
                )
            )
    if results.quick:
        return found
    errors = [
        abs(results.get("seconds", of=PLANNED, system=name, workers=int(row.values["workers"]))
            / row.measures["seconds"] - 1)
        for name in COLLECTIVES
        for row in results.all(of="run", system=name)
    ]  # fmt: skip
    shared = [seconds(results, PBOX.name, n) for n in counts(results, PBOX.name) if n > 10]
    numbers = [n for n in MANY if n in counts(results, PBOX.name)]
    found += [
        Claim(
            f"planned collectives are within {100 * _NEAR:.0f} % of runs:"
            f" {100 * max(errors):.1f} % at most",
            max(errors) < _NEAR,
        ),
        Claim(
            "with more workers than links of a PBox an exchange takes in proportion longer",
            all(
                abs(took / (line_seconds(n / 10)) - 1) < 3 * _NEAR
                for n, took in zip(numbers, shared, strict=True)
            ),
        ),
    ]
    return found


def software_seconds(copies: bool) -> float:
    """Returns how long sums, or copies, of MXNet take in an exchange, alone."""
    size = model_bytes(MODEL)
    return 1e-9 * (1.75 * COPY_NS * size if copies else 8 * size / SUM_RATE)
