# SPDX-License-Identifier: Apache-2.0
"""Builds a job's part of the summary from its workers' final reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hosts.data.reports import ClientStatistics
from observability.cpu_use import CpuUse
from observability.messages.process_reports import DoneReport
from observability.messages.summary import (
    Checkpoint,
    Chunks,
    JobAbout,
    JobMachine,
    JobQuality,
    LoadMove,
    PlanUse,
    Staleness,
)
from protocol import jobs_pb2
from protocol.trees import TreeKind
from specs.jobfile import JobFile, Placement
from specs.jobspec import JobSpec
from topologies.model.topology import Topology
from workloads.attendance import Attendance
from workloads.reference import ReferenceResult
from workloads.workloads import WORKLOADS, shapes

_ROOT_IS_SWITCH = {str(kind) for kind in TreeKind if not kind.ends_at_server}


def retransmitted(statistics: ClientStatistics) -> int:
    """Returns the contributions that a worker sent beyond the necessary ones, after an iteration.

    A chunk that a server sums in float32 needs two contributions: the first comes back flagged.
    """
    needed = statistics["completed"] + statistics["exponent_rounds"]
    twice = statistics["completed_direct"] + statistics["initial"]
    return max(0, int(statistics["sent"] - needed - 2 * twice))


def sums_received(statistics: ClientStatistics) -> int:
    """Returns the sums that a worker received: of contributions, of exponents, in float32, and
    initial parameters."""
    return (
        statistics["completed"]
        + statistics["completed_direct"]
        + statistics["exponent_rounds"]
        + statistics["initial"]
    )


def about(
    file: JobFile, placement: Placement, topology: Topology, tree: str, before: int
) -> JobAbout:
    """Returns what a job was asked to do.

    tree: the tree that it has. before: iterations of the checkpoint that it continues from.
    """
    spec = file.spec
    return {
        "topology": topology.name,
        "topology_seed": topology.seed,
        "racks": topology.racks,
        "workers": len(placement.workers),
        "servers": len(placement.servers),
        "workload": spec.subject,
        "data": WORKLOADS[spec.workload].data,
        "payload": spec.payload,
        "gradients": spec.gradients,
        "optimizer": str(spec.plan),
        "consistency": str(spec.consistency),
        "placement": spec.placement.kind,
        "tree": tree,
        "schedule": str(spec.propagation),
        "classes_used": min(spec.propagation.classes, len(shapes(spec))),
        "server_pipeline": str(spec.server.plan),
        "iterations": spec.iterations,
        "batch": spec.batch,
        "seed": spec.seed,
        "iterations_before": before,
        "restored_from": None if file.restore is None else str(file.restore),
    }


def no_reference(spec: JobSpec, attendance: Attendance, world: int, *, start: bool) -> str:
    """Returns why no reference run can check a job; empty if one can.

    start: as of ``Attendance.unknown``.
    """
    if not spec.consistency.together:
        return f"with consistency {spec.consistency} results depend on who is done when"
    if spec.payload == "none":
        return "without payload there are no sums"
    pipeline = spec.server.plan
    if pipeline.differs:
        return f"servers work {pipeline}: what comes of that trains nothing"
    return attendance.unknown(spec.iterations, world, start=start)


def fullest(results: Mapping[int, DoneReport]) -> DoneReport:
    """Returns the final report of the worker with the most iterations, the lowest rank of these."""
    return max((results[rank] for rank in sorted(results)), key=lambda one: len(one["seconds"]))


def weights(
    workers: Sequence[str],
    results: Mapping[int, DoneReport],
    lost: Mapping[int, str],
    reference: ReferenceResult | None,
    unknown: str = "",
    *,
    apart: bool = False,
) -> JobQuality:
    """Returns the trained weights' quality, and whether they match the reference.

    workers: names, by rank.
    results: final reports, by rank.
    lost: how the workers ended that are no longer in the job, by rank.
    reference: result of a reference run with the same attendance (``workloads.reference``); None if
    there is none, for the reason ``unknown``. ``matches_reference`` is None then, unless the
    workers' weights differ.
    apart: the job is asynchronous, so that workers' weights may differ.
    """
    first = fullest(results)
    digests = {result["digest"] for result in results.values()}
    matches: bool | None = reference is not None and digests == {reference["digest"]}
    why = ""
    if reference is None and (apart or len(digests) == 1):
        matches, why = None, unknown
    return {
        "test_accuracy": first["accuracy"],
        "test_loss": first["test_loss"],
        "test_bits": None if first["test_loss"] is None else first["test_loss"] / math.log(2),
        "data_sha256": first["data_sha256"],
        "matches_reference": matches,
        "no_reference": why,
        "workers_agree": None if apart else len(digests) == 1,
        "lost_workers": {workers[rank]: how for rank, how in sorted(lost.items())},
        "finished_workers": [workers[rank] for rank in sorted(results)],
        "weights_sha256": first["digest"] or None,
        "reference_sha256": reference["digest"] if reference else None,
        "reference_accuracy": reference["accuracy"] if reference else None,
        "reference_test_loss": reference["test_loss"] if reference else None,
        "reference_in_float32": reference["in_float32"] if reference else None,
        "seconds_per_iteration": first["seconds"],
        "blocked_seconds": max(sum(one["blocked"].values()) for one in results.values()),
        "wrong_checksum": sum(one["statistics"]["wrong_checksum"] for one in results.values()),
    }


def chunks(
    results: Mapping[int, DoneReport],
    in_network: int | None,
    unknown: str,
    by_switches: int | None,
    *,
    served: bool,
) -> Chunks:
    """Returns where chunks were summed, and the retransmitted packets.

    in_network: sums by the switches' counters; None if unknown, for the reason ``unknown``.
    by_switches: packets that switches retransmitted; None if unknown.
    served: servers sum all chunks.
    """
    one = fullest(results)["statistics"]
    direct = one["completed_direct"]
    by_server = (one["completed"] if served else 0) + direct
    # After a change of epoch a contribution is retransmitted with a new sequence number.
    again = sum(
        max(result["statistics"]["retransmitted"], retransmitted(result["statistics"]))
        for result in results.values()
    )
    return {
        "aggregated_in_network": in_network,
        "unknown": unknown,
        "served_by_server": None if in_network is None else by_server,
        "in_float32": direct,
        "retransmitted": again + (by_switches or 0),
        "retransmitted_by_switches": by_switches,
    }


def replanned(first: int, results: Mapping[int, DoneReport]) -> str:
    """Returns a text that a job was replanned; empty if it was not.

    Work of an epoch that ends may be repeated in the next, so the counters of switches and links
    cannot be compared with expectations then.
    first: epoch at the start of training. Servers with an optimizer got initial parameters in that
    epoch or earlier ones.
    """
    plan = max((one["plan"] for one in results.values()), default=first)
    first = min([first, *(one["statistics"]["plans"][0]["epoch"] for one in results.values())])
    return f"the job was replanned, up to plan epoch {plan}" if plan != first else ""


def staleness(results: Mapping[int, DoneReport]) -> Staleness:
    """Returns by how many gradients workers were ahead of the slowest one when they got parameters:
    the maximum, and the mean over all answers."""
    statistics = [result["statistics"] for result in results.values()]
    answers = sum(one["completed"] for one in statistics)
    return {
        "max": max(one["most_ahead"] for one in statistics),
        "mean": sum(one["ahead"] for one in statistics) / answers if answers else 0.0,
    }


def checkpoints(written: Sequence[Checkpoint], run: Path) -> list[Checkpoint]:
    """Returns the checkpoints with paths relative to the run directory, so that equal runs have
    equal summaries."""
    rows: list[Checkpoint] = []
    for one in written:
        file = Path(one["file"])
        inside = file.is_relative_to(run)
        name = str(file.relative_to(run) if inside else file)
        rows.append({"iteration": one["iteration"], "file": name})
    return rows


def plans(results: Mapping[int, DoneReport]) -> list[PlanUse]:
    """Returns the plans that a job has had: tree and roots of each, and the number of chunks
    completed ``by_switch`` and ``by_server``.

    Counted by the worker with the most iterations, without chunks in float32.
    """
    rows: list[PlanUse] = []
    for plan in fullest(results)["statistics"]["plans"]:
        at_switch = plan["tree"] in _ROOT_IS_SWITCH
        rows.append(
            {
                "epoch": plan["epoch"],
                "tree": plan["tree"],
                "roots": list(plan["roots"]),
                "by_switch": plan["chunks"] if at_switch else 0,
                "by_server": 0 if at_switch else plan["chunks"],
            }
        )
    return rows


def moves(status: jobs_pb2.Job, results: Mapping[int, DoneReport]) -> list[LoadMove]:
    """Returns the moves of load between servers that the job service reports of a job."""
    rows: list[LoadMove] = []
    for one in status.moves:
        blocked = [result["blocked"].get(one.number, 0.0) for result in results.values()]
        rows.append(
            {
                "version": one.version,
                "epoch": one.epoch,
                "from_round": one.from_round or None,
                "reason": one.reason,
                "slices": one.slices,
                "bytes": one.bytes,
                "seconds": one.seconds,
                "transfer_seconds": one.transfer_seconds,
                "blocked_seconds": max(blocked, default=0.0),
            }
        )
    return rows


def machine(results: Mapping[int, DoneReport], wall: float, cpus: CpuUse | None) -> JobMachine:
    """Returns the results that depend on the machine.

    wall: seconds. cpus: from ``observability.cpu_use``; None in virtual time, which no CPU
    bounds.
    """
    statistics = [result["statistics"] for result in results.values()]
    use: CpuUse = {"cpu_bound": False} if cpus is None else cpus
    return {
        "wall_seconds": wall,
        **use,
        "queries": sum(one["queries"] for one in statistics),
        "congested": sum(one["congested"] for one in statistics),
    }
