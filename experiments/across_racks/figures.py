# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from experiments.across_racks import predicted
from experiments.across_racks.jobs import (
    BOX,
    BOX_RACKS,
    FLAT,
    MODELS,
    RING,
    SAME_STREAMS,
    SWITCHED,
    VARIED_OVER,
    WAYS,
    WORKERS,
    Model,
    box_oversubscriptions,
    model_racks,
    oversubscriptions,
    racks,
    size,
    weak,
)
from experiments.common.declaration import Claim, Figure, Published, Results

_HEADERS = 0.01  # of bytes
_WITHIN = 0.15  # of the times by bandwidth alone
_ALIKE = 0.1  # relative difference of times that the planner does not tell
_BANDWIDTH_ALONE = "time by bandwidth alone, all pipelined by chunk"


def time(results: Results, way: str, count: int, over: int, box: int | None = None) -> float:
    """Returns the seconds of a sum.

    Args:
        results: Of all points.
        way: One of ``WAYS``.
        count: Racks.
        over: Oversubscription.
        box: A box's link, if that is what differs.
    """
    part, link = ("ways", BOX) if box is None else ("boxes", box)
    found = results.get("seconds", part=part, way=way, racks=count, oversubscription=over, box=link)
    return float(found)


def pipelined(count: int, over: float, box: float) -> tuple[float, float]:
    """Returns the times by bandwidth alone for one level and for two, in those that a worker's
    link takes for the gradients."""
    w, r = WORKERS, count
    up = w / over
    flat = max(2 * (w * r - 1) / (w * r), 2 * w * (r - 1) / (r * up))
    return flat, max(1.0, w / box, 2 * (r - 1) / (r * min(up, box)))


def pipelined_switched(over: float, box: float) -> float:
    """Returns the same time for two levels where the core sums for boxes."""
    return max(1.0, (WORKERS + 1) / box, over / WORKERS)


def compared(quick: bool) -> Sequence[str]:
    """Returns the ways whose times are compared."""
    return (FLAT, RING, SWITCHED, "inc") if quick else [way for way in WAYS if way != SAME_STREAMS]


def gain(results: Results, count: int, over: int, way: str = RING) -> float:
    """Returns how many times faster two levels are than one."""
    return time(results, FLAT, count, over) / time(results, way, count, over)


def varied_gain(results: Results, parameter: str, way: str, factor: float) -> float:
    """Returns the gain of two levels with a parameter times a factor."""
    if factor == 1:
        return gain(results, BOX_RACKS, VARIED_OVER, way)
    flat, two = (
        results.get("seconds", part=parameter, way=one, factor=factor) for one in (FLAT, way)
    )
    return float(flat / two)


def crossover(
    flat: Callable[[int], float], two: Callable[[int], float], at: Sequence[int]
) -> float:
    """Returns the oversubscription from which on two levels are faster, between the given ones by
    linear interpolation; the first or last of them beyond."""
    apart = [(over, flat(over) - two(over)) for over in at]
    if apart[0][1] >= 0:
        return float(at[0])
    for (over, before), (next_, after) in pairwise(apart):
        if after >= 0:
            return over + (next_ - over) * -before / (after - before)
    return float(at[-1])


def crossovers(results: Results, box: int, way: str = RING) -> tuple[float, float]:
    """Returns the measured crossover with boxes of so fast a link, and the planner's."""
    at = box_oversubscriptions(results.quick)
    flat = partial(time, results, FLAT, BOX_RACKS)
    measured = crossover(flat, lambda over: time(results, way, BOX_RACKS, over, box), at)
    guess = partial(predicted.seconds, count=BOX_RACKS, box=box, size=size(results.quick))
    planned = crossover(lambda o: guess(FLAT, over=o), lambda o: guess(way, over=o), at)
    return measured, planned


