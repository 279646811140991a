# SPDX-License-Identifier: Apache-2.0
"""Sweep files: a topology, a job, and the values that some of their fields take.

``load(path)`` reads one; ``SweepFileError`` lists all problems in it, with file, line and field.
docs/reference/files.md explains the format::

    name: rates
    topology: ../topologies/two-racks.yaml   # from where this file is
    job: ../jobs/digits.yaml
    faults: ../jobs/faults/slow.yaml         # may be left out
    axes:
      topology.defaults.rate: [1 Gbit/s, 10 Gbit/s]
      job.window: [16, 64]
    seeds: [1, 2]                            # or how many: 2; of job.seed and topology.seed
    exclude:
      - {topology.defaults.rate: 1 Gbit/s, job.window: 64}
    plot: {x: job.window, y: iteration_median_s, log: [x]}
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from specs import sweepfields
from specs.faultfile import FaultsFile
from specs.jobspec import JobSpec
from topologies.model.documents import (
    Document,
    DocumentError,
    Location,
    Name,
    errors_as,
    shown,
    unknown_field,
)
from topologies.model.documents import load as load_document
from topologies.model.spec import TopologySpec
from topologies.model.wording import few

MOST_TRIALS = 10_000
# A special axis, and the fields that get its values.
SEEDS = "seeds"
SEEDED = ("job.seed", "topology.seed")
_MODELS: dict[str, type[BaseModel]] = {
    "topology": TopologySpec,
    "job": JobSpec,
    "faults": FaultsFile,
}
# Fields with files that a trial would read or write; only a trial's summary is kept.
_NOT_SWEPT = ("job.restore", "job.checkpoint")


class SweepFileError(DocumentError):
    """A sweep file is invalid, or has trials that cannot run."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlotSpec(_Strict):
    """The plot of a sweep.

    x: an axis; None: the first whose values are numbers.
    y: a column of the results.
    log: logarithmic scales; None: those whose values span decades.
    """

    x: str | None = None
    y: str = "iteration_median_s"
    log: list[Literal["x", "y"]] | None = Field(default=None, max_length=2)


def _seeds(value: object) -> object:
    if isinstance(value, list):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TRIALS:
        return list(range(1, value + 1))
    raise ValueError(
        f"{shown(value)} should be a list of seeds, or how many (1 to {MOST_TRIALS:,})"
    )


class SweepSpec(_Strict):
    """The content of a sweep file. axes: values by path, which begins with the kind of file."""

    name: Name = Field(max_length=40)
    topology: str = Field(min_length=1, max_length=1000)
    job: str = Field(min_length=1, max_length=1000)
    faults: str | None = Field(default=None, min_length=1, max_length=1000)
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    seeds: Annotated[list[Any], BeforeValidator(_seeds), Field(min_length=1)] | None = None
    exclude: list[dict[str, Any]] = []
    plot: PlotSpec = PlotSpec()


@dataclass(frozen=True)
class Axis:
    """A field, or ``seeds`` (two fields), and its values. place: location in the sweep file."""

    path: str
    values: tuple[Any, ...]
    place: Location

    @property
    def kind(self) -> str:
        """Kind of the file that has the field: topology, job or faults."""
        return self._paths[0].partition(".")[0]

    @property
    def field(self) -> str:
        """Path of the field in that file."""
        return self._paths[0].partition(".")[2]

    @property
    def location(self) -> Location:
        """Path of the field in parts."""
        return sweepfields.parse(self.field)

    def field_in(self, kind: str) -> str:
        """Returns the path of the field in a file of this kind; empty if it is not there."""
        found = (path.partition(".") for path in self._paths)
        return next((field for of, _, field in found if of == kind), "")

    @property
    def of_seeds(self) -> bool:
        """True if its values are seeds."""
        return self.path in (SEEDS, *SEEDED)

    @property
    def _paths(self) -> tuple[str, ...]:
        return SEEDED if self.path == SEEDS else (self.path,)


