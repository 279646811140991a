# SPDX-License-Identifier: Apache-2.0
"""Consistency models of jobs whose servers optimize: how far workers may be apart.

- synchronous: every step has the mean gradient of all workers, and all get the same parameters.
- asynchronous: a server takes a step with each worker's gradient as it arrives (MXNet's
  `dist_async`), and no worker waits for another.
- bounded delay: the same, but a worker gets its answer only once no other worker is more than
  `staleness` gradients behind it (stale synchronous parallel: Ho et al., NIPS 2013, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST_STALENESS = 1 << 20

_SYNCHRONOUS = "synchronous"
_ASYNCHRONOUS = "asynchronous"
_FIELD = "staleness"


@dataclass(frozen=True, slots=True)
class Consistency:
    """A consistency model.

    Attributes:
        together: True if steps are of all workers.
        staleness: Otherwise, by how many gradients a worker may be ahead of the slowest; None: no
            limit.

    Raises:
        ValueError: An invalid staleness.
    """

    together: bool = True
    staleness: int | None = None

    def __post_init__(self) -> None:
        if self.staleness is None:
            return
        if self.together:
            raise ValueError("a synchronous job has no staleness")
        if not 0 <= self.staleness <= MOST_STALENESS:
            raise ValueError(f"staleness {self.staleness}; allowed: 0 to {MOST_STALENESS}")

    def __str__(self) -> str:
        if self.together:
            return _SYNCHRONOUS
        return _ASYNCHRONOUS if self.staleness is None else f"{_FIELD} {self.staleness}"

    @staticmethod
    def of(given: Consistency | str | Mapping[str, int]) -> Consistency:
        """Parses `synchronous`, `asynchronous` or `{staleness: N}`. Raises ValueError."""
        if isinstance(given, Consistency):
            return given
        if given == _SYNCHRONOUS:
            return SYNCHRONOUS
        if given == _ASYNCHRONOUS:
            return ASYNCHRONOUS
        if isinstance(given, Mapping) and list(given) == [_FIELD]:
            staleness = given[_FIELD]
            if isinstance(staleness, int) and not isinstance(staleness, bool):
                return Consistency(False, staleness)
        raise ValueError(
            f"consistency {str(given)[:80]!r}; allowed: {_SYNCHRONOUS}, {_ASYNCHRONOUS}, or"
            f" {{{_FIELD}: N}} with N from 0 to {MOST_STALENESS}"
        )


SYNCHRONOUS = Consistency()
ASYNCHRONOUS = Consistency(together=False)
