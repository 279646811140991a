# SPDX-License-Identifier: Apache-2.0
"""Terminal tables of experiment results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table


def table(
    texts: Sequence[str],
    figures: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Sequence[str]]],
) -> Table:
    """Returns a table of text columns, then figures. rows: cells, and problems shown below them."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in texts:
        shown.add_column(heading)
    for heading in figures:
        shown.add_column(heading, justify="right")
    for cells, problems in rows:
        shown.add_row(*cells, style="red" if problems else "")
        for problem in problems:
            shown.add_row(f"[red]  {escape(problem.splitlines()[0])}[/]")
    return shown
