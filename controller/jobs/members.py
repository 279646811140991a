# SPDX-License-Identifier: Apache-2.0
"""Places in a job, and who fills them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from protocol.plan import Address

__all__ = ["Member", "Membership", "Role"]


class Role(Enum):
    """Numbers are those of the job service."""

    WORKER = 1
    SERVER = 2

    def __str__(self) -> str:
        return self.name.lower()


class Membership(NamedTuple):
    """A place in a job. Its rank stays, whoever else comes or goes."""

    role: Role
    rank: int


@dataclass
class Member:
    """Who fills a place, and when it was last heard of (controller's clock, seconds)."""

    address: Address
    heard: float
    initialised: bool = False
    epoch: int = 0  # of the plan that it runs
    unanswered: float = 0.0  # seconds that its oldest chunk in flight is without a sign of life
    # The first key that it has pushed and has no sum of: its place among all it pushed, 0: none.
    awaited: tuple[int, str] = (0, "")
    left: bool = False
    lost: str = ""  # why the job goes on without it
    process: int = 0  # that fills the place, by the number that it has drawn
    gives_state: bool = False  # it can tell one that joins later what it has to know
    joining: bool = False  # it is new in a running job and waits to join it
    ended: str = ""  # how its process ended, of a last server: another may come in its place
    since: float = 0.0  # when it connected (controller's clock); 0: to an earlier controller

    @property
    def active(self) -> bool:
        """Whether it is in the job: plans count on it."""
        return not (self.left or self.lost or self.joining)

    @property
    def waiting(self) -> bool:
        """Whether it waits to join, and is alive."""
        return self.joining and not self.lost
