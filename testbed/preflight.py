# SPDX-License-Identifier: Apache-2.0
"""Checks before a start that jobs fit the topology, and the topology the program.

``check`` plans and admits jobs as the controller will, all together on empty switches. Errors name
file, line and field.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from controller.p4rt.dataplane import DataPlane
from controller.planning.admission import Admission, NoRoomError, Reservation, Resources
from controller.planning.levels import NotJoinedError, join
from controller.planning.stream_numbers import wanted_streams
from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind, plan_trees
from controller.planning.windows import choose_window
from hosts.data.checkpoint import read
from hosts.errors import CheckpointError
from planner.queues import describe_incast
from protocol.header import LANE_BYTES
from specs import jobfile
from specs.jobfile import JobFile, JobFileError, Placement
from specs.jobspec import JobSpec
from testbed.targets import BMV2_QUEUE_PACKETS, Target
from topologies.model.addressing import Addressing
from topologies.model.documents import Location, Problem, errors_as
from topologies.model.replica_order import units_by_rank
from topologies.model.spec import TopologyFile
from topologies.model.topology import Topology
from topologies.model.units import size_text
from topologies.model.wording import few
from workloads.layer_times import times_of
from workloads.memory import memory_of
from workloads.trainer import misfit
from workloads.workloads import layers, open_workload, shapes


@dataclass(frozen=True)
class JobPlan:
    """A job's placement, trees, and slots in the switches.

    servers: names of its server processes, by rank.
    kind: the tree that it gets, which may differ from the one in its file.
    """

    file: JobFile
    placement: Placement
    servers: tuple[str, ...]
    kind: TreeKind
    trees: tuple[Tree, ...]
    reservation: Reservation

    @property
    def slots(self) -> dict[str, int]:
        """Slots by switch."""
        return self.reservation.slots()

    @property
    def memory(self) -> int:
        """Bytes that the gradients and sums of its workers take; 0 if that is little."""
        return memory_of(self.file.spec, len(self.placement.workers))


@dataclass(frozen=True)
class Preflight:
    """A checked topology with its jobs.

    warnings: idle parts, windows that overflow queues, and payloads that take much memory.
    """

    topology: Topology
    jobs: tuple[JobPlan, ...]
    warnings: tuple[Problem, ...]


def check(
    topology: TopologyFile,
    jobs: Sequence[Path | JobFile],
    plane: DataPlane,
    target: Target,
    restore: Path | None = None,
    *,
    virtual: bool = False,
) -> Preflight:
    """Places, plans and admits jobs; raises ``TopologyError``, or ``JobFileError`` for all of them.

    jobs: files, or what was read of them.
    restore: checkpoint that the jobs continue from, instead of those in their files.
    virtual: check for virtual time, not for emulation.
    """
    _check_links(topology, plane, virtual=virtual)
    addressing = Addressing(topology.topology)
    _check_routes(topology, addressing, plane)
    resources = Resources((node.name for node in topology.topology.switches), plane.slots)
    most = BMV2_QUEUE_PACKETS if target == "bmv2" else None
    plans: list[JobPlan] = []
    problems: list[Problem] = []
    for number, job in enumerate(jobs):
        try:
            file = job if isinstance(job, JobFile) else jobfile.load(job, restore)
            if crowded := _crowded(topology, file, addressing):
                problems.append(crowded)
                continue
            placement = file.place(topology.topology)
            _check_payload(file, plane, virtual=virtual)
            _check_workload(file, len(placement.workers))
        except JobFileError as error:
            problems += error.problems
            continue
        try:
            plans.append(admit(file, placement, number, addressing, resources, plane, most))
        except NoRoomError as refusal:
            others = ", ".join(plan.file.spec.name for plan in plans)
            text = f"{refusal} (after {others})" if others else str(refusal)
            problems.append(file.document.problem(("window",), text))
        except PlanRefusedError as refusal:
            problems.append(_plan_problem(topology, file, refusal))
    if problems:
        raise JobFileError(problems)
    warnings = _idle(topology, addressing)
    warnings += [one for plan in plans for one in _overflowing(plan, addressing, plane, most)]
    warnings += [one for plan in plans for one in _large(plan)]
    return Preflight(topology.topology, tuple(plans), tuple(warnings))


def admit(
    file: JobFile,
    placement: Placement,
    number: int,
    addressing: Addressing,
    resources: Resources,
    plane: DataPlane,
    most: int | None,
) -> JobPlan:
    """Plans and admits a job; raises ``PlanRefusedError``, ``NoRoomError``.

    number: index of the job, by which trees are spread over cores.
    most: packets in a queue, as of ``choose_window``; None: no limit.
    """
    spec, topology = file.spec, addressing.topology
    units = units_by_rank(addressing, placement.servers)
    servers = [unit.address for unit in units]
    streams = wanted_streams(spec.streams, spec.balance.plan, len(units), spec.propagation)
    kind, trees, reservation = resources.admit(
        lambda kind: plan_trees(
            *(topology, addressing, placement.workers, servers, kind, streams, number),
            propagation=spec.propagation,
        ),
        TreeKind.of(spec.tree),
        spec.window,
        lambda trees: choose_window(
            addressing, trees, servers, plane.frame_bytes, queue_packets=most
        ),
        Admission.of(spec.admission),
    )
    names = tuple(unit.name for unit in units)
    return JobPlan(file, placement, names, kind, trees, reservation)


def _check_links(file: TopologyFile, plane: DataPlane, *, virtual: bool) -> None:
    """Refuses delays in emulation, MTUs too small for the program's chunks, and TLS."""
    needed = plane.packet_bytes
    for link, places in zip(file.topology.links, file.places, strict=True):
        for quality, where in zip((link.forward, link.backward), places, strict=True):
            if quality.delay and not virtual:
                file.refuse(
                    where["delay"],
                    f"{link.a} to {link.b} would have a delay, and emulated links have none (not"
                    " every kernel has netem); allowed: 0 ms, or --clock virtual",
                )
            if quality.mtu < needed:
                file.refuse(
                    where.get("mtu", ("defaults",)),
                    f"{link.a} to {link.b} has MTU {quality.mtu}, and a chunk of {plane.lanes}"
                    f" lanes makes packets of {needed} B; allowed: at least that, or a build with"
                    " smaller chunks",
                )
    if file.topology.tls:
        file.refuse(
            ("tls",),
            "control goes over unix sockets, which need no TLS (not in this version);"
            " allowed: false",
        )
    file.check()


