# SPDX-License-Identifier: Apache-2.0
"""YAML files read strictly, with errors that say where.

``parse(text, file, model)`` checks a YAML text against a pydantic model and reports all problems at
once, each with file, line, field, the error and the allowed values. Callers report problems that
the model cannot detect in the same form through the returned ``Document``.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import types
import typing
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from protocol.errors import Error

Location = tuple[str | int, ...]


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        text = f"{shown(value)} should be letters, digits, and . _ - after the first of them"
        raise ValueError(text)
    return value


# The name of a topology or a job, which becomes part of file names.
Name = Annotated[str, Field(strict=True), AfterValidator(_name)]
Model = TypeVar("Model", bound=BaseModel)

# Limits of a file. Aliases count as their expansion at every use: a few lines of them can expand to
# more than any memory.
MOST_BYTES = 1 << 20
MOST_VALUES = 100_000
DEEPEST = 20
LARGEST_NUMBER = 1 << 64
LONGEST_SHOWN = 80

# Kinds of files, by a field that is unique to each.
_KINDS = {
    "racks": "a topology",
    "iterations": "a job",
    "faults": "a file of faults",
    "axes": "a sweep",
    "layer_times": "a layer trace",
}


@dataclass(frozen=True)
class Problem:
    """A problem in a file.

    line: from 1; 0 for a file that cannot be read.
    field: a dotted path such as ``racks[0].workers``.
    """

    file: str
    line: int
    field: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.field}: {self.text}" if self.field else f"{where}: {self.text}"


class DocumentError(Error):
    """An invalid file; ``problems`` lists all its problems in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.file, p.line, p.field, p.text))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@contextlib.contextmanager
def errors_as(kind: type[DocumentError]) -> Iterator[None]:
    """Raises every DocumentError as one of this kind; also a decorator."""
    try:
        yield
    except DocumentError as error:
        raise kind(error.problems) from error


@dataclass
class Document(Generic[Model]):
    """A valid text as a model, with the line of every field."""

    file: str
    content: Model
    lines: dict[Location, int]
    problems: list[Problem] = field(default_factory=list)

    def line(self, location: Location) -> int:
        """Returns the line of a field, or of the nearest enclosing field in the file."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return 1

    def refuse(self, location: Location, text: str) -> None:
        """Adds a problem that the model cannot detect; ``check`` raises all of them."""
        self.problems.append(self.problem(location, text))

    def problem(self, location: Location, text: str) -> Problem:
        """Builds a problem of a field without adding it."""
        return Problem(self.file, self.line(location), _dotted(location), text)

    def refused(self, location: Location) -> bool:
        """True if this field has a problem already."""
        return any(problem.field == _dotted(location) for problem in self.problems)

    def check(self) -> None:
        """Raises DocumentError if there are problems."""
        if self.problems:
            raise DocumentError(self.problems)


class Anything(BaseModel):
    """An unchecked file, whose fields are ``model_extra``."""

    model_config = ConfigDict(extra="allow")


def check_there(path: str | Path) -> None:
    """Raises DocumentError if a file does not exist or is a folder."""
    if not Path(path).exists():
        raise DocumentError([Problem(str(path), 0, "", "no such file")])
    if Path(path).is_dir():
        raise DocumentError([Problem(str(path), 0, "", "is no file")])


def load(path: str | Path, model: type[Model]) -> Document[Model]:
    """Reads and checks a file; raises DocumentError if it is missing, unreadable or invalid."""
    check_there(path)
    if not Path(path).is_file():
        text = "is no regular file, and it is read more than once; save what comes of it in a file"
        raise DocumentError([Problem(str(path), 1, "", text)])
    try:
        with Path(path).open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            text = f"is too long; allowed: {MOST_BYTES} bytes"
            raise DocumentError([Problem(str(path), 1, "", text)])
        text = data.decode("utf-8")
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
        raise DocumentError([Problem(str(path), 0, "", text)]) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError([Problem(str(path), line, "", "not UTF-8 text")]) from error
    return parse(text, str(path), model)


def parse(text: str, file: str, model: type[Model]) -> Document[Model]:
    """Checks a YAML text against a model; raises DocumentError with all problems."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise DocumentError([_syntax_problem(file, text, error)]) from error
    if node is None:
        needed = [name for name, info in model.model_fields.items() if info.is_required()]
        fields = "needed: at least " if needed else "allowed: "
        text = f"is empty; {fields}{', '.join(needed or _field_names(model))}"
        raise DocumentError([Problem(file, 1, "", text)])
    reader = _Reader(file, loader)
    value: Any = {}
    with contextlib.suppress(_EnoughError):  # which is among the problems
        value = reader.value(node, ())
    if reader.problems:
        raise DocumentError(reader.problems)
    if other := _another_kind(value, model):
        raise DocumentError([Problem(file, reader.lines[(other[0],)], "", other[1])])
    try:
        content = model.model_validate(value)
    except ValidationError as error:
        places: Document[Any] = Document(file, model.model_construct(), reader.lines)
        told: set[Location] = set()
        for item in error.errors(include_url=False):
            location = tuple(item["loc"])
            text = _explain(item, model, location)
            if item["type"] == "extra_forbidden":  # what is allowed there is told once
                text = text.partition(";")[0] if location[:-1] in told else text
                told.add(location[:-1])
            places.refuse(location, text)
        raise DocumentError(places.problems) from error
    return Document(file, content, reader.lines)


