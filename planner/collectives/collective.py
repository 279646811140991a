# SPDX-License-Identifier: Apache-2.0
"""The interface of a collective: the algorithm, and its traffic and time in closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.collectives.streams import Array, Streams
from planner.flows import Round, piece
from planner.network import SERVER, Network
from protocol.errors import Error

if TYPE_CHECKING:  # members of a comparison start without the analytic model
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel

__all__ = ["Collective", "Team", "TeamError"]


class TeamError(Error, ValueError):
    """A collective is impossible with these members; the text says why and what to do."""


@dataclass(frozen=True)
class Team:
    """The members of a sum, numbered: workers from 0, in the order of racks, then server processes.

    workers, servers: the rack of each.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...] = ()

    @staticmethod
    def of(network: Network) -> Team:
        """Returns the team of a network's workers and server processes."""
        servers = network.ends(SERVER)
        return Team(network.in_racks.racks, tuple(servers.racks[link] for link in servers.units))

    @property
    def members(self) -> range:
        """Numbers of all members."""
        return range(len(self.workers) + len(self.servers))

    @property
    def server_members(self) -> range:
        """Numbers of the servers."""
        return self.members[len(self.workers) :]

    def with_servers(self, chosen: Sequence[int]) -> Team:
        """Keeps only these servers, given by position."""
        return Team(self.workers, tuple(self.servers[one] for one in chosen))


@dataclass(frozen=True)
class Collective(ABC):
    """An in-place sum over all workers of a team.

    name: on the command line and in results.
    least_servers: server processes without which it is left out by default.
    switched: switches add up what its servers send (``streams.Switches``).
    """

    name: str
    least_servers: int = 0
    switched: bool = False

    def describe(self, servers: int) -> str:
        """Describes it in a few words, with this number of server processes."""
        return f"{self.name} all-reduce"

    def suits(self, team: Team) -> bool:
        """Returns whether it is something else than others with these members. If not it is left
        out by default."""
        return len(team.servers) >= self.least_servers

    def servers(self, team: Team) -> Sequence[int]:
        """Returns the positions of the servers that it uses.

        Raises:
            TeamError: It is impossible with these members.
        """
        return ()

    def piece(self, team: Team, size: float, segment: int) -> int:
        """Returns the values of a sum of `size` that are forwarded before the rest has arrived.

        segment: bytes of data in a full segment.
        """
        return piece(size, max(1, len(team.servers) or len(team.workers)), segment)

    @abstractmethod
    def reduce(self, member: int, team: Team, values: Array, streams: Streams) -> None:
        """Runs a worker's part: `values` are its own at first, then the sums."""

    def serve(self, member: int, team: Team, size: int, streams: Streams) -> None:
        """Runs a server's part in a sum of `size` values. Raises NotImplementedError for a
        collective without servers."""
        raise NotImplementedError(f"{self.name} has no servers")

    @abstractmethod
    def rounds(self, team: Team, size: int) -> list[Round]:
        """Returns the messages of a sum of `size` values. A round begins after the one before."""

    @abstractmethod
    def loads(self, network: Network) -> dict[str, float]:
        """Computes the copies of a tensor on the busiest link of each class, per direction."""

    @abstractmethod
    def predict(self, model: StreamModel) -> Prediction:
        """Predicts an iteration for `rackhub plan`."""
