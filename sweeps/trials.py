# SPDX-License-Identifier: Apache-2.0
"""The trials of a sweep: a checked topology and job for each combination of values."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simulation import session
from simulation.faults.check import scheduled
from specs import sweepfields
from specs.sweepfile import Axis, SweepFile, SweepFileError
from sweeps import code
from sweeps.execution import FAULTS, JOB, Order
from testbed.program import program_for
from topologies.model.documents import (
    Anything,
    Document,
    DocumentError,
    Location,
    Problem,
    errors_as,
)
from topologies.model.documents import load as load_document
from topologies.model.spec import read as read_topology
from topologies.model.topology import LinkQuality, Topology

_LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"
_ID_LETTERS = 16
_OF_LINKS = frozenset(field.name for field in dataclasses.fields(LinkQuality))
_KEEPS_NOTHING = "of trials only summaries are kept; leave it out"


@dataclass(frozen=True)
class Trial:
    """One run.

    id: A digest of its inputs and of this rackhub.
    label: Its distinguishing values, in words.
    values: By axis, as in the sweep file.
    measures: The same; numbers in base units (bit/s, s, bytes).
    topology, job: Contents of the files.
    program: The build of the data plane.
    effect: Equal for trials whose files have the same meaning.
    links: By field, if an axis is a default of links: its value at each link.
    files, by: As of ``Order``.
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
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by: str = ""

    @property
    def order(self) -> Order:
        """The files and the function that it runs."""
        return Order(self.topology, self.job, self.files, self.by)


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def trials(file: SweepFile) -> list[Trial]:
    """Returns all trials. Raises ``SweepFileError`` if any of them cannot run."""
    with errors_as(SweepFileError):
        for kind in file.kinds:
            if not file.base(kind).exists():
                text = f"{file.base(kind)}: no such file"
                raise DocumentError([file.document.problem((kind,), text)])
        bases = {kind: load_document(file.base(kind), Anything) for kind in file.kinds}
    problems: dict[tuple[Any, ...], _Shared] = {}
    made: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="rackhub-sweep-") as folder:
        for chosen in file.combinations():
            one = _Draft(file, bases, chosen, Path(folder))
            try:
                made.append(one.checked())
            except DocumentError as error:
                for problem in error.problems:
                    shared = problems.setdefault(_key(problem), _Shared(problem, one.label))
                    shared.times += 1
    if problems:
        raise SweepFileError(shared.whole() for shared in problems.values())
    return made


def trial_of(
    values: Mapping[str, Any],
    topology: Mapping[str, Any],
    job: Mapping[str, Any],
    files: Mapping[str, str],
    by: str,
    faults: Sequence[Mapping[str, Any]] = (),
) -> Trial:
    """Returns a trial with these files, not derived from a sweep file.

    Args:
        values: Tell it from others.
        topology, job: Contents of the files. Without a job only ``by`` knows what is run.
        files, by: As of ``Order``.
        faults: What happens in virtual time meanwhile.

    Raises:
        DocumentError: It cannot run.
    """
    if faults:
        files = {**files, FAULTS: _yaml({"faults": [dict(one) for one in faults]})}
    label = ", ".join(f"{name} {_told(value)}" for name, value in values.items())
    order = Order(_yaml(topology), _yaml(job), files, by)
    program = Path()
    if job:
        with tempfile.TemporaryDirectory(prefix="rackhub-trial-") as folder:
            paths = {name: Path(folder) / name for name in ("topology.yaml", JOB, *files)}
            texts = {"topology.yaml": order.topology, JOB: order.job, **files}
            for name, path in paths.items():
                path.write_text(texts[name])
            program, _, plane = program_for([paths[JOB]])
            checked = session.check(read_topology(paths["topology.yaml"]), [paths[JOB]], plane)
            if FAULTS in files:
                scheduled(paths[FAULTS], checked)
    contents = {**dataclasses.asdict(order), "source": _source(by)}
    given = dict(values)
    return Trial(
        _identity(contents), label, given, given, order.topology, order.job, program,
        files=files, by=by,
    )  # fmt: skip


