# SPDX-License-Identifier: Apache-2.0
"""Job files: what to train, on which nodes, and how gradients are aggregated.

``load(path)`` reads one; ``JobFileError`` lists all problems in it, with file, line, field and what
is allowed. docs/reference/files.md explains the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from controller.planning.stream_numbers import most_streams
from hosts.worker.scheduling.registry import CREDIT, SCHEDULERS
from protocol.learning_rate import COSINE, LINEAR, STEP
from protocol.optimizer_plan import ADAM, MOMENTUM, NESTEROV
from protocol.propagation import FIFO
from protocol.propagation import refusal as not_with
from protocol.server_pipelines import USUAL, refusal
from protocol.trees import TreeKind
from specs import layerfile, placements
from specs.jobspec import JobSpec, ModelName
from specs.layerfile import LayerTrace
from specs.placements import kind_of
from topologies.model.documents import Document, DocumentError, Location, Problem, errors_as, shown
from topologies.model.documents import load as load_document
from topologies.model.documents import parse as parse_document
from topologies.model.spec import Topology
from topologies.model.wording import few

# A packet has 16 bits for a rank, and a sum of more than 2^30 quantised values overflows.
MAX_WORLD = 4096
_FLOAT_BYTES = 4


class JobFileError(DocumentError):
    """A job file is invalid, or does not fit the topology."""


class OptionProblem(Problem):
    """A problem of a command line option that belongs to a job file."""

    def __str__(self) -> str:
        return f"{self.field} {self.text}"


@dataclass(frozen=True)
class Placement:
    """Node names of a job's workers and servers, by rank; spares: the servers without slices."""

    workers: tuple[str, ...]
    servers: tuple[str, ...]
    spares: tuple[str, ...] = ()

    @property
    def serving(self) -> Placement:
        """The placement without spare servers."""
        used = tuple(name for name in self.servers if name not in self.spares)
        return Placement(self.workers, used)


@dataclass(frozen=True)
class JobFile:
    """A valid job file.

    source: path of the file.
    restored: checkpoint to continue from, instead of the file's.
    layer_times: measured times of the model's layers.
    """

    spec: JobSpec
    source: str
    document: Document[JobSpec]
    restored: Path | None = None
    layer_times: LayerTrace | None = None

    @property
    def compute_seconds(self) -> float:
        """Time to compute an iteration's gradients in virtual time."""
        compute = self.spec.compute
        if self.layer_times is not None:
            return self.layer_times.seconds
        return compute.seconds if compute.iteration is None else compute.iteration

    @property
    def restore(self) -> Path | None:
        """Checkpoint to continue from; a path in the file is relative to the file."""
        if self.restored is not None or self.spec.restore is None:
            return self.restored
        return Path(self.source).absolute().parent / self.spec.restore

    def fitted(self, topology: Topology) -> JobFile:
        """Returns the job with a batch that all workers can share, for uses of its sizes only."""
        batch = max(1, len(topology.workers))
        return replace(self, spec=self.spec.model_copy(update={"batch": batch}))

    def refusal(self, location: Location, text: str) -> JobFileError:
        """Returns the error for a field of this file."""
        return JobFileError([self.document.problem(location, text)])

    def cannot_restore(self, text: str) -> JobFileError:
        """Returns the error for the checkpoint, naming the field or the option that set it."""
        if self.restored is None:
            return self.refusal(("restore",), text)
        return JobFileError([OptionProblem(self.source, 0, "--restore", text)])

    def place(self, topology: Topology) -> Placement:
        """Returns the job's nodes on a topology; raises ``JobFileError`` if it does not fit."""
        document = Document(self.document.file, self.spec, self.document.lines)
        spec = self.spec.placement
        everyone = [node.name for node in topology.workers]
        unknown = f"{topology.name} has no worker"
        workers = _named(document, "workers", spec.workers, everyone, unknown) or everyone
        kind = kind_of(spec.kind)
        hosts = placements.hosts(kind, topology, workers)
        unknown = f"{topology.name} has no server"
        if kind is not None and kind.colocated:
            unknown = f"placement {kind.name} has servers on hosts of workers of the job, not on"
        servers = _named(document, "servers", spec.servers, hosts.allowed, unknown)
        if "servers" in spec.model_fields_set and spec.servers is None:
            servers = list(hosts.allowed)
        if kind is not None and kind.central and len(servers) > 1:
            document.refuse(
                ("placement", "servers"),
                f"{len(servers)} servers, and placement {kind.name} ({kind.meaning}) has one;"
                f" allowed: one of {few(hosts.allowed)}",
            )
        spares = _named(document, "spares", spec.spares or None, hosts.allowed, unknown)
        servers = servers or [name for name in hosts.default if name not in spares]
        for number, name in enumerate(spares):
            if name in servers:
                text = f"{name} is one of `servers`, too; leave one out"
                document.refuse(("placement", "spares", number), text)
        if spares and not servers:
            document.refuse(
                ("placement", "spares"), "leave no server that has slices from the start"
            )
        if spares and kind is not None and kind.central:
            text = f"placement {kind.name} ({kind.meaning}) has one server; leave it out"
            document.refuse(("placement", "spares"), text)
        world = len(workers)
        if world > MAX_WORLD:
            document.refuse(("placement",), f"{world} workers; allowed: up to {MAX_WORLD}")
        if world and self.spec.learns and self.spec.batch % world:
            batch = self.spec.batch
            document.refuse(
                ("batch",),
                f"{batch} cannot be split evenly over {world} workers; allowed: multiples of"
                f" {world}, such as {max(world, batch - batch % world)}",
            )
        with errors_as(JobFileError):
            document.check()
        return Placement(tuple(workers), (*servers, *spares), tuple(spares))


