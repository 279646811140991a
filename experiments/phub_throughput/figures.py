# SPDX-License-Identifier: Apache-2.0
"""Published figures, and ours from the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from experiments.common.declaration import Claim, Figure, Published, Results
from experiments.common.phub import (
    COPY_NS,
    MXNET,
    MXNET_IB,
    PBOX,
    PSHARD,
    RATES,
    SUM_RATE,
    SWITCHES,
    SYSTEMS,
    WORKERS,
    System,
    model_bytes,
)
from experiments.phub_throughput.jobs import MODELS, QUICK, Model

__all__ = [
    "TRAFFIC",
    "claims",
    "figures",
    "gain",
    "in_sequence",
    "models",
    "plan_errors",
    "rates",
    "seconds",
    "varied_gain",
]

TRAFFIC = 2 * (WORKERS - 1) / WORKERS  # gradients that pass a link each way, sharded over central
_NEW = Published(None, "new", "nobody has published one")
_PLAN_ERROR = 0.15
_SLACK = 0.01


def models(results: Results) -> Sequence[Model]:
    """Returns the models of the points."""
    return QUICK if results.quick else MODELS


def rates(results: Results) -> Sequence[int]:
    """Returns the rates of the points in Gbit/s."""
    return RATES[:1] if results.quick else RATES


def seconds(results: Results, model: Model, rate: float, system: System) -> float:
    """Returns the time of an iteration."""
    found = results.get("seconds", of="run", model=model.name, rate=rate, system=system.name)
    return float(found)


def gain(results: Results, model: Model, rate: float, over: System, of: System = PBOX) -> float:
    """Returns the throughput of a system over another's."""
    return seconds(results, model, rate, over) / seconds(results, model, rate, of)


def varied_gain(results: Results, model: Model, parameter: str, factor: float) -> float:
    """Returns PHub's throughput over stock MXNet's at 10 Gbit/s with a parameter times a factor."""
    rate = RATES[0]
    if factor == 1:
        times = [
            results.get("seconds", of="planned", model=model.name, rate=rate, system=one.name)
            for one in (MXNET, PBOX)
        ]
    else:
        times = [
            results.get(
                "seconds", of="sensitivity", model=model.name, parameter=parameter, factor=factor,
                system=one.name,
            )
            for one in (MXNET, PBOX)
        ]  # fmt: skip
    return float(times[0] / times[1])


def plan_errors(results: Results) -> dict[str, list[float]]:
    """Returns the relative errors of planned times of each system that also ran."""
    found: dict[str, list[float]] = {}
    for row in results.all(of="run"):
        values = {**row.values, "of": "planned"}
        planned = results.get("seconds", **values)
        error = planned / row.measures["seconds"] - 1
        found.setdefault(str(row.values["system"]), []).append(error)
    return found


def figures(results: Results) -> Sequence[Figure]:
    """Returns the figures."""
    return list(_figures(results))


def _figures(results: Results) -> Iterator[Figure]:
    low, high = RATES
    posters = "poster of PHub, 8 workers"
    for model in models(results):
        published = [
            (low, MXNET_IB, PBOX, model.over_ib, "poster", f"{posters}; abstract: up to 2.7"),
            (low, MXNET, PBOX, model.over_mxnet, "poster", posters),
        ]
        traffic = model.over_mxnet / model.shard_over_mxnet
        for rate, over, of, value, _, source in published:
            yield _gain(results, model, rate, over, of, Published(value, "poster", source))
        source = "both over stock MXNet on the poster"
        yield _gain(results, model, low, PSHARD, PBOX, Published(traffic, "derived", source))
        if high in rates(results):
            source = f"{posters}, 56 Gbit/s"
            figure = Published(model.over_mxnet_56, "poster", source)
            yield _gain(results, model, high, MXNET, PBOX, figure)
        yield _gain(results, model, low, MXNET, SWITCHES, _NEW)