def _another_kind(value: Any, model: type[BaseModel]) -> tuple[str, str] | None:
    """Recognizes a file of another kind; returns the field that shows it, and an error text."""
    known = _field_names(model)
    wanted = next((mark for mark in _KINDS if mark in known), None)
    if wanted is None or not isinstance(value, dict) or wanted in value:
        return None
    if mark := next((mark for mark in _KINDS if mark in value and mark not in known), None):
        return mark, f"this is {_KINDS[mark]}, and {_KINDS[wanted]} is wanted here"
    return None


class _Loader(yaml.SafeLoader):
    """Limits nesting to `DEEPEST`, as PyYAML recurses up to the end of Python's stack."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > DEEPEST:
            text = f"too many groups in one another; allowed: {DEEPEST}"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, text, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _EnoughError(Exception):
    """The file exceeds the limits."""


class _Reader:
    """Converts YAML nodes to plain values; records lines, and problems such as repeated keys."""

    def __init__(self, file: str, loader: yaml.SafeLoader) -> None:
        self.file = file
        self.loader = loader
        self.lines: dict[Location, int] = {}
        self.problems: list[Problem] = []
        self._values = 0

    def value(self, node: yaml.Node, location: Location) -> Any:
        self._values += 1
        if self._values > MOST_VALUES or len(location) > DEEPEST:
            what = f"{MOST_VALUES} values, {DEEPEST} in one another, aliases written out"
            self._problem(node, location[:DEEPEST], f"too much; allowed: {what}")
            raise _EnoughError
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*location, i)) for i, item in enumerate(node.value)]
        try:
            value = self.loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError):
            # All of these are what PyYAML raises for a value that is not what its tag says.
            text = f"not a plain value: {shown(node.value)}, read as {shown(node.tag)}"
            self._problem(node, location, text)
            return None
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            self._problem(node, location, f"beyond all limits: {shown(node.value)}")
            return None
        return value

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[Hashable, Any]:
        result: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._problem(key_node, location, "`<<` is not known here; write the fields out")
                continue
            key = self.value(key_node, (*location, "?"))
            place = (*location, shown(key) if not isinstance(key, str) else _short(key))
            if not isinstance(key, str):
                hint = "; numbers have no commas: 40_000" if isinstance(key, int) else ""
                self._problem(key_node, location, f"field names are words, not {shown(key)}{hint}")
            elif len(key) > LONGEST_SHOWN:
                self._problem(key_node, location, f"no field has a name like {shown(key)}")
            elif key in result:
                self._problem(key_node, place, f"given twice, first on line {self.lines[place]}")
            else:
                self.lines[place] = key_node.start_mark.line + 1
                result[key] = self.value(value_node, place)
        return result

    def _problem(self, node: yaml.Node, location: Location, text: str) -> None:
        line = node.start_mark.line + 1
        self.problems.append(Problem(self.file, line, _dotted(location), text))


def _syntax_problem(file: str, text: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return Problem(file, line, "", f"not valid YAML: {chr(error.character)!a} is no text")
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else 1
    parts = [getattr(error, name, None) for name in ("context", "problem")]
    said = ", ".join(_short(part) for part in parts if part) or _short(str(error))
    return Problem(file, line, "", f"not valid YAML: {said}")


def shown(value: object) -> str:
    """Formats a file's value for errors; truncates long ones."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(_short(value)) if isinstance(value, str) else _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        name = part if part.isprintable() else shown(part)
        text += f".{name}" if text else name
    return text