def _named(
    document: Document[JobSpec],
    role: str,
    given: list[str] | None,
    allowed: Sequence[str],
    unknown: str,
) -> list[str]:
    """Returns the hosts that a placement names for a role; notes problems in the document.

    unknown: begin of the error text for a host that is not allowed.
    """
    place = ("placement", role)
    if given is not None and not given:
        document.refuse(place, f"is empty; allowed: all, or some of {few(allowed)}")
    for number, name in enumerate(given or ()):
        if name not in allowed:
            document.refuse((*place, number), f"{unknown} {shown(name)}; allowed: {few(allowed)}")
        elif name in (given or ())[:number]:
            document.refuse((*place, number), f"{name} is named twice")
    return list(given or ())


@errors_as(JobFileError)
def load(path: str | Path, restore: Path | None = None) -> JobFile:
    """Reads a job file; ``restore`` replaces its checkpoint. Raises ``JobFileError``."""
    return _checked(load_document(path, JobSpec), restore)


@errors_as(JobFileError)
def parse(text: str, file: str = "<text>") -> JobFile:
    """Reads a job file from text; raises ``JobFileError`` naming ``file``."""
    return _checked(parse_document(text, file, JobSpec))


def _checked(document: Document[JobSpec], restore: Path | None = None) -> JobFile:
    """Checks that the fields fit together. Raises ``DocumentError``."""
    _settle(document)
    _check_workload(document)
    _check_optimizer(document)
    _check_schedule(document)
    layers = _layers(document)
    return JobFile(document.content, document.file, document, restore, layers)


_FORMS_OF_COMPUTE = ("seconds", "layers", "iteration")


