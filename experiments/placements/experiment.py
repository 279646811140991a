# SPDX-License-Identifier: Apache-2.0
"""The placement experiment: ``rackhub experiment placements --help``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import yaml

from emulation.lifecycle.launcher import Launch
from emulation.lifecycle.running import bringing_up
from experiments.common.script import VIRTUAL, Results, Setup, chosen_clocks, experiment
from experiments.placements import larger
from experiments.placements.page import larger_table, page, table
from experiments.placements.rows import ROWS, TOPOLOGY, Line, Row, failed, judge, workload
from observability import control
from observability.machine import machine_facts
from observability.messages.summary import FinishedJob, is_finished
from observability.progress_view import View
from simulation.running import run_virtually
from specs import jobfile
from testbed.errors import LaunchError
from testbed.program import program_files, read_program
from workloads.workloads import shapes

_NAMES = [*(row.name for row in ROWS), *(row.name for row in larger.ROWS)]


@experiment
@click.option("--target", "targets", multiple=True, help="embedded, bmv2 or auto; repeatable.")
@click.option(
    "--clock",
    "clocks",
    multiple=True,
    type=click.Choice(["emulated", "virtual"]),
    default=("emulated",),
    show_default=True,
    help="Repeatable. virtual: each job on a simulated network of its own, without root; the larger"
    " model only with --only.",
)
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Repeatable.")
def main(
    setup: Setup, targets: tuple[str, ...], clocks: tuple[str, ...], only: tuple[str, ...]
) -> Results:
    """Train with every placement and check weights and link traffic; then train a larger model with
    each, with float32 and with float16 gradients.

    Exit status 1 if a check fails.
    """
    if setup.writes and only:
        raise click.UsageError("--write takes all placements; leave --only out")
    found = chosen_clocks(targets, clocks)
    rows = [row for row in ROWS if row.name in only or not only]
    larger_rows = [row for row in larger.ROWS if row.name in only or not only]
    lines: list[Line] = []
    larger_lines: list[larger.Line] = []
    for target in found:
        own = larger_rows if only or target != VIRTUAL else []
        names = ", ".join([*(row.name for row in rows), *(row.name for row in own)])
        setup.console.rule(f"{target}: {names}", align="left")
        playing = play_virtually if target == VIRTUAL else play
        with View(setup.console) as view:
            more, larger_more = playing(rows, own, target, setup.folder, view)
        lines += more
        larger_lines += larger_more
    larger.compare(larger_lines)

    def text(_: str) -> str:
        options = "".join(f" --target {one}" for one in found if one != VIRTUAL)
        options += "".join(f" --clock {one}" for one in clocks if clocks != ("emulated",))
        given = machine_facts("embedded" if found[0] == VIRTUAL else found[0])
        return page(lines, larger_lines, given, options)

    problems = [
        f"{one.placement}, tree {one.tree}, {one.target}: {problem}"
        for one in lines
        for problem in one.problems
    ]
    problems += [
        f"{one.placement}, {one.gradients}, {one.target}: {problem}"
        for one in larger_lines
        for problem in one.problems
    ]
    return Results(
        [*(one.message() for one in lines), *(one.message() for one in larger_lines)],
        [shown for shown in (table(lines), larger_table(larger_lines)) if shown.row_count],
        text,
        problems,
    )


Rows = Sequence[Row]
LargerRows = Sequence[larger.Row]


def play(
    rows: Rows, larger_rows: LargerRows, target: str, folder: Path, view: View
) -> tuple[list[Line], list[larger.Line]]:
    """Runs the rows' jobs one by one on one testbed; returns a line for each."""
    topology, files = _files(rows, larger_rows, folder)
    try:
        with bringing_up(topology, view.note, jobs=list(files.values()), target=target) as launched:
            launched.wait_until_up()
            results = {row: _submit(file, launched, view) for row, file in files.items()}
            where = launched.run.path.name
    except LaunchError as error:
        results, where = dict.fromkeys(files, str(error)), ""
    return _lines(rows, larger_rows, target, files, results, where)


def play_virtually(
    rows: Rows, larger_rows: LargerRows, target: str, folder: Path, view: View
) -> tuple[list[Line], list[larger.Line]]:
    """Runs each row's job in virtual time, on a network of its own; returns a line for each."""
    topology, files = _files(rows, larger_rows, folder)
    results: dict[Row | larger.Row, FinishedJob | str] = {}
    for row, file in files.items():
        try:
            run, _ = run_virtually(topology, [file], view)
            (summary,) = run.read_summary()["jobs"]
            assert is_finished(summary)
            results[row] = summary
        except LaunchError as error:
            results[row] = str(error)
    return _lines(rows, larger_rows, target, files, results, "")


def _files(
    rows: Rows, larger_rows: LargerRows, folder: Path
) -> tuple[Path, dict[Row | larger.Row, Path]]:
    """Writes the topology and the rows' jobs; returns their paths."""
    topology = folder / "placements.yaml"
    topology.write_text(TOPOLOGY)
    files: dict[Row | larger.Row, Path] = {}
    every: list[Row | larger.Row] = [*rows, *larger_rows]
    for row in every:
        files[row] = folder / f"{row.name}.yaml"
        files[row].write_text(yaml.safe_dump(row.job, sort_keys=False))
    return topology, files


def _lines(
    rows: Rows,
    larger_rows: LargerRows,
    target: str,
    files: Mapping[Row | larger.Row, Path],
    results: Mapping[Row | larger.Row, FinishedJob | str],
    where: str,
) -> tuple[list[Line], list[larger.Line]]:
    """Returns a line for each row, from the jobs' summaries or errors."""
    lines = [_judge(row, files[row], target, results[row], where) for row in rows]
    larger_lines = []
    for one in larger_rows:
        summary = results[one]
        larger_lines.append(
            larger.failed(one, target, summary)
            if isinstance(summary, str)
            else larger.judge(one, target, summary)
        )
    return lines, larger_lines


def _submit(file: Path, launched: Launch, view: View) -> FinishedJob | str:
    """Runs a job; returns its summary, or the error."""
    try:
        request = control.submission(file)
        return launched.ask(partial(control.submit, request=request, on_event=view.event))
    except LaunchError as error:
        return str(error)


def _judge(row: Row, file: Path, target: str, results: FinishedJob | str, where: str) -> Line:
    if isinstance(results, str):
        return failed(row, target, results)
    plane = read_program(*program_files(None, None))
    spec = jobfile.load(file).spec
    sizes = tuple(shapes(spec).values())
    work = workload(spec, sizes, plane.lanes, plane.chunks_per_slice(spec.slice_size))
    return judge(row, target, work, results, where)