@dataclass(frozen=True)
class SweepFile:
    """A sweep file with valid axes; ``sweeps.trials`` checks its trials."""

    spec: SweepSpec
    source: Path
    document: Document[SweepSpec]
    axes: tuple[Axis, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of files that trials have."""
        return _kinds(self.spec)

    def base(self, kind: str) -> Path:
        """Returns the file of this kind that trials are derived from."""
        return self.source.parent / str(getattr(self.spec, kind))

    def combinations(self) -> Iterator[tuple[int, ...]]:
        """Yields the index of each axis's value for each trial; the last axis changes fastest."""
        for chosen in itertools.product(*(range(len(axis.values)) for axis in self.axes)):
            if not any(self._excluded(chosen, entry) for entry in self.spec.exclude):
                yield chosen

    def _excluded(self, chosen: tuple[int, ...], entry: dict[str, Any]) -> bool:
        values = {a.path: a.values[n] for a, n in zip(self.axes, chosen, strict=True)}
        return all(same(values[path], one) for path, one in entry.items())


def _kinds(spec: SweepSpec) -> tuple[str, ...]:
    return tuple(kind for kind in _MODELS if getattr(spec, kind) is not None)


def same(value: Any, other: Any) -> bool:
    """Returns whether two values of files are equal; 1 and true are not."""
    return json.dumps(value, sort_keys=True, default=str) == json.dumps(
        other, sort_keys=True, default=str
    )


@errors_as(SweepFileError)
def load(path: Path) -> SweepFile:
    """Reads a sweep file; raises ``SweepFileError``."""
    document = load_document(path, SweepSpec)
    axes = tuple(_axes(document))
    document.check()
    file = SweepFile(document.content, path, document, axes)
    _check_exclusions(document, axes)
    _check_plot(document, axes)
    document.check()
    _check_number(file)
    document.check()
    return file


def _axes(document: Document[SweepSpec]) -> Iterator[Axis]:
    spec = document.content
    given: dict[str, tuple[list[Any], Location]] = {
        path: (values, ("axes", path)) for path, values in spec.axes.items()
    }
    if SEEDS in given:
        document.refuse(("axes", SEEDS), "stands beside `axes`, not in it")
    elif spec.seeds is not None:
        for path in SEEDED:
            if path in given:
                document.refuse((SEEDS,), f"{path} is an axis already; leave one of them out")
        given[SEEDS] = (spec.seeds, (SEEDS,))
    for path, (values, place) in given.items():
        kind, _, field = (SEEDED[0] if path == SEEDS else path).partition(".")
        if kind not in _kinds(spec) or not field:
            allowed = ", ".join(f"{one}.FIELD" for one in _kinds(spec))
            document.refuse(place, f"is no field; allowed: {allowed}")
            continue
        for never in _NOT_SWEPT:
            if sweepfields.within(path, never):
                document.refuse(place, "of trials only summaries are kept; leave it out")
        try:
            location = sweepfields.parse(field)
        except ValueError as error:
            document.refuse(place, str(error))
            continue
        if text := unknown_field(_MODELS[kind], location):
            document.refuse(place, text)
        for other in given:
            if other != path and sweepfields.within(path, other):
                document.refuse(place, f"is part of {other}, which is an axis, too")
        for number, value in enumerate(values):
            if any(same(value, one) for one in values[:number]):
                document.refuse((*place, number), f"{shown(value)} is given twice")
        yield Axis(path, tuple(values), place)


def _check_exclusions(document: Document[SweepSpec], axes: tuple[Axis, ...]) -> None:
    values = {axis.path: axis.values for axis in axes}
    for number, entry in enumerate(document.content.exclude):
        if not entry:
            document.refuse(("exclude", number), "is empty, so it would exclude every trial")
        for path, value in entry.items():
            place: Location = ("exclude", number, path)
            if path not in values:
                document.refuse(place, f"is no axis; axes are {', '.join(values)}")
            elif not any(same(value, one) for one in values[path]):
                allowed = ", ".join(shown(one) for one in values[path])
                document.refuse(place, f"{shown(value)} is no value of that axis; it has {allowed}")


def _check_plot(document: Document[SweepSpec], axes: tuple[Axis, ...]) -> None:
    x, paths = document.content.plot.x, [axis.path for axis in axes]
    if x is not None and x not in paths:
        document.refuse(("plot", "x"), f"{shown(x)} is no axis; axes are {few(paths)}")


def _check_number(file: SweepFile) -> None:
    every = 1
    for axis in file.axes:
        every *= len(axis.values)
    if every > MOST_TRIALS:
        text = f"{every:,} combinations; allowed: up to {MOST_TRIALS:,}"
        file.document.refuse(("axes",), text)
    elif next(file.combinations(), None) is None:
        file.document.refuse(("exclude",), "excludes every trial")