def _layers(document: Document[JobSpec]) -> LayerTrace | None:
    """Reads the layer trace of a job, relative to its file. Raises ``DocumentError``."""
    compute = document.content.compute
    given = [f"`{name}`" for name in _FORMS_OF_COMPUTE if name in compute.model_fields_set]
    if len(given) > 1:
        document.refuse(("compute",), f"one of {', '.join(given)} says how long a pass takes")
    if compute.iteration is not None and document.content.model is None:
        document.refuse(
            ("compute", "iteration"),
            f"is divided by a model's multiplications, and workload {document.content.workload} has"
            " none; allowed: seconds, layers, or workload model",
        )
    if compute.model is not None and compute.model != document.content.model:
        is_of = document.content.model or f"none, with workload {document.content.workload}"
        document.refuse(
            ("compute", "model"),
            f"is {compute.model}, and the job's model is {is_of}: leave it out",
        )
    if compute.model is not None and compute.iteration is None:
        document.refuse(("compute", "model"), "goes with `iteration`, which its layers divide")
    document.check()
    if compute.layers is None:
        return None
    path = Path(document.file).parent / compute.layers
    if not path.is_file():
        document.refuse(("compute", "layers"), f"there is no file {path}")
        document.check()
    return layerfile.load(path)


def _settle(document: Document[JobSpec]) -> None:
    """Sets a model's payload, and tree and place of optimizer steps by the placement.

    Notes contradicting fields in the document.
    """
    spec = document.content
    if spec.workload == "model" and "payload" not in spec.model_fields_set:
        spec = document.content = spec.model_copy(update={"payload": "none"})
    kind = kind_of(spec.placement.kind)
    if kind is None:
        return
    given = spec.tree if "tree" in spec.model_fields_set else next(iter(kind.trees))
    if given not in kind.trees:
        others = [one.name for one in placements.KINDS if given in one.trees]
        document.refuse(
            ("tree",),
            f"{given} does not go with placement {kind.name} ({kind.meaning}); allowed:"
            f" {', '.join(kind.trees)}, or placement {' or '.join(others)}",
        )
        return
    optimizer = spec.optimizer
    if kind.steps:
        if "at" in optimizer.model_fields_set and optimizer.at != kind.steps:
            others = [one.name for one in placements.KINDS if one.steps in ("", optimizer.at)]
            document.refuse(
                ("optimizer", "at"),
                f"with placement {kind.name} ({kind.meaning}) steps are taken at {kind.steps};"
                f" allowed: that, or placement {', '.join(others)}",
            )
        optimizer = optimizer.model_copy(update={"at": kind.steps})
    document.content = spec.model_copy(update={"tree": kind.trees[given], "optimizer": optimizer})


def _check_workload(document: Document[JobSpec]) -> None:
    """Notes fields that do not fit a workload of layer sizes, or chunks without payload."""
    spec = document.content
    given = {field for field in type(spec).model_fields if (field,) in document.lines}
    if spec.workload == "model" and spec.model is None:
        models = ", ".join(get_args(ModelName))
        document.refuse(("model",), f"is empty; workload model needs one of {models}")
    elif spec.workload != "model" and "model" in given:
        text = f"is for workload model, and this is {spec.workload}; leave it out"
        document.refuse(("model",), text)
    if spec.workload == "layers" and not spec.layers:
        document.refuse(("layers",), "is empty; workload layers needs the bytes of each: [4 MB]")
    elif spec.workload != "layers" and "layers" in given:
        document.refuse(
            ("layers",), f"workload {spec.workload} has layers of its own; leave it out"
        )
    for number, one in enumerate(spec.layers):
        if one % _FLOAT_BYTES:
            text = f"{one} B are no whole number of float32; allowed: multiples of {_FLOAT_BYTES} B"
            document.refuse(("layers", number), text)
    if spec.payload == "none":
        if spec.learns:
            document.refuse(
                ("payload",),
                f"without payload there are no sums that workload {spec.workload} could learn from;"
                " allowed: summed, or workload resnet50, layers or model",
            )
        if spec.chunk_bytes % _FLOAT_BYTES:
            text = f"{spec.chunk_bytes} B; allowed: multiples of {_FLOAT_BYTES} B"
            document.refuse(("chunk_bytes",), text)
        if "gradients" in given:
            document.refuse(("gradients",), "without payload they have no type; leave it out")
    elif "chunk_bytes" in given:
        document.refuse(
            ("chunk_bytes",),
            "chunks with payload are as long as the build of the program has them; leave it out, or"
            " set payload: none",
        )
    if spec.learns:
        return
    for field in ("hidden", "batch", "optimizer", "poison", "checkpoint", "restore", "consistency"):
        if field in given:
            text = f"workload {spec.workload} has sizes of layers and learns nothing; leave it out"
            document.refuse((field,), text)
    if spec.optimizer.at == "servers" and "optimizer" not in given:
        document.refuse(
            ("placement",),
            f"has servers take steps, and workload {spec.workload} has sizes of layers and none to"
            " take; allowed: a placement where workers take them",
        )


