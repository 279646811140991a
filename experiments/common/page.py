# SPDX-License-Identifier: Apache-2.0
"""Writes pages of experiments: Markdown with plots beside it, and self-contained HTML files."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.common.declaration import (
    Block,
    Claim,
    Code,
    Experiment,
    Figure,
    Plot,
    Results,
    Section,
    Table,
)
from observability import pictures

if TYPE_CHECKING:
    from matplotlib import figure

__all__ = ["Page", "compared", "experiment_page", "number"]

_STYLE = Path(__file__).with_name("page.css")
# The plots' colours, by the style sheet's that follow light and dark.
_COLOURS = {
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    "#dddddd": "var(--line)",
    "#0072b2": "var(--blue)",
}
_DIGITS = 3
_NONE = "-"
_GROUPED = 1000  # from here on numbers are written out


class Page:
    """A page.

    sections: The first may have no title, and is the introduction then.
    """

    def __init__(self, title: str, sections: Sequence[Section]) -> None:
        self._title, self._sections = title, sections
        self._drawings: dict[str, figure.Figure] = {}

    @property
    def plots(self) -> list[Plot]:
        """All plots of the page."""
        blocks = (block for section in self._sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Plot)]

    def write(self, markdown: Path) -> list[Path]:
        """Writes the page as Markdown, and its plots into a folder of its name beside it.

        Returns: What was written.
        """
        folder = markdown.with_suffix("")
        markdown.parent.mkdir(parents=True, exist_ok=True)
        written = [markdown]
        for plot in self.plots:
            folder.mkdir(exist_ok=True)
            written.append(folder / f"{plot.name}.svg")
            pictures.write(written[-1], self._drawn(plot), _plain(plot.about))
        markdown.write_text(self._markdown(folder.name))
        return written

    def write_html(self, path: Path) -> list[Path]:
        """Writes the page as HTML with its plots in it. Returns what was written."""
        path.write_text(self._html())
        return [path]

    def _drawn(self, plot: Plot) -> figure.Figure:
        if plot.name not in self._drawings:
            with pictures.style():
                self._drawings[plot.name] = plot.draw()
        return self._drawings[plot.name]

    def _markdown(self, folder: str) -> str:
        lines = [f"# {self._title}"]
        for section in self._sections:
            lines += [f"## {section.title}"] if section.title else []
            for block in section.blocks:
                if isinstance(block, Plot):
                    lines.append(f"![{_plain(block.about)}]({folder}/{block.name}.svg)")
                    lines.append(f"*{block.about}*")
                elif isinstance(block, Table):
                    lines.append(_table_as_markdown(block))
                elif isinstance(block, Code):
                    lines.append("\n".join(f"    {one}" for one in block.text.splitlines()))
                else:
                    lines.append(block)
        return "\n\n".join(lines) + "\n"

    def _html(self) -> str:
        parts = [f"<h1>{_inline(self._title)}</h1>"]
        for section in self._sections:
            parts += [f"<h2>{_inline(section.title)}</h2>"] if section.title else []
            for block in section.blocks:
                if isinstance(block, Plot):
                    svg = pictures.inline(self._drawn(block), _plain(block.about), _COLOURS)
                    caption = f"<figcaption>{_inline(block.about)}</figcaption>"
                    parts.append(f"<figure>{svg}{caption}</figure>")
                elif isinstance(block, Table):
                    parts.append(_table_as_html(block))
                elif isinstance(block, Code):
                    parts.append(f"<pre>{html.escape(block.text)}</pre>")
                else:
                    parts.append(_paragraph(block))
        return (
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width">\n'
            f"<title>{html.escape(_plain(self._title))}</title>\n"
            f"<style>\n{_style()}</style>\n<main>\n" + "\n".join(parts) + "\n</main>\n</html>\n"
        )


def experiment_page(
    experiment: Experiment,
    results: Results,
    figures: Sequence[Figure],
    claims: Sequence[Claim],
    made_by: str,
    real: Section | None = None,
    *,
    measured: Sequence[str] = (),
) -> Page:
    """Returns the page of an experiment.

    Args:
        made_by: The command that writes it.
        real: The section on what also ran in real time.
        measured: The days on which anything of the page was measured in real time.
    """
    intro = f"Written by `{made_by}`, from {len(results.rows):,} runs."
    if measured:
        intro += f" What is in real time was measured on {' and '.join(measured)} (`--emulated`)."
    if results.quick:
        intro += " **These are the coarse points of `--quick`**, which show shapes only."
    blocks = compared(figures)
    return Page(
        experiment.title,
        [
            Section("", [intro]),
            *([Section("The paper's figures beside ours", blocks)] if blocks else []),
            *_claims(claims),
            *experiment.sections(results),
            *([real] if real is not None else []),
        ],
    )


def number(value: float | None) -> str:
    """Formats a figure with three digits."""
    if value is None:
        return _NONE
    if abs(value) >= _GROUPED:
        return f"{float(f'{value:.{_DIGITS}g}'):,.0f}"
    return f"{value:.{_DIGITS}g}"


def compared(figures: Sequence[Figure]) -> list[Block]:
    """Returns a table of figures beside published ones, reasons of those that do not hold, and
    sources."""
    if not figures:
        return []
    headings = ("figure", "", "published", "kind", "ours", "ratio", "holds")
    rows = [
        (
            f"`{one.id}`",
            one.what,
            f"{number(one.paper.value)} {one.unit}" if one.paper.value is not None else _NONE,
            one.paper.kind,
            f"{number(one.ours)} {one.unit}",
            number(one.ratio),
            "yes" if one.holds else "**no**",
        )
        for one in figures
    ]
    reasons = [f"- `{one.id}`: {one.why}" for one in figures if not one.holds]
    named: dict[str, list[str]] = {}
    for one in figures:
        if one.paper.source and one.paper.value is not None:
            named.setdefault(one.paper.source, []).append(f"`{one.id}`")
    sources = [f"- {', '.join(ids)}: {source}" for source, ids in named.items()]
    blocks: list[Block] = [Table(headings, rows, text=True)]
    if reasons:
        blocks += ["Where ours falls short:", "\n".join(reasons)]
    if sources:
        blocks += ["Published figures are from:", "\n".join(sources)]
    return blocks


def _claims(claims: Sequence[Claim]) -> list[Section]:
    if not claims:
        return []
    lines = [f"- {'holds' if one.holds else '**does not hold**'}: {one.text}" for one in claims]
    return [Section("What must hold", ["\n".join(lines)])]


def _table_as_markdown(table: Table) -> str:
    rules = ["---", *("---" if table.text else "---:" for _ in table.headings[1:])]
    rows = [table.headings, rules, *table.rows]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def _table_as_html(table: Table) -> str:
    kind = "" if table.text else ' class="numbers"'
    head = "".join(f"<th>{_inline(one)}</th>" for one in table.headings)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    return f'<div class="table"><table{kind}>\n<tr>{head}</tr>\n{rows}\n</table></div>'


def _paragraph(text: str) -> str:
    if text.startswith("- "):
        items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
        return "<ul>" + "".join(f"<li>{_inline(one.strip())}</li>" for one in items) + "</ul>"
    return f"<p>{_inline(text)}</p>"


def _inline(text: str) -> str:
    """Converts the Markdown that pages use within a line. Of links to files only those to HTML
    remain: the page stands alone."""
    pieces = re.split(r"(`[^`]*`)", text)
    for place, piece in enumerate(pieces):
        if place % 2:
            pieces[place] = f"<code>{html.escape(piece[1:-1])}</code>"
            continue
        piece = html.escape(piece, quote=False)
        piece = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", piece)
        piece = re.sub(
            r"\[([^\]]+)\]\((https?:[^)]+|[^):]+\.html)\)", r'<a href="\2">\1</a>', piece
        )
        pieces[place] = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", piece)
    return "".join(pieces)


def _plain(text: str) -> str:
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return text.replace("`", "").replace("**", "")


@cache
def _style() -> str:
    return _STYLE.read_text()
