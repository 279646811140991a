# SPDX-License-Identifier: Apache-2.0
"""The prediction experiment: ``rackhub experiment predictions --help``."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import click

from experiments.common.script import Results, Setup, experiment
from experiments.predictions.points import POINTS, Result, measure

_HEADINGS = "| | predicted | measured | error | bytes |"
_SHOWN = 5e-5  # of an error
_KINDS = tuple(dict.fromkeys(point.what for point in POINTS))


@experiment
@click.option("--only", multiple=True, type=click.Choice(_KINDS), help="Repeatable.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Runs at a time."
)
def main(setup: Setup, only: tuple[str, ...], jobs: int) -> Results:
    """Compare predictions of `rackhub plan` with runs in virtual time: iteration time, and bytes of
    links of each class. Prints the table of docs/results/plan-accuracy.md; --write replaces it.

    Exit status 1 if bytes differ, or a time by more than is stated there.
    """
    if setup.writes and only:
        raise click.UsageError("--write takes all points; leave --only out")
    points = [point for point in POINTS if point.what in only or not only]
    found: list[Result] = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for number, result in enumerate(pool.map(measure, points), 1):
            click.echo(f"{number}/{len(points)}: {result.point.name}", err=True)
            found.append(result)
    table = "\n".join([_HEADINGS, "|---|---:|---:|---:|---|", *map(_row, found)])
    problems = []
    for one in found:
        if one.wrong:
            problems.append(f"{one.point.name}: bytes (predicted, measured): {one.wrong}")
        elif abs(one.error) > one.point.within:
            problems.append(f"{one.point.name}: {one.error:+.1%}")

    def page(old: str) -> str:
        before, heading, after = old.partition(_HEADINGS)
        return before + table + after[after.index("\n\n") :] if heading else table + "\n"

    return Results([one.message() for one in found], [table], page, problems)


def _row(one: Result) -> str:
    bytes_are = "and more, retransmitted" if one.again else "differ" if one.wrong else "exact"
    times = f"{one.predicted * 1e3:.4g} ms | {one.measured * 1e3:.4g} ms"
    error = f"{one.error:+.2%}" if abs(one.error) >= _SHOWN else "0"
    return f"| {one.point.name} | {times} | {error} | {bytes_are} |"