def _explain(item: Any, model: type[BaseModel], location: Location) -> str:
    if item["type"] == "extra_forbidden":
        names = _field_names(_model_at(model, location[:-1]))
        alike = difflib.get_close_matches(str(location[-1]), names, 1)
        meant = f"; did you mean {alike[0]}?" if alike else ""
        return f"unknown field; allowed here: {', '.join(names)}{meant}"
    if item["type"] == "missing":
        return "required, but not given"
    if item["type"] in ("value_error", "assertion_error"):
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        wanted = _model_at(model, location)
        allowed = f" ({', '.join(_field_names(wanted))})" if wanted else ""
        return f"should be a group of fields{allowed}, not {shown(item['input'])}"
    limits = {name: _written(value) for name, value in item.get("ctx", {}).items()}
    if item["type"] in _LENGTHS:
        return _LENGTHS[item["type"]].format(**limits)
    if item["type"] in _SHOULD_BE:
        should = _SHOULD_BE[item["type"]].format(**limits)
        return f"should be {should}, not {shown(item['input'])}"
    message = str(item["msg"])
    return f"{message[0].lower()}{message[1:]}, not {shown(item['input'])}"


# Error texts for pydantic's error types
# (https://docs.pydantic.dev/latest/errors/validation_errors/).
_LENGTHS = {
    "too_short": "needs at least {min_length}, has {actual_length}",
    "too_long": "takes up to {max_length}, has {actual_length}",
    "string_too_short": "is too short; allowed: at least {min_length} characters",
    "string_too_long": "is too long; allowed: up to {max_length} characters",
}
_SHOULD_BE = {
    "list_type": "a list",
    "string_type": "text (in quotes if need be)",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}


def _written(value: Any) -> str:
    """Formats a limit as files spell it: 1 for 1.0, and names without quotes."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).replace("'", "")


def unknown_field(model: type[BaseModel], location: Location) -> str:
    """Returns why files of a model have no such field; empty if they may have it."""
    for end, part in enumerate(location):
        group = _model_at(model, location[:end])
        if group is not None and part not in _field_names(group):
            return _explain({"type": "extra_forbidden"}, model, location[: end + 1])
    return ""


def _field_names(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [info.alias or name for name, info in model.model_fields.items()]


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """Finds the model of the mapping at a location, through collections and optional fields."""
    current: Any = model
    for part in location:
        if arguments := typing.get_args(current):  # of a list or a dictionary
            current = arguments[-1]
        elif isinstance(current, type) and issubclass(current, BaseModel):
            current = next(
                (
                    info.annotation
                    for name, info in current.model_fields.items()
                    if part in (name, info.alias)
                ),
                None,
            )
        if typing.get_origin(current) in (typing.Union, types.UnionType):
            current = next(a for a in typing.get_args(current) if a is not type(None))
    if typing.get_args(current) or not isinstance(current, type):
        return None
    return current if issubclass(current, BaseModel) else None
