# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of the command line, docs/reference/cli.md, from the commands themselves.

.venv/bin/python scripts/cli_reference.py            # writes it
.venv/bin/python scripts/cli_reference.py --check    # exit status 1 if it is out of date
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cli.main import main  # noqa: E402  # this checkout's, whatever is installed

PAGE = ROOT / "docs" / "reference" / "cli.md"
_HEAD = """\
# Command line

<!-- Written by scripts/cli_reference.py from the commands' own help: change that, then
     `make cli-reference`. -->

Each command also explains itself: `rackhub COMMAND --help`. `eval "$(rackhub completion bash)"`
(or `zsh`, `fish`) completes commands, options and names.

With `--json` standard output holds one JSON document and nothing else. Plots and
drawings are SVG, PNG or PDF by their file name; a topology's as PNG or PDF needs
`pip install 'rackhub[plots]'`.

| exit status | meaning |
|---|---|
| 0 | everything was done and is right |
| 1 | a file is missing or wrong (`FILE:LINE: field: reason`), weights or sums are wrong, a placement is impossible |
| 2 | the command line was not understood |
| 3 | of `why`: the job waits |
| 130 | interrupted (Ctrl-C) |
| 141 | the reader of the output left (such as `head`); the run has ended in order |

`rackhub exec` returns the status of its command, `rackhub launch` that of the first rank that fails.

## Common options

Commands below name these without explaining them again.

| option | |
|---|---|
"""  # noqa: E501  # rows of a table
_COMMON = 3  # an option of so many commands is explained once


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yields every command that is no group, with its full name, in alphabetical order."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}")
    else:
        yield path, command


def section(path: str, command: click.Command, common: set[str]) -> str:
    """Returns the Markdown section of one command: usage, help text, table of options."""
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {path}\n", f"    {path} {usage}\n"]
    paragraphs = inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n")
    lines += [_text(" ".join(one.split())) + "\n" for one in paragraphs if one]
    rows = options(command)
    own = [row for row in rows if row not in common]
    if own:
        lines += ["| option | |", "|---|---|", *own, ""]
    shared = [row.split("`")[1].split()[0] for row in rows if row in common]
    if shared:
        lines.append("Common options: " + ", ".join(f"`{name}`" for name in shared) + ".\n")
    return "\n".join(lines)


def options(command: click.Command) -> list[str]:
    """Returns a row of a table for each option of a command."""
    context = click.Context(command)
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            names, text = record
            text = re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", " ".join(text.split()))
            text = text.replace("x>=", "at least ")
            rows.append(f"| `{names.replace('|', ', ')}` | {_text(text)} |")
    return rows


def _text(text: str) -> str:
    """Escapes what Markdown would take for markup outside of code spans."""
    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [re.sub(r"([|*_\[\]])", r"\\\1", one.replace("<", "&lt;")) for one in pieces[::2]]
    return "".join(pieces)


def page() -> str:
    """Returns the whole page."""
    found = list(commands(main, "rackhub"))
    count = Counter(row for _, command in found for row in options(command))
    common = [row for row, times in count.items() if times >= _COMMON]
    sections = [section(path, command, set(common)) for path, command in found]
    return "\n".join([_HEAD + "\n".join(common) + "\n", *sections])


def run() -> None:
    """Writes the page, or with ``--check`` compares it."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: scripts/cli_reference.py [--check]")
    if not sys.argv[1:]:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: make cli-reference")


if __name__ == "__main__":
    run()
