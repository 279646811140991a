# SPDX-License-Identifier: Apache-2.0
"""Job files: what to train, on which nodes, and how gradients get together.

``load(path)`` reads one; ``JobFileError`` lists everything wrong in it, with file, line, field and
what is allowed. docs/files.md explains the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from protocol.consistency import SYNCHRONOUS, Consistency
from protocol.optimizer import ADAM, MOMENTUM, NESTEROV, KeyOptions, OptimizerPlan
from protocol.pipeline import USUAL, Pipeline, refusal
from protocol.schedule import COSINE, LINEAR, STEP, Schedule
from testbed.plans import placements
from testbed.plans.placements import Tree, Word
from topologies.documents import Document, DocumentError, Location, Name, Problem, shown
from topologies.documents import load as load_document
from topologies.documents import parse as parse_document
from topologies.spec import Topology, few
from topologies.units import duration, size

# Ranks go into 16 bits of a packet, and a sum of more than 2^30 quantised values has no bits left.
MAX_WORLD = 4096
_ROOT_IS_SWITCH = ("two-level", "core")


class JobFileError(DocumentError):
    """A job file that cannot be used, or not on this topology."""


class OptionProblem(Problem):
    """What is wrong with an option of the command line that goes with a job file."""

    def __str__(self) -> str:
        return f"{self.field} {self.text}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Count = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class ScheduleSpec(_Strict):
    """What the rate is multiplied by from step to step, see ``protocol.schedule``.

    steps: of the whole schedule; None: the job's iterations.
    """

    kind: Literal["constant", "step", "linear", "cosine"] = "constant"
    warmup: _Count = 0
    steps: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = None
    floor: float = Field(default=0.0, ge=0, le=1)
    every: _Count = 0
    factor: float = Field(default=0.0, ge=0, le=1)


class KeySpec(_Strict):
    """What differs for some keys; None: as for the others."""

    rate: float | None = Field(default=None, gt=0, le=100)
    weight_decay: float | None = Field(default=None, ge=0, le=1)


class OptimizerSpec(_Strict):
    """Stochastic gradient descent, plain (``sgd``), with ``momentum`` or ``nesterov``'s, or
    ``adam``.

    keys: by the name of a parameter, or a pattern; the first that fits counts. at: who takes the
    steps: every worker, or the servers, each for the chunks that it sums.
    """

    name: Literal["sgd", "momentum", "nesterov", "adam"] = "momentum"
    rate: float = Field(default=0.1, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, ge=1e-30, le=1)
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    schedule: ScheduleSpec = ScheduleSpec()
    keys: dict[str, KeySpec] = Field(default={}, max_length=100)
    at: Literal["workers", "servers"] = "workers"

    def plan(self, iterations: int) -> OptimizerPlan:
        """As workers and servers are told, in a job of so many iterations."""
        schedule = self.schedule
        steps = 0
        if schedule.kind in (LINEAR, COSINE):
            steps = iterations if schedule.steps is None else schedule.steps
        return OptimizerPlan(
            self.name,
            self.rate,
            self.momentum if self.name in (MOMENTUM, NESTEROV) else 0.0,
            self.weight_decay,
            self.beta1,
            self.beta2,
            self.epsilon,
            Schedule(
                schedule.kind,
                schedule.warmup,
                steps,
                schedule.floor,
                schedule.every,
                schedule.factor,
            ),
            tuple(KeyOptions(name, one.rate, one.weight_decay) for name, one in self.keys.items()),
        )


class ServerSpec(_Strict):
    """How servers work on chunks, and what of that they leave out, see ``protocol.pipeline``."""

    pipeline: Literal["tall", "wide"] = "tall"
    ablate: list[Literal["aggregation", "optimizer", "elision"]] = Field(default=[], max_length=3)

    @property
    def plan(self) -> Pipeline:
        """As workers and servers are told."""
        return Pipeline(self.pipeline, tuple(self.ablate))


class CheckpointSpec(_Strict):
    """A file ``to/NAME-ITERATION.checkpoint`` every so many iterations, and at the end.

    to: a folder; one that is not absolute is in the run's directory.
    """

    every: int = Field(strict=True, ge=1, le=10_000_000)
    to: str = Field(default="checkpoints", min_length=1, max_length=1000)


def _node_names(value: object) -> object:
    if value == "all" or isinstance(value, list):
        return None if value == "all" else value
    raise ValueError(f"{shown(value)} should be all, or a list of node names like [w0, w1]")


NodeNames = Annotated[list[str] | None, BeforeValidator(_node_names)]


class PlacementSpec(_Strict):
    """Node names by rank; ``all`` in the file (None here) is every worker or server there is.

    kind: see ``testbed.plans.placements``.
    """

    kind: Word | None = None
    workers: NodeNames = None
    servers: NodeNames = None


def _word_or_group(value: object) -> object:
    if value in get_args(Word):
        return {"kind": value}
    if isinstance(value, str):
        words = ", ".join(get_args(Word))
        fields = ", ".join(PlacementSpec.model_fields)
        text = f"{shown(value)} should be one of {words}, or a group of fields ({fields})"
        raise ValueError(text)
    return value


def _consistency(value: object) -> Consistency:
    if isinstance(value, (str, dict, Consistency)):
        return Consistency.of(value)
    raise ValueError(f"{shown(value)} should be synchronous, asynchronous or {{staleness: N}}")


def _power_of_two(value: object) -> object:
    if isinstance(value, int) and value > 0 and value & (value - 1):
        raise ValueError(
            f"{value} is no power of two; allowed: 0 (chosen by the controller), 1, 2, 4, ..."
        )
    return value


class JobSpec(_Strict):
    """One training run. Sizes are per iteration over all workers together.

    admission: where switches have no slots for it, it is refused (network) or runs without them.
    slice: bytes of a parameter that go to one server process as a whole. patience: seconds without
    any sum after which a worker gives the job up. The slowest worker's computation is no fault, so
    it should be many times longer. lease: seconds without a sign of life of a worker or server,
    after which the others go on without it. poison: values of an iteration that do not fit fixed
    point (``testbed.training.poison``). gradients: what workers round theirs to; parameters and
    sums are float32. restore: a checkpoint's file, which the job goes on from. consistency: whose
    gradients servers take a step with.
    """

    name: Name = Field(max_length=40)
    workload: Literal["digits", "characters"] = "digits"
    hidden: list[Annotated[int, Field(strict=True, ge=1, le=4096)]] = Field(
        default=[128, 64], min_length=1, max_length=8
    )
    iterations: int = Field(strict=True, ge=1, le=10_000_000)
    batch: int = Field(default=128, strict=True, ge=1, le=1_000_000)
    seed: int = Field(default=1, strict=True, ge=0, lt=2**32)
    optimizer: OptimizerSpec = OptimizerSpec()
    consistency: Annotated[Consistency, BeforeValidator(_consistency)] = SYNCHRONOUS
    server: ServerSpec = ServerSpec()
    gradients: Literal["float32", "float16", "bfloat16"] = "float32"
    checkpoint: CheckpointSpec | None = None
    restore: str | None = Field(default=None, min_length=1, max_length=1000)
    placement: Annotated[PlacementSpec, BeforeValidator(_word_or_group)] = PlacementSpec()
    tree: Tree = "two-level"
    admission: Literal["network", "servers"] = "network"
    window: Annotated[int, BeforeValidator(_power_of_two), Field(strict=True, ge=0, le=32768)] = 0
    streams: int = Field(default=0, strict=True, ge=0, le=255)
    slice_bytes: Annotated[int, size("1 KiB", "64 MiB")] = 32 << 10
    patience: Annotated[float, duration("1 s", "86400 s", "120 s")] = 120.0
    lease: Annotated[float, duration("5 s", "86400 s", "30 s")] = 30.0
    poison: int = Field(default=0, strict=True, ge=0, le=10_000)

    @property
    def plan(self) -> OptimizerPlan:
        """The optimizer as workers and servers are told."""
        return replace(self.optimizer.plan(self.iterations), consistency=self.consistency)


@dataclass(frozen=True)
class Placement:
    """Where a job's ranks are: ``workers[rank]`` and ``servers[rank]`` are node names."""

    workers: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True)
