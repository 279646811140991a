# SPDX-License-Identifier: Apache-2.0
"""The reliability experiment: ``rackhub experiment reliability --help``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console

from experiments.common.script import VIRTUAL, Results, Setup, chosen_clocks, experiment
from experiments.reliability.page import page, table
from experiments.reliability.runner import Line, play
from experiments.reliability.scenarios import SCENARIOS, Course, Scenario, chosen, courses
from experiments.reliability.soak import command, play_round
from hosts.worker.scheduling.registry import SCHEDULERS
from observability.machine import machine_facts
from observability.progress_view import View
from protocol.propagation import FIFO

_NAMES = sorted({one.name for one in SCENARIOS})
_TOPOLOGIES = sorted({one.topology for one in SCENARIOS})


@experiment
@click.option("--target", "targets", multiple=True, help="embedded, bmv2 or auto; repeatable.")
@click.option(
    "--clock",
    "clocks",
    multiple=True,
    type=click.Choice(["emulated", "virtual"]),
    default=("emulated",),
    show_default=True,
    help="Repeatable. virtual: on simulated networks, without root; the same fault is the same"
    " packet by packet.",
)
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Which; repeatable.")
@click.option("--topology", type=click.Choice(_TOPOLOGIES), help="On this one only.")
@click.option(
    "--order", type=click.Choice([*SCHEDULERS]), default=FIFO, help="In which jobs send gradients."
)
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Lines in JSON: those of this run are added, or replaced; --write takes all of them.",
)
@click.option(
    "--soak", type=click.FloatRange(0), metavar="MINUTES", help="Random faults for so long instead."
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, help="Of the first round.")
def main(
    setup: Setup,
    targets: tuple[str, ...],
    clocks: tuple[str, ...],
    only: tuple[str, ...],
    topology: str | None,
    order: str,
    keep: Path | None,
    soak: float | None,
    seed: int,
) -> Results:
    """Inject every fault into training jobs and measure the recovery.

    Exit status 1 if a check fails.
    """
    part = bool(only or topology or order != FIFO)
    if setup.writes and keep is None and (part or soak is not None):
        raise click.UsageError("--write with some of the faults needs --keep, for the others")
    found = chosen_clocks(targets, clocks)
    lines: list[Line] = []
    for target in found:
        if soak is None:
            lines += _play_all(chosen(only, topology, order), target, setup.folder, setup.console)
        else:
            lines += _soak(soak, seed, target, setup.folder, setup.console)
    kept = lines
    if keep is not None:
        kept = _kept(keep, lines)
        keep.write_text(json.dumps([line.message() for line in kept], indent=2) + "\n")

    def text(_: str) -> str:
        played = dict.fromkeys(one.target for one in kept)
        options = "".join(f" --target {one}" for one in played if one != VIRTUAL)
        options += "".join(f" --clock {one}" for one in clocks if clocks != ("emulated",))
        options += " --keep FILE" if keep is not None else ""
        return page(kept, machine_facts("embedded" if found[0] == VIRTUAL else found[0]), options)

    problems = [
        "\n  ".join([f"{line.scenario}, {line.topology}, {line.target}:", *line.problems])
        for line in lines
        if line.problems
    ]
    return Results([line.message() for line in lines], [table(lines)], text, problems)


def _play_all(
    scenarios: Sequence[Scenario], target: str, folder: Path, console: Console
) -> Iterator[Line]:
    """Runs the scenarios in as few runs as possible; those of an aborted run one by one."""
    for course in courses(scenarios):
        names = ", ".join(one.name for one in course.scenarios)
        console.rule(f"{course.topology}, {target}: {names}", align="left")
        lines = _play(course, target, folder, console)
        if len(lines) > 1 and all(line.matches is None for line in lines):
            lines = [
                line
                for one in course.scenarios
                for line in _play(Course((one,)), target, folder, console)
            ]
        yield from lines


def _kept(file: Path, lines: Sequence[Line]) -> list[Line]:
    """Merges lines into those of a file, if it exists."""
    old = json.loads(file.read_text()) if file.exists() else []
    found = {(one.scenario, one.topology, one.target): one for one in (Line(**one) for one in old)}
    found.update({(one.scenario, one.topology, one.target): one for one in lines})
    order = [(one.topology, one.name) for one in SCENARIOS]

    def place(line: Line) -> int:
        here = line.topology, line.scenario
        return order.index(here) if here in order else len(order)

    return sorted(found.values(), key=place)


def _play(course: Course, target: str, folder: Path, console: Console) -> list[Line]:
    with View(console) as view:
        return play(course, target, folder, view)


def _soak(minutes: float, seed: int, target: str, folder: Path, console: Console) -> Iterator[Line]:
    """Runs rounds, at least one, until the time is over or a check fails."""
    end = time.monotonic() + 60 * minutes
    while True:
        console.rule(f"seed {seed}: {command(seed, target)}", align="left")
        with View(console) as view:
            line = play_round(seed, target, folder, view)
        yield line
        if line.problems:
            click.echo(f"repeat it: {command(seed, target)}", err=True)
            return
        if time.monotonic() >= end:
            return
        seed += 1
