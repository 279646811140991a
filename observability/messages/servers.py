# SPDX-License-Identifier: Apache-2.0
"""Measurements of a job's servers: the answer to ``rackhub why --servers``, part of summaries."""

from __future__ import annotations

# pydantic needs this TypedDict before Python 3.12.
from typing_extensions import TypedDict


class ServerTimes(TypedDict):
    """A server of a measured job: exponentially smoothed over its rounds, with a time constant of
    four. Values are null if nothing has reported them."""

    server: str
    """Server process."""
    rounds: int
    """Rounds that are in it."""
    sums: float | None
    """Sums of a round."""
    waiting: float | None
    """Seconds from a worker's contribution until its sum came, the mean of sums."""
    handling: float | None
    """Seconds of these at the server: from the arrival of a sum's last contribution until its
    result was ready to leave."""
    queueing: float | None
    """Seconds of handling before the server read the contribution. In virtual time the work of its
    processor is before that, too."""
    propagation: float | None
    """Seconds of waiting that are not handling: links, switches, and other workers."""
    optimizer: float | None
    """Seconds of handling for optimizer steps, a sum."""
    holding: float | None
    """Mean number of complete sums whose results are not ready: its queue."""
    summing: float | None
    """Chunks at once that lacked contributions, at most."""
    received_per_second: float | None
    """Bytes of the job that it received, in frames without FCS."""
    sent_per_second: float | None
    """Bytes of the job that it sent."""
    blamed: float | None
    """Seconds of a round for which workers waited because of it: from when a worker's last
    contribution has left, each moment counts in equal parts for all servers that owe it sums."""
    blame: float | None
    """The same as a share of all servers', 0 to 1."""
    straggles: bool
    """Whether its sums take more than 1.5 times as long as the median server's, for two rounds and
    until they take less than 1.2 times as long."""


class KeyTimes(TypedDict):
    """A key of a measured job."""

    key: str
    """Name of the key."""
    chunks: int
    """Number of chunks."""
    servers: dict[str, int]
    """Chunks by server, those with the most first."""
    blamed: float | None
    """Seconds of a round for which workers waited because of its servers, in proportion to its
    chunks among theirs: workers measure servers, not keys."""


class MeasuredServers(TypedDict):
    """Measurements of a job's servers, empty unless it is measured."""

    server_times: list[ServerTimes]
    """Its servers, by rank."""
    key_times: list[KeyTimes]
    """Its keys, in the order of the forward pass."""


class JobServers(MeasuredServers):
    """The answer to ``rackhub why --servers``."""

    job: str
    state: str