def overhead(results: Results, model: Model, count: int, factor: float = 1.0) -> float:
    """Returns by how many percent an iteration takes longer than with one rack.

    factor: of the time of computing.
    """
    part = model.name if factor == 1 else "computing"

    def seconds(count: int) -> float:
        found = results.get("seconds", part=part, racks=count, factor=factor)
        return float(found) + model.forward * factor

    return 100 * (seconds(count) / seconds(1) - 1)


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    quick = results.quick
    for count in racks(quick):
        flat, two = (
            results.get("core_bytes", part="ways", way=way, racks=count, oversubscription=1)
            for way in (SAME_STREAMS, RING)
        )
        yield Figure(
            f"core.r{count}",
            f"bytes on the busiest link to the core, flat over two levels, {count} racks",
            "x",
            Published(WORKERS, "poster", "n times less with n workers in a rack"),
            flat / two,
            flat == WORKERS * two,
            "frames differ",
        )
    for count in racks(quick):
        flat, two = (
            results.get("core_bytes", part="ways", way=way, racks=count, oversubscription=1)
            for way in (SAME_STREAMS, SWITCHED)
        )
        closed = 2 * WORKERS * (count - 1) / count
        yield Figure(
            f"core.switch.r{count}",
            f"the same, flat over boxes for which the core sums, {count} racks",
            "x",
            Published(closed, "derived", "2 n (r - 1) / r copies over one, r racks of n workers"),
            flat / two,
            abs(flat / two / closed - 1) < _HEADERS,
            "headers of frames differ",
        )
    for count in racks(quick):
        for over in (oversubscriptions(quick)[0], oversubscriptions(quick)[-1]):
            flat, two = pipelined(count, over, BOX)
            ours = gain(results, count, over)
            least = results.get("least", part="ways", way=RING, racks=count, oversubscription=over)
            yield Figure(
                f"gain.r{count}.o{over}",
                f"time of `{FLAT}` over `{RING}`, {count} racks, {over}:1",
                "x",
                Published(flat / two, "derived", _BANDWIDTH_ALONE),
                ours,
                ours >= (1 - _WITHIN) * flat / two,
                f"`{RING}` takes {time(results, RING, count, over) * 1e3:.2f} ms, of which links"
                f" need {least * 1e3:.2f}, and the rest is latency of its stages; `{FLAT}` takes"
                f" {time(results, FLAT, count, over) * 1e3:.2f} ms",
            )
            two = pipelined_switched(over, BOX)
            ours = gain(results, count, over, SWITCHED)
            took = time(results, SWITCHED, count, over)
            yield Figure(
                f"gain.switch.r{count}.o{over}",
                f"time of `{FLAT}` over `{SWITCHED}`, {count} racks, {over}:1",
                "x",
                Published(flat / two, "derived", _BANDWIDTH_ALONE),
                ours,
                ours >= (1 - _WITHIN) * flat / two,
                f"`{SWITCHED}` takes {took * 1e3:.2f} ms, `{FLAT}`"
                f" {time(results, FLAT, count, over) * 1e3:.2f} ms",
            )
    for box, way in ((box, way) for way in (RING, SWITCHED) for box in weak(quick)):
        measured, planned = crossovers(results, box, way)
        yield Figure(
            f"crossover.{'box' if way == RING else 'switch.box'}{box}",
            f"oversubscription from which on two levels, `{way}`, are faster, a box's link like"
            f" {box} of workers",
            "to 1",
            Published(planned, "derived", "the planner's model, by the same interpolation"),
            measured,
            abs(measured / planned - 1) <= _WITHIN,
            f"the planner says {planned:.2f}",
        )
    for model in MODELS:
        for count in model_racks(quick)[1:]:
            published = model.published[count]
            ours = overhead(results, model, count)
            yield Figure(
                f"overhead.{model.name}.r{count}",
                f"longer iterations than with one rack, {model.title}, {count} racks",
                "%",
                Published(published, "poster", "simulated by its authors on one rack"),
                ours,
                ours <= published,
                f"filling and draining the stages of {count} racks' schedule",
            )


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    quick = results.quick
    grid = [(count, over) for count in racks(quick) for over in oversubscriptions(quick)]
    points = [(count, over, BOX, gain(results, count, over)) for count, over in grid]
    points += [
        (
            BOX_RACKS,
            over,
            box,
            time(results, FLAT, BOX_RACKS, over) / time(results, RING, BOX_RACKS, over, box),
        )
        for box in weak(quick)
        for over in box_oversubscriptions(quick)
    ]
    switched = [
        (predicted.choice(BOX_RACKS, over, box, size(quick)).core_switch_levels, flat / two)
        for box in weak(quick)
        for over in box_oversubscriptions(quick)
        for flat, two in [
            (
                time(results, FLAT, BOX_RACKS, over),
                time(results, SWITCHED, BOX_RACKS, over, box),
            )
        ]
    ]
    sure = [(levels, ratio) for levels, ratio in switched if abs(ratio - 1) > _ALIKE]
    clear = [one for one in points if abs(one[-1] - 1) > _ALIKE]
    agree = [
        predicted.choice(count, over, box, size(quick)).levels == (2 if ratio > 1 else 1)
        for count, over, box, ratio in clear
    ]
    low, high = oversubscriptions(quick)[0], oversubscriptions(quick)[-1]
    return [
        Claim(
            "`rackhub plan` chooses one level or two as measured wherever times differ by more"
            f" than {100 * _ALIKE:.0f} %: at {len(clear)} of {len(points)} points with both.",
            all(agree),
        ),
        Claim(
            "The same holds where the core switch sums for boxes: at"
            f" {len(sure)} of {len(switched)} points.",
            all(levels == (2 if ratio > 1 else 1) for levels, ratio in sure),
        ),
        Claim(
            f"With boxes of two links, one level is faster at {low}:1, two at {high}:1.",
            time(results, FLAT, BOX_RACKS, low) < time(results, RING, BOX_RACKS, low, 2)
            and time(results, RING, BOX_RACKS, high, 2) < time(results, FLAT, BOX_RACKS, high),
        ),
        Claim(
            "No sum is faster than its lower bound, and ToRs with the core are the fastest.",
            all(row.measures["seconds"] >= (row.measures["least"] or 0) for row in results.rows)
            and all(
                time(results, "inc", count, over)
                <= min(time(results, way, count, over) for way in compared(quick))
                for count, over in grid
            ),
        ),
    ]
