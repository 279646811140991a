# SPDX-License-Identifier: Apache-2.0
"""Runs the prediction experiment: ``python -m experiments.predictions --help``."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import click

from experiments.predictions.points import POINTS, Result, measure

_SHOWN = 5e-5  # of an error
_KINDS = tuple(dict.fromkeys(point.what for point in POINTS))


@click.command(context_settings={"max_content_width": 100})
@click.option("--only", multiple=True, type=click.Choice(_KINDS), help="Repeatable.")
@click.option(
    "--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, help="Runs at a time."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(only: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Compare predictions of `rackhub plan` with runs in virtual time: iteration time, and bytes of
    links of each class. Prints the table of docs/results/plan-accuracy.md.

    Exit status 1 if bytes differ, or a time by more than is stated there.
    """
    points = [point for point in POINTS if point.what in only or not only]
    found: list[Result] = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for number, result in enumerate(pool.map(measure, points), 1):
            click.echo(f"{number}/{len(points)}: {result.point.name}", err=True)
            found.append(result)
    if as_json:
        click.echo(json.dumps([one.message() for one in found], indent=2))
    else:
        click.echo("| | predicted | measured | error | bytes |\n|---|---:|---:|---:|---|")
        for one in found:
            click.echo(_row(one))
    wrong = [one for one in found if one.wrong or abs(one.error) > one.point.within]
    for one in wrong:
        what = f"bytes (predicted, measured): {one.wrong}" if one.wrong else f"{one.error:+.1%}"
        click.echo(f"error: {one.point.name}: {what}", err=True)
    sys.exit(bool(wrong))


def _row(one: Result) -> str:
    bytes_are = "and more, retransmitted" if one.again else "differ" if one.wrong else "exact"
    times = f"{one.predicted * 1e3:.4g} ms | {one.measured * 1e3:.4g} ms"
    error = f"{one.error:+.2%}" if abs(one.error) >= _SHOWN else "0"
    return f"| {one.point.name} | {times} | {error} | {bytes_are} |"


if __name__ == "__main__":
    main()