def _check_optimizer(document: Document[JobSpec]) -> None:
    """Checks that the optimizer's fields fit together. Raises ``DocumentError``."""
    spec = document.content
    optimizer, schedule = spec.optimizer, spec.optimizer.schedule
    ends_at_server = TreeKind.of(spec.tree).ends_at_server
    if optimizer.at == "servers" and not ends_at_server:
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
        at_server=ends_at_server,
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


def _check_schedule(document: Document[JobSpec]) -> None:
    """Checks that the fields about how gradients are sent fit together. Raises
    ``DocumentError``."""
    spec, schedule = document.content, document.content.schedule
    given = schedule.model_fields_set
    if "slice" in given and ("slice_bytes",) in document.lines:
        text = "and `slice_bytes` both say how long a slice is; leave one out"
        document.refuse(("schedule", "slice"), text)
    if schedule.credit is not None and schedule.order != CREDIT:
        text = f"is of order {CREDIT}, and this is {schedule.order}; leave it out"
        document.refuse(("schedule", "credit"), text)
    if schedule.order == FIFO and (schedule.classes or 1) > 1:
        others = " or ".join(order for order in SCHEDULERS if order != FIFO)
        text = f"order {FIFO} has none; leave it out, or choose order {others}"
        document.refuse(("schedule", "classes"), text)
    way = spec.propagation
    most = most_streams(way)
    if spec.streams > most or not most:
        text = f"{way.classes} classes of {max(1, spec.streams)} streams each"
        fewer = f"up to {most} streams, or " if most else ""
        document.refuse(("schedule",), f"{text}; allowed: {fewer}fewer classes")
    if reason := not_with(way, spec.tree, at_server=TreeKind.of(spec.tree).ends_at_server):
        document.refuse(("schedule", "release"), reason)
    elif way.by_slice and not spec.consistency.together:
        text = "is about sums, and asynchronous servers answer each gradient; leave it out"
        document.refuse(("schedule", "release"), text)
    spares = bool(spec.placement.spares)
    for asked, place, otherwise in (
        (spec.balance.plan.measures, ("balance",), "static"),
        (spares, ("placement", "spares"), "none"),
    ):
        if asked and not TreeKind.of(spec.tree).ends_at_server:
            text = f"is about what servers sum, and the root of tree {spec.tree} is a switch"
            document.refuse(place, f"{text}; allowed: {otherwise}, or a tree that ends at servers")
    document.check()


def _check_apart(document: Document[JobSpec]) -> None:
    """Notes fields that an asynchronous job cannot have."""
    spec, how = document.content, f"with consistency {document.content.consistency}"
    without = [kind.name for kind in placements.KINDS if "none" in kind.trees.values()]
    if spec.optimizer.at != "servers":
        document.refuse(
            ("consistency",),
            f"{spec.consistency} is about steps at servers; allowed: synchronous, or optimizer:"
            " {at: servers}",
        )
    if spec.tree != "none":
        document.refuse(
            # The placement sets the tree of a file that has none.
            ("tree",) if ("tree",) in document.lines else ("consistency",),
            f"{how} a server takes a step with each worker's gradient, so that switches have"
            f" nothing to add up, and tree is {spec.tree}; allowed: none, which placements"
            f" {', '.join(without[:-1])} and {without[-1]} have",
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
