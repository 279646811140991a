# SPDX-License-Identifier: Apache-2.0
"""Published figures and closed forms, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.common.sensitivity import setting
from experiments.tenants.jobs import HUBS, Hub, counts

__all__ = ["claims", "fairness", "figures", "slowdowns", "varied_slowdown"]

_RECALLED = "at most, of each of eight AlexNet jobs on a PBox; the set-up is not recalled"
_MOST_ABOVE = 1.05
_FAIR = 0.99


def slowdowns(results: Results, hub: Hub, jobs: int) -> list[float]:
    """Returns by how much longer each of so many jobs takes than one alone, in their order."""
    (alone,) = results.get("seconds", of="jobs", hub=hub.name, jobs=1)
    return [
        seconds / alone for seconds in results.get("seconds", of="jobs", hub=hub.name, jobs=jobs)
    ]


def varied_slowdown(results: Results, hub: Hub, parameter: str, factor: float) -> float:
    """Returns the slow-down of the slowest of the most jobs, small ones, with a parameter times a
    factor."""
    values = {**setting(parameter, factor), "hub": hub.name}
    (alone,), together = (
        results.get("seconds", **values, jobs=jobs) for jobs in (1, counts(results.quick)[-1])
    )
    return float(max(together) / alone)


def fairness(results: Results, hub: Hub, jobs: int) -> float:
    """Returns Jain's index of jobs' rates: 1 if all are equal, 1 / jobs if one has everything."""
    rates = [1 / slower for slower in slowdowns(results, hub, jobs)]
    return float(sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates)))


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    most = counts(results.quick)[-1]
    worst = max(slowdowns(results, HUBS[0], most))
    yield Figure(
        f"recalled.{HUBS[0].name}.{most}",
        f"longer iterations of the slowest of {most} jobs, {HUBS[0].title}",
        "%",
        Published(5.0, "recall", _RECALLED),
        100 * (worst - 1),
        worst <= _MOST_ABOVE,
        f"an iteration takes {worst:.3f} of the time alone, and links need"
        f" {HUBS[0].slowdown(most):.2f} of it",
    )
    for hub in HUBS:
        worst, ideal = max(slowdowns(results, hub, most)), hub.slowdown(most)
        yield Figure(
            f"slowdown.{hub.name}.{most}",
            f"time of the slowest of {most} jobs over that of one alone, {hub.title}",
            "x",
            Published(ideal, "derived", "closed form: what the hub's links need for all gradients"),
            worst,
            worst <= _MOST_ABOVE * ideal,
            f"it takes {worst / ideal:.2f} times as long as links need",
        )
        fair = fairness(results, hub, most)
        yield Figure(
            f"fairness.{hub.name}.{most}",
            f"Jain's index of the rates of {most} jobs, {hub.title}",
            "",
            Published(1.0, "derived", "equal jobs, equal shares"),
            fair,
            fair >= _FAIR,
            f"the slowest takes {worst / min(slowdowns(results, hub, most)):.2f} times as long as"
            " the fastest",
        )


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    every = [(hub, jobs) for hub in HUBS for jobs in counts(results.quick)]
    return [
        Claim(
            "Jobs do not slow each other down while links of the hub are wide enough for all.",
            all(
                max(slowdowns(results, hub, jobs)) <= _MOST_ABOVE
                for hub, jobs in every
                if hub.slowdown(jobs) <= 1
            ),
        ),
        Claim(
            f"Jain's index of jobs' rates is at least {_FAIR}.",
            all(fairness(results, hub, jobs) >= _FAIR for hub, jobs in every),
        ),
        Claim(
            "Where the hub's links are too narrow for all, jobs take longer.",
            all(
                max(slowdowns(results, hub, jobs)) > 1 + 0.5 * (hub.slowdown(jobs) - 1)
                for hub, jobs in every
                if hub.slowdown(jobs) > 1
            ),
        ),
    ]
