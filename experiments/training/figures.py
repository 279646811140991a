# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.common.declaration import Claim, Figure, Published, Results, Row
from experiments.common.sensitivity import setting
from experiments.training.jobs import COLOCATED, DIGITS, INC, P3, Model, models

__all__ = ["claims", "curve", "figures", "reached", "rows", "target", "varied_ratio"]

_EXACT = "accuracy that P3 loses: none, it sends all gradients in every iteration"
_NEW = Published(None, "new", "nobody has published one")
_SHARE = 0.9  # of what is learned in all


def rows(results: Results, model: Model, clock: str = "virtual") -> list[Row]:
    """Returns the results of all ways, in order."""
    return list(results.all(clock=clock, model=model.name))


def curve(row: Row) -> list[tuple[float, float]]:
    """Returns seconds and loss of each iteration."""
    return [(end, loss) for end, loss, _ in row.measures["curve"] if loss is not None]


def target(results: Results, model: Model) -> float:
    """Returns the loss at which most of what all iterations learn is learned."""
    losses = [loss for _, loss in curve(rows(results, model)[0])]
    return losses[0] - _SHARE * (losses[0] - min(losses))


def reached(row: Row, loss: float) -> float:
    """Returns the seconds until the loss is no larger."""
    return next(end for end, now in curve(row) if now <= loss)


def varied_ratio(results: Results, way: str, parameter: str, factor: float) -> float:
    """Returns the time of an iteration of digits over that in the network, with a parameter times a
    factor."""
    values = setting(parameter, factor)
    if factor == 1:
        values = {"clock": "virtual", "model": DIGITS.name}
    slow, fast = (results.get("seconds", **values, way=one) for one in (way, INC))
    return float(slow / fast)


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    for model in models(results.quick):
        found = {row.values["way"]: row for row in rows(results, model)}
        loss = target(results, model)
        ours = reached(found[INC], loss)
        for way, row in found.items():
            if way == INC:
                continue
            ratio = reached(row, loss) / ours
            yield Figure(
                f"time.{model.name}.{str(way).replace(' ', '-').lower()}",
                f"time until a loss of {loss:.2f}, {way} over in-network, {model.name}",
                "x",
                _NEW,
                ratio,
                ratio >= 1,
                f"it takes {ratio:.2f} of the time",
            )
        lost = 100 * (_accuracy(found[COLOCATED]) - _accuracy(found[P3]))
        yield Figure(
            f"accuracy.{model.name}.p3",
            f"accuracy that P3 loses after as many iterations, {model.name}",
            "points",
            Published(0.0, "secondary", _EXACT),
            lost,
            lost <= 0,
            f"{lost:.2f} points are lost",
        )


def _accuracy(row: Row) -> float:
    return float(row.measures["test_accuracy"])


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    virtual = [rows(results, model) for model in models(results.quick)]
    return [
        Claim(
            "Weights are bit-identical to those of one process without a network, in every way.",
            all(row.measures["matches_reference"] for row in results.rows),
        ),
        Claim(
            "Weights of a model are bit-identical whatever sums its gradients, on both clocks.",
            all(
                len({row.measures["weights"] for row in results.all(model=model.name)}) == 1
                for model in models(results.quick)
            ),
        ),
        Claim(
            "An iteration takes least time with switches.",
            all(
                min(found, key=lambda row: float(row.measures["seconds"])).values["way"] == INC
                for found in virtual
            ),
        ),
    ]
