# SPDX-License-Identifier: Apache-2.0
"""``rackhub experiment``: experiments, their figures beside published ones, and their pages."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cli.display.tables import show, show_rows
from cli.options import Group, console_for, print_json, say, with_json
from cli.signals import ending_on_signals
from experiments.common import overview, registry, running
from experiments.common.declaration import Experiment, ExperimentError, Figure
from experiments.common.page import number
from experiments.common.script import Script, Setup
from observability.record import shown
from observability.wording import count
from protocol.errors import Error
from sweeps.cluster import RayCrew
from sweeps.conduct import Crew
from sweeps.local import LocalCrew
from sweeps.progress_view import SweepView
from sweeps.store import opened

_FOLDER = click.Path(file_okay=False, path_type=Path)
_PAGE = click.Path(dir_okay=False, path_type=Path)


class _Experiments(Group):
    """Has a command for each experiment, found by its file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *registry.names()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in registry.names():
            return super().get_command(ctx, cmd_name)
        found = registry.experiment_named(cmd_name)
        return (
            _declared(cmd_name, found)
            if isinstance(found, Experiment)
            else _script(cmd_name, found)
        )


@click.group("experiment", cls=_Experiments, short_help="Run an experiment and write its page.")
def experiment() -> None:
    """Run an experiment of experiments/, and write its figures and page."""


@experiment.command("list", short_help="List all experiments.")
@with_json
def list_(as_json: bool) -> None:
    """List all experiments, and say which of them `all` runs: those that repeat one measurement
    over many points. The others run by themselves."""
    rows = []
    for name in registry.names():
        found = registry.experiment_named(name)
        about = " ".join(found.about.split()).partition(". ")[0].rstrip(".")
        rows.append({"experiment": name, "in_all": isinstance(found, Experiment), "about": about})
    if as_json:
        print_json({"experiments": rows})
        return
    shown_rows = [{**row, "in_all": "yes" if row["in_all"] else "by itself"} for row in rows]
    titles = {"experiment": "experiment", "in_all": "in `all`", "about": ""}
    show_rows(console_for(), shown_rows, titles)


