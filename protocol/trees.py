# SPDX-License-Identifier: Apache-2.0
"""Kinds of aggregation trees: the names in job files, the numbers in messages, what they imply."""

from __future__ import annotations

from enum import Enum

from protocol import jobs_pb2


class TreeKind(Enum):
    """The nodes that aggregate; the numbers are those of the job service's ``Tree``."""

    TWO_LEVEL = 1
    TOR = 2
    CORE = 3
    NONE = 4
    TWO_LEVEL_SERVER = 5
    CORE_SERVER = 6

    def __str__(self) -> str:
        """The spelling of job files, such as two-level-server."""
        return self.name.lower().replace("_", "-")

    @property
    def meaning(self) -> str:
        """The nodes that sum, in words."""
        return _MEANINGS[self]

    @property
    def ends_at_server(self) -> bool:
        """True if the root is a server, which can run an optimizer."""
        return self not in (TreeKind.TWO_LEVEL, TreeKind.CORE)

    @property
    def next_best(self) -> tuple[TreeKind, ...]:
        """The kinds to try, best first, where switches are missing for this one."""
        if self is TreeKind.NONE:
            return ()
        two_level = self in (TreeKind.TWO_LEVEL, TreeKind.TWO_LEVEL_SERVER)
        return (TreeKind.TOR, TreeKind.NONE) if two_level else (TreeKind.NONE,)

    @staticmethod
    def of(text: str) -> TreeKind:
        """Parses the spelling of job files; raises KeyError for any other."""
        return TreeKind[text.upper().replace("-", "_")]


_MEANINGS = {
    TreeKind.TWO_LEVEL: "ToR switches sum their racks, then a core (or levels of cores) the racks",
    TreeKind.TOR: "ToR switches sum their racks, then a server the racks",
    TreeKind.CORE: "a core alone sums all workers",
    TreeKind.NONE: "servers alone sum",
    TreeKind.TWO_LEVEL_SERVER: "as two-level, then a server gets the sum",
    TreeKind.CORE_SERVER: "as core, then a server gets the sum",
}

# Between names and numbers.
TREE_NUMBERS: dict[str, jobs_pb2.Tree] = {
    str(kind): getattr(jobs_pb2, kind.name) for kind in TreeKind
}
TREE_NAMES = {number: name for name, number in TREE_NUMBERS.items()}