class JobFile:
    """A valid job file."""

    spec: JobSpec
    source: str
    document: Document[JobSpec]
    restored: Path | None = None  # instead of what the file says

    @property
    def restore(self) -> Path | None:
        """The checkpoint that it goes on from; one in the file is found from where that is."""
        if self.restored is not None or self.spec.restore is None:
            return self.restored
        return Path(self.source).absolute().parent / self.spec.restore

    def refusal(self, location: Location, text: str) -> JobFileError:
        """The error that a field of this file is."""
        return JobFileError([self.document.problem(location, text)])

    def cannot_restore(self, text: str) -> JobFileError:
        """The error that the checkpoint is: of the field, or of the option that stands for it."""
        if self.restored is None:
            return self.refusal(("restore",), text)
        return JobFileError([OptionProblem(self.source, 0, "--restore", text)])

    def place(self, topology: Topology) -> Placement:
        """The nodes of this job's ranks; raises ``JobFileError`` naming what the topology lacks."""
        document = Document(self.document.file, self.spec, self.document.lines)
        spec = self.spec.placement
        everyone = [node.name for node in topology.workers]
        nobody = f"{topology.name} has no worker"
        workers = _named(document, "workers", spec.workers, everyone, nobody) or everyone
        kind = placements.kind_of(spec.kind)
        hosts = placements.hosts(kind, topology, workers)
        nobody = f"{topology.name} has no server"
        if kind is not None and kind.colocated:
            nobody = f"placement {kind.name} has servers on hosts of workers of the job, not on"
        servers = _named(document, "servers", spec.servers, hosts.allowed, nobody)
        if "servers" in spec.model_fields_set and spec.servers is None:
            servers = list(hosts.allowed)
        if kind is not None and kind.central and len(servers) > 1:
            document.refuse(
                ("placement", "servers"),
                f"{len(servers)} servers, and placement {kind.name} ({kind.meaning}) has one;"
                f" allowed: one of {few(hosts.allowed)}",
            )
        world = len(workers)
        if world > MAX_WORLD:
            document.refuse(("placement",), f"{world} workers; allowed: up to {MAX_WORLD}")
        if world and self.spec.batch % world:
            document.refuse(
                ("batch",),
                f"{self.spec.batch} cannot be split evenly over {world} workers;"
                f" allowed: multiples of {world}",
            )
        try:
            document.check()
        except DocumentError as error:
            raise JobFileError(error.problems) from error
        return Placement(tuple(workers), tuple(servers) or hosts.default)


