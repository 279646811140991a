# SPDX-License-Identifier: Apache-2.0
"""The model of ``summary.json``, from which its JSON schema and reference page are generated.

A run's summary has the keys of its first job, so that a run of one job can be read without looking
into ``jobs``. A job that is over has more keys than one that failed or was stopped.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

# pydantic needs this one before Python 3.12.
from typing_extensions import NotRequired, TypedDict, TypeIs

from observability.cpu_use import CpuUse
from observability.messages.jobs import Clock, JobHead, OtherJob, Target
from observability.messages.servers import MeasuredServers
from workloads.attendance import AttendanceSpan


class Nothing(TypedDict):
    """An empty object: nothing is known yet."""


# --- a job ---


class JobAbout(TypedDict):
    """Task of a job."""

    topology: str
    """Name of the topology."""
    topology_seed: int
    """Seed of the topology's random numbers (loss, duplication, reordering, corruption)."""
    racks: int
    """Number of racks of the topology."""
    workers: int
    """Number of workers."""
    servers: int
    """Number of server processes."""
    workload: str
    """What is trained, as in the job file."""
    data: str
    """Training data in words."""
    payload: Literal["summed", "none"]
    """`summed`: packets have a payload. `none`: headers only, as long on the wire."""
    gradients: str
    """Type of gradients."""
    optimizer: str
    """Optimizer and its parameters in words."""
    consistency: str
    """`synchronous`, or how far workers may be ahead of each other."""
    placement: str | None
    """Kind of placement; null if the job file has none."""
    tree: str
    """Tree that the job was admitted with."""
    schedule: str
    """Order, classes and units in which gradients are sent."""
    classes_used: int
    """Classes of urgency that have keys."""
    server_pipeline: str
    """How servers merge contributions: `tall` or `wide`, and what is ablated."""
    iterations: int
    """Number of iterations, with those of a checkpoint that the job continues."""
    batch: int
    """Examples of all workers in an iteration."""
    seed: int
    """Seed of initial weights and of the order of examples."""
    iterations_before: int
    """Iterations of the checkpoint that the job continues; 0 without one."""
    restored_from: str | None
    """File of that checkpoint."""


class JobQuality(TypedDict):
    """Quality and correctness of a job's weights."""

    test_accuracy: float | None
    """Share of held-out examples that are classified right, 0 to 1; null if nothing is learned."""
    test_loss: float | None
    """Mean cross entropy of held-out examples in nats."""
    test_bits: float | None
    """`test_loss` in bits."""
    data_sha256: str
    """SHA-256 of the data: the text of `characters` differs by Python version."""
    matches_reference: bool | None
    """Whether the final weights are bit-identical to those of one process that sums the same
    quantised gradients without a network; null where that cannot be said."""
    no_reference: str
    """Why `matches_reference` is null; empty if it is not."""
    workers_agree: bool | None
    """Whether all workers ended with the same weights; null in asynchronous jobs."""
    lost_workers: dict[str, str]
    """How workers ended that are no longer in the job, by name."""
    finished_workers: list[str]
    """Workers that did all iterations."""
    weights_sha256: str | None
    """SHA-256 of the final weights; null without payload."""
    reference_sha256: str | None
    """SHA-256 of the reference's weights; null without a reference."""
    reference_accuracy: float | None
    """`test_accuracy` of the reference."""
    reference_test_loss: float | None
    """`test_loss` of the reference in nats."""
    reference_in_float32: int | None
    """Rounds of chunks whose values do not fit fixed point, by the reference."""
    seconds_per_iteration: list[float]
    """Duration of each iteration in seconds, at the worker with the most iterations."""
    blocked_seconds: float
    """Seconds for which changes of the chunk map held rounds back, at the worker with the most:
    also those that then did not hold, as workers were too fast for them."""
    wrong_checksum: int
    """Sums that failed their check, of all workers."""


class Staleness(TypedDict):
    """By how many gradients workers were ahead of the slowest one when they got parameters."""

    max: int
    """At most."""
    mean: float
    """Mean over all answers."""


