# SPDX-License-Identifier: Apache-2.0
"""Writes an experiment's page: Markdown with plots beside it, and one self-contained HTML file."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.common.declaration import (
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

__all__ = ["Page", "number"]

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

    made_by: The command that writes it.
    """

    def __init__(
        self,
        experiment: Experiment,
        results: Results,
        figures: Sequence[Figure],
        claims: Sequence[Claim],
        made_by: str,
    ) -> None:
        self._title = experiment.title
        intro = f"Written by `{made_by}`, from {len(results.rows):,} runs."
        if results.quick:
            intro += " **These are the coarse points of `--quick`**, which show shapes only."
        self._sections = [
            Section("", [intro]),
            *_beside_the_paper(figures),
            *_claims(claims),
            *experiment.sections(results),
        ]

    @property
    def plots(self) -> list[Plot]:
        """All plots of the page."""
        blocks = (block for section in self._sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Plot)]

    def write(self, markdown: Path, web: Path | None = None) -> list[Path]:
        """Writes the page, its plots into a folder of its name beside it, and HTML.

        Returns: What was written.
        """
        folder = markdown.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        written = [markdown]
        drawn = {plot.name: _drawn(plot) for plot in self.plots}
        for plot in self.plots:
            written.append(folder / f"{plot.name}.svg")
            pictures.write(written[-1], drawn[plot.name], _plain(plot.about))
        markdown.write_text(self._markdown(folder.name))
        if web is not None:
            web.write_text(self._html(drawn))
            written.append(web)
        return written

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

    def _html(self, drawn: dict[str, figure.Figure]) -> str:
        parts = [f"<h1>{_inline(self._title)}</h1>"]
        for section in self._sections:
            parts += [f"<h2>{_inline(section.title)}</h2>"] if section.title else []
            for block in section.blocks:
                if isinstance(block, Plot):
                    svg = pictures.inline(drawn[block.name], _plain(block.about), _COLOURS)
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


def number(value: float | None) -> str:
    """Formats a figure with three digits."""
    if value is None:
        return _NONE
    if abs(value) >= _GROUPED:
        return f"{float(f'{value:.{_DIGITS}g}'):,.0f}"
    return f"{value:.{_DIGITS}g}"


def _beside_the_paper(figures: Sequence[Figure]) -> list[Section]:
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
    sources = [f"- `{one.id}`: {one.paper.source}" for one in figures if one.paper.source]
    blocks: list[str | Table] = [Table(headings, rows, text=True)]
    if reasons:
        blocks += ["Where ours falls short:", "\n".join(reasons)]
    if sources:
        blocks += ["Published figures are from:", "\n".join(sources)]
    return [Section("The paper's figures beside ours", blocks)]


def _claims(claims: Sequence[Claim]) -> list[Section]:
    if not claims:
        return []
    lines = [f"- {'holds' if one.holds else '**does not hold**'}: {one.text}" for one in claims]
    return [Section("What must hold", ["\n".join(lines)])]


def _drawn(plot: Plot) -> figure.Figure:
    with pictures.style():
        return plot.draw()


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
    """Converts the Markdown that pages use within a line. Links to files are left out: the HTML
    page stands alone."""
    pieces = re.split(r"(`[^`]*`)", text)
    for place, piece in enumerate(pieces):
        if place % 2:
            pieces[place] = f"<code>{html.escape(piece[1:-1])}</code>"
            continue
        piece = html.escape(piece, quote=False)
        piece = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", piece)
        piece = re.sub(r"\[([^\]]+)\]\((https?:[^)]+)\)", r'<a href="\2">\1</a>', piece)
        pieces[place] = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", piece)
    return "".join(pieces)


def _plain(text: str) -> str:
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return text.replace("`", "").replace("**", "")


@cache
def _style() -> str:
    return _STYLE.read_text()
