# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of summary.json from its model, observability/messages/summary.py: the JSON
schema docs/reference/summary.schema.json, and the tables of docs/reference/summary.md.

.venv/bin/python scripts/summary_reference.py            # writes them
.venv/bin/python scripts/summary_reference.py --check    # exit status 1 if they are out of date
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from typing_extensions import NotRequired, get_original_bases, get_type_hints, is_typeddict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from observability.messages import summary  # noqa: E402  # this checkout's, whatever is installed
from observability.messages.jobs import OtherJob  # noqa: E402
from workloads.attendance import AttendanceSpan, Participants  # noqa: E402

SCHEMA = ROOT / "docs" / "reference" / "summary.schema.json"
PAGE = ROOT / "docs" / "reference" / "summary.md"
# What follows this line of the page is written by this script.
_MARK = "<!-- Written by scripts/summary_reference.py from observability/messages/summary.py. -->\n"
_ABOUT = "Results of a run of rackhub, as its run directory has them in summary.json."

Model: TypeAlias = type[Any]
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_SECTIONS: dict[Model, str] = {
    summary.FinishedJob: "A job",
    summary.Chunks: "Chunks",
    summary.PlanUse: "Plans",
    AttendanceSpan: "Attendance",
    Participants: "Participants",
    summary.Staleness: "Staleness",
    summary.Restored: "Restored chunks",
    summary.Checkpoint: "Checkpoints",
    summary.JobMachine: "Costs of a job",
    summary.UnfinishedJob: "A job that is not done",
    summary.Link: "Links",
    summary.FaultImpact: "Faults",
    OtherJob: "Other jobs",
    summary.Failure: "Failure",
    summary.Virtual: "Virtual time",
    summary.FinishedMachine: "Machine",
}


def descriptions(model: Model) -> dict[str, str]:
    """Returns the texts of a TypedDict's fields, those of its bases first."""
    found: dict[str, str] = {}
    for base in get_original_bases(model):
        if is_typeddict(base):
            found |= descriptions(base)
    for name, hint in get_type_hints(model, include_extras=True).items():
        for one in _metadata(hint):
            if isinstance(one, FieldInfo) and one.description is not None:
                found[name] = one.description
    try:
        source = textwrap.dedent(inspect.getsource(model))
    except OSError:  # made by a call, whose fields have annotations
        return found
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{model.__name__}.{field.target.id}: no docstring"
            assert isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _metadata(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is NotRequired:
        return _metadata(get_args(hint)[0])
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


# --- the schema ---


def validator() -> TypeAdapter[summary.RunSummary]:
    """Returns a validator of summaries that refuses unknown keys."""
    return TypeAdapter(summary.RunSummary, config=ConfigDict(extra="forbid"))


def schema() -> dict[str, Any]:
    """Returns the JSON schema, with the texts of all fields."""
    found = validator().json_schema()
    for model in models():
        texts = descriptions(model)
        for name, entry in found["$defs"][model.__name__]["properties"].items():
            entry.pop("title", None)
            entry["description"] = texts[name]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "summary.json",
        "description": _ABOUT,
        **found,
    }


def models() -> list[Model]:
    """Returns all TypedDicts with fields that occur in a summary."""
    found: dict[Model, None] = {}

    def add(hint: Any) -> None:
        if not is_typeddict(hint):
            for part in get_args(hint):
                add(part)
        elif hint not in found and (fields := get_type_hints(hint)):
            found[hint] = None
            for part in fields.values():
                add(part)

    add(summary.RunSummary)
    return list(found)


# --- the page ---


def page() -> str:
    """Returns the page, with its tables renewed."""
    head, mark, _ = PAGE.read_text().partition(_MARK)
    assert mark, f"{PAGE} lacks the line {_MARK}"
    return head + mark + "".join(f"\n{part}" for part in _parts())


def _parts() -> Iterator[str]:
    job, run = get_type_hints(summary.FinishedPart), get_type_hints(summary.FinishedRun)
    own = [name for name in run if name not in job or name in ("target", "clock")]
    yield "### Top level\n"
    yield "Beside these, the keys of the first job that is done, but for its `machine`.\n"
    yield _table(summary.FinishedRun, own)
    for model, title in _SECTIONS.items():
        yield f"### {title}\n"
        yield f"{' '.join(inspect.cleandoc(model.__doc__ or '').split())}\n"
        names = list(get_type_hints(model))
        if model is summary.UnfinishedJob:
            yield "Beside what it was asked to do it has:\n"
            names = [name for name in names if name not in job or name == "chunks"]
        yield _table(model, names)


def _table(model: Model, names: list[str]) -> str:
    texts, hints = descriptions(model), get_type_hints(model)
    rows = [f"| `{name}` | {_type(hints[name])} | {texts[name]} |" for name in names]
    return "\n".join(["| key | value | |", "|---|---|---|", *rows, ""])


def _type(hint: Any) -> str:
    """Describes a field's type in words."""
    parts = get_args(hint)
    if is_typeddict(hint):
        title = _SECTIONS.get(hint)
        return f"[object](#{title.lower().replace(' ', '-')})" if title else "empty object"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in parts))
    if get_origin(hint) is list:
        return f"list of {_type(parts[0])}"
    if get_origin(hint) is dict:
        return f"object of {_type(parts[1])}"
    return _NAMES[hint]


def run() -> None:
    """Writes schema and page, or with ``--check`` compares them."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: scripts/summary_reference.py [--check]")
    for path, text in ((SCHEMA, json.dumps(schema(), indent=2) + "\n"), (PAGE, page())):
        if not sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is out of date: make summary-reference")


if __name__ == "__main__":
    run()