def _source(by: str) -> str:
    """Returns the digest of the file with a function that runs a trial."""
    found = importlib.util.find_spec(by.partition(":")[0]) if by else None
    return _digest(Path(found.origin).read_text()) if found is not None and found.origin else ""


def _yaml(content: Mapping[str, Any]) -> str:
    return _LICENCE + yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def _key(problem: Problem) -> tuple[Any, ...]:
    return problem.file, problem.line, problem.field, problem.text


@dataclass
class _Shared:
    """A problem, the first trial that has it, and the number of trials that do."""

    problem: Problem
    first: str
    times: int = 0

    def whole(self) -> Problem:
        """Returns the problem with these facts in its text."""
        others = f", and {self.times - 1:,} more trials" if self.times > 1 else ""
        where = f" (in the trial with {self.first}{others})" if self.first else ""
        one = self.problem
        return Problem(one.file, one.line, one.field, one.text + where)


class _Draft:
    """A trial whose values are chosen, by index into each axis's values."""

    def __init__(
        self,
        file: SweepFile,
        bases: dict[str, Document[Anything]],
        chosen: tuple[int, ...],
        folder: Path,
    ) -> None:
        self._file, self._bases, self._folder = file, bases, folder
        self._chosen = list(zip(file.axes, chosen, strict=True))
        self._values = {axis.path: axis.values[number] for axis, number in self._chosen}

    @property
    def label(self) -> str:
        """Its values of axes that have several, in words."""
        chosen = [axis for axis, _ in self._chosen if len(axis.values) > 1]
        return ", ".join(f"{axis.path} {_told(self._values[axis.path])}" for axis in chosen)

    def checked(self) -> Trial:
        """Returns the trial. Raises ``DocumentError``, located in the sweep file or its bases."""
        kinds = self._file.kinds
        contents = {kind: self._content(kind) for kind in kinds}
        paths = {kind: self._folder / f"{kind}.yaml" for kind in kinds}
        texts = {kind: _yaml(contents[kind]) for kind in kinds}
        for kind, path in paths.items():
            path.write_text(texts[kind])
        try:
            topology = read_topology(paths["topology"])
            program, _, plane = program_for([paths["job"]])
            checked = session.check(topology, [paths["job"]], plane)
            faults = scheduled(paths["faults"], checked) if "faults" in paths else []
        except DocumentError as error:
            files = {str(path): kind for kind, path in paths.items()}
            raise DocumentError(self._placed(error.problems, files)) from error
        read = {
            "topology": topology.document.content,
            "job": checked.jobs[0].file.spec,
            "faults": contents.get("faults"),
        }
        return Trial(
            _identity(contents),
            self.label,
            self._values,
            {axis.path: self._measure(axis, number, read) for axis, number in self._chosen},
            texts["topology"],
            texts["job"],
            program,
            _digest(repr(_bare(topology.topology)), repr(read["job"]), repr(faults)),
            {name: _of_links(topology.topology, name) for name in self._defaults()},
            {FAULTS: texts["faults"]} if "faults" in texts else {},
        )

    def _defaults(self) -> list[str]:
        """Returns the axes that are defaults of links."""
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
        """Relocates problems of the generated files: to the axis that sets the field, else to the
        base file."""
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
    except ValueError:  # malformed names in an invalid file
        return ()


def _identity(contents: dict[str, Any]) -> str:
    return _digest(json.dumps([code.digest(), contents], sort_keys=True, default=str))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_ID_LETTERS]


def _bare(topology: Topology) -> Topology:
    """Removes what has no effect: names, and the seed if nothing is random."""
    seed = topology.seed if topology.impaired else 0
    return dataclasses.replace(topology, name="", source="", seed=seed)


def _of_links(topology: Topology, name: str) -> dict[str, float]:
    """Returns a property of each link, at its lower end."""
    return {f"{one.a}-{one.b}": getattr(one.forward, name) for one in topology.links}
