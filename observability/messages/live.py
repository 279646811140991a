# SPDX-License-Identifier: Apache-2.0
"""State of a running testbed: its description, status, and snapshots."""

from __future__ import annotations

from typing import TypedDict

from observability.messages.jobs import Clock, JobRow, JobState, OtherJob, Target
from observability.messages.servers import ServerTimes
from observability.messages.summary import Link
from topologies.model.topology import Kind


class Description(TypedDict):
    """Description of a testbed."""

    name: str
    """Its name."""
    run: str
    """Its run directory."""
    target: Target
    clock: Clock
    topology: str
    """Name of the topology."""
    workers: int
    """Number of workers' hosts."""
    servers: int
    """Number of servers' hosts."""
    switches: int
    """Number of switches."""
    lanes: int
    """Values per chunk."""
    seconds_up: float
    """Seconds since it was started."""


class NodeRow(TypedDict):
    """A node in ``rackhub status``."""

    name: str
    kind: Kind
    address: str
    """IPv4 address of a host; of a switch that of its control."""
    pids: list[int]
    """Process ids, in the sandbox as the testbed reports them."""
    p4runtime: str | None
    """Address of a switch's P4Runtime server."""


class Status(Description):
    """Answer to ``rackhub status``."""

    nodes: list[NodeRow]
    jobs: list[JobRow]
    others: list[OtherJob]
    """Jobs that were not submitted."""
    links: list[Link]
    """What links have carried since the testbed came up."""


class PlanState(TypedDict):
    """Plan of a job as the controller knows it; None while it does not answer."""

    plan_epoch: int | None
    """Number of the plan."""
    window: int | None
    """Chunks in flight per stream."""
    slots: dict[str, int] | None
    """Slots that the job holds, by switch."""


class JobSnapshot(PlanState):
    """A job in a snapshot. A job that was not submitted has no progress."""

    job: str
    number: int
    state: JobState | None
    reason: str
    workers: int
    """Number of workers that it began with."""
    present: int | None
    """Workers that are in it now; None unless it runs."""
    tree: str | None
    iteration: int | None
    """Iterations that all workers have completed."""
    iterations: int | None
    """Iterations that the job has."""
    passes: float | None
    """Passes over the data."""
    loss: float | None
    """Mean loss of the last iteration."""
    accuracy: float | None
    """Share of the test set, when last measured."""
    chunks_per_second: float | None
    """Chunks that each worker received, lately."""
    share_in_network: float | None
    """Share of chunks that switches summed, 0 to 1."""
    servers: list[ServerTimes]
    """What was measured of its servers; empty unless it is measured."""


class SlotCounts(TypedDict):
    """Slots of a switch; None if unknown."""

    total: int | None
    held: int | None
    """Slots that jobs hold."""
    aggregating: int | None
    """Slots in AGGREGATING, at least."""
    partial: int | None
    """Slots in PARTIAL, at least."""


class SwitchSnapshot(TypedDict):
    """A switch in a snapshot."""

    name: str
    up: bool
    """Whether its process runs."""
    slots: SlotCounts
    outcomes: dict[str, int] | None
    """Packets by ``protocol.outcomes.Outcome``, in lower case; None if it does not answer."""
    cpu_seconds: float | None
    """CPU time of the process."""


class ProcessSnapshot(TypedDict):
    """A process of a server."""

    name: str
    up: bool
    cpu_seconds: float | None


class ServerSnapshot(TypedDict):
    """A server's host in a snapshot; bytes are of all its links, frames without FCS."""

    name: str
    up: bool
    """Whether all its processes run."""
    received_bytes: int | None
    sent_bytes: int | None
    receive_rate: int
    """Bit/s."""
    send_rate: int
    """Bit/s."""
    cpu_seconds: float | None
    """CPU time of its processes."""
    processes: list[ProcessSnapshot]


class Snapshot(TypedDict):
    """State of a testbed at a time."""

    name: str
    topology: str
    target: Target
    clock: Clock
    seconds_up: float
    monotonic: float
    """Time in seconds, of the machine's monotonic clock."""
    controller: bool
    """Whether the controller runs."""
    switches: list[SwitchSnapshot]
    servers: list[ServerSnapshot]
    jobs: list[JobSnapshot]
