# SPDX-License-Identifier: Apache-2.0
"""Orders to let servers or workers of a job come, +s4, and go, -s1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topologies.model.documents import shown
from topologies.model.units import size_text
from topologies.model.wording import few


class Changes(NamedTuple):
    """Names of servers that get slices, or workers that join, and of those that lose all slices, or
    leave."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def changes(words: Iterable[str]) -> Changes:
    """Reads words like +s4 and -s1; raises ValueError for others, and for names given twice."""
    if isinstance(words, str):
        raise ValueError(f"{shown(words)} should be a list of +NAME and -NAME")
    found: dict[str, list[str]] = {"+": [], "-": []}
    for word in words:
        if not isinstance(word, str) or word[:1] not in found or len(word) == 1:
            raise ValueError(f"{shown(word)} should be +NAME, which comes, or -NAME, which goes")
        if any(word[1:] in names for names in found.values()):
            raise ValueError(f"{shown(word[1:])} is named twice")
        found[word[0]].append(word[1:])
    return Changes(tuple(found["+"]), tuple(found["-"]))


def scaled_words(slices: int, size: int, from_round: int) -> str:
    """Returns what has changed in words; size: in bytes. from_round: 0 if workers are in rounds of
    their own."""
    since = f"from round {from_round:,} on" if from_round else "from now on"
    what = "1 slice" if slices == 1 else f"{slices:,} slices"
    return f"moved {what} ({size_text(size)}), which holds {since}"


def workers_words(present: int, killed: Sequence[str]) -> str:
    """Returns how workers have changed in words. killed: those that did not leave in time."""
    late = f"; killed, not having left in time: {few(killed)}" if killed else ""
    return f"changed: {present} worker{'s' * (present != 1)}{late}"
