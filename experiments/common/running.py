# SPDX-License-Identifier: Apache-2.0
"""Runs a declared experiment: its points that are not done, then its table, figures and page.

Points are trials of a sweep (``sweeps``), so they are kept, continued and retried as those are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from experiments.common.declaration import (
    Claim,
    Experiment,
    ExperimentError,
    Figure,
    Point,
    Results,
    Row,
)
from experiments.common.page import experiment_page
from experiments.common.real_time import Kept, in_real_time, measured_times
from observability import record
from observability.record import shown
from observability.wording import count
from sweeps import table
from sweeps.conduct import Crew, State, conduct
from sweeps.execution import Outcome
from sweeps.store import DONE, Store
from sweeps.trials import Trial, trial_of
from testbed.program import compile_once
from topologies.model.documents import DocumentError

__all__ = ["Course", "Written", "all_folders", "default_folder", "prepare", "run", "write"]

Tell = Callable[[State, Trial, Outcome, str], None]


@dataclass(frozen=True)
class Course:
    """An experiment's points as trials, which can all run.

    quick: Only the coarse ones.
    pairs: Of what the experiment also has in real time, by both clocks.
    """

    name: str
    experiment: Experiment
    quick: bool
    points: Sequence[tuple[Point, Trial]]
    pairs: Sequence[tuple[Point, Trial]] = ()

    def trials(self, *, emulated: bool) -> list[Trial]:
        """Returns the trials of one clock; points with the same files are one."""
        every = [*self.points, *self.pairs]
        return list(
            {trial.id: trial for point, trial in every if point.emulated is emulated}.values()
        )


def all_folders() -> Path:
    """Returns the default folder of all experiments' folders."""
    return record.runs_folder() / "experiments"


def default_folder(name: str, *, quick: bool, within: Path | None = None) -> Path:
    """Returns the folder of an experiment.

    Args:
        within: Of all experiments; None: the default one.
    """
    return (within or all_folders()) / (f"{name}-quick" if quick else name)


def prepare(name: str, experiment: Experiment, *, quick: bool) -> Course:
    """Checks all points of an experiment.

    Raises:
        ExperimentError: One cannot run, or two are the same.
    """
    points: list[tuple[Point, Trial]] = []
    pairs: list[tuple[Point, Trial]] = []
    known: dict[str, Point] = {}
    real = () if quick or experiment.real is None else experiment.real.settings
    both = [point for one in real for point in one.points]
    for point in (*experiment.points(quick), *both):
        try:
            trial = trial_of(
                *(point.values, point.topology, point.job, point.files, point.by), point.faults
            )
        except DocumentError as error:
            where = ", ".join(f"{key} {value}" for key, value in point.values.items())
            problems = "; ".join(
                f"{Path(one.file).name}: {one.field}: {one.text}" for one in error.problems
            )
            raise ExperimentError(f"{name}, point {where}: {problems}") from error
        key = json.dumps(point.values, sort_keys=True)
        if key in known:
            raise ExperimentError(f"{name}: two points have the values {trial.label}")
        known[key] = point
        (pairs if point in both else points).append((point, trial))
    if not points:
        raise ExperimentError(f"{name}: no points")
    return Course(name, experiment, quick, points, pairs)


def run(
    course: Course, store: Store, crew: Callable[[], Crew], tell: Tell, *, emulated: bool
) -> None:
    """Runs the points of one clock that are not done.

    Args:
        crew, tell: As of ``sweeps.conduct.conduct``.

    Raises:
        ExperimentError: Points failed, each tried twice.
    """
    listed = course.trials(emulated=emulated)
    for program in sorted({one.program for one in listed if one.program != Path()}):
        compile_once(program)
    state = conduct(store, listed, crew, tell)
    if state.failed:
        raise ExperimentError(
            f"{course.name}: {count(state.failed, 'point')} of {state.trials:,} failed, each tried"
            f" twice; their logs are in {shown(store.path.resolve())}/trials/*/result.json. The"
            " same command tries them again, and runs nothing else"
        )


@dataclass(frozen=True)
class Written:
    """The outcome of an experiment.

    paths: Files that were written.
    runs: How many points have run.
    seconds: What these took, one after another.
    """

    figures: Sequence[Figure]
    claims: Sequence[Claim]
    paths: Sequence[Path]
    runs: int
    seconds: float

    @property
    def failed(self) -> list[str]:
        """The claims that do not hold."""
        return [one.text for one in self.claims if not one.holds]

    def to_message(self, name: str) -> dict[str, Any]:
        """Returns the JSON object."""
        return {"experiment": name, "figures": [one.to_message() for one in self.figures]}


def write(course: Course, store: Store, page: Path | None) -> Written:
    """Writes the table, ``figures.json``, and the page with its plots, from what has run.

    Args:
        page: Another place for the page.
    """
    rows, lines = [], []
    experiment = course.experiment
    kept = Kept.read(*([page] if page is not None else []), store.path / f"{course.name}.md")
    for point, trial in course.points:
        measures = _measures(point, trial, store, experiment.measure, kept)
        if measures is None:
            continue
        rows.append(Row(point.values, measures))
        plain = {name: table.plain(value) for name, value in measures.items()}
        result = store.result(trial)
        took = {} if result is None else {"wall_time_s": round(result["seconds"], 3)}
        cells = {name: value for name, value in plain.items() if _fits(value)}
        lines.append({**point.values, **cells, "trial": trial.id, **took})
    pairs = [
        Row(point.values, measures)
        for point, trial in course.pairs
        if (measures := _measures(point, trial, store, measured_times, kept)) is not None
    ]
    results = Results(rows, quick=course.quick)
    figures, claims = experiment.figures(results), experiment.claims(results)
    command = f"rackhub experiment {course.name}{' --quick' if course.quick else ''}"
    section = in_real_time(experiment.real, pairs) if experiment.real is not None else None
    made = experiment_page(
        *(experiment, results, figures, claims, command), section, measured=kept.days
    )
    paths = made.write(store.path / f"{course.name}.md")
    paths += made.write_html(store.path / f"{course.name}.html")
    paths += kept.write(store.path / f"{course.name}.md")
    if page is not None:
        paths += made.write(page)
        paths += kept.write(page)
    columns = {name: None for line in lines for name in line}
    full: list[table.Row] = [{name: line.get(name) for name in columns} for line in lines]
    table.write_csv(store.csv, full)
    paths.append(store.csv)
    if table.can_write_parquet():
        table.write_parquet(store.parquet, full)
        paths.append(store.parquet)
    written = Written(
        figures,
        claims,
        [*paths, store.path / "figures.json"],
        len(rows),
        sum(line.get("wall_time_s", 0.0) for line in lines),
    )
    text = json.dumps(written.to_message(course.name), indent=2) + "\n"
    (store.path / "figures.json").write_text(text)
    return written


def _measures(
    point: Point,
    trial: Trial,
    store: Store,
    measure: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    kept: Kept,
) -> Mapping[str, Any] | None:
    """Returns what was measured of a point: of its run, or of an earlier one in real time; None if
    there is none."""
    result = store.result(trial)
    if result is None or result["state"] != DONE:
        return kept.get(point) if point.emulated else None
    assert result["summary"] is not None
    measures = measure(result["summary"])
    if point.emulated:
        at = (store.folder(trial) / "result.json").stat().st_mtime
        kept.put(point, measures, date.fromtimestamp(at).isoformat())
    return measures


def _fits(value: object) -> bool:
    """Tells a cell from a series, which only the trial's result.json has."""
    return not isinstance(value, str) or len(value) <= _LONGEST_CELL


_LONGEST_CELL = 200
