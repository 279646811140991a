# SPDX-License-Identifier: Apache-2.0
"""Error handling, output and options that commands share."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from rich.console import Console

from cli.files import FILE
from cli.importing import importing
from cli.pipes import PipedConsole, discard_output, end_without_reader
from observability import record
from protocol.errors import Error
from specs.paths import ROOT
from topologies.model.units import quantity

DEFAULT_JOB = ROOT / "jobs" / "digits.yaml"
INTERRUPTED = 130
UNREAD = 141  # the status of a program ended by SIGPIPE
_MOST_PROBLEMS = 20  # printed of a file

Command = TypeVar("Command", bound=Callable[..., Any])


class Group(click.Group):
    """A command group that imports commands on use and prints errors (``Error``).

    An error ends the command with its ``status``, 1 by default.

    places: commands by name, each as ``module:attribute``. Imported on use, as importing all of
        them takes far longer than most commands run.
    """

    def __init__(self, *args: Any, places: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.places = dict(places or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.places and cmd_name not in self.commands:
            module, _, attribute = self.places[cmd_name].partition(":")
            with importing():
                self.add_command(getattr(import_module(module), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            alike = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            if not alike:
                raise
            raise click.UsageError(f"{error.message} Did you mean {alike[0]!r}?", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Error as error:
            problems = getattr(error, "problems", None) or [error]
            for problem in problems[:_MOST_PROBLEMS]:
                click.secho("error: ", fg="red", bold=True, nl=False, err=True)
                click.echo(f"{problem}{self._advice(ctx, problem)}", err=True)
            if len(problems) > _MOST_PROBLEMS:
                click.echo(f"... and {len(problems) - _MOST_PROBLEMS:,} more", err=True)
            ctx.exit(getattr(error, "status", 1))
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            discard_output()
            ctx.exit(UNREAD)

    def _advice(self, ctx: click.Context, problem: object) -> str:
        """Returns how to replace the default job if the problem is in its file."""
        if getattr(problem, "file", "") != str(DEFAULT_JOB):
            return ""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        options = [name for one in command.params for name in one.opts] if command else []
        how = "with --job" if "--job" in options else "as JOB"
        return f"; this is the default job: copy it, change that, and name the copy {how}"


def console_for(*, stderr: bool = False) -> Console:
    return PipedConsole(stderr=stderr, highlight=False)


def say(text: str) -> None:
    """Prints a line to standard error."""
    try:
        click.echo(text, err=True)
    except BrokenPipeError:
        end_without_reader()


def print_json(value: Any) -> None:
    """Prints a value as indented JSON."""
    click.echo(json.dumps(value, indent=2))


def live_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes names of live testbeds."""
    names = [one.name for one in record.testbeds()]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def run_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes names of recorded runs, the newest first."""
    with contextlib.suppress(Error):
        names = ["latest", *(run.path.name for run in reversed(record.all_runs()))]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return []


def node_names(kinds: tuple[str, ...]) -> Callable[..., list[CompletionItem]]:
    """Returns a shell completion for nodes of the testbed that ``--on`` names."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from topologies.model.spec import load as load_topology

        with contextlib.suppress(Error):
            topology = load_topology(record.find(ctx.params.get("on")).facts["topology"])
            names = [node.name for node in topology.nodes if node.kind in kinds]
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []

    return complete


def on_testbed(command: Command) -> Command:
    """Adds ``--on``."""
    option = click.option(
        "--on",
        metavar="NAME",
        shell_complete=live_names,
        help="Which testbed; not needed when only one is up.",
    )
    return option(command)


def with_json(command: Command) -> Command:
    """Adds ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def quantity_of(
    units: dict[str, float], example: str, *, nothing: bool = False
) -> Callable[..., float | None]:
    """Returns an option callback that parses a number with a unit, > 0, or >= 0 if `nothing`."""

    def read(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
        try:
            found = None if value is None else quantity(value, units, example)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        if found == 0 and not nothing:
            raise click.BadParameter(f"{value!r} is nothing; write it like {example}")
        return found

    return read


def building(command: Command) -> Command:
    """Adds the options that choose the data plane and its target."""
    for option in (
        click.option("--p4info", type=FILE, help="Its p4info, as text."),
        click.option("--program", type=FILE, help="Another build of the data plane (BMv2 JSON)."),
        click.option(
            "--target",
            type=click.Choice(["auto", "embedded", "bmv2"]),
            default="auto",
            show_default=True,
            help="What switches run on; auto: BMv2 if it is installed.",
        ),
    ):
        command = option(command)
    return command


seeded = click.option(
    "--topology-seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="N",
    help="Draws which packets bad links lose, instead of the topology's `seed`.",
)
clocked = click.option(
    "--clock",
    type=click.Choice(["emulated", "virtual"]),
    default="emulated",
    show_default=True,
    help="Real time on Mininet, or virtual: a simulated network, without root.",
)


def launching(command: Command) -> Command:
    """Adds the options of commands that start a testbed."""
    for option in (
        seeded,
        click.option("--name", help="Name of the testbed; default: the topology's."),
        click.option("--pcap", is_flag=True, help="Capture what every switch port carries."),
        clocked,
        building,
    ):
        command = option(command)
    return command