def _gain(
    results: Results, model: Model, rate: int, over: System, of: System, published: Published
) -> Figure:
    ours = gain(results, model, rate, over, of)
    slow, fast = (seconds(results, model, rate, one) for one in (over, of))
    name = model.title.lower().replace("-", "")
    why = ""
    if published.value is not None:
        needed = fast * published.value
        why = (
            f"{of.name} takes {1e3 * fast:.0f} ms, {_parts(model, rate, of)}; {over.name}"
            f" {1e3 * slow:.0f} ms, {_parts(model, rate, over)}. For the published gain"
            f" it would have to take {1e3 * needed:.0f} ms, {1e3 * (needed - slow):.0f} ms more"
        )
        if over is PSHARD:
            why += f"; traffic alone gives at most {TRAFFIC:.2f}"
        else:
            serial = in_sequence(model, rate, over)
            why += (
                ", as here its parts overlap: one after another they take"
                f" {1e3 * serial:.0f} ms, a gain of {serial / fast:.1f}"
            )
    return Figure(
        f"{of.name}/{over.name}.{name}@{rate}Gbit/s".replace(" ", ""),
        f"throughput of {of.name} over {over.name}, {model.title}",
        "x",
        published,
        ours,
        published.value is None or ours >= published.value,
        why,
    )


def _seconds_of(model: Model, rate: int, system: System) -> dict[str, float]:
    """Returns what takes time in an iteration, each part alone."""
    size = model_bytes(model.name)
    sharded = system.placement == "cs"
    found = {
        "computing": 1e-3 * model.milliseconds,
        "bytes on a link": size * (TRAFFIC if sharded else 1) * 8e-9 / rate,
    }
    if system.copies:
        found["copies"] = 1e-9 * COPY_NS * TRAFFIC * size
    if system.sums:
        found["sums"] = 8e-9 * size / SUM_RATE
    return found


def _parts(model: Model, rate: int, system: System) -> str:
    found = _seconds_of(model, rate, system).items()
    return f"with {', '.join(f'{name} {1e3 * took:.0f}' for name, took in found)}"


def in_sequence(model: Model, rate: int, system: System) -> float:
    """Returns the time of an iteration whose parts do not overlap, but for copies and links."""
    found = _seconds_of(model, rate, system)
    moved = max(found["bytes on a link"], found.get("copies", 0.0))
    return found["computing"] + moved + found.get("sums", 0.0)


def claims(results: Results) -> Sequence[Claim]:
    """Returns what must hold."""
    pairs = [(model, rate) for model in models(results) for rate in rates(results)]
    by_server = [system for system in SYSTEMS if system is not SWITCHES]
    ordered = all(
        seconds(results, *pair, one) <= (1 + _SLACK) * seconds(results, *pair, other)
        for pair in pairs
        for one, other in pairwise(by_server)
    )
    traffic = [gain(results, *pair, PSHARD) for pair in pairs]
    errors = [abs(error) for found in plan_errors(results).values() for error in found]
    bound = [
        gain(results, model, rate, PSHARD)
        for model, rate in pairs
        if model_bytes(model.name) * 8 / (rate * 1e9) > model.milliseconds / 1e3
    ]
    found = [
        Claim(
            "No model is slower with PHub than PShard, MXNet IB and MXNet, in this order", ordered
        ),
        Claim(
            f"less traffic alone never gives more than {TRAFFIC:.2f}: {max(traffic):.2f} at most",
            max(traffic) <= TRAFFIC * (1 + _SLACK),
        ),
        Claim(
            f"planned times are within {100 * _PLAN_ERROR:.0f} % of runs: {100 * max(errors):.1f} %"
            " at most",
            max(errors) <= _PLAN_ERROR,
        ),
        Claim(
            "switches that sum are as fast as PHub, within 3 %",
            all(abs(gain(results, *pair, SWITCHES) - 1) < 0.03 for pair in pairs),
        ),
        Claim(
            "no packet was retransmitted",
            not any(row.measures["retransmitted"] for row in results.all(of="run")),
        ),
    ]
    if bound:
        found.append(
            Claim(
                "where a model's bytes take longer than computing, less traffic alone gives"
                f" {min(bound):.2f} and more",
                min(bound) > 1.5,
            )
        )
    return found