class Chunks(TypedDict):
    """Places where chunks were summed: each counts once for each iteration."""

    aggregated_in_network: int | None
    """Chunks summed by switches, by their own counters, which must agree with the sums that workers
    received; null if unknown."""
    unknown: str
    """Why a count is null; empty if none is."""
    served_by_server: int | None
    """Chunks summed by servers alone; null if unknown."""
    in_float32: int
    """Of these, summed in float32, because values or a sum did not fit fixed point. They add bytes
    to the closed form."""
    retransmitted: int
    """Packets retransmitted by workers and switches. What servers answer repeatedly is in their
    logs."""
    retransmitted_by_switches: int | None
    """Packets retransmitted by switches; null if unknown."""


class PlanUse(TypedDict):
    """A plan that a job had, and the chunks completed under it, without those in float32."""

    epoch: int
    """Number of the plan."""
    tree: str
    """Kind of tree."""
    roots: list[str]
    """Switches or servers where sums end."""
    by_switch: int
    """Chunks completed at a switch."""
    by_server: int
    """Chunks completed at a server (with `inc-server` of what switches had summed)."""


_RestoredFrom = TypedDict(
    "_RestoredFrom",
    {
        "from": Annotated[
            str,
            Field(
                description="Source: a server (itself if it had the replica), with the optimizer's"
                " state; or a worker, without it, so that with momentum there is no reference."
            ),
        ]
    },
)


class Restored(_RestoredFrom):
    """Chunks that a server got when the plan changed; what had to move again is listed again."""

    epoch: int
    """Number of the new plan."""
    server: str
    """Server that got the chunks."""
    chunks: int
    """Number of chunks."""


class LoadMove(TypedDict):
    """A move of load between servers while the job went on: a change of its chunk map."""

    version: int
    """Version of the chunk map, from 1 for the first change."""
    epoch: int
    """Number of the plan."""
    from_round: int | None
    """First round of the map: the number of the iteration, or one more if servers run the
    optimizer, as the first round has initial parameters. Null if workers are in different rounds:
    it holds for each from when it knows the map."""
    reason: str
    """Why: the load balancer's reason, or the operator's order."""
    slices: int
    """Slices of keys that went to other servers."""
    bytes: int
    """Bytes of parameters and optimizer state that servers fetched from each other for it; 0 where
    servers hold none. What a change of plan interrupts is in `restored` instead."""
    seconds: float
    """Seconds from the decision until all workers knew that the map holds, and the last bytes had
    come: these follow with a chunk's first contribution."""
    transfer_seconds: float
    """Seconds of that from a server's first call to another until the last answer, at the server
    with the most."""
    blocked_seconds: float
    """Seconds for which it held a round back, at the worker with the most."""


class Checkpoint(TypedDict):
    """A checkpoint that a job wrote."""

    iteration: int
    """Iteration after which it was written."""
    file: str
    """Its file, relative to the run directory if it is inside."""


_LinkFrom = TypedDict("_LinkFrom", {"from": Annotated[str, Field(description="Sending node.")]})


class Link(_LinkFrom):
    """Load of one direction of a link: frames without FCS, by the sender's counters."""

    to: str
    """Receiving node."""
    interface: str
    """Interface of the sender."""
    bytes: int | None
    """Bytes; null if a counter was lost."""
    packets: int | None
    """Packets; null if a counter was lost."""
    expected_bytes: int | None
    """Bytes by the closed form; null where it does not apply: several servers with an optimizer,
    faults, other jobs at the same time."""
    dropped: int | None
    """Frames that found the sender's queue full; null if unknown."""
    unknown: str
    """Why a count is null; empty if none is."""
    first_bytes: NotRequired[int]
    """With `--pcap`: bytes of contributions and results carried for the first time."""
    again_packets: NotRequired[int]
    """With `--pcap`: retransmissions, queries and answers."""
    again_bytes: NotRequired[int]
    """With `--pcap`: bytes of these."""


