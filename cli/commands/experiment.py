# SPDX-License-Identifier: Apache-2.0
"""``rackhub experiment``: experiments, their figures beside published ones, and their pages."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cli.display.tables import show, show_rows
from cli.options import Group, console_for, print_json, say, with_json
from cli.signals import ending_on_signals
from experiments.common import registry, running
from experiments.common.declaration import Experiment, ExperimentError
from experiments.common.page import number
from experiments.common.script import Script, Setup
from observability.record import shown
from observability.wording import count
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
    """List all experiments."""
    rows = []
    for name in registry.names():
        found = registry.experiment_named(name)
        about = " ".join(found.about.split()).partition(". ")[0].rstrip(".")
        rows.append({"experiment": name, "about": about})
    if as_json:
        print_json({"experiments": rows})
    else:
        show_rows(console_for(), rows, {"experiment": "experiment", "about": ""})


def _declared(name: str, found: Experiment) -> click.Command:
    """Returns the command of a declared experiment."""

    @click.command(name, help=f"{found.about}\n\n{_DECLARED}", short_help=found.about)
    @click.option("--quick", is_flag=True, help="Few coarse points, which show shapes only.")
    @click.option("--emulated", is_flag=True, help="Also run its points in real time.")
    @click.option(
        "--jobs", type=click.IntRange(1, 1024), help="Points at a time. [default: all CPUs]"
    )
    @click.option("--ray", "address", metavar="ADDRESS", help="Run them on this Ray cluster.")
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
        with ending_on_signals(), opened(path) as store:
            # Points in real time would disturb each other.
            for real, most in ((False, jobs), (True, 1)) if emulated else ((False, jobs),):
                listed = course.trials(emulated=real)
                view = SweepView(console_for(stderr=True), store, listed)

                def crew(
                    most: int | None = most, real: bool = real, view: SweepView = view
                ) -> Crew:
                    if address is not None and not real:
                        return RayCrew(address, most, say=view.say)
                    return LocalCrew(most or len(os.sched_getaffinity(0)), store.logs)

                try:
                    with view:
                        running.run(course, store, crew, view.take, emulated=real)
                except KeyboardInterrupt:
                    say("what is done is kept: the same command goes on")
                    raise
            written = running.write(course, store, page)
        for one in written.paths:
            say(shown(one.resolve()))
        if as_json:
            print_json(written.to_message(name))
        else:
            _show(written)
        failed = [one.text for one in written.claims if not one.holds]
        if failed:
            raise ExperimentError(f"{count(len(failed), 'claim')} failed: {'; '.join(failed)}")

    return command


_DECLARED = """\
What is done is kept: the same command goes on where it was stopped, and only writes and draws what
has run already. Exit status 1 if a point fails, or a claim of the page does not hold; a published
figure that is not reached is reported with the reason."""


def _show(written: running.Written) -> None:
    """Prints the figures."""
    console = console_for()
    rows = [
        {
            "figure": one.id,
            "published": f"{number(one.paper.value)} {one.unit}".strip(),
            "kind": one.paper.kind,
            "ours": f"{number(one.ours)} {one.unit}".strip(),
            "ratio": number(one.ratio),
            "holds": "yes" if one.holds else "no",
        }
        for one in written.figures
    ]
    if rows:
        show_rows(console, rows, {name: name for name in rows[0]})
    for one in written.figures:
        if not one.holds:
            show(console, f"{one.id}: {one.why}")


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
