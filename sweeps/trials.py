# SPDX-License-Identifier: Apache-2.0
"""The trials of a sweep: for each combination of values a topology and a job, checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from emulation.lifecycle.launcher import program_for
from simulation import session
from specs import sweepfields
from specs.sweepfile import KINDS, Axis, SweepFile, SweepFileError
from sweeps import code
from topologies.model.documents import Document, DocumentError, Location, Problem
from topologies.model.documents import load as load_document
from topologies.model.spec import read as read_topology
from topologies.model.topology import LinkQuality, Topology

_LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"
_ID_LETTERS = 16
_OF_LINKS = frozenset(field.name for field in dataclasses.fields(LinkQuality))
_KEEPS_NOTHING = "of trials only summaries are kept; leave it out"


class _Anything(BaseModel):
    """A file that is checked once it is a trial's."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Trial:
    """One run.

    id: of its inputs and this rackhub. label: what sets it apart, in words. values: by axis, as the
    sweep file has them; measures: the same in base units (bit/s, s, bytes) where they are numbers.
    topology, job: texts of files. program: the build of the data plane. effect: the same for
    trials whose files say the same. links: by field, where an axis is a default of links, what it
    is of each.
    """

    id: str
    label: str
    values: dict[str, Any]
    measures: dict[str, Any]
    topology: str
    job: str
    program: Path = Path()
    effect: str = ""
    links: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def trials(file: SweepFile) -> list[Trial]:
    """Every trial; raises ``SweepFileError`` if any of them could not run."""
    try:
        for kind in KINDS:
            if not file.base(kind).exists():
                text = f"{file.base(kind)}: no such file"
                raise DocumentError([file.document.problem((kind,), text)])
        bases = {kind: load_document(file.base(kind), _Anything) for kind in KINDS}
    except DocumentError as error:
        raise SweepFileError(error.problems) from error
    problems: dict[tuple[Any, ...], _Told] = {}
    made: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="rackhub-sweep-") as folder:
        for chosen in file.combinations():
            one = _Draft(file, bases, chosen, Path(folder))
            try:
                made.append(one.checked())
            except DocumentError as error:
                for problem in error.problems:
                    told = problems.setdefault(_key(problem), _Told(problem, one.label))
                    told.times += 1
    if problems:
        raise SweepFileError(told.whole() for told in problems.values())
    return made


def _key(problem: Problem) -> tuple[Any, ...]:
    return problem.file, problem.line, problem.field, problem.text


@dataclass
class _Told:
    """A problem, the first trial that has it, and how many do."""

    problem: Problem
    first: str
    times: int = 0

    def whole(self) -> Problem:
        """The problem that says so."""
        others = f", and {self.times - 1:,} more trials" if self.times > 1 else ""
        where = f" (in the trial with {self.first}{others})" if self.first else ""
        one = self.problem
        return Problem(one.file, one.line, one.field, one.text + where)


