# SPDX-License-Identifier: Apache-2.0
"""Declarations of experiments: points to run, measures, published figures, and a page.

Everything else (running, resuming, tables, plots' files, page) is written once, beside this file.
docs/howto/new-experiment.md has a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from protocol.errors import Error

if TYPE_CHECKING:
    from matplotlib import figure

__all__ = [
    "Block",
    "Claim",
    "Code",
    "Experiment",
    "ExperimentError",
    "Figure",
    "FigureRow",
    "InRealTime",
    "Kind",
    "Plot",
    "Point",
    "Published",
    "Real",
    "Results",
    "Row",
    "Section",
    "Table",
    "Values",
]

Kind: TypeAlias = Literal[
    "abstract", "poster", "artifact", "derived", "digitised", "thread", "secondary", "recall", "new"
]
"""Where a published figure is from, as figures.yaml of the papers' notes has it: the paper's
abstract, a poster, the authors' repository, arithmetic on their definitions, a chart, an issue,
somebody else's notes, memory; ``new``: nobody has published one."""


class ExperimentError(Error):
    """An experiment cannot be run or drawn; the text says why."""


REAL = "experiments.common.emulated:run"
"""Runs a job in real time."""
COMPARED = "experiments.common.emulated:compare"
"""Runs the baseline that the file ``SUMS`` names likewise (``experiments.common.collectives``)."""


Values: TypeAlias = Mapping[str, str | int | float]
"""Values that tell a point from others, by column of the table."""


@dataclass(frozen=True)
class Point:
    """One run.

    values: Tell it from the experiment's other points: columns of the table.
    topology, job: Contents of the files.
    files: Contents of further files in the job's folder, by name.
    faults: What happens in virtual time meanwhile: the list ``faults`` of a fault file.
    by: ``module:function`` that runs it in place of virtual time (``sweeps.execution.Order``).
    emulated: It runs in real time, alone, and only with ``--emulated``.
    """

    values: Values
    topology: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    faults: Sequence[Mapping[str, Any]] = ()
    by: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class Real:
    """A setting with links so slow that this machine carries them, run by both clocks.

    name: In the table.
    topology, job, files, faults: As of ``Point``.
    by: What runs it in virtual time, as of ``Point``.
    real: What runs it in real time.
    """

    name: str
    topology: Mapping[str, Any]
    job: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    faults: Sequence[Mapping[str, Any]] = ()
    by: str = ""
    real: str = REAL

    @property
    def points(self) -> tuple[Point, Point]:
        """Its points: in virtual time, and in real time."""
        values = {"real": self.name}
        parts = self.topology, self.job, self.files, self.faults
        return (
            Point({**values, "clock": "virtual"}, *parts, self.by),
            Point({**values, "clock": "emulated"}, *parts, self.real, emulated=True),
        )


@dataclass(frozen=True)
class InRealTime:
    """Settings of an experiment that also run in real time, as a section of its page says.

    about: Of the setting, for readers; why nothing runs in real time if there is none.
    settings: They run in virtual time, too, and with ``--emulated`` in real time.
    """

    about: str
    settings: Sequence[Real] = ()


@dataclass(frozen=True)
class Row:
    """A point's results.

    values: The point's.
    measures: What the experiment measures of it.
    """

    values: Values
    measures: Mapping[str, Any]


class Results:
    """The results of all points that have run.

    quick: Whether these are the coarse points.
    """

    def __init__(self, rows: Sequence[Row], *, quick: bool) -> None:
        self.rows, self.quick = rows, quick

    def all(self, **values: str | int | float) -> Iterator[Row]:
        """Yields the results of points with these values, in the order of points."""
        for row in self.rows:
            if all(row.values.get(name) == value for name, value in values.items()):
                yield row

    def get(self, measure: str, **values: str | int | float) -> Any:
        """Returns a measure of the only point with these values.

        Raises:
            ExperimentError: No point has them, or several have; or it is not measured.
        """
        found = list(self.all(**values))
        if len(found) != 1:
            raise ExperimentError(f"{len(found)} points have {values}, where one is needed")
        if measure not in found[0].measures:
            raise ExperimentError(f"`measure` measures nothing called {measure}")
        return found[0].measures[measure]


@dataclass(frozen=True)
class Published:
    """A published figure. value: None if nobody has published one."""

    value: float | None
    kind: Kind
    source: str = ""


class FigureRow(TypedDict):
    """A figure as JSON."""

    id: str
    what: str
    unit: str
    paper: float | None
    kind: Kind
    ours: float
    ratio: float | None
    holds: bool
    why: str | None


@dataclass(frozen=True)
class Figure:
    """A figure beside a published one.

    ours: What was measured.
    holds: Whether it is as published, or better.
    why: The measured reason if it does not hold.
    """

    id: str
    what: str
    unit: str
    paper: Published
    ours: float
    holds: bool
    why: str = ""

    def __post_init__(self) -> None:
        if not self.holds and not self.why:
            raise ExperimentError(f"{self.id} does not hold, and nothing says why")

    @property
    def ratio(self) -> float | None:
        """Ours over the published one."""
        return self.ours / self.paper.value if self.paper.value else None

    def to_message(self) -> FigureRow:
        """Returns the JSON object."""
        return {
            "id": self.id,
            "what": self.what,
            "unit": self.unit,
            "paper": self.paper.value,
            "kind": self.paper.kind,
            "ours": self.ours,
            "ratio": self.ratio,
            "holds": self.holds,
            "why": None if self.holds else self.why,
        }


@dataclass(frozen=True)
class Claim:
    """A statement that the results must bear out; if one does not hold, the experiment fails."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Plot:
    """A plot.

    name: Of its file.
    about: What it shows, for its caption and screen readers.
    draw: Draws it, under ``pictures.style``.
    """

    name: str
    about: str
    draw: Callable[[], figure.Figure]


@dataclass(frozen=True)
class Table:
    """A table. Cells are Markdown; columns after the first are aligned right unless ``text``."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: bool = False


@dataclass(frozen=True)
class Code:
    """A block of code."""

    text: str


Block: TypeAlias = str | Plot | Table | Code
"""A part of a section; text is a paragraph of Markdown: `code`, **bold** and [links](to)."""


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str
    blocks: Sequence[Block]


def _no_claims(_: Results) -> Sequence[Claim]:
    return ()


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    title: The page's.
    about: One line for lists.
    points: Returns its points: all, or a few coarse ones if ``quick``.
    measure: Returns what is measured of a run, from its ``summary.json`` (or what ``Point.by``
        returned): columns of the table.
    figures: Returns the figures beside published ones.
    sections: Returns the page's sections below them.
    claims: Returns what must hold.
    real: What also runs in real time.
    """

    title: str
    about: str
    points: Callable[[bool], Iterable[Point]]
    measure: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    figures: Callable[[Results], Sequence[Figure]]
    sections: Callable[[Results], Sequence[Section]]
    claims: Callable[[Results], Sequence[Claim]] = _no_claims
    real: InRealTime | None = None
