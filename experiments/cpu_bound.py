# SPDX-License-Identifier: Apache-2.0
"""Experiment: whether `cpu_bound` tells which emulated runs differ from virtual time.

Every point is a run on the embedded target beside processes that burn CPUs, and the same files in
virtual time. Of workers, loss and burners all combinations occur, each with one of the rates.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import cast

import click

from emulation.lifecycle.running import run
from experiments.common.script import Results, Setup, experiment
from observability.cpu_use import MOST_WAITED, OFF, typical
from observability.messages.summary import FinishedRun
from observability.progress_view import View
from sweeps import code
from sweeps.execution import Order, execute
from testbed.errors import LaunchError

_WORKERS, _LOSSES, _BURNERS = (2, 4, 8, 16), (0.0, 0.001, 0.01, 0.05), (0, 1, 2)
_RATES = (1, 5, 20, 100)  # Mbit/s
_QUICK = 8  # each so many points
_MOST_FALSE = 0.10
_ITERATIONS = 21
_HEADINGS = "| | within 10 % of virtual time | differs |"
_BURN = "while True: pass"


@dataclass(frozen=True)
class Point:
    """workers: of two racks. loss: probability per packet and link. rate: Mbit/s."""

    workers: int
    loss: float
    burners: int
    rate: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.workers}-{self.loss:g}-{self.burners}-{self.rate}"

    @property
    def topology(self) -> str:
        """The topology file."""
        return (
            f"name: cpu-bound\nseed: 3\n"
            f"defaults: {{rate: {self.rate} Mbit/s, queue_bytes: 128 KiB, loss: {self.loss}}}\n"
            f"racks: [{{workers: {self.workers // 2}, servers: 1, count: 2}}]\ncores: 1\n"
        )

    @property
    def job(self) -> str:
        """The job file."""
        return (
            f"name: cpu-bound\nworkload: digits\nhidden: [64]\niterations: {_ITERATIONS}\n"
            f"batch: 48\n"
        )


@dataclass(frozen=True)
class Result:
    """emulated, virtual: the typical iteration, without the first, in seconds.

    waited: the most that a process waited for a CPU. overflowed: packets found its queue full.
    """

    point: Point
    emulated: float
    virtual: float
    warned: bool
    by: list[str]
    waited: float
    overflowed: bool
    busy: float

    @property
    def off(self) -> bool:
        """Whether the times are not those of virtual time."""
        return abs(self.emulated / self.virtual - 1) > OFF

    @property
    def waits(self) -> bool:
        """What CPUs alone tell."""
        return self.waited > MOST_WAITED or self.overflowed


def points() -> list[Point]:
    """Returns all points: of each pair of values there is at least one."""
    return [
        Point(workers, loss, burners, _RATES[(i + j + k) % len(_RATES)])
        for i, workers in enumerate(_WORKERS)
        for j, loss in enumerate(_LOSSES)
        for k, burners in enumerate(_BURNERS)
    ]


@contextmanager
def _burning(number: int) -> Iterator[None]:
    """Keeps so many CPUs busy."""
    with ExitStack() as stack:
        for _ in range(number):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BURN]))
            stack.callback(process.kill)
        yield


def measure(point: Point, setup: Setup) -> Result:
    """Runs a point on both clocks. Raises ``click.ClickException`` if it fails."""
    files = [setup.folder / f"{point.name}-{kind}.yaml" for kind in ("topology", "job")]
    for file, text in zip(files, (point.topology, point.job), strict=True):
        file.write_text(text)
    simulated = execute(code.digest(), Order(point.topology, point.job), "here")
    if simulated.summary is None:
        raise click.ClickException(f"{point}: {simulated.error}\n{simulated.log}")
    with _burning(point.burners), View(setup.console) as view:
        try:
            launched, _ = run(files[0], [files[1]], view, target="embedded")
        except LaunchError as error:
            raise click.ClickException(f"{point}: {error}") from error
    summary = cast(FinishedRun, launched.run.read_summary())
    machine = summary["machine"]
    return Result(
        point,
        typical(summary["seconds_per_iteration"][1:]),
        typical(simulated.summary["seconds_per_iteration"][1:]),
        machine["cpu_bound"],
        machine.get("cpu_bound_by", []),
        max(machine.get("cpu_waited", {}).values(), default=0.0),
        bool(machine.get("queues_full")),
        machine.get("cpu_busy", 0.0),
    )


@experiment
@click.option("--quick", is_flag=True, help=f"Every {_QUICK}th point.")
def main(setup: Setup, quick: bool) -> Results:
    """Compare the verdict of emulated runs about their times with virtual time.

    With --to a run that was ended continues with the points that are missing there. Exit status 1
    if a run differs by more than 10 % without a warning, or more than 10 % of the others have one.
    """
    if setup.writes and quick:
        raise click.UsageError("--write takes all points; leave --quick out")
    chosen = points()[:: _QUICK if quick else 1]
    found = []
    for number, point in enumerate(chosen, 1):
        kept = setup.folder / f"{point.name}.json"
        if kept.exists():
            found.append(Result(**{**json.loads(kept.read_text()), "point": point}))
            continue
        click.echo(f"{number}/{len(chosen)}: {point.name}", err=True)
        found.append(measure(point, setup))
        kept.write_text(json.dumps(asdict(found[-1])))
    table = _table(found)

    def page(old: str) -> str:
        before, heading, after = old.partition(_HEADINGS)
        return before + table + after[after.index("\n\n") :] if heading else table + "\n"

    missed = [one for one in found if one.off and not one.warned]
    false = [one for one in found if one.warned and not one.off]
    problems = [f"{one.point.name}: no warning" for one in missed]
    if len(false) > _MOST_FALSE * max(1, sum(not one.off for one in found)):
        problems.append(f"{len(false)} false alarms")
    return Results([{**asdict(one), "off": one.off} for one in found], [table], page, problems)


def _table(found: Sequence[Result]) -> str:
    """Returns the confusion table."""
    lines = [_HEADINGS, "|---|---:|---:|"]
    for name, says in (
        ("`cpu_bound`", [one.warned for one in found]),
        ("waits for CPUs alone", [one.waits for one in found]),
    ):
        for warned in (True, False):
            counts = [
                sum(
                    said is warned and one.off is off for one, said in zip(found, says, strict=True)
                )
                for off in (False, True)
            ]
            lines.append(
                f"| {name}: {'a' if warned else 'no'} warning | {counts[0]} | {counts[1]} |"
            )
    return "\n".join(lines)
