# SPDX-License-Identifier: Apache-2.0
"""Input that a program gives in place of files: paths, shipped files' names, mappings, keywords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import yaml

from specs import shipped
from specs.jobfile import JobFileError
from topologies.model.documents import Anything, DocumentError, Problem, errors_as
from topologies.model.documents import load as load_document

# Faults: a file of them, or its list `faults`.
FaultsSource: TypeAlias = str | Path | Sequence[Mapping[str, object]]
# A job: its file, the name of a shipped one, or its fields.
JobSource: TypeAlias = str | Path | Mapping[str, object]


@dataclass(frozen=True)
class Text:
    """The content of a file, and where it is from.

    origin: The file, or the call that was given the fields.
    keywords: For errors, keywords by the field that they set, the longest first; None for a file,
        whose errors name lines.
    """

    text: str
    origin: str
    keywords: Mapping[str, str] | None = field(default=None)

    def told(self, problem: Problem) -> Problem:
        """Returns a problem of the text as one of its origin, with keywords for fields."""
        if self.keywords is None:
            return replace(problem, file=self.origin)
        name = next((name for name in self.keywords if problem.field.startswith(name)), "")
        field = self.keywords.get(name, "") + problem.field[len(name) :]
        return replace(problem, file=self.origin, line=0, field=field)

    @contextmanager
    def written(self, name: str) -> Iterator[File]:
        """Yields a file of this name with the text, for the time of the context."""
        with TemporaryDirectory(prefix="rackhub-") as folder:
            file = File(Path(folder, name), self)
            file.path.write_text(self.text)
            with file.blamed():
                yield file


@dataclass(frozen=True)
class File:
    """A file: the user's own, or one with a text."""

    path: Path
    text: Text | None = None

    def told(self, problem: Problem) -> Problem:
        """Returns a problem, of the text's origin if it is the file's."""
        if self.text is None or problem.file != str(self.path):
            return problem
        return self.text.told(problem)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Has errors about the file be about its text's origin."""
        try:
            yield
        except DocumentError as error:
            raise type(error)(self.told(one) for one in error.problems) from None


def dumped(content: Mapping[str, object]) -> str:
    """Returns fields as YAML. Tuples are lists, paths text, and numpy's numbers Python's."""
    return yaml.safe_dump(_plain(content), sort_keys=False, allow_unicode=True)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    item = getattr(value, "item", None)  # of numpy's numbers
    return item() if callable(item) else str(value)


def _job_text(job: JobSource, fields: Mapping[str, object]) -> Text | Path:
    """Returns a job with fields replaced; the file itself if none are."""
    if isinstance(job, Mapping):
        content, folder, origin = dict(job), Path.cwd(), str(job.get("name", "job"))
    else:
        with errors_as(JobFileError):
            path = shipped.find(job, "jobs")
            if not fields:
                return path
            read = load_document(path, Anything).content.model_extra
        content, folder, origin = dict(read or {}), path.absolute().parent, str(job)
    content |= fields
    # Paths in a file are relative to it.
    if content.get("restore") is not None:
        content["restore"] = folder / str(content["restore"])
    compute = content.get("compute")
    if isinstance(compute, Mapping) and "layers" in compute:
        content["compute"] = {**compute, "layers": folder / str(compute["layers"])}
    return Text(dumped(content), origin, {})


@contextmanager
def faults_file(faults: FaultsSource | None) -> Iterator[File | None]:
    """Yields a file of faults, as ``job_file`` does a job's."""
    if faults is None:
        yield None
    elif isinstance(faults, (str, Path)):
        yield File(Path(faults))
    else:
        with Text(dumped({"faults": faults}), "faults", {}).written("faults.yaml") as file:
            yield file


@contextmanager
def job_file(job: JobSource, fields: Mapping[str, object]) -> Iterator[File]:
    """Yields a job's file, which is there for the time of the context unless it is the user's."""
    text = _job_text(job, fields)
    if isinstance(text, Path):
        yield File(text)
    else:
        with text.written("job.yaml") as file:
            yield file
