# SPDX-License-Identifier: Apache-2.0
"""Prints the output of a job's ranks, line by line, each line after its rank."""

from __future__ import annotations

import sys
from collections import defaultdict

import click

from cli.options import console_for
from cli.pipes import discard_output

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


class RankLines:
    """Prints whole lines: standard output to standard output, and errors to standard error.

    Prefixes are coloured on a terminal.
    """

    def __init__(self) -> None:
        consoles = {1: console_for(), 2: console_for(stderr=True)}
        self._coloured = {n: one.is_terminal and not one.no_color for n, one in consoles.items()}
        self._rest: defaultdict[tuple[int, int], bytearray] = defaultdict(bytearray)

    def show(self, rank: int, number: int, data: bytes) -> None:
        """Takes what a rank has written to its output 1 or 2; nothing at the end of it.

        Raises ``BrokenPipeError`` if nobody reads this; what comes later is discarded.
        """
        rest = self._rest[rank, number]
        whole = data.rfind(b"\n") + 1
        lines = (bytes(rest) + data[:whole]).split(b"\n")[:-1] if whole else []
        if whole:
            rest.clear()
        rest += data[whole:]
        if not data and rest:
            lines = [bytes(rest)]
        if not lines:
            return
        prefix = f"[{rank}]"
        if self._coloured[number]:
            prefix = click.style(prefix, fg=_COLOURS[rank % len(_COLOURS)])
        stream = (sys.stdout if number == 1 else sys.stderr).buffer
        try:
            stream.write(b"".join(b"%s %s\n" % (prefix.encode(), line) for line in lines))
            stream.flush()
        except BrokenPipeError:
            discard_output()
            raise
