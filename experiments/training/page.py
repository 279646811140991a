# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Row, Section, Table
from experiments.common.plots import panels
from experiments.common.sensitivity import Varied, sensitivity
from experiments.training.figures import curve, reached, rows, target, varied_ratio
from experiments.training.jobs import COLOCATED, DIGITS, P3, SHARDED, VARIED, WAYS, Model, models
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["sections"]

_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), "-.", (0, (3, 1, 1, 1, 1, 1)))


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    return list(_sections(results))


def _sections(results: Results) -> Iterator[Section]:
    used = {str(row.values["way"]) for row in results.rows}
    listed = "\n".join(f"- *{way}*: {what}" for way, what in WAYS.items() if way in used)
    yield Section(
        "What is run",
        [
            "Eight workers in a rack train a model of handwritten digits, or of English by"
            " character (`jobs/digits.yaml`; `jobs/characters.yaml` with a hidden layer of 256 and"
            " batches of 1,024), on real data. All links have the same rate, 20 Mbit/s for the"
            " digits' 69 kB of gradients and 100 Mbit/s for the characters' 369 kB, so that they"
            " bound an iteration; computing takes 20 ms (assumed), layer by layer. What differs is"
            " what sums gradients:",
            listed,
            "A ring of processes trains nothing here: `rackhub compare` has one, but no trainer."
            " Colocated servers put as many bytes on each worker's link. Steps are taken at"
            " workers.",
        ],
    )
    for model in models(results.quick):
        yield _of(results, model)
    real = rows(results, DIGITS, "emulated")
    if real:
        yield _emulated(results, real)
    if not results.quick:
        yield _assumed(results)


def _of(results: Results, model: Model) -> Section:
    loss = target(results, model)
    cells = [
        (
            str(row.values["way"]),
            f"{1e3 * row.measures['seconds']:.1f}",
            f"{reached(row, loss):.2f}",
            f"{row.measures['total_s']:.2f}",
            f"{100 * row.measures['test_accuracy']:.1f}",
            f"`{row.measures['weights'][:12]}`",
        )
        for row in rows(results, model)
    ]
    return Section(
        model.name.capitalize(),
        [
            Plot(
                model.name,
                f"Training loss, and accuracy on held-out examples, over virtual time:"
                f" {model.name}.",
                partial(_draw, rows(results, model)),
            ),
            Table(
                (
                    *("summed by", "ms per iteration", f"s to a loss of {loss:.2f}", "s in all"),
                    *("accuracy %", "SHA-256 of weights"),
                ),
                cells,
            ),
            "Loss and accuracy of an iteration are the same in every row, and so are the weights,"
            " bit by bit: sums are of integers. Only the time differs.",
        ],
    )


def _draw(found: Sequence[Row]) -> Figure:
    figure, (left, right) = panels(1, 2, 3.2)
    for number, row in enumerate(found):
        way = str(row.values["way"])
        _line(left, number, curve(row), way)
        points = [(end, 100 * one) for end, _, one in row.measures["curve"] if one is not None]
        _line(right, number, points, way)
    left.set(
        xlabel="virtual time (s)", ylabel="training loss (nats)", ylim=(0, None), xlim=(0, None)
    )
    right.set(xlabel="virtual time (s)", ylabel="accuracy (%)", xlim=(0, None))
    left.legend()
    return figure


def _line(axes: Axes, number: int, points: Sequence[tuple[float, float]], label: str) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=pictures.COLOURS[number],
        linestyle=_DASHES[number],
        linewidth=1.6,
        label=label,
    )


def _emulated(results: Results, real: Sequence[Row]) -> Section:
    virtual = {row.values["way"]: row for row in rows(results, DIGITS)}
    cells = []
    for row in real:
        other = virtual[row.values["way"]]
        same = row.measures["weights"] == other.measures["weights"]
        bound = row.measures["cpu_bound"]
        cells.append(
            (
                *(str(row.values["way"]), f"{1e3 * row.measures['seconds']:.1f}"),
                *(f"{100 * row.measures['test_accuracy']:.1f}", "same" if same else "differ"),
                "unknown" if bound is None else "yes" if bound else "no",
            )
        )
    return Section(
        "Emulated",
        [
            "The digits once more by real processes on the embedded target. Computing takes what"
            " it takes, and all share one machine, so times are the machine's where it says so."
            " Weights are those of virtual time.",
            Table(
                ("summed by", "ms per iteration", "accuracy %", "weights", "bound by the machine"),
                cells,
                text=True,
            ),
        ],
    )


def _assumed(results: Results) -> Section:
    table = [
        ("time of computing", "20 ms an iteration, a third forward", "assumed"),
        ("rate of links", f"{DIGITS.rate} (digits)", "assumed: links bound an iteration"),
        ("delay of a link", "50 us", "assumed"),
        ("slices", f"{DIGITS.slice:,} parameters (digits)", "assumed: small, for eight servers"),
        ("window", "64 chunks of 1 KiB", "assumed"),
    ]
    varied = [
        Varied(way, text, partial(varied_ratio, results, way, name))
        for way in (COLOCATED, P3, SHARDED)
        for name, text in VARIED.items()
    ]
    return Section(
        "What is assumed",
        [
            "Loss and accuracy of an iteration depend on none of this, so the time to a loss does"
            " as an iteration's does.",
            Table(("parameter", "value", "from"), table, text=True),
            *sensitivity(
                "Time of an iteration of the digits over that with switches, with a parameter"
                " halved and doubled.",
                "time over in-network (times)",
                varied,
            ),
        ],
    )
