# SPDX-License-Identifier: Apache-2.0
"""The experiment's plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.common.declaration import Results
from experiments.common.plots import curve, panels, start, ticks
from experiments.common.sensitivity import setting
from experiments.p3.figures import PUBLISHED, gains, slice_times
from experiments.p3.jobs import ARTIFACT_SLICE, BASELINE, FIFO, P3, PLACEMENTS
from experiments.p3.models import BATCH, MODELS, VGG, WORKERS, Model
from experiments.p3.traced import BINS
from observability import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "MOST_SHOWN",
    "draw_gains",
    "draw_links",
    "draw_placements",
    "draw_slices",
    "draw_throughput",
    "varied_gain",
]

_RATES = (1, 2, 4, 6, 10, 15, 20, 30)
MOST_SHOWN = 60  # percent; few parameters a slice take up to three times as long


def draw_gains(results: Results) -> Figure:
    """Draws gains over bandwidth, and the published ones."""
    figure, axes = start(3.6)
    for number, model in enumerate(MODELS):
        curve(axes, number, gains(results, model), model.title)
        if model in PUBLISHED:
            axes.plot(
                [model.rate], [PUBLISHED[model]], "*", color=pictures.COLOURS[number],
                markersize=13, markeredgecolor="white", zorder=1,
            )  # fmt: skip
    axes.plot([], [], "*", color="#7f7f7f", markersize=11, label="published, at most")
    axes.set(xscale="log", xlabel="bandwidth of a machine's link (Gbit/s)", ylim=(0, None))
    axes.set_ylabel("P3's throughput over the baseline (%)")
    ticks(axes, _RATES, lambda rate: f"{rate:g}")
    axes.legend(loc="upper left")
    return figure


def draw_throughput(results: Results) -> Figure:
    """Draws throughputs over bandwidth, a panel for each model."""
    figure, axes = panels(2, 2, 4.6)
    for one, model in zip(axes, MODELS, strict=True):
        for number, policy in enumerate((BASELINE, P3)):
            rows = results.all(of="gain", model=model.name, policy=policy)
            points = [
                (float(row.values["rate"]), WORKERS * BATCH / row.measures["seconds"])
                for row in rows
            ]
            curve(one, number, points, policy)
        ideal = WORKERS * BATCH / model.seconds
        one.axhline(ideal, color="#7f7f7f", linewidth=1, linestyle=":", label="without network")
        one.set_title(model.title, loc="left")
        one.set(ylim=(0, 1.12 * ideal), xlim=(0, None))
    axes[0].legend(loc="lower right")
    for one in axes[2:]:
        one.set_xlabel("Gbit/s")
    figure.supylabel("examples a second, all workers", fontsize="medium")
    return figure


def draw_slices(results: Results) -> Figure:
    """Draws iteration times over sizes of slices, relative to each model's best."""
    figure, axes = start(3.2)
    sizes: set[int] = set()
    for number, model in enumerate(MODELS):
        times = slice_times(results, model)
        if times:
            least = min(seconds for _, seconds in times)
            points = [(size, 100 * (seconds / least - 1)) for size, seconds in times]
            shown = [point for point in points if point[1] <= MOST_SHOWN]
            curve(axes, number, shown, f"{model.title}, {model.rate:g} Gbit/s")
            sizes |= {size for size, _ in shown}
    axes.axvline(50_000, color="#7f7f7f", linewidth=1, linestyle=":", label="published best")
    axes.set(xscale="log", xlabel="parameters of a slice", ylim=(0, MOST_SHOWN))
    axes.set_ylabel("longer than with the best (%)")
    ticks(axes, sorted(sizes - {ARTIFACT_SLICE}), lambda size: f"{size:,.0f}")
    axes.legend()
    return figure


def draw_links(results: Results) -> Figure:
    """Draws how busy a machine's link is over an iteration, with both policies."""
    figure, axes = panels(2, 1, 4.2, sharex=True)
    for one, policy in zip(axes, (BASELINE, P3), strict=True):
        use = results.get("link_use", of="links", policy=policy)
        width = 1e3 * use["seconds"] / BINS
        times = [width * (n + 0.5) for n in range(BINS)]
        for number, (way, text) in enumerate((("send", "sends"), ("receive", "receives"))):
            one.plot(times, use[way], color=pictures.COLOURS[number], linewidth=1.3, label=text)
        for what, colour, height in (("backward", "#56b4e9", -13), ("forward", "#e69f00", -13)):
            spans = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in use[what]]
            one.broken_barh(spans, (height, 9), color=colour, label=f"{what} pass")
        mean = sum(use["send"]) / BINS
        one.set_title(
            f"{policy}: {1e3 * use['seconds']:.0f} ms, sends {mean:.0f} % of the time", loc="left"
        )
        one.set(ylim=(-16, 105), ylabel="link busy (%)")
        one.set_yticks((0, 50, 100))
    axes[1].set_xlabel("ms since the end of a forward pass")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_placements(results: Results) -> Figure:
    """Draws the time of an iteration for each placement, in order and by priority."""
    rates = (VGG.rate,) if results.quick else (VGG.rate, VGG.rates[0])
    figure, axes = panels(1, len(rates), 3.0)
    for one, rate in zip(axes, rates, strict=True):
        placements = [
            name
            for name in PLACEMENTS
            if any(results.all(of="placement", rate=rate, placement=name))
        ]
        for number, policy in enumerate((FIFO, P3)):
            found = [
                (place, 1e3 * row.measures["seconds"])
                for place, name in enumerate(placements)
                for row in results.all(of="placement", rate=rate, placement=name, policy=policy)
            ]
            bars = one.barh(
                [place + 0.2 * (2 * number - 1) for place, _ in found],
                [time for _, time in found],
                height=0.36,
                color=pictures.COLOURS[number],
                label="slices in order" if policy == FIFO else "P3",
            )
            one.bar_label(bars, fmt="%.0f", padding=3)
        one.axvline(
            1e3 * VGG.seconds, color="#7f7f7f", linewidth=1, linestyle=":", label="computing"
        )
        one.set_yticks(range(len(placements)), placements)
        one.invert_yaxis()
        one.grid(visible=False)
        one.margins(x=0.14)
        one.set_title(f"VGG-19 at {rate:g} Gbit/s", loc="left")
        one.set_xlabel("ms per iteration")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def varied_gain(results: Results, model: Model, parameter: str, factor: float) -> float:
    """Returns a model's gain in percent with the time of an iteration ("times"), or the forward
    pass's share of it ("forward"), times a factor."""
    values = setting(parameter, factor)
    if factor == 1:
        values = {"of": "gain", "rate": model.rate}
    elif parameter == "times":
        values = {"of": "times", "factor": factor}
    slow, fast = (
        results.get("seconds", **values, model=model.name, policy=policy)
        for policy in (BASELINE, P3)
    )
    return float(100 * (slow / fast - 1))
