# SPDX-License-Identifier: Apache-2.0
"""Shows the result of a preflight check, as data and in words: what ``rackhub validate`` prints."""

from __future__ import annotations

from collections import Counter

from typing_extensions import TypedDict

from controller.p4rt.dataplane import DataPlane
from controller.planning.tree_planner import Tree, TreeNode
from protocol.propagation import USUAL
from specs.jobspec import JobSpec
from testbed.preflight import JobPlan, Preflight, chunks_of, counted
from testbed.targets import Target
from topologies.model.units import size_text, time_text
from topologies.model.wording import few
from workloads.workloads import WORKLOADS, shapes

_MOST_SHOWN = 8  # child switches that are listed one by one


class PlannedJob(TypedDict):
    """A job as it would start."""

    job: str
    """Name of the job."""
    file: str
    """Path of its file."""
    placement: str | None
    """Kind of its placement; null if its file names none."""
    workers: list[str]
    """Hosts of its workers, by rank."""
    servers: list[str]
    """Hosts of its servers."""
    spares: list[str]
    """Those of them that have no slices at first."""
    server_processes: list[str]
    """Names of its server processes, by rank."""
    tree: str
    """Tree that it would have."""
    parameters: int
    """Elements of its model."""
    memory_bytes: int
    """Memory that gradients and sums of its workers take, estimated; 0 if that is little."""
    streams: int
    """Number of its streams, of all classes of urgency together. Those of a class have a tree
    each."""
    window: int
    """Chunks in flight in each stream."""
    slots: dict[str, int]
    """Slots by switch."""


class CheckFacts(TypedDict):
    """The result of a check. Counts are of the topology's parts."""

    topology: str
    """Name of the topology."""
    target: Target
    """What would run the switches' program."""
    racks: int
    workers: int
    servers: int
    switches: int
    links: int
    warnings: list[str]
    """Texts of the warnings, with file and line."""
    jobs: list[PlannedJob]
    """The jobs, in the order given."""


def facts(checked: Preflight, target: Target) -> CheckFacts:
    """Returns the result of a check as data."""
    topology = checked.topology
    return {
        "topology": topology.name,
        "target": target,
        "racks": topology.racks,
        "workers": len(topology.workers),
        "servers": len(topology.servers),
        "switches": len(topology.switches),
        "links": len(topology.links),
        "warnings": [str(warning) for warning in checked.warnings],
        "jobs": [
            {
                "job": plan.file.spec.name,
                "file": plan.file.source,
                "placement": plan.file.spec.placement.kind,
                "workers": list(plan.placement.workers),
                "servers": list(plan.placement.servers),
                "spares": list(plan.placement.spares),
                "server_processes": list(plan.servers),
                "tree": str(plan.kind),
                "parameters": sum(shapes(plan.file.spec).values()),
                "memory_bytes": plan.memory,
                "streams": len(plan.trees),
                "window": plan.reservation.window,
                "slots": plan.slots,
            }
            for plan in checked.jobs
        ],
    }


def describe(checked: Preflight, plane: DataPlane) -> list[str]:
    """Returns the result of a check as lines of text."""
    topology = checked.topology
    counts = [
        (topology.racks, "rack"), (len(topology.workers), "worker"),
        (len(topology.servers), "server"), (len(topology.switches), "switch"),
        (len(topology.links), "link"),
    ]  # fmt: skip
    lines = [f"{topology.source}: {', '.join(counted(*one) for one in counts)}"]
    for plan in checked.jobs:
        spec, window = plan.file.spec, plan.reservation.window
        trees = Counter(_shape(tree) for tree in plan.trees)
        slots = Counter(plan.slots.values())
        held = [
            f"{size} of {plane.slots} in {few([n for n, s in plan.slots.items() if s == size])}"
            for size in slots
        ]
        lines += [
            f"{plan.file.source}: job {spec.name}, {counted(spec.iterations, 'iteration')}"
            + (f" of {counted(spec.batch, WORKLOADS[spec.workload].unit)}" if spec.learns else ""),
            f"  model    {_model(spec, plane)}",
            *_computing(spec),
            f"  workers  {few(list(plan.placement.workers))}",
            f"  servers  {_servers(plan)}",
            f"  tree     {plan.kind}{_instead(plan)}: {'; '.join(trees)}",
            f"  streams  {_streams(plan)}, window {window} (chunks in flight in each)",
            f"  slots    {', '.join(held) or 'none'}",
        ]
        if spec.propagation != USUAL:
            lines.append(f"  schedule {spec.propagation}")
        if plan.memory:
            lines.append(f"  memory   about {size_text(plan.memory)}, of all workers together")
    return lines + _cores_without_sums(checked)


def _streams(plan: JobPlan) -> str:
    """Returns the number of a job's streams, and of what they are if it has classes."""
    spec = plan.file.spec
    classes, keys = spec.propagation.classes, len(shapes(spec))
    if classes == 1:
        return f"{len(plan.trees)}"
    used = "" if keys >= classes else f"; {keys} are used, by as many keys"
    return f"{len(plan.trees)} ({classes} classes of {len(plan.trees) // classes}{used})"


def _cores_without_sums(checked: Preflight) -> list[str]:
    """Returns a line that names the cores where no job sums; none without jobs or such cores."""
    summing = {name for plan in checked.jobs for name in plan.slots}
    cores = [core.name for core in checked.topology.cores]
    idle = [name for name in cores if name not in summing]
    if not idle or not checked.jobs:
        return []
    turns = (
        "; jobs and streams take turns at the cores of a level" if len(idle) < len(cores) else ""
    )
    return [f"no job sums in {few(idle)}{turns}"]


def _instead(plan: JobPlan) -> str:
    """Returns a remark if the job was admitted with another tree than it requested."""
    asked = plan.file.spec.tree
    return "" if asked == str(plan.kind) else f" (no slots are left for {asked})"


def _servers(plan: JobPlan) -> str:
    """Returns the server hosts, those that are spare, and the number of processes if there are
    more."""
    placement = plan.placement
    hosts = few(list(placement.servers))
    if placement.spares:
        hosts += f" ({few(list(placement.spares))} spare)"
    several = len(plan.servers) > len(placement.servers)
    return f"{hosts}: {counted(len(plan.servers), 'process')}" if several else hosts


def _model(spec: JobSpec, plane: DataPlane) -> str:
    """Returns the size of a job's gradients in words."""
    parameters, chunks = sum(shapes(spec).values()), chunks_of(spec, plane)
    size = f"{parameters:,} parameters, {counted(chunks, 'chunk')} each way in an iteration"
    return f"{spec.subject}: {size}"


def _computing(spec: JobSpec) -> list[str]:
    """Returns a line on a model's time of computing, and where that is from; none without."""
    compute = spec.compute
    if compute.iteration is None:
        return []
    source = "" if compute.source is None else f" ({compute.source})"
    return [f"  compute  {time_text(compute.iteration)} an iteration, by multiplications{source}"]


def _shape(tree: Tree) -> str:
    """Describes a tree: core0 over tor0 (w0..w3), tor1 (w4..w7)."""
    return f"{tree.root.switch or 'the servers'} over {_below(tree, tree.root)}"


def _below(tree: Tree, node: TreeNode) -> str:
    switches = [child for child in node.children if child.rank is None]
    if not switches:
        return few([child.name for child in node.children])
    if len(switches) > _MOST_SHOWN:
        return f"{few([one.name for one in switches])} with {counted(node.workers, 'worker')}"
    return ", ".join(f"{one.name} ({_below(tree, tree.by_number[one.node])})" for one in switches)
