# SPDX-License-Identifier: Apache-2.0
"""The command: ``python -m experiments.placements --help``."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import yaml
from rich.console import Console

from experiments.placements.page import page, table
from experiments.placements.rows import ROWS, TOPOLOGY, Line, Row, failed, judge, workload
from testbed import jobfile
from testbed.launcher import Launch, LaunchError, program_files
from testbed.preflight import read_program
from testbed.record import machine
from testbed.run import bringing_up
from testbed.targets import TargetError, choose
from testbed.view import View, show
from testbed.workloads import shapes


@click.command(context_settings={"max_content_width": 100})
@click.option("--target", "targets", multiple=True, help="embedded, bmv2 or auto; repeatable.")
@click.option(
    "--only", multiple=True, type=click.Choice([row.name for row in ROWS]), help="Repeatable."
)
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), help="Write the page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    targets: tuple[str, ...], only: tuple[str, ...], write: Path | None, as_json: bool
) -> None:
    """Train with every placement, and hold weights and links against what they must be.

    Exit status 1 if something does not hold.
    """
    if write is not None and only:
        raise click.UsageError("--write takes all placements; leave --only out")
    console = Console(stderr=as_json, highlight=False)
    try:
        found = list(dict.fromkeys(choose(target) for target in targets or ("auto",)))
    except TargetError as error:
        raise click.ClickException(str(error)) from error
    rows = [row for row in ROWS if row.name in only or not only]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="placements-") as name:
        for target in found:
            console.rule(f"{target}: {', '.join(row.name for row in rows)}", align="left")
            with View(console) as view:
                lines += play(rows, target, Path(name), view)
    if as_json:
        click.echo(json.dumps([line.message() for line in lines], indent=2))
    else:
        show(console)
        show(console, table(lines))
    if write is not None:
        options = "".join(f" --target {target}" for target in found)
        write.write_text(page(lines, machine(found[0]), options))
    for line in lines:
        for problem in line.problems:
            click.echo(
                f"error: {line.placement}, tree {line.tree}, {line.target}: {problem}", err=True
            )
    sys.exit(any(line.problems for line in lines))


def play(rows: Sequence[Row], target: str, folder: Path, view: View) -> list[Line]:
    """Runs the rows' jobs one after the other on one testbed; a line for each."""
    topology = folder / "placements.yaml"
    topology.write_text(TOPOLOGY)
    files = {row: folder / f"{row.name}.yaml" for row in rows}
    for row, file in files.items():
        file.write_text(yaml.safe_dump(row.job, sort_keys=False))
    try:
        with bringing_up(topology, view.note, jobs=list(files.values()), target=target) as launched:
            launched.wait_until_up()
            return list(_lines(files, target, launched, view))
    except LaunchError as error:
        return [failed(row, target, str(error)) for row in rows]


def _lines(files: dict[Row, Path], target: str, launched: Launch, view: View) -> Iterator[Line]:
    plane = read_program(*program_files(None, None))
    for row, file in files.items():
        spec = jobfile.load(file).spec
        sizes = tuple(shapes(spec).values())
        work = workload(spec, sizes, plane.lanes, plane.chunks_per_slice(spec.slice_bytes))
        try:
            told = launched.ask("submit", job=str(file), on_event=view.event)
        except LaunchError as error:
            yield failed(row, target, str(error))
            continue
        yield judge(row, target, work, told, launched.run.path.name)


if __name__ == "__main__":
    main()
