# SPDX-License-Identifier: Apache-2.0
"""The load balancing that a job asks of the controller."""

from __future__ import annotations

from dataclasses import dataclass

from protocol import jobs_pb2

STATIC = "static"


@dataclass(frozen=True, slots=True)
class Balance:
    """A job's load balancer.

    policy: its name (controller.planning.balancing).
    most_bytes: of parameters that one move may take from server to server; 0: any.
    explore: probability that a round in which nothing is wrong tries a move; it decays.
    seed: of what is tried.
    measure: measure servers even if nothing moves.

    Raises ValueError for values that are not possible.
    """

    policy: str = STATIC
    most_bytes: int = 0
    explore: float = 0.0
    seed: int = 1
    measure: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1:
            raise ValueError(f"explore {self.explore}; allowed: 0 to 1")

    @property
    def measures(self) -> bool:
        """True if workers measure their servers, and these themselves, round by round."""
        return self.measure or self.policy != STATIC

    @staticmethod
    def from_message(message: jobs_pb2.Balance) -> Balance:
        """Raises ValueError."""
        return Balance(
            message.policy or STATIC,
            message.most_bytes,
            message.explore,
            message.seed or 1,
            message.measure,
        )

    def to_message(self) -> jobs_pb2.Balance:
        return jobs_pb2.Balance(
            policy=self.policy,
            most_bytes=self.most_bytes,
            explore=self.explore,
            seed=self.seed,
            measure=self.measure,
        )
