# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.cost.jobs import (
    BOX,
    DESIGNS,
    GPUS,
    SHARDED,
    SWITCH,
    WORKERS,
    Model,
    models,
    sharded,
)
from experiments.cost.prices import Design, read

__all__ = ["claims", "designs", "examples", "figures", "gain", "per_dollar"]

_HEADLINE = Published(
    1.25, "abstract", "25 % better throughput per dollar; of which model is not stated there"
)
_POSTER = Published(
    82.2 / 60.4,
    "poster",
    "82.2 over 60.4 per $1000, PBox over sharded, core links oversubscribed 2:1; its model and"
    " prices are not known",
)
_NEW = Published(None, "new", "nobody has published one")


def examples(results: Results, model: Model, design: Design) -> float:
    """Returns the examples that a rack learns from in a second."""
    seconds = float(results.get("seconds", model=model.name, design=design.name))
    return WORKERS * GPUS * model.batch / seconds


def per_dollar(
    results: Results, model: Model, design: Design, prices: Mapping[str, float]
) -> float:
    """Returns examples a second for each 1,000 dollars."""
    return 1000 * examples(results, model, design) / design.dollars(prices)


def gain(results: Results, model: Model, design: Design, prices: Mapping[str, float]) -> float:
    """Returns throughput per dollar over that of servers beside workers with the same links."""
    ours, base = (per_dollar(results, model, one, prices) for one in (design, sharded(design)))
    return ours / base


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    prices = read().dollars()
    for model in models(results.quick):
        ours = gain(results, model, BOX, prices)
        yield Figure(
            f"perdollar.pbox.{model.name}",
            f"throughput per dollar, PBox over servers beside workers, {model.title}",
            "x",
            _HEADLINE,
            ours,
            ours >= (_HEADLINE.value or 0),
            _why(results, model, prices),
        )
    best = max(models(results.quick), key=lambda model: gain(results, model, BOX, prices))
    ours = gain(results, best, BOX, prices)
    yield Figure(
        "perdollar.pbox.best",
        f"the same, of the model that gains most ({best.title}), in one rack",
        "x",
        _POSTER,
        ours,
        ours >= (_POSTER.value or 0),
        f"{_why(results, best, prices)}; one rack has no core links, which theirs were short of",
    )
    for model in models(results.quick):
        yield Figure(
            f"perdollar.switch.{model.name}",
            f"throughput per dollar, a switch that sums over servers beside workers, {model.title}",
            "x",
            _NEW,
            gain(results, model, SWITCH, prices),
            True,
        )


def _why(results: Results, model: Model, prices: Mapping[str, float]) -> str:
    faster = examples(results, model, BOX) / examples(results, model, SHARDED)
    dearer = BOX.dollars(prices) / SHARDED.dollars(prices)
    return f"{model.title} is {faster:.2f} times as fast, and the rack costs {dearer:.2f} times"


def designs(results: Results) -> list[Design]:
    """Returns the racks that ran, in order."""
    ran = {row.values["design"] for row in results.rows}
    return [design for design in DESIGNS if design.name in ran]


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    prices = read().dollars()
    every = [(model, design) for model in models(results.quick) for design in designs(results)]
    return [
        Claim(
            "A PBox and a switch that sums are at least as fast as servers beside workers with the"
            " same links, to 1 %.",
            all(
                examples(results, model, design) >= 0.99 * examples(results, model, sharded(design))
                for model, design in every
            ),
        ),
        Claim(
            "Of racks with the same links, that whose switch sums has the most throughput per"
            " dollar.",
            all(
                gain(results, model, design, prices)
                <= max(
                    gain(results, model, other, prices)
                    for other in designs(results)
                    if other.sums and other.rate == design.rate
                )
                for model, design in every
            ),
        ),
    ]