def _check_routes(file: TopologyFile, addressing: Addressing, plane: DataPlane) -> None:
    """Refuses topologies whose switches may need more routes than a table of the program holds,
    now or when switches are missing."""
    held, needed = plane.program.most_routes, addressing.most_prefixes
    if needed > held:
        file.refuse(
            ("racks",),
            f"a switch may need {needed} routes, and the program's table holds {held}; use fewer"
            " racks and servers (`rackhub plan` takes as many)",
        )
    file.check()


def _check_payload(file: JobFile, plane: DataPlane, *, virtual: bool) -> None:
    """Checks a job's payload against program and clock. Raises ``JobFileError``."""
    spec = file.spec
    if spec.payload == "none" and not virtual:
        raise file.refusal(
            ("payload",),
            "only simulated links carry chunks without one; allowed: summed, or --clock virtual",
        )
    if (spec.payload == "none") == plane.sums:
        others = "without payload" if spec.payload == "summed" else "with payload"
        text = f"{spec.payload}, and other jobs of the run are {others}: one program runs them all"
        raise file.refusal(("payload",), text)
    if spec.payload == "none" and spec.chunk_bytes != LANE_BYTES * plane.lanes:
        raise file.refusal(
            ("chunk_bytes",),
            f"{spec.chunk_bytes} B, and other jobs of the run have chunks of"
            f" {LANE_BYTES * plane.lanes} B; allowed: the same for all",
        )


