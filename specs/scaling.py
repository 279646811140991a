# SPDX-License-Identifier: Apache-2.0
"""Orders to give servers of a job slices, +s4, or to take all from them, -s1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topologies.model.documents import shown
from topologies.model.units import size_text

__all__ = ["Servers", "changes", "scaled_words"]


class Servers(NamedTuple):
    """Names of servers that get slices, and of those that have none afterwards."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def changes(words: Iterable[str]) -> Servers:
    """Reads words like +s4 and -s1; raises ValueError for others."""
    found: dict[str, list[str]] = {"+": [], "-": []}
    for word in words:
        if not isinstance(word, str) or word[:1] not in found or len(word) == 1:
            text = "should be +NAME, a server that gets slices, or -NAME, one that loses all"
            raise ValueError(f"{shown(word)} {text}")
        found[word[0]].append(word[1:])
    return Servers(tuple(found["+"]), tuple(found["-"]))


def scaled_words(slices: int, size: int, from_round: int) -> str:
    """Returns what has changed in words; size: in bytes."""
    what = "1 slice" if slices == 1 else f"{slices:,} slices"
    return f"moved {what} ({size_text(size)}), which holds from round {from_round:,} on"