def _with_points(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of experiments that consist of points."""
    options: list[Callable[..., Any]] = [
        click.option("--quick", is_flag=True, help="Few coarse points, which show shapes only."),
        click.option("--emulated", is_flag=True, help="Also run points in real time."),
        click.option(
            "--jobs", type=click.IntRange(1, 1024), help="Points at a time. [default: all CPUs]"
        ),
        click.option("--ray", "address", metavar="ADDRESS", help="Run them on this Ray cluster."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@experiment.command("all", short_help="Run all experiments, and write a page over their figures.")
@_with_points
@click.option(
    "--to", "base", type=_FOLDER, help="Where results are kept. [default: runs/experiments]"
)
@click.option(
    "--write", "folder", type=_FOLDER, help="Write all pages here, too, and papers.md over them."
)
@with_json
def all_(
    quick: bool,
    emulated: bool,
    jobs: int | None,
    address: str | None,
    base: Path | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Run all experiments that consist of points, one after another, and write a page over all
    figures beside the published ones: all.md and all.html in the folder of results.

    What is done is kept: the same command goes on where it was stopped, also in the middle of an
    experiment, and uses what single experiments have run. One that fails does not stop the others.
    Exit status 1 if a point fails, or a claim of a page does not hold; a published figure that is
    not reached is reported with the reason.
    """
    if folder is not None and quick:
        raise click.UsageError("--write takes all points; leave --quick out")
    base = base or running.all_folders()
    found = {name: registry.experiment_named(name) for name in registry.names()}
    declared = {name: one for name, one in found.items() if isinstance(one, Experiment)}
    courses = [running.prepare(name, one, quick=quick) for name, one in declared.items()]
    entries = []
    with ending_on_signals():
        for number, course in enumerate(courses, 1):
            say(f"{course.name}, {number} of {len(courses)} experiments")
            path = running.default_folder(course.name, quick=quick, within=base)
            page = folder / overview.page_name(course.name) if folder is not None else None
            real = emulated and bool(course.trials(emulated=True))
            try:
                written = _run(course, path, page, jobs, address, emulated=real)
            except Error as error:
                say(f"error: {error}")
                entries.append(overview.Entry(course.name, course.experiment, None, str(error)))
            else:
                entries.append(overview.Entry(course.name, course.experiment, written))
        for one in overview.write(entries, base, folder, quick=quick):
            say(shown(one.resolve()))
    if as_json:
        print_json(overview.to_message(entries))
    else:
        _show_figures([(entry.name, one) for entry in entries for one in entry.figures])
    failed = [f"{entry.name}: {text}" for entry in entries for text in entry.problems]
    if failed:
        raise ExperimentError(f"{count(len(failed), 'failure')}: {'; '.join(failed)}")


def _declared(name: str, found: Experiment) -> click.Command:
    """Returns the command of a declared experiment."""

    @click.command(name, help=f"{found.about}\n\n{_DECLARED}", short_help=found.about)
    @_with_points
    @click.option(
        "--to",
        "folder",
        type=_FOLDER,
        help="Where results are kept. [default: runs/experiments/NAME]",
    )
    @click.option("--write", "page", type=_PAGE, help="Write the page here, too, plots beside it.")
    @with_json
    def command(
        quick: bool,
        emulated: bool,
        jobs: int | None,
        address: str | None,
        folder: Path | None,
        page: Path | None,
        as_json: bool,
    ) -> None:
        if page is not None and quick:
            raise click.UsageError("--write takes all points; leave --quick out")
        course = running.prepare(name, found, quick=quick)
        if emulated and not course.trials(emulated=True):
            raise click.UsageError(f"{name} has no points in real time; leave --emulated out")
        path = folder or running.default_folder(name, quick=quick)
        with ending_on_signals():
            written = _run(course, path, page, jobs, address, emulated=emulated)
        for one in written.paths:
            say(shown(one.resolve()))
        if as_json:
            print_json(written.to_message(name))
        else:
            _show_figures([("", one) for one in written.figures])
        if written.failed:
            failed = count(len(written.failed), "claim")
            raise ExperimentError(f"{failed} failed: {'; '.join(written.failed)}")

    return command


def _run(
    course: running.Course,
    path: Path,
    page: Path | None,
    jobs: int | None,
    address: str | None,
    *,
    emulated: bool,
) -> running.Written:
    """Runs the points of an experiment that are not done, and writes its files.

    Args:
        path: Where results are kept.
        page: Another place for the page.
        jobs: Points at a time; None: as many as there are CPUs.
        address: Of a Ray cluster; None: on this machine.
        emulated: Also points in real time, one at a time, as they would disturb each other.
    """
    with opened(path) as store:
        for real, most in ((False, jobs), (True, 1)) if emulated else ((False, jobs),):
            view = SweepView(console_for(stderr=True), store, course.trials(emulated=real))

            def crew(most: int | None = most, real: bool = real, view: SweepView = view) -> Crew:
                if address is not None and not real:
                    return RayCrew(address, most, say=view.say)
                return LocalCrew(most or len(os.sched_getaffinity(0)), store.logs)

            try:
                with view:
                    running.run(course, store, crew, view.take, emulated=real)
            except KeyboardInterrupt:
                say("what is done is kept: the same command goes on")
                raise
        return running.write(course, store, page)


_DECLARED = """\
What is done is kept: the same command goes on where it was stopped, and only writes and draws what
has run already. Exit status 1 if a point fails, or a claim of the page does not hold; a published
figure that is not reached is reported with the reason."""


def _show_figures(figures: Sequence[tuple[str, Figure]]) -> None:
    """Prints figures, each with the name of its experiment."""
    console = console_for()
    rows = [
        {
            "experiment": name,
            "figure": one.id,
            "published": f"{number(one.paper.value)} {one.unit}".strip(),
            "kind": one.paper.kind,
            "ours": f"{number(one.ours)} {one.unit}".strip(),
            "ratio": number(one.ratio),
            "holds": "yes" if one.holds else "no",
        }
        for name, one in figures
    ]
    if rows:
        show_rows(console, rows, {title: title for title in rows[0]})
    for name, one in figures:
        if not one.holds:
            show(console, f"{f'{name}: ' if name else ''}{one.id}: {one.why}")


def _script(name: str, found: Script) -> click.Command:
    """Returns the command of an experiment that runs by itself."""

    def run(as_json: bool, write: Path | None, to: Path | None, **options: Any) -> None:
        console = Console(stderr=as_json, highlight=False)
        with ending_on_signals(), ExitStack() as stack:
            folder = to or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            results = found.run(Setup(console, folder, write is not None), **options)
        text = json.dumps(results.lines, indent=2)
        if to is not None:
            (to / "results.json").write_text(text + "\n")
        if as_json:
            click.echo(text)
        else:
            for table in results.tables:
                click.echo(table) if isinstance(table, str) else show(console, table)
        if write is not None:
            write.write_text(results.page(write.read_text() if write.exists() else ""))
        for problem in results.problems:
            click.echo(f"error: {problem}", err=True)
        click.get_current_context().exit(bool(results.problems))

    common: list[Callable[..., Any]] = [
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--write", type=_PAGE, help="Write the page."),
        click.option(
            "--to", type=_FOLDER, help="Keep files of what is run in this folder, and results.json."
        ),
    ]
    for option in reversed(common):
        run = option(run)
    command = click.command(name, help=found.about)(run)
    command.params = [*found.options, *command.params]
    return command
