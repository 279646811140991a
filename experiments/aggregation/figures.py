# SPDX-License-Identifier: Apache-2.0
"""Published figures and closed forms, and ours from the results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from experiments.aggregation.jobs import (
    ALL,
    CHUNK_BYTES,
    DELAYS,
    FEW,
    FEW_CHUNKS,
    FRAME_BYTES,
    HOPS,
    INC,
    LEVELS,
    MANY,
    RATE,
    SIZE,
    SLOWER,
    WORKERS_LINKS,
)
from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.common.sensitivity import setting
from observability.wording import count

__all__ = [
    "BMV2",
    "FLAT",
    "RATIOS",
    "bound",
    "claims",
    "figures",
    "goodput",
    "knee",
    "published_seconds",
    "round_trip",
    "seconds",
    "varied",
    "windows",
]

FLAT = 0  # levels: a server sums, no switch does
BMV2 = {FLAT: 99.9, 1: 141.6, 2: 134.0, 3: 157.2}  # s, by levels of switches
_SOURCE = (
    f"times of {FEW_CHUNKS} chunks of 2 workers at 30 % loss, as others have reported them of an"
    " implementation on BMv2; its rates and timeouts are not known"
)
_DERIVED = "closed form"
_NEW = Published(None, "new", "nobody has published one")
_MOST_GROWTH = 1.05
_FULL = 0.95  # of the line's goodput, which is reached at the knee
_LEAST_OF_RATIO = 0.85


def seconds(results: Results, **values: str | float) -> float:
    """Returns the time of an iteration of the only point with these values."""
    return float(results.get("seconds", **values))


def sizes(results: Results) -> list[int]:
    """Returns the numbers of workers with which aggregation in the network ran, in order."""
    return sorted(int(row.values["workers"]) for row in results.all(of="workers", way=INC))


def round_trip(delay: float) -> float:
    """Returns the seconds from the first bit of a chunk to the last of its sum, in two levels.

    Args:
        delay: Seconds of each link.
    """
    return HOPS * (8 * FRAME_BYTES / RATE + delay)


def knee(delay: float) -> float:
    """Returns the chunks in flight that fill a link: rate times round trip."""
    return RATE * round_trip(delay) / (8 * FRAME_BYTES)


def windows(results: Results, delay: float) -> list[int]:
    """Returns the windows that ran with a delay, in order."""
    return sorted(int(row.values["window"]) for row in results.all(of="window", delay=delay))


def bound(results: Results, delay: float, window: float) -> float:
    """Returns a worker's goodput in closed form, in bit/s: windows that wait for round trips, or a
    line that is full, whose last chunk has its way to go."""
    size = _window_bytes(results)
    chunks = size / CHUNK_BYTES
    line = (chunks - 1) * 8 * FRAME_BYTES / RATE + round_trip(delay)
    return 8 * size / max(chunks / window * round_trip(delay), line)


def _window_bytes(results: Results) -> int:
    return SIZE // 8 if results.quick else SIZE // 2


def goodput(results: Results, delay: float, window: int) -> float:
    """Returns the gradients that a worker gets summed, in bit/s."""
    return 8 * _window_bytes(results) / seconds(results, of="window", delay=delay, window=window)


def varied(results: Results, what: str, parameter: str, factor: float) -> float:
    """Returns a ratio of times with a parameter times a factor.

    Args:
        what: One of ``RATIOS``.
    """
    values = setting(parameter, factor)
    over, under = (
        seconds(results, **values, way=way, workers=workers, slower=slower)
        for way, workers, slower in RATIOS[what]
    )
    return over / under


RATIOS = {
    "many workers over few": ((INC, MANY, 1), (INC, FEW, 1)),
    "ring over in-network": (("ring", MANY, 1), (INC, MANY, 1)),
    "a straggler": ((INC, FEW, SLOWER[-1]), (INC, FEW, 1)),
}
"""The ratios that are varied, by name: way, workers, slow-down of one, over and under the line."""


def published_seconds(
    results: Results, levels: int, lossy: str = ALL, clock: str = "virtual"
) -> list[float]:
    """Returns the times of the published setting, by seed; none if it has not run."""
    rows = results.all(of="published", clock=clock, lossy=lossy, levels=levels)
    return [float(row.measures["seconds"]) for row in rows]


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    few, *_, many = sizes(results)
    growth = seconds(results, of="workers", way=INC, workers=many) / seconds(
        results, of="workers", way=INC, workers=few
    )
    yield Figure(
        f"flat.{many}",
        f"time of an iteration with {many:,} workers over that with {few}",
        "x",
        Published(1.0, "derived", f"{_DERIVED}: each link carries the gradients once"),
        growth,
        growth <= _MOST_GROWTH,
        f"it takes {growth:.3f} of the time",
    )
    workers = max(int(row.values["workers"]) for row in results.all(of="workers", way="ring"))
    ratio = seconds(results, of="workers", way="ring", workers=workers) / seconds(
        results, of="workers", way=INC, workers=workers
    )
    ideal = 2 * (workers - 1) / workers
    yield Figure(
        f"ring.{workers}",
        f"ring over in-network, {workers} workers",
        "x",
        Published(ideal, "derived", f"{_DERIVED}: 2 (N - 1) / N times the bytes"),
        ratio,
        ratio >= _LEAST_OF_RATIO * ideal,
        f"{ratio:.2f} of {ideal:.2f}: headers of chunks of 8 KiB are a larger share than TCP's",
    )
    for delay in DELAYS:
        if found := windows(results, delay):
            yield _knee(results, delay, found)
    for levels in LEVELS:
        rows = list(results.all(of="loss", levels=levels))
        if rows:
            slow, base = (seconds(results, of="loss", levels=levels, loss=n) for n in (0.01, 0.0))
            yield Figure(
                f"loss.1%.levels{levels}",
                f"time with 1 % loss on every link over that without, levels: {levels}",
                "x",
                _NEW,
                slow / base,
                True,
            )
    if published_seconds(results, 1):
        yield from _published(results)
    yield _straggler(results)


def _knee(results: Results, delay: float, found: Sequence[int]) -> Figure:
    most = max(goodput(results, delay, window) for window in found)
    ours = next(one for one in found if goodput(results, delay, one) >= _FULL * most)
    ideal = 2 ** math.ceil(math.log2(knee(delay)))
    return Figure(
        f"knee.{delay * 1e6:g}us",
        f"least window with {100 * _FULL:.0f} % of the goodput, links of {delay * 1e6:g} us",
        "chunks",
        Published(ideal, "derived", f"{_DERIVED}: rate x round trip, in powers of two"),
        ours,
        ours <= ideal,
        f"with {ideal} it is {goodput(results, delay, ideal) / most:.3f} of the most",
    )


def _published(results: Results) -> Iterator[Figure]:
    over = [(levels, FLAT) for levels in LEVELS] + [(LEVELS[-1], 1)]
    for lossy, where in ((ALL, "everywhere"), (WORKERS_LINKS, "workers")):
        for levels, base in over:
            seeds = [published_seconds(results, n, lossy) for n in (base, levels)]
            one, ours = map(statistics.fmean, seeds)
            crossed, before = _crossed(levels, lossy), _crossed(base, lossy)
            why = (
                f"a sum crosses {crossed} lossy links, with {_name(base)} {before}"
                if crossed != before
                else f"seeds make more difference, {min(seeds[0]):.2f} to {max(seeds[0]):.2f} s"
                f" with {_name(base)}"
            )
            theirs = BMV2[levels] / BMV2[base]
            yield Figure(
                f"bmv2.levels{levels}.{'over-one' if base else 'over-flat'}.{where}",
                f"time with 30 % loss on {lossy} and {_name(levels)}, over that with {_name(base)}",
                "x",
                Published(theirs, "secondary", _SOURCE),
                ours / one,
                ours / one <= theirs,
                f"{ours:.2f} s over {one:.2f} s: {why}",
            )


def _name(levels: int) -> str:
    return f"{count(levels, 'level')} of switches" if levels else "a server alone"


def _crossed(levels: int, lossy: str) -> int:
    """Returns the lossy links on a chunk's way to the root and back."""
    if lossy == WORKERS_LINKS:
        return 2
    return 2 * levels if levels else 4


