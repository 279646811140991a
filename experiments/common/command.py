# SPDX-License-Identifier: Apache-2.0
"""The command of an experiment: common options, output of its results, exit status."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cli.display.tables import show
from cli.signals import ending_on_signals
from testbed.targets import Target, TargetError, choose

__all__ = ["Results", "Setup", "chosen_targets", "experiment"]


@dataclass(frozen=True)
class Setup:
    """What the common options give to an experiment.

    console: For progress.
    folder: For files of what is run.
    writes: A page will be written.
    """

    console: Console
    folder: Path
    writes: bool


@dataclass(frozen=True)
class Results:
    """The results of an experiment.

    lines: JSON objects.
    tables: For a terminal.
    page: Returns the page's new text, given its present one ("" without).
    problems: Failed checks.
    """

    lines: Sequence[Mapping[str, Any]]
    tables: Sequence[Table | str]
    page: Callable[[str], str]
    problems: Sequence[str]


def experiment(run: Callable[..., Results]) -> click.Command:
    """Makes a command of a function that takes a ``Setup`` and its own options."""

    @click.command(run.__module__.split(".")[1], context_settings={"max_content_width": 100})
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.option(
        "--write", type=click.Path(dir_okay=False, path_type=Path), help="Write the page."
    )
    @click.option(
        "--to",
        type=click.Path(file_okay=False, path_type=Path),
        help="Keep files of what is run in this folder, and results.json.",
    )
    @functools.wraps(run)
    def command(as_json: bool, write: Path | None, to: Path | None, **options: Any) -> None:
        console = Console(stderr=as_json, highlight=False)
        with ending_on_signals(), ExitStack() as stack:
            if to is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            else:
                folder = to
                folder.mkdir(parents=True, exist_ok=True)
            results = run(Setup(console, folder, write is not None), **options)
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
        sys.exit(bool(results.problems))

    return command


def chosen_targets(names: Iterable[str]) -> list[Target]:
    """Returns each target once, "auto" resolved. Raises ``click.ClickException``."""
    try:
        return list(dict.fromkeys(choose(name) for name in names))
    except TargetError as error:
        raise click.ClickException(str(error)) from error
