# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Row, Section, Table
from experiments.common.plots import curve, panels, start, ticks
from experiments.psld.figures import bound, factors, speedup
from experiments.psld.jobs import BALANCED, BANDWIDTH, CPU, LINE_RATE, NO_BALANCER, SERVER_RATE, K

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_TITLES = {BANDWIDTH: "link", CPU: "processing"}


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    return list(_sections(results))


def _sections(results: Results) -> Iterator[Section]:
    model = (
        "six keys, 6 MB"
        if results.quick
        else "ResNet-50, 20 ms of computing an iteration (assumed)"
    )
    yield Section(
        "What is run",
        [
            f"Four workers and four parameter servers in a rack (`placement: ncs`), {LINE_RATE}"
            f" Gbit/s, {model}, in virtual time. From the beginning one server is k times slower:"
            " its link in both directions, or its processing, for which servers take payloads at"
            f" {SERVER_RATE} Gbit/s. Each is run without `balance` and with `balance: psld`. The"
            " time of an iteration is the median of the last ones with the last chunk map; with no"
            " balancer, of all but the first.",
            "If the slow server bounds the job and load can be levelled exactly, an iteration is"
            " (k (P - 1) + 1) / P times shorter with P servers: the *bound*. Computing that no"
            " transfer hides takes as long before as after, so less can be reached.",
        ],
    )
    yield Section(
        "The rule",
        [
            "Workers measure how long they wait for the sums of each server, round by round. A"
            " server straggles if its sums take 1.5 times the median's in two rounds. What it sums"
            " in a round then says how fast it is, and slices move, the largest first, from the"
            " server that would be done last to the one that would be done first. A straggler that"
            " waits for others later is tried with more load again, at 1.5 times its speed. After"
            " a move the controller leaves out two rounds and compares four with the four before:"
            " if they are not shorter by two standard errors, the move is undone and nothing is"
            " tried for 20 rounds. The publication's own rule and thresholds are not known."
        ],
    )
    yield _speedups(results)
    yield _course(results)
    yield Section(
        "What is missing",
        [
            "Whole keys that can be moved, so the imbalance of VGG-19 over ten servers; two"
            " stragglers; background traffic that comes and goes; more and fewer servers; the"
            " comparison with least-loaded assignment and with switches that sum; stragglers on an"
            " emulated testbed.",
        ],
    )


def _stragglers(results: Results) -> Iterator[tuple[str, float]]:
    for wrong in (BANDWIDTH, CPU):
        for k in factors(results, wrong):
            yield wrong, k


def _row(results: Results, wrong: str, k: float, balance: str) -> Row:
    (found,) = results.all(wrong=wrong, k=k, balance=balance)
    return found


def _speedups(results: Results) -> Section:
    rows = []
    for wrong, k in _stragglers(results):
        before = _row(results, wrong, k, NO_BALANCER).measures
        after = _row(results, wrong, k, BALANCED).measures
        gain = speedup(results, wrong, k)
        rows.append(
            (
                f"{_TITLES[wrong]}, k = {k:g}",
                f"{before['settled_s'] * 1e3:.1f}",
                f"{after['settled_s'] * 1e3:.1f}",
                *(f"{gain:.2f}", f"{bound(k):.3f}", f"{100 * gain / bound(k):.0f}"),
            )
        )
    plot = Plot(
        "speedup",
        "Iterations without over with balancing, against how slow the server is.",
        partial(_draw_speedups, results),
    )
    headings = ("slow", "no balancer ms", "balanced ms", "speed-up", "bound", "% of it")
    return Section(
        "Speed-up", [Table(headings, rows)] if results.quick else [plot, Table(headings, rows)]
    )


def _course(results: Results) -> Section:
    rows = []
    for wrong, k in _stragglers(results):
        for move in _row(results, wrong, k, BALANCED).measures["moves"]:
            what = f"{_TITLES[wrong]}, k = {k:g}"
            rows.append((what, str(move["round"]), str(move["slices"]), move["why"]))
    return Section(
        "Moves",
        [
            Plot(
                "course",
                "Time of each iteration. Lines are the first rounds under a new chunk map; dashed:"
                " one that undoes a move that did not help.",
                partial(_draw_course, results),
            ),
            "*Moved* counts slices that are not where the job's plan has them.",
            Table(("slow", "from round", "moved", "why"), rows, text=True),
        ],
    )


def _draw_speedups(results: Results) -> Figure:
    figure, axes = start(3.2)
    wide = [1 + 0.05 * n for n in range(91)]
    axes.plot(wide, [bound(k) for k in wide], ":", color="#7f7f7f", label="bound")
    for number, wrong in enumerate((BANDWIDTH, CPU)):
        points = [(k, speedup(results, wrong, k)) for k in factors(results, wrong)]
        if points:
            curve(axes, number, points, f"{_TITLES[wrong]} slow")
    axes.plot([K], [2.86], "*", color="#7f7f7f", markersize=11, label="published, at most")
    axes.set(xlabel="k: how many times slower the server is", ylim=(0, None), xlim=(1, 5.5))
    axes.set_ylabel("speed-up")
    ticks(axes, (1, 2, K, 5), lambda k: f"{k:g}")
    axes.legend(loc="upper left")
    return figure


def _draw_course(results: Results) -> Figure:
    shown = [(wrong, k) for wrong, k in _stragglers(results) if k == K]
    figure, axes = panels(1, len(shown), 3.0)
    for one, (wrong, k) in zip(axes, shown, strict=True):
        after = _row(results, wrong, k, BALANCED).measures
        before = _row(results, wrong, k, NO_BALANCER).measures["settled_s"]
        times = [1e3 * seconds for seconds in after["times"]]
        for move in after["moves"]:
            style = "--" if move["undoes"] else "-"
            one.axvline(move["round"] - 0.5, color="#bbbbbb", linewidth=1, linestyle=style)
        one.axhline(1e3 * before, color="#7f7f7f", linewidth=1, linestyle=":", label="no balancer")
        level = 1e3 * before / bound(k)
        one.axhline(level, color="#7f7f7f", linewidth=1, linestyle="-.", label="bound")
        curve(one, 0, enumerate(times, 1), "balance: psld")
        one.set_title(f"{_TITLES[wrong]} {k:g} times slower", loc="left")
        one.set(xlabel="round", ylim=(0, None))
    axes[0].set_ylabel("ms per iteration")
    axes[0].legend()
    return figure
