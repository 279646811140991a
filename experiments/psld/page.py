# SPDX-License-Identifier: Apache-2.0
"""The sections of the experiment's page, and its plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.common.declaration import Plot, Results, Section, Table
from experiments.common.plots import curve, legend, panels, start, ticks
from experiments.common.sensitivity import Varied, sensitivity
from experiments.psld.figures import PUBLISHED, cases, speedup, varied_speedup
from experiments.psld.jobs import (
    BALANCED,
    CASES,
    IMBALANCE,
    NO_BALANCER,
    NOTHING,
    SWITCHES,
    TRAFFIC,
    VARIED,
    Case,
    K,
    varied_cases,
)
from experiments.psld.predicted import seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sections"]

_UNDONE = " did not help"  # ends the reason of a move that undoes another

_TRAFFIC = (
    "Where traffic comes and goes, less is gained: rounds until the first chunk map holds take a"
    " third of the time that the traffic lasts. How fast the two servers are that it slows depends"
    " on their own load, as both share a queue with it, so more moves follow. Once it is over, load"
    " is back within three rounds."
)


def sections(results: Results) -> Sequence[Section]:
    """Returns the sections."""
    return list(_sections(results))


def _sections(results: Results) -> Iterator[Section]:
    model = (
        "a job of six keys, 6 MB"
        if results.quick
        else "ResNet-50 unless another model is named, with 20 ms of computing an iteration"
        " (assumed: short, so that servers bound the job)"
    )
    yield Section(
        "What is run",
        [
            "Four workers and four parameter servers in a rack (`placement: ncs`, or `cs` where"
            f" servers are at workers' hosts), 10 Gbit/s, {model}, in virtual time. From the"
            " beginning a server is k times slower: its link in both directions, or its processing,"
            " where servers take payloads at 5 Gbit/s. Traffic that comes and goes is 7 Gbit/s from"
            " the first server to the second for 3 s of every 6 s. With ten servers there are two"
            " workers, servers' links have 2.5 Gbit/s, and at first each key is whole at the least"
            " loaded server, so that the one with fc6 has 7.15 times the mean. The time of an"
            " iteration is the median of the last four, with traffic the mean of all.",
            "If S slow servers of P bound the job and load can be levelled exactly, an iteration is"
            " (k (P - S) + S) / P times shorter: the *bound*. Computing that no transfer hides"
            " takes as long before as after, so less can be reached.",
        ],
    )
    yield Section(
        "The rule",
        [
            "Workers measure round by round how many chunks each server has summed, how long"
            " after the round's first contribution it was done, and how long contributions waited"
            " for their sums. Chunks over time are a server's speed, or less if it waited for"
            " workers: where contributions wait less than half as long as at the server that is"
            " done last, the server is taken for as fast, for its link, as the fastest other one,"
            " but for at most twice as fast as measured. So a straggler that has recovered gets"
            " load back; one that has been relieved has a queue as long as it is done with the"
            " others.",
            "Slices move so that all are predicted to be done at the same time, as few as"
            " possible, if that saves 5 % of a round (1 % after a move that helped) and four"
            " standard errors of what was measured. Two rounds are enough to decide, up to 16 are"
            " averaged, and those before a change of more than a tenth are left out. After a move"
            " two rounds are left out, and four compared with those before: if they are not"
            " shorter by two standard errors, the move is undone, and nothing is tried for 20"
            " rounds, then for 80, for 320, until a move helps; or until rounds change by"
            " themselves, after which what was measured and tried before does not count. The"
            " publication's own rule and thresholds are not known.",
        ],
    )
    yield _speedups(results)
    if not results.quick:
        yield _alternatives(results)
    yield _course(results)
    if not results.quick:
        yield _assumed(results)


def _speedups(results: Results) -> Section:
    rows = []
    for case, k in cases(results):
        if case is NOTHING:
            continue
        before, after = (
            results.get(
                "mean_s" if case is TRAFFIC else "settled_s", case=case.name, k=k, balance=one
            )
            for one in (NO_BALANCER, BALANCED)
        )
        gain, least = speedup(results, case, k), case.bound(k)
        bounded = case not in (TRAFFIC, IMBALANCE)
        rows.append(
            (
                _name(case, k),
                *(f"{before * 1e3:.1f}", f"{after * 1e3:.1f}", f"{gain:.2f}"),
                f"{least:.3f}" if bounded else "-",
                f"{100 * gain / least:.0f}" if bounded else "-",
                _settled(results, case, k),
            )
        )
    plot = Plot(
        "speedup",
        "Iterations without over with balancing, against how slow the server is.",
        partial(_draw_speedups, results),
    )
    table = Table(
        ("wrong", "no balancer ms", "balanced ms", "speed-up", "bound", "% of it", "within rounds"),
        rows,
    )
    return Section(
        "Speed-up",
        [
            *([] if results.quick else [plot]),
            table,
            "*Within rounds* is the first round from which on iterations take at most 10 % more"
            " than the settled ones.",
            *([] if results.quick else [_TRAFFIC]),
        ],
    )


def _name(case: Case, k: float) -> str:
    return f"{case.title}, k = {k:g}" if k > 1 else case.title


def _settled(results: Results, case: Case, k: float) -> str:
    if case is TRAFFIC:
        return "-"
    times = results.get("times", case=case.name, k=k, balance=BALANCED)
    most = 1.1 * results.get("settled_s", case=case.name, k=k, balance=BALANCED)
    late = [number for number, seconds in enumerate(times, 1) if seconds > most]
    return str(max(late, default=0) + 1)


def _alternatives(results: Results) -> Section:
    rows = []
    for case, k in cases(results):
        for other in case.others if k in (1.0, K) else ():
            time = results.get("settled_s", case=case.name, k=k, balance=other)
            gain = speedup(results, case, k, other)
            rows.append((_name(case, k), other, f"{time * 1e3:.1f}", f"{gain:.2f}"))
    bandwidth = next(case for case in CASES if SWITCHES in case.others)
    faster = speedup(results, bandwidth, K, SWITCHES)
    planned = [
        (
            one,
            f"{1e3 * seconds(bandwidth, K, one):.1f}",
            f"{1e3 * results.get('settled_s', case=bandwidth.name, k=K, balance=one):.1f}",
        )
        for one in (NO_BALANCER, BALANCED, SWITCHES)
    ]
    return Section(
        "Against what else could be done",
        [
            Table(("wrong", "instead", "ms", "balancing is faster by"), rows, text=True),
            "*MXNet's hashing*: keys of a million parameters and more have a part at each server,"
            " others are hashed. *least-loaded*: equal bytes at all servers, whatever their speed."
            " *slices*: keys are cut from the beginning, and spread evenly. *switches*: the rack's"
            " switch sums (`placement: inc`), and the servers that are slow are none of the job's.",
            "A tree without servers has no server to straggle: with a slow server's link it takes"
            f" {faster:.2f} of the time that balanced servers take. It is the better answer"
            " where the switch has slots; what slows a worker slows both alike. `rackhub plan` says"
            " so beforehand, where the topology has the slow link and the job its `balance`:",
            Table(("with a slow link", "planned ms", "measured ms"), planned),
        ],
    )


def _course(results: Results) -> Section:
    rows = []
    for case, k in cases(results):
        for move in results.get("moves", case=case.name, k=k, balance=BALANCED):
            rows.append((_name(case, k), str(move["round"]), str(move["slices"]), move["why"]))
    return Section(
        "Moves",
        [
            Plot(
                "course",
                "Time of each iteration. Lines are the first rounds under a new chunk map; dashed:"
                " one that undoes a move that did not help.",
                partial(_draw_course, results),
            ),
            "*Moved* counts slices that went to other servers.",
            Table(("wrong", "from round", "moved", "why"), rows, text=True),
        ],
    )


def _assumed(results: Results) -> Section:
    rows = [
        (
            "time of computing",
            "20 ms an iteration",
            "assumed: short, so that servers bound the job",
        ),
        ("slices", "40,000 parameters", "artifact of P3; PSLD's are not known"),
        ("packets that a host gets at a time", "those of 400 us", "assumed"),
        ("rate of a server", "5 Gbit/s, where processing is slow", "assumed: half of its link"),
        ("rate and delay of a link", "10 Gbit/s, 10 us", "assumed"),
        ("bytes in flight of a stream", "4 MB", "assumed: many times what a link holds"),
        ("the balancer's rule", "above", "ours: the publication's is not known"),
    ]
    varied = [
        Varied(
            f"slow {'processing' if case.slow == 'processing' else 'link'}, k = {K:g}",
            text,
            partial(varied_speedup, results, name),
            PUBLISHED,
        )
        for name, text in VARIED.items()
        for case in varied_cases(name)
    ]
    return Section(
        "What is assumed",
        [
            Table(("parameter", "value", "from"), rows, text=True),
            *sensitivity(
                "Iterations without over with balancing with a parameter halved and doubled:"
                " ResNet-18, ten rounds. Dotted: published.",
                "speed-up (times)",
                varied,
            ),
            "ResNet-18 has as much computing for its bytes as ResNet-50 above, and comes as near to"
            " the bound. A link's rate counts only beside the time of computing. The rule's"
            " thresholds are the program's, and not varied.",
        ],
    )


def _draw_speedups(results: Results) -> Figure:
    figure, axes = start(3.2)
    wide = [1 + 0.05 * n for n in range(91)]
    shown = [case for case in CASES if len(case.ks) > 1]
    axes.plot(wide, [shown[0].bound(k) for k in wide], ":", color="#7f7f7f", label="bound")
    for number, case in enumerate(shown):
        curve(axes, number, [(k, speedup(results, case, k)) for k in case.ks], case.title)
    axes.plot([K], [PUBLISHED], "*", color="#7f7f7f", markersize=11, label="published, at most")
    axes.set(xlabel="k: how many times slower the server is", ylim=(0, None), xlim=(1, 5.5))
    axes.set_ylabel("speed-up")
    ticks(axes, (1, 2, K, 5), lambda k: f"{k:g}")
    axes.legend(loc="upper left")
    return figure


def _draw_course(results: Results) -> Figure:
    shown = [(case, k) for case, k in cases(results) if _is_drawn(case, k)]
    figure, axes = panels(1, len(shown), 3.0)
    for one, (case, k) in zip(axes, shown, strict=True):
        times, moves = (
            results.get(what, case=case.name, k=k, balance=BALANCED) for what in ("times", "moves")
        )
        for number, move in enumerate(moves):
            style = "--" if move["why"].endswith(_UNDONE) else "-"
            one.axvline(
                move["round"] - 0.5, color="#999999", linewidth=1, linestyle=style,
                label="_nolegend_" if number else "load moves",
            )  # fmt: skip
        before = results.get("times", case=case.name, k=k, balance=NO_BALANCER)
        if case is TRAFFIC:
            curve(one, 1, enumerate((1e3 * seconds for seconds in before), 1), "without")
        else:
            level = 1e3 * results.get("settled_s", case=case.name, k=k, balance=NO_BALANCER)
            one.axhline(level, color="#7f7f7f", linewidth=1, linestyle=":", label="no balancer")
            least = level / case.bound(k)
            one.axhline(least, color="#7f7f7f", linewidth=1, linestyle="-.", label="bound")
        curve(one, 0, enumerate((1e3 * seconds for seconds in times), 1), "balance: psld")
        one.set_title(_name(case, k), loc="left")
        one.set(xlabel="round", ylim=(0, None))
    axes[0].set_ylabel("ms per iteration")
    legend(figure, axes, 5)
    return figure


def _is_drawn(case: Case, k: float) -> bool:
    """Returns whether the course of this case's balanced run is drawn."""
    return case.name in ("bandwidth", "cpu", "traffic") and k in (1.0, K)
