# SPDX-License-Identifier: Apache-2.0
"""Processes of a node in virtual time: groups of tasks that are killed or stopped together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count

KILLED = "was killed by SIGKILL"
"""How a process ends that is killed."""


class Process:
    """A process, of which ``Tasks`` has the tasks.

    how: how it ended, such as "was killed by SIGKILL"; empty while it runs.
    stopped: its tasks wait, whatever wakes them, until it goes on.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.how = ""
        self.stopped = False
        self._releases: dict[Hashable, Callable[[str], None]] = {}
        self._numbers = count()

    def holds(self, release: Callable[[str], None]) -> Callable[[], None]:
        """Has something released, given how the process ended, when it is killed.

        Returns a function that cancels that. Releases happen in the order of these calls.
        """
        key = next(self._numbers)
        self._releases[key] = release

        def cancel() -> None:
            self._releases.pop(key, None)

        return cancel

    def end(self, how: str) -> None:
        """Marks it as ended, and releases what it holds; for ``Tasks.kill``."""
        self.how = how
        releases, self._releases = list(self._releases.values()), {}
        for release in releases:
            release(how)
