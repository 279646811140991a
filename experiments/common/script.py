# SPDX-License-Identifier: Apache-2.0
"""Experiments that run by themselves: a function with options of its own, and its results.

Those that repeat one measurement over many points are declared instead
(``experiments.common.declaration``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from testbed.targets import Target, TargetError, choose

__all__ = ["Results", "Script", "Setup", "chosen_targets", "experiment"]


@dataclass(frozen=True)
class Setup:
    """The values of the common options of experiments.

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


@dataclass(frozen=True)
class Script:
    """An experiment that runs by itself.

    run: Takes a ``Setup`` and the values of its options.
    options: Its own, beside the common ones.
    """

    run: Callable[..., Results]
    options: Sequence[click.Parameter]

    @property
    def about(self) -> str:
        """The description in the command's help."""
        return self.run.__doc__ or ""


def experiment(run: Callable[..., Results]) -> Script:
    """Makes an experiment of a function, whose options are those of ``click.option`` below."""
    options: list[click.Parameter] = getattr(run, "__click_params__", [])
    return Script(run, options[::-1])


VIRTUAL = "virtual time"  # in place of a target


def chosen_clocks(targets: Sequence[str], clocks: Sequence[str]) -> list[str]:
    """Returns the targets of emulation, if that is one of the clocks, and VIRTUAL.

    Raises ``click.ClickException``.
    """
    if targets and "emulated" not in clocks:
        raise click.UsageError("--target is for --clock emulated; leave it out")
    found: list[str] = []
    if "emulated" in clocks:
        found += chosen_targets(targets or ("auto",))
    if "virtual" in clocks:
        found.append(VIRTUAL)
    return found


def chosen_targets(names: Iterable[str]) -> list[Target]:
    """Returns each target once, "auto" resolved. Raises ``click.ClickException``."""
    try:
        return list(dict.fromkeys(choose(name) for name in names))
    except TargetError as error:
        raise click.ClickException(str(error)) from error
