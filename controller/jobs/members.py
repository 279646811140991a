# SPDX-License-Identifier: Apache-2.0
"""Members of a job: roles, ranks, and the processes that fill them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from protocol.plan import Address

__all__ = ["Member", "Members", "Membership", "Role"]


class Role(Enum):
    """The role of a member; the numbers are those of the job service."""

    WORKER = 1
    SERVER = 2

    def __str__(self) -> str:
        return self.name.lower()


class Membership(NamedTuple):
    """A place in a job: a role and a rank that never changes."""

    role: Role
    rank: int


@dataclass
class Member:
    """The process in a place. Times are seconds of the controller's clock."""

    address: Address
    heard: float  # time of its last call
    initialised: bool = False  # it has declared its keys
    epoch: int = 0  # the plan epoch that it runs
    unanswered: float = 0.0  # seconds without any answer for its oldest chunk in flight
    # The first pushed key without a sum: its position among all pushed keys (0: none), its name.
    awaited: tuple[int, str] = (0, "")
    left: bool = False
    lost: str = ""  # why the job continues without it
    process: int = 0  # random number of the process
    gives_state: bool = False  # it can transfer the application's state to a joining worker
    joining: bool = False  # it waits to join the running job
    ended: str = ""  # how the process of a last server ended, which may be replaced
    since: float = 0.0  # time when it connected; 0: to an earlier controller

    @property
    def active(self) -> bool:
        """True if plans include it."""
        return not (self.left or self.lost or self.joining)

    @property
    def waiting(self) -> bool:
        """True if it is alive and waits to join."""
        return self.joining and not self.lost


class Members(dict[Membership, Member]):
    """The members of a job by place. Set them one by one; their addresses do not change."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[int] = set()  # IPv4 addresses of all that are or were members
        self.joined_late = False  # a member waits to join the running job, or has done so

    def __setitem__(self, place: Membership, member: Member) -> None:
        self._known.add(member.address.ipv4)
        self.joined_late |= member.joining
        super().__setitem__(place, member)

    def at(self, address: Address) -> list[Membership]:
        """Returns the places of all members at an address that are not lost. Quick if no member was
        ever on that host, as when each of thousands connects for the first time."""
        if address.ipv4 not in self._known:
            return []
        found = self.items()
        return [place for place, one in found if one.address == address and not one.lost]