class JobMachine(CpuUse):
    """Results of a job that depend on the machine."""

    wall_seconds: float
    """Duration of the job in seconds of real time."""
    queries: int
    """Queries about chunks that workers sent."""
    congested: int
    """Results that came with an ECN mark."""


class JobResults(JobQuality, MeasuredServers):
    """Results of a job that is done."""

    staleness_seen: Staleness | None
    """How far workers were ahead of the slowest one; null in synchronous jobs."""
    left_workers: dict[str, int]
    """The last iteration of each worker that left when it was asked to, by name."""
    rejoined_workers: dict[str, int]
    """How often workers came back, by name."""
    workers_per_iteration: list[int | None]
    """Number of workers whose gradients each iteration averages: the fewest in any chunk."""
    attendance: list[AttendanceSpan]
    """Which workers these were."""
    chunks: Chunks
    """Where chunks were summed."""
    plans: list[PlanUse]
    """Plans that the job has had."""
    shared_with: list[str]
    """Jobs that used the same switches meanwhile: switches counted their packets, too."""
    alongside: list[str]
    """Jobs that ran meanwhile."""
    restored: list[Restored] | None
    """Chunks that servers got when plans changed; null if the controller did not answer."""
    moves: list[LoadMove] | None
    """Moves of load between servers, the last 1,000; null if the controller did not answer."""
    checkpoints: list[Checkpoint]
    """Checkpoints that the job wrote."""


class Where(TypedDict):
    """Basis of a run or job: target and clock."""

    target: Target
    """Target of switches."""
    clock: Clock
    """Clock of the run."""


class JobDescription(JobHead, Where, JobAbout):
    """Identity and state of a job, and what it was asked to do."""


class FinishedPart(JobDescription, JobResults):
    """Keys that a run and its first job have in common if the job is done."""


class FinishedJob(FinishedPart):
    """A job that is done."""

    links: list[Link]
    """What links carried while it ran. In virtual time empty if there are several jobs."""
    machine: JobMachine
    """Results that depend on the machine."""


class UnfinishedPart(JobDescription):
    """Keys that a run and its first job have in common if no job is done."""

    iterations_done: int
    """Iterations that all workers have done."""
    loss: float | None
    """Mean loss of the last iteration; null if unknown."""
    accuracy: float | None
    """Share of held-out examples classified right, when last measured; null if unknown."""
    chunks: Nothing
    """Unknown."""


class UnfinishedJob(UnfinishedPart):
    """A job that failed, was stopped, or is still running."""

    links: list[Link]
    """Unknown: empty."""
    machine: Nothing
    """Unknown."""


JobSummary = FinishedJob | UnfinishedJob


def is_finished(job: JobSummary) -> TypeIs[FinishedJob]:
    """Returns whether a job is done, so that its results are known."""
    return job["state"] == "done"


# --- a run ---


class FaultImpact(TypedDict):
    """A fault and its effect on one job."""

    at: float | None
    """Seconds since the first job ran; null if none did."""
    kind: str
    """Kind of fault as in the fault file; `died` for a process that ended by itself."""
    node: str
    """Node or link."""
    what: str
    """What happened, in words."""
    aggregating: int | None
    """Slots of switches in AGGREGATING at the fault, at least: slots that a change of epoch gave up
    cannot be distinguished from others. Null in virtual time."""
    partial: int | None
    """Slots in PARTIAL, at least. Null in virtual time."""
    job: str | None
    """The job; null if none ran."""
    seconds: float | None
    """Seconds from the fault until every worker had ended an iteration that it began after the
    fault, or after its end if it lasts; null if that did not happen."""
    lasted: float | None
    """Duration of the fault in seconds; null if it did not end."""
    rejoined_after: float | None
    """Seconds until the worker that the job lost had rejoined."""
    epoch_before: int | None
    """Number of the job's plan before the fault."""
    epoch_after: int | None
    """Number of its plan once it had recovered."""
    resent_packets: int | None
    """Packets that workers and switches retransmitted until then, at least; in virtual time those
    of workers."""
    resent_bytes: int | None
    """Bytes of these."""