def _check_workload(file: JobFile, world: int) -> None:
    """Checks a job against its data set, model and checkpoint. Raises ``JobFileError``."""
    spec = file.spec
    if file.layer_times is not None:
        with errors_as(JobFileError):
            file.layer_times.check(list(layers(spec)), f"the model of job {spec.name}")
    if spec.compute.iteration is not None and times_of(file) is None:
        text = (
            f"is divided by multiplications, and those of {spec.model} depend on the example;"
            " allowed: seconds or layers"
        )
        raise file.refusal(("compute", "iteration"), text)
    if not spec.learns:
        return
    try:
        workload = open_workload(spec)
    except RuntimeError as error:
        raise file.refusal(("workload",), str(error)) from error
    # A worker's share of a batch comes from its share of the data, without repetition.
    most = world * (workload.examples // world)
    if spec.batch > most:
        raise file.refusal(
            ("batch",),
            f"{spec.batch} is more than the training set's {workload.examples} {workload.unit}s"
            f" give {world} workers; allowed: multiples of {world} up to {most}",
        )
    sizes = shapes(spec)
    names = list(sizes)
    if file.restore is not None:
        try:
            checkpoint = read(file.restore)
            checkpoint.check_keys(file.restore, sizes)
        except CheckpointError as error:
            raise file.cannot_restore(str(error)) from error
        if why := misfit(spec, checkpoint):
            raise file.cannot_restore(f"{file.restore}: {why}")
    unknown = [key for key in spec.optimizer.keys if not any(fnmatchcase(n, key) for n in names)]
    if unknown:
        raise JobFileError(
            file.document.problem(
                ("optimizer", "keys", key), f"fits no parameter; there are {', '.join(names)}"
            )
            for key in unknown
        )


def _plan_problem(topology: TopologyFile, file: JobFile, refusal: PlanRefusedError) -> Problem:
    text = str(refusal)
    given = file.spec.placement.workers is not None
    if refusal.field == "cores" and not given:
        return topology.problem(("cores",), text)
    if refusal.tor is not None and not given:
        rack = topology.topology.by_name[refusal.tor].rack
        assert rack is not None
        text += f" (job {file.spec.name} takes all: `placement` in {file.source} can name some)"
        return topology.problem(("racks", topology.racks[rack], "workers"), text)
    place: Location = (refusal.field,)
    if refusal.field in ("workers", "cores"):
        place = ("placement", "workers") if given else ("tree",)
    return file.document.problem(place, text)


def _crowded(topology: TopologyFile, file: JobFile, addressing: Addressing) -> Problem | None:
    """Returns a problem of the topology if no tree can join all its workers; else None.

    Only for jobs that take all workers, as a subset would train on other batches.
    """
    if file.spec.placement.workers is not None:
        return None
    nodes = topology.topology
    servers = units_by_rank(addressing, [node.name for node in nodes.servers])
    workers = [node.name for node in nodes.workers]
    kind = TreeKind.of(file.spec.tree)
    addresses = [unit.address for unit in servers]
    try:
        plan_trees(
            *(nodes, addressing, workers, addresses, kind, file.spec.streams),
            propagation=file.spec.propagation,
        )
    except PlanRefusedError as refusal:
        of_topology = refusal.tor is not None or refusal.field == "cores"
        return _plan_problem(topology, file, refusal) if of_topology else None
    return None


def _idle(file: TopologyFile, addressing: Addressing) -> list[Problem]:
    """Returns warnings for core levels above the one at which all racks are joined."""
    topology = file.topology
    try:
        levels = len(join(topology, addressing, [tor.name for tor in topology.tors], 0))
    except NotJoinedError:  # an error of the jobs that take all racks
        return []
    idle = [core.name for core in topology.cores if core.level > 1 + max(levels, 1)]
    if not idle:
        return []
    text = f"{few(idle)}: carries nothing, as lower levels join all racks"
    return [file.problem(("cores",), text)]


def _overflowing(
    plan: JobPlan, addressing: Addressing, plane: DataPlane, most: int | None
) -> list[Problem]:
    """Returns a warning if a job's windows exceed a queue where they meet."""
    spec, window = plan.file.spec, plan.reservation.window
    servers = [addressing.unit(name).address for name in plan.servers]
    sizes = window, chunks_of(spec, plane), plane.frame_bytes
    text = describe_incast(addressing, plan.trees, servers, *sizes, queue_packets=most)
    place = ("window",) if spec.window else ("tree",)
    return [plan.file.document.problem(place, text)] if text else []


def _large(plan: JobPlan) -> list[Problem]:
    """Returns a warning if a job's gradients and sums take most of the machine's memory."""
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if plan.memory <= here / 2:
        return []
    text = (
        f"gradients and sums of {counted(len(plan.placement.workers), 'worker')} take about"
        f" {size_text(plan.memory)} of memory, and this machine has {size_text(here)}; `none` takes"
        " little, with --clock virtual"
    )
    return [plan.file.document.problem(("payload",), text)]


def chunks_of(spec: JobSpec, plane: DataPlane) -> int:
    """Returns the number of chunks of an iteration."""
    return sum(-(-size // plane.lanes) for size in shapes(spec).values())


def counted(number: int, what: str) -> str:
    """Returns a number of things in words."""
    plural = f"{what}es" if what.endswith(("ch", "ss")) else f"{what}s"
    return f"{number} {what if number == 1 else plural}"
