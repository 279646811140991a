# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.common.sensitivity import setting
from experiments.psld.jobs import (
    BALANCED,
    CASES,
    IMBALANCE,
    NO_BALANCER,
    NOTHING,
    QUICK,
    SLICES,
    TRAFFIC,
    Case,
    K,
    varied_cases,
)

__all__ = ["PUBLISHED", "cases", "claims", "figures", "speedup", "varied_speedup"]

PUBLISHED = 2.86
_PUBLISHED = Published(
    PUBLISHED, "abstract", "at most, of several stragglers; which, is not stated"
)
_OURS = Published(None, "new", "nobody has published one")
_SHARE = 0.9  # of the bound that is to be reached
_MOST_COST = 1.0  # percent


def cases(results: Results) -> Iterator[tuple[Case, float]]:
    """Yields what was wrong, and how many times slower something was, in the order of points."""
    for case in QUICK if results.quick else CASES:
        for k in case.ks:
            yield case, k


def speedup(results: Results, case: Case, k: float, over: str = NO_BALANCER) -> float:
    """Returns the time of an iteration with `over` in place of the balancer over that with it, once
    it has settled; where traffic comes and goes, the mean of all."""
    measure = "mean_s" if case is TRAFFIC else "settled_s"
    before, after = (
        float(results.get(measure, case=case.name, k=k, balance=one)) for one in (over, BALANCED)
    )
    return before / after


def varied_speedup(results: Results, parameter: str, factor: float) -> float:
    """Returns the speed-up in the small setting with a parameter times a factor."""
    (case,) = varied_cases(parameter)
    values = {**setting(parameter, factor), "slow": case.slow}
    before, after = (
        float(results.get("settled_s", **values, balance=one)) for one in (NO_BALANCER, BALANCED)
    )
    return before / after


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    for case, k in cases(results):
        if case.name in ("bandwidth", "cpu") and k == K:
            ours, most = speedup(results, case, k), case.bound(k)
            yield Figure(
                f"speedup.{case.name}.k{K:g}",
                f"iterations without over with balancing, {case.title}, {K:g} times slower",
                "x",
                _PUBLISHED,
                ours,
                ours >= _SHARE * most,
                f"{100 * ours / most:.0f} % of the bound of {most:.3f} is reached,"
                f" {100 * _SHARE:.0f} % was wanted; {_last(results, case)}",
            )
        elif case is IMBALANCE:
            ours, alone = speedup(results, case, k), speedup(results, case, k, SLICES)
            yield Figure(
                "speedup.imbalance.vgg19x10",
                "iterations with whole keys at servers over those after their slices have moved",
                "x",
                _OURS,
                ours,
                alone >= _SHARE,
                f"with slices spread from the beginning an iteration takes {alone:.2f} of the time",
            )
    yield from _blocked(results)
    percent = 100 * (1 / speedup(results, NOTHING, 1.0) - 1)
    yield Figure(
        "cost.nothing-wrong",
        "longer iterations with balancing where nothing is wrong",
        "%",
        _OURS,
        percent,
        percent < _MOST_COST,
        f"{len(results.get('moves', case=NOTHING.name, balance=BALANCED))} moves of load",
    )


def _last(results: Results, case: Case) -> str:
    """Returns when the balancer was content, and with what."""
    moves = results.get("moves", case=case.name, k=K, balance=BALANCED)
    base = results.get("settled_s", case=case.name, k=K, balance=NO_BALANCER)
    ours = results.get("settled_s", case=case.name, k=K, balance=BALANCED)
    after = f"after round {moves[-1]['round']} nothing is moved" if moves else "nothing is moved"
    least = base / case.bound(K)
    return f"{after}, with {ours * 1e3:.1f} ms an iteration where the bound is {least * 1e3:.1f} ms"


def _blocked(results: Results) -> Iterator[Figure]:
    blocks = [
        row.measures["blocked_s"] / len(row.measures["moves"]) / row.measures["settled_s"]
        for row in results.all(balance=BALANCED)
        if row.measures["moves"] and "case" in row.values
    ]
    if blocks:
        yield Figure(
            "blocked.iterations",
            "that a move holds rounds back at the worker with the most, the mean of the worst run",
            "iterations",
            _OURS,
            max(blocks),
            max(blocks) <= 1,
            "a chunk map holds from a round that begins when all workers and servers know of it",
        )


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    moved = results.get("moves", case=NOTHING.name, balance=BALANCED)
    wrong = [(case, k) for case, k in cases(results) if case is not NOTHING]
    return [
        Claim("Nothing is moved where nothing is wrong.", not moved),
        Claim(
            "Wherever something is wrong, load moves, and iterations become shorter.",
            all(
                results.get("moves", case=case.name, k=k, balance=BALANCED)
                and speedup(results, case, k) > 1
                for case, k in wrong
            ),
        ),
    ]
