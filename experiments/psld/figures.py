# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.psld.jobs import BALANCED, BANDWIDTH, CPU, NO_BALANCER, NOTHING, SERVERS, K

__all__ = ["bound", "claims", "cost", "factors", "figures", "speedup"]

_PUBLISHED = Published(2.86, "abstract", "at most, of several stragglers; which, is not stated")
_SHARE = 0.9  # of the bound that is to be reached
_MOST_COST = 1.0  # percent


def bound(k: float) -> float:
    """Returns by how much rounds become shorter if all servers are busy all the time, where one of
    them takes k times as long, and was what all waited for."""
    return (k * (SERVERS - 1) + 1) / SERVERS


def factors(results: Results, wrong: str) -> list[float]:
    """Returns how slow the first server was made, in the order of points."""
    return [float(row.values["k"]) for row in results.all(wrong=wrong, balance=BALANCED)]


def speedup(results: Results, wrong: str, k: float) -> float:
    """Returns the time of an iteration without a balancer over that with it once it has settled."""
    before, after = (
        float(results.get("settled_s", wrong=wrong, k=k, balance=one))
        for one in (NO_BALANCER, BALANCED)
    )
    return before / after


def cost(results: Results) -> float:
    """Returns by how much longer iterations take with a balancer where nothing is wrong, in
    percent."""
    return 100 * (1 / speedup(results, NOTHING, 1.0) - 1)


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    names = {BANDWIDTH: "a server's link", CPU: "a server's processing"}
    for wrong, name in names.items():
        if K not in factors(results, wrong):
            continue
        ours = speedup(results, wrong, K)
        yield Figure(
            f"speedup.{wrong}.k{K:g}",
            f"iterations without over with balancing, {name} {K:g} times slower",
            "x",
            _PUBLISHED,
            ours,
            ours >= _SHARE * bound(K),
            f"{100 * ours / bound(K):.0f} % of the bound of {bound(K):.3f} is reached,"
            f" {100 * _SHARE:.0f} % was wanted; {_last(results, wrong)}",
        )
    yield from _blocked(results)
    percent = cost(results)
    yield Figure(
        "cost.nothing-wrong",
        "longer iterations with balancing where nothing is wrong",
        "%",
        Published(None, "new", "nobody has published one"),
        percent,
        percent < _MOST_COST,
        f"{len(results.get('moves', wrong=NOTHING, balance=BALANCED))} moves of load",
    )


def _last(results: Results, wrong: str) -> str:
    """Returns when the balancer was content, and with what."""
    moves = results.get("moves", wrong=wrong, k=K, balance=BALANCED)
    base = results.get("settled_s", wrong=wrong, k=K, balance=NO_BALANCER)
    ours = results.get("settled_s", wrong=wrong, k=K, balance=BALANCED)
    after = f"after round {moves[-1]['round']} nothing is moved" if moves else "nothing is moved"
    least = base / bound(K)
    return f"{after}, with {ours * 1e3:.1f} ms an iteration where the bound is {least * 1e3:.1f} ms"


def _blocked(results: Results) -> Iterator[Figure]:
    blocks = [
        row.measures["blocked_s"] / len(row.measures["moves"]) / row.measures["settled_s"]
        for row in results.all(balance=BALANCED)
        if row.measures["moves"]
    ]
    if blocks:
        yield Figure(
            "blocked.iterations",
            "that a move holds rounds back at the worker with the most, the mean of the worst run",
            "iterations",
            Published(None, "new", "nobody has published one"),
            max(blocks),
            max(blocks) <= 1,
            "a chunk map holds from a round that begins when all workers and servers know of it",
        )


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    moved = results.get("moves", wrong=NOTHING, balance=BALANCED)
    return [
        Claim("Nothing is moved where nothing is wrong.", not moved),
        Claim(
            "Load moves away from a server whose link is slow.",
            all(
                results.get("moves", wrong=BANDWIDTH, k=k, balance=BALANCED)
                for k in factors(results, BANDWIDTH)
            ),
        ),
    ]