def _named(
    document: Document[JobSpec],
    role: str,
    given: list[str] | None,
    allowed: Sequence[str],
    nobody: str,
) -> list[str]:
    """The hosts that a placement names for a role, or none; notes those that cannot be."""
    place = ("placement", role)
    if given is not None and not given:
        document.refuse(place, f"is empty; allowed: all, or some of {few(allowed)}")
    for number, name in enumerate(given or ()):
        if name not in allowed:
            document.refuse((*place, number), f"{nobody} {shown(name)}; allowed: {few(allowed)}")
        elif name in (given or ())[:number]:
            document.refuse((*place, number), f"{name} is named twice")
    return list(given or ())


def load(path: str | Path, restore: Path | None = None) -> JobFile:
    """Read a job file, to go on from a checkpoint if one is given; raises ``JobFileError``."""
    try:
        document = load_document(path, JobSpec)
        placements.settle(document)
        _check_optimizer(document)
    except DocumentError as error:
        raise JobFileError(error.problems) from error
    return JobFile(document.content, str(path), document, restore)


def parse(text: str, file: str = "<text>") -> JobFile:
    """Read a job file from text; raises ``JobFileError`` naming ``file``."""
    try:
        document = parse_document(text, file, JobSpec)
        placements.settle(document)
        _check_optimizer(document)
    except DocumentError as error:
        raise JobFileError(error.problems) from error
    return JobFile(document.content, file, document)


