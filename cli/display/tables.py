# SPDX-License-Identifier: Apache-2.0
"""Plain tables, as wide as the terminal allows; elsewhere lines are neither wrapped nor cut."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

Row: TypeAlias = Mapping[str, object]
_GAP = 2  # between columns
_FEW_ROWS = 3  # up to here, rows are printed as blocks rather than in split tables
ENDLESS = 10_000  # a width beyond any output's


def show(console: Console, what: RenderableType = "") -> None:
    """Prints; without a terminal, lines are not wrapped and have no trailing blanks."""
    if console.is_terminal:
        console.print(what)
        return
    for line in _lines(what):
        console.print(Text(line), soft_wrap=True)


def _lines(what: RenderableType) -> list[str]:
    """Renders without a limit of width."""
    text = io.StringIO()
    Console(file=text, width=ENDLESS, color_system=None, highlight=False).print(what)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def fits(console: Console, what: RenderableType) -> bool:
    """Tells whether the console is wide enough to show it without cutting or wrapping."""
    return not console.is_terminal or max(map(cell_len, _lines(what))) <= console.width


def plain_table(first: str, *others: str) -> Table:
    """Returns a table without rules; the first column is left-aligned, the others right."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right", overflow="fold")
    return table


def show_rows(
    console: Console, rows: Sequence[Row], columns: dict[str, str], spare: Sequence[str] = ()
) -> None:
    """Prints rows as a table, without the columns that have no value.

    A table that is too wide is split into several, each with the first column; if that does not
    help, each row is printed as a block.

    Args:
        columns: Titles by field.
        spare: Fields to leave out before that, one after the other.
    """
    titles = {name: title for name, title in columns.items() if any(_cell(r, name) for r in rows)}
    for name in spare:
        if fits(console, rows_table(rows, titles)):
            break
        titles.pop(name, None)
    if not titles:
        show(console, rows_table(rows, columns))
        return
    tables = _split(console, rows, titles)
    for number, table in enumerate(tables):
        if number:
            show(console)
        show(console, table)
    if tables:
        return
    for number, row in enumerate(rows):
        block = plain_table("", "")
        block.show_header = False
        for name, title in titles.items():
            if _cell(row, name):
                block.add_row(title, Text(_cell(row, name), overflow="fold"))
        block.columns[1].justify = "left"
        if number:
            show(console)
        show(console, block)


def rows_table(rows: Sequence[Row], titles: dict[str, str]) -> Table:
    """Returns a table of rows. titles: of columns, by field."""
    table = plain_table(*titles.values())
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(*(Text(_cell(row, name)) for name in titles))
    return table


def _split(console: Console, rows: Sequence[Row], titles: dict[str, str]) -> list[Table]:
    """Splits columns into tables that fit, each with the first; returns none if one cannot fit.

    Later tables leave out rows that are empty in their columns.
    """
    first, *others = titles
    tables: list[Table] = []
    while others or not tables:
        fitting = len(others)
        while True:
            names = [first, *others[:fitting]]
            filled = [row for row in rows if not tables or any(_cell(row, n) for n in names[1:])]
            table = rows_table(filled, {name: titles[name] for name in names})
            if fits(console, table):
                break
            fitting -= 1
            if fitting < 1 or len(rows) < _FEW_ROWS:  # few rows read better as blocks
                return []
        tables.append(table)
        others = others[fitting:]
    return tables


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else _short(value)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