class _Draft:
    """A trial whose values are chosen: the number of each axis's."""

    def __init__(
        self,
        file: SweepFile,
        bases: dict[str, Document[_Anything]],
        chosen: tuple[int, ...],
        folder: Path,
    ) -> None:
        self._file, self._bases, self._folder = file, bases, folder
        self._chosen = list(zip(file.axes, chosen, strict=True))
        self._values = {axis.path: axis.values[number] for axis, number in self._chosen}

    @property
    def label(self) -> str:
        """What sets it apart: its values of axes that have several."""
        chosen = [axis for axis, _ in self._chosen if len(axis.values) > 1]
        return ", ".join(f"{axis.path} {_told(self._values[axis.path])}" for axis in chosen)

    def checked(self) -> Trial:
        """The trial; raises ``DocumentError`` with places in the sweep file, or in its bases."""
        contents = {kind: self._content(kind) for kind in KINDS}
        paths = {kind: self._folder / f"{kind}.yaml" for kind in KINDS}
        texts = {
            kind: _LICENCE + yaml.safe_dump(contents[kind], sort_keys=False, allow_unicode=True)
            for kind in KINDS
        }
        for kind, path in paths.items():
            path.write_text(texts[kind])
        try:
            topology = read_topology(paths["topology"])
            program, _, plane = program_for([paths["job"]])
            checked = session.check(topology, [paths["job"]], plane)
        except DocumentError as error:
            kinds = {str(path): kind for kind, path in paths.items()}
            raise DocumentError(self._placed(error.problems, kinds)) from error
        read = {"topology": topology.document.content, "job": checked.jobs[0].file.spec}
        return Trial(
            _identity(contents),
            self.label,
            self._values,
            {axis.path: self._measure(axis, number, read) for axis, number in self._chosen},
            texts["topology"],
            texts["job"],
            program,
            _digest(repr(_bare(topology.topology)), repr(read["job"])),
            {name: _of_links(topology.topology, name) for name in self._defaults()},
        )

    def _defaults(self) -> list[str]:
        """Fields of links that are axes for all links at once."""
        names = (axis.field.removeprefix("defaults.") for axis, _ in self._chosen)
        return [name for name in names if name in _OF_LINKS]

    def _content(self, kind: str) -> dict[str, Any]:
        base = self._bases[kind]
        content = dict(base.content.model_extra or {})
        for name in ("restore", "checkpoint") if kind == "job" else ():
            if content.get(name) is not None:
                raise DocumentError([base.problem((name,), _KEEPS_NOTHING)])
        for axis, number in self._chosen:
            if field := axis.field_in(kind):
                try:
                    content = sweepfields.replaced(
                        content, sweepfields.parse(field), axis.values[number]
                    )
                except ValueError as error:
                    text = f"{error} in {base.file}"
                    raise DocumentError([self._file.document.problem(axis.place, text)]) from error
        return content

    def _measure(self, axis: Axis, number: int, read: dict[str, Any]) -> Any:
        value = axis.values[number]
        known = sweepfields.found(read[axis.kind], axis.location)
        plain = isinstance(known, (int, float)) and not isinstance(value, bool)
        return known if plain else value

    def _placed(self, problems: Iterable[Problem], kinds: dict[str, str]) -> Iterator[Problem]:
        """Problems of its files, of which there are only drafts, as ones of files that people
        have: of the axis that the field is from, else of the base."""
        for problem in problems:
            kind = kinds[problem.file]
            axis = self._cause(kind, problem.field)
            if axis is not None:
                place, field = self._place(axis), axis.field_in(kind)
                inside = problem.field.removeprefix(field).lstrip(".")
                text = f"{inside}: {problem.text}" if inside and field in problem.field else ""
                yield self._file.document.problem(place, text or problem.text)
            else:
                base = self._bases[kind]
                line = base.line(_location(problem.field))
                yield Problem(base.file, line, problem.field, problem.text)

    def _cause(self, kind: str, field: str) -> Axis | None:
        own = [(axis, axis.field_in(kind)) for axis, _ in self._chosen]
        own = [(axis, name) for axis, name in own if name and field]
        inside = [axis for axis, name in own if sweepfields.within(field, name)]
        return next(
            iter(inside + [axis for axis, name in own if sweepfields.within(name, field)]), None
        )

    def _place(self, axis: Axis) -> Location:
        number = next(number for one, number in self._chosen if one is axis)
        return (*axis.place, number)


def _location(field: str) -> Location:
    try:
        return sweepfields.parse(field)
    except ValueError:  # names that are no words, as a wrong file may have
        return ()


def _identity(contents: dict[str, Any]) -> str:
    return _digest(json.dumps([code.digest(), contents], sort_keys=True, default=str))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_ID_LETTERS]


def _bare(topology: Topology) -> Topology:
    """Without what changes nothing: its name, its file's, and the seed if nothing is drawn."""
    seed = topology.seed if topology.impaired else 0
    return dataclasses.replace(topology, name="", source="", seed=seed)


def _of_links(topology: Topology, name: str) -> dict[str, float]:
    """A property of each link, from its lower end."""
    return {f"{one.a}-{one.b}": getattr(one.forward, name) for one in topology.links}