def _check_optimizer(document: Document[JobSpec]) -> None:
    """What of an optimizer does not go together. Raises ``DocumentError``."""
    spec = document.content
    optimizer, schedule = spec.optimizer, spec.optimizer.schedule
    if optimizer.at == "servers" and spec.tree in _ROOT_IS_SWITCH:
        document.refuse(
            ("optimizer", "at"),
            f"servers take steps where a tree's root is a server, and that of tree {spec.tree} is a"
            f" switch; allowed: workers, or tree {spec.tree}-server, tor or none",
        )
    if not spec.consistency.together:
        _check_apart(document)
    if reason := refusal(
        spec.server.plan,
        spec.tree,
        at_server=spec.tree not in _ROOT_IS_SWITCH,
        switches=spec.tree != "none",
        optimizer=optimizer.at == "servers",
    ):
        document.refuse(("server", "ablate" if spec.server.ablate else "pipeline"), reason)
    falls = schedule.kind in (LINEAR, COSINE)
    for group, place, known, fields in (
        (optimizer, ("optimizer",), optimizer.name in (MOMENTUM, NESTEROV), ("momentum",)),
        (optimizer, ("optimizer",), optimizer.name == ADAM, ("beta1", "beta2", "epsilon")),
        (schedule, ("optimizer", "schedule"), falls, ("steps", "floor")),
        (schedule, ("optimizer", "schedule"), schedule.kind == STEP, ("every", "factor")),
    ):
        name = optimizer.name if group is optimizer else f"schedule {schedule.kind}"
        for one in fields:
            if not known and one in group.model_fields_set:
                document.refuse((*place, one), f"{name} has none; leave it out")
    if schedule.kind == STEP:
        for one in ("every", "factor"):
            if not getattr(schedule, one):
                text = "is needed with schedule step, more than 0"
                document.refuse(("optimizer", "schedule", one), text)
    steps = spec.iterations if schedule.steps is None else schedule.steps
    if falls and schedule.warmup >= steps:
        document.refuse(
            ("optimizer", "schedule", "warmup"),
            f"{schedule.warmup} steps of warm-up leave none of {steps}; allowed: up to {steps - 1}",
        )
    document.check()


def _check_apart(document: Document[JobSpec]) -> None:
    """Notes what a job that is not synchronous cannot have."""
    spec, how = document.content, f"with consistency {document.content.consistency}"
    if spec.optimizer.at != "servers":
        document.refuse(
            ("consistency",),
            f"{spec.consistency} is about steps at servers; allowed: synchronous, or optimizer:"
            " {at: servers}",
        )
    if spec.tree != "none":
        document.refuse(
            ("tree",) if "tree" in spec.model_fields_set else ("consistency",),
            f"{how} a server takes a step with each worker's gradient, so that switches have"
            f" nothing to add up, and tree is {spec.tree}; allowed: none, which placements cc, cs,"
            " ncc and ncs have",
        )
    if spec.checkpoint is not None:
        document.refuse(
            ("checkpoint",),
            f"is of one step of all chunks, and {how} there is none; leave it out",
        )
    if spec.server.plan != USUAL:
        document.refuse(
            ("server",),
            f"{spec.server.plan} is about sums over workers, which are none {how}; leave it out",
        )
    if spec.poison:
        document.refuse(
            ("poison",), f"{how} gradients go in float32, which all values fit; leave it out"
        )