def _straggler(results: Results) -> Figure:
    slowest = max(int(row.values["slower"]) for row in results.all(of="straggler", way=INC))
    slow, base = (seconds(results, of="straggler", way=INC, slower=n) for n in (slowest, 1))
    ours = slow / base
    return Figure(
        f"straggler.{slowest}",
        f"time with one worker's link {slowest} times slower over that without",
        "x",
        Published(slowest, "derived", f"{_DERIVED}: all wait for that link, and for nothing else"),
        ours,
        ours <= _MOST_GROWTH * slowest,
        f"it takes {ours / slowest:.2f} times as long as the link alone",
    )


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    return [
        Claim(
            f"Time does not depend on the number of workers, up to {sizes(results)[-1]:,}.",
            all(
                seconds(results, of="workers", way=INC, workers=n)
                <= _MOST_GROWTH * seconds(results, of="workers", way=INC, workers=sizes(results)[0])
                for n in sizes(results)
            ),
        ),
        Claim(
            "In the network it takes less time than with any baseline, at every number of workers.",
            all(
                row.measures["seconds"]
                >= seconds(results, of="workers", way=INC, workers=row.values["workers"])
                for row in results.all(of="workers")
            ),
        ),
        Claim(
            "Goodput rises with the window up to rate times round trip, and stays there.",
            all(_has_knee(results, delay) for delay in DELAYS if windows(results, delay)),
        ),
        Claim("Packets are retransmitted where some are lost.", _retransmits(results)),
    ]


def _has_knee(results: Results, delay: float) -> bool:
    """Returns whether goodput is within 5 % of the closed form."""
    return all(
        abs(goodput(results, delay, window) / bound(results, delay, window) - 1) <= 0.05
        for window in windows(results, delay)
    )


def _retransmits(results: Results) -> bool:
    """Returns whether packets are retransmitted with losses, and none without."""
    return all(
        (row.measures["retransmitted"] > 0) is (float(row.values["loss"]) > 0)
        for row in results.all(of="loss")
    )
