# SPDX-License-Identifier: Apache-2.0
"""The page over all experiments: every figure beside the published one, and where ours differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.common.declaration import (
    Block,
    Experiment,
    Figure,
    FigureRow,
    Plot,
    Section,
    Table,
)
from experiments.common.page import Page, compared
from experiments.common.plots import start
from experiments.common.running import Written
from observability import pictures
from observability.wording import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = ["Entry", "page_name", "to_message", "write"]

_TITLE = "The papers' figures beside ours"
_INDEX = "papers.md"
# Kinds of published figures that are as certain as what this project measures itself.
_FIRM = ("abstract", "artifact", "derived", "thread")
_INCHES = 0.17  # of a figure's line in the plot
_MARGIN = 1.1  # inches beside these


@dataclass(frozen=True)
class Entry:
    """An experiment that was run.

    written: Its outcome; None if it failed.
    problem: Why it failed.
    """

    name: str
    experiment: Experiment
    written: Written | None
    problem: str = ""

    @property
    def figures(self) -> Sequence[Figure]:
        """Its figures."""
        return self.written.figures if self.written is not None else ()

    @property
    def problems(self) -> list[str]:
        """Why it failed, or its claims that do not hold."""
        return self.written.failed if self.written is not None else [self.problem]


def page_name(name: str) -> str:
    """Returns the file of an experiment's page in a folder of pages."""
    return f"{name.replace('_', '-')}.md"


def to_message(entries: Sequence[Entry]) -> dict[str, Any]:
    """Returns the JSON object."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        figures: list[FigureRow] = [one.to_message() for one in entry.figures]
        problems = entry.problems
        found.append({"experiment": entry.name, "figures": figures, "problems": problems})
    return {"experiments": found}


def write(entries: Sequence[Entry], base: Path, folder: Path | None, *, quick: bool) -> list[Path]:
    """Writes the page as Markdown and HTML.

    Args:
        base: The folder of all experiments' folders.
        folder: Another place, with all experiments' pages; there it is ``papers.md``.

    Returns: What was written.
    """
    own = base / ("all-quick.md" if quick else "all.md")
    ending = "-quick" if quick else ""

    def page(link: Callable[[str], str]) -> Page:
        return Page(_TITLE, list(_sections(entries, link, quick=quick)))

    paths = page(lambda name: f"{name}{ending}/{name}.md").write(own)
    web = own.with_suffix(".html")
    paths += page(lambda name: f"{name}{ending}/{name}.html").write_html(web)
    if folder is not None:
        paths += page(page_name).write(folder / _INDEX)
    return paths


def _sections(
    entries: Sequence[Entry], link: Callable[[str], str], *, quick: bool
) -> list[Section]:
    figures = [one for entry in entries for one in entry.figures]
    published = [one for one in figures if one.paper.value is not None]
    held = sum(one.holds for one in published)
    runs = sum(entry.written.runs for entry in entries if entry.written is not None)
    command = f"rackhub experiment all{' --quick' if quick else ''}"
    intro = f"Written by `{command}`, from {count(runs, 'run')}."
    if quick:
        intro += " **These are the coarse points of `--quick`**, which show shapes only."
    if published:
        intro += (
            f" Of {count(len(published), 'figure')} with a published or derived value {held} hold;"
            f" {len(figures) - len(published)} more have none."
        )
    blocks: list[Block] = [intro, Table(_HEADINGS, [_row(one, link) for one in entries], text=True)]
    if any(one.ratio for one in published):
        about = (
            "Ours over the published figure. Filled: it holds. Grey: the published figure is read"
            " off a chart or poster, from notes, or recalled."
        )
        blocks.append(Plot("ratios", about, partial(_draw, entries)))
    return [
        Section("", blocks),
        *(Section(entry.experiment.title, _about(entry, link)) for entry in entries),
    ]


_HEADINGS = ("experiment", "", "runs", "minutes of all runs", "figures that hold", "claims")


def _row(entry: Entry, link: Callable[[str], str]) -> list[str]:
    name = f"[`{entry.name}`]({link(entry.name)})"
    written = entry.written
    if written is None:
        return [f"`{entry.name}`", entry.experiment.title, "", "", "", f"**{entry.problem}**"]
    holding = sum(one.holds for one in written.figures)
    failed = len(written.failed)
    return [
        *(name, entry.experiment.title, f"{written.runs:,}", f"{written.seconds / 60:.1f}"),
        f"{holding} of {len(written.figures)}",
        f"**{failed} of {len(written.claims)} fail**" if failed else "hold",
    ]


def _about(entry: Entry, link: Callable[[str], str]) -> list[Block]:
    if entry.written is None:
        return [f"**Not complete**: {entry.problem}"]
    text = f"[All of it]({link(entry.name)}): {entry.experiment.about}"
    failed = [f"- **does not hold**: {one}" for one in entry.written.failed]
    return [text, *(["\n".join(failed)] if failed else []), *compared(entry.figures)]


def _draw(entries: Sequence[Entry]) -> Drawing:
    shown = [
        (f"{entry.name}: {one.id}", one, one.ratio)
        for entry in entries
        for one in entry.figures
        if one.ratio is not None and one.ratio > 0  # on a logarithmic scale
    ][::-1]
    figure, axes = start(_MARGIN + _INCHES * len(shown))
    blue, grey = pictures.COLOURS[0], pictures.COLOURS[-1]
    for place, (_, one, ratio) in enumerate(shown):
        colour = blue if one.paper.kind in _FIRM else grey
        face = colour if one.holds else "white"
        axes.plot([ratio], [place], "o", color=colour, markerfacecolor=face, markersize=5)
    axes.axvline(1, color="#000000", linewidth=0.8)
    axes.grid(axis="y", visible=True)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown], fontsize=7)
    axes.set_ylim(-0.7, len(shown) - 0.3)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.5), max(high, 2.0))
    pictures.label_ticks(axes.xaxis)
    axes.set_xlabel("ours / published")
    return figure
