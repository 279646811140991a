# SPDX-License-Identifier: Apache-2.0
"""Writes the references of summary.json and of `rackhub report --json` from their models in
observability/messages/: JSON schemas in docs/reference/, and the tables of the pages beside them.

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

from observability.messages import report, servers, summary  # noqa: E402  # this checkout's
from observability.messages.jobs import OtherJob  # noqa: E402
from workloads.attendance import AttendanceSpan, Participants  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
# What follows this line of a page is written by this script.
_MARK = "<!-- Written by scripts/summary_reference.py from observability/messages/{}.py. -->\n"

Model: TypeAlias = type[Any]
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
# Sections of the summary's page by model, and those of the report's.
_SUMMARY: dict[Model, str] = {
    summary.FinishedJob: "A job",
    summary.Chunks: "Chunks",
    summary.PlanUse: "Plans",
    AttendanceSpan: "Attendance",
    Participants: "Participants",
    summary.Staleness: "Staleness",
    summary.Restored: "Restored chunks",
    summary.Checkpoint: "Checkpoints",
    servers.ServerTimes: "Servers",
    servers.KeyTimes: "Keys",
    summary.JobMachine: "Costs of a job",
    summary.UnfinishedJob: "A job that is not done",
    summary.Link: "Links",
    summary.FaultImpact: "Faults",
    OtherJob: "Other jobs",
    summary.Failure: "Failure",
    summary.Virtual: "Virtual time",
    summary.FinishedMachine: "Machine",
}
_REPORT: dict[Model, str] = {
    report.Verdict: "Verdict",
    report.ReportedJob: "Jobs",
    report.ChunkShares: "Chunks",
    report.LinkLoad: "Links",
    report.ChartData: "Charts",
    report.ChartLine: "Curves",
    report.ReportedFault: "Faults",
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


def schema(model: Any, title: str, about: str) -> dict[str, Any]:
    """Returns the JSON schema, with the texts of all fields, which refuses unknown keys."""
    # Of a list of them, as pydantic refuses a configuration for a TypedDict itself.
    listed = TypeAdapter(list[model], config=ConfigDict(extra="forbid")).json_schema()
    found = {"title": title, "description": about, "$defs": listed["$defs"], **listed["items"]}
    for part in models(model):
        texts = descriptions(part)
        for name, entry in found["$defs"][part.__name__]["properties"].items():
            entry.pop("title", None)
            entry["description"] = texts[name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def models(root: Any) -> list[Model]:
    """Returns all TypedDicts with fields that occur in such an object."""
    found: dict[Model, None] = {}

    def add(hint: Any) -> None:
        if not is_typeddict(hint):
            for part in get_args(hint):
                add(part)
        elif hint not in found and (fields := get_type_hints(hint)):
            found[hint] = None
            for part in fields.values():
                add(part)

    add(root)
    return list(found)


# --- the page ---


def page(name: str, parts: Iterator[str]) -> str:
    """Returns a page, with its tables renewed."""
    head, mark, _ = (FOLDER / f"{name}.md").read_text().partition(_MARK.format(name))
    assert mark, f"{name}.md lacks the line {_MARK.format(name)}"
    return head + mark + "".join(f"\n{part}" for part in parts)


def _summary_parts() -> Iterator[str]:
    job, run = get_type_hints(summary.FinishedPart), get_type_hints(summary.FinishedRun)
    own = [name for name in run if name not in job or name in ("target", "clock")]
    yield "### Top level\n"
    yield "Beside these, the keys of the first job that is done, but for its `machine`.\n"
    yield _table(summary.FinishedRun, own, "summary")
    for model, title in _SUMMARY.items():
        yield from _heading(model, title)
        names = list(get_type_hints(model))
        if model is summary.UnfinishedJob:
            yield "Beside what it was asked to do it has:\n"
            names = [name for name in names if name not in job or name == "chunks"]
        yield _table(model, names, "summary")


def _report_parts() -> Iterator[str]:
    for model, title in {report.ReportData: "Top level", **_REPORT}.items():
        yield from _heading(model, title)
        yield _table(model, list(get_type_hints(model)), "report")


def _heading(model: Model, title: str) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"{' '.join(inspect.cleandoc(model.__doc__ or '').split())}\n"


def _table(model: Model, names: list[str], page: str) -> str:
    texts, hints = descriptions(model), get_type_hints(model)
    rows = [f"| `{name}` | {_type(hints[name], page)} | {texts[name]} |" for name in names]
    return "\n".join(["| key | value | |", "|---|---|---|", *rows, ""])


def _type(hint: Any, page: str) -> str:
    """Describes a field's type in words. page: on which that is."""
    parts = get_args(hint)
    if is_typeddict(hint):
        for name, sections in (("summary", _SUMMARY), ("report", _REPORT)):
            if hint in sections:
                there = "" if name == page else f"{name}.md"
                return f"[object]({there}#{sections[hint].lower().replace(' ', '-')})"
        return "object" if get_type_hints(hint) else "empty object"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if get_origin(hint) in (Union, types.UnionType):
        known = dict.fromkeys(_type(part, page) for part in parts)
        return " or ".join(one for one in known if one != "object")
    if get_origin(hint) is list:
        return f"list of {_type(parts[0], page)}"
    if get_origin(hint) is tuple:
        return f"pair of {' and '.join(_type(part, page) for part in parts)}"
    if get_origin(hint) is dict:
        return f"object of {_type(parts[1], page)}"
    return _NAMES[hint]


def run() -> None:
    """Writes schema and page, or with ``--check`` compares them."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: scripts/summary_reference.py [--check]")
    schemas = {
        "summary": schema(
            summary.RunSummary,
            "summary.json",
            "Results of a run of rackhub, as its run directory has them in summary.json.",
        ),
        "report": schema(
            report.ReportData, "rackhub report --json", "What a report shows of a run of rackhub."
        ),
    }
    texts = {
        FOLDER / f"{name}.schema.json": json.dumps(one, indent=2) + "\n"
        for name, one in schemas.items()
    }
    texts[FOLDER / "summary.md"] = page("summary", _summary_parts())
    texts[FOLDER / "report.md"] = page("report", _report_parts())
    for path, text in texts.items():
        if not sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} is out of date: make summary-reference")


if __name__ == "__main__":
    run()
