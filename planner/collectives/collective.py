# SPDX-License-Identifier: Apache-2.0
"""The interface of a collective: the algorithm, and its traffic and time in closed form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.collectives.streams import Array, Streams
from planner.flows import Round
from planner.network import Network

if TYPE_CHECKING:  # members of a comparison start without the analytic model
    from planner.iteration_time import Prediction
    from planner.streamed import StreamModel

__all__ = ["Collective"]


@dataclass(frozen=True)
class Collective(ABC):
    """An in-place sum over all workers. Members are numbered: workers from 0, then servers.

    name: on the command line and in results.
    least_servers: server processes without which it is left out by default.
    """

    name: str
    least_servers: int = 0

    def describe(self, servers: int) -> str:
        """Describes it in a few words, with this number of server processes."""
        return f"{self.name} all-reduce"

    def servers(self, available: int) -> int:
        """Returns the number of server processes that it uses."""
        return 0

    @abstractmethod
    def reduce(
        self, member: int, workers: int, servers: int, values: Array, streams: Streams
    ) -> None:
        """Runs a worker's part: `values` are its own at first, then the sums."""

    def serve(self, member: int, workers: int, servers: int, size: int, streams: Streams) -> None:
        """Runs a server's part in a sum of `size` values. Raises NotImplementedError for a
        collective without servers."""
        raise NotImplementedError(f"{self.name} has no servers")

    @abstractmethod
    def rounds(self, workers: int, servers: int, size: int) -> list[Round]:
        """Returns the messages of a sum of `size` values. A round begins after the one before."""

    @abstractmethod
    def loads(self, network: Network) -> dict[str, float]:
        """Computes the copies of a tensor on the busiest link of each class, per direction."""

    @abstractmethod
    def predict(self, model: StreamModel) -> Prediction:
        """Predicts an iteration for `rackhub plan`."""