class Failure(TypedDict):
    """Why a run failed."""

    message: str
    """First line of the error."""
    process: NotRequired[str | None]
    """Process that it is about; null if it is about none."""
    job: NotRequired[str]
    """Job that failed first."""


class Virtual(TypedDict):
    """Parameters and duration of a run in virtual time."""

    seconds: float
    """Duration in seconds of virtual time."""
    control_latency: float
    """Seconds that a call between controller, hosts and switches takes."""
    framing: bool
    """True if preamble, FCS and gap of frames are counted."""
    switch_latency: float
    """Seconds from a packet's arrival at a switch until it is queued."""
    host_per_packet: float
    """Seconds that a worker's host takes for each frame."""
    host_per_byte: float
    """Seconds that it takes for each byte."""
    interrupt_interval: float
    """Seconds between the interrupts by which hosts get frames; 0: each at once."""
    server_rate: int | None
    """Bit/s of payloads that a server process handles; null: unlimited."""
    trace: str | None
    """File of the trace."""


class Machine(TypedDict):
    """The machine and its versions, on which a run's speed depends, but not its results."""

    kernel: str
    """Version of the kernel."""
    architecture: str
    """Such as `x86_64`."""
    processor: str
    """Model of the processor."""
    cpus: int
    """Number of CPUs that the run may use."""
    python: str
    """Version of Python."""
    packages: dict[str, str | None]
    """Versions of packages."""
    target_version: str | None
    """Version of BMv2, or of the compiler that builds the embedded target."""
    user: Literal["root", "user"]
    """Who started the run."""


class Simulation(TypedDict, total=False):
    """Cost of a run in virtual time."""

    simulated_seconds: float
    """Seconds of real time that the simulation took."""
    packets: int
    """Packets on all links."""
    rounds: int
    """Rounds of the simulation."""


class UnfinishedMachine(Machine, Simulation):
    """The machine, and in virtual time the cost of the simulation."""


class FinishedMachine(Machine, JobMachine, Simulation):
    """The machine, and what depends on it of the first job that is done."""


class RunPart(TypedDict):
    """Keys that a run adds to those of its first job."""

    failure: NotRequired[Failure]
    """Why the run failed."""
    name: str
    """Name of the testbed."""
    shaping: str
    """How the rates of links are kept."""
    virtual: NotRequired[Virtual]
    """In virtual time: its parameters."""
    jobs: list[JobSummary]
    """All submitted jobs, in the order in which they began."""
    others: list[OtherJob]
    """Jobs of users' own programs."""
    faults: list[FaultImpact]
    """Faults, each once for each job that ran."""


class FinishedRun(FinishedPart, RunPart):
    """A run with a job that is done. The first such job's keys are at the top level."""

    links: list[Link]
    """What links carried in all."""
    machine: FinishedMachine
    """The machine; in virtual time nothing else depends on it."""


class UnfinishedRun(UnfinishedPart, RunPart):
    """A run without a job that is done. The first job's keys are at the top level."""

    links: list[Link]
    """What links carried in all; empty if unknown."""
    machine: UnfinishedMachine
    """The machine."""


class IdleRun(Where, RunPart):
    """A run without jobs."""

    links: list[Link]
    """What links carried in all; empty if unknown."""
    machine: UnfinishedMachine
    """The machine."""


class AbandonedRun(TypedDict):
    """A run that ended before its testbed could write a summary."""

    name: str | None
    """Name of the testbed."""
    target: Target | None
    """Target of switches."""
    clock: Clock | None
    """Clock of the run."""
    links: list[Link]
    """Unknown: empty."""
    jobs: list[JobSummary]
    """Unknown: empty."""
    failure: NotRequired[Failure]
    """Why it ended."""


RunSummary = FinishedRun | UnfinishedRun | IdleRun | AbandonedRun
