# SPDX-License-Identifier: Apache-2.0
"""Job files: what to train, on which nodes, and how gradients get together.

``load(path)`` reads one; ``JobFileError`` lists everything wrong in it, with file, line, field and
what is allowed. docs/files.md explains the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from protocol.optimizer import OptimizerPlan
from testbed import placements
from testbed.placements import Tree, Word
from topologies.documents import Document, DocumentError, Location, Name, shown
from topologies.documents import load as load_document
from topologies.documents import parse as parse_document
from topologies.spec import Topology, few
from topologies.units import duration

# Ranks go into 16 bits of a packet, and a sum of more than 2^30 quantised values has no bits left.
MAX_WORLD = 4096


class JobFileError(DocumentError):
    """A job file that cannot be used, or not on this topology."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OptimizerSpec(_Strict):
    """Stochastic gradient descent, plain (``sgd``) or with momentum.

    at: who takes the steps: every worker, or the servers, each for the chunks that it sums.
    """

    name: Literal["sgd", "momentum"] = "momentum"
    rate: float = Field(default=0.1, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    at: Literal["workers", "servers"] = "workers"

    @property
    def plan(self) -> OptimizerPlan:
        """As workers and servers are told."""
        return OptimizerPlan(self.name, self.rate, self.momentum if self.name == "momentum" else 0)


def _node_names(value: object) -> object:
    if value == "all" or isinstance(value, list):
        return None if value == "all" else value
    raise ValueError(f"{shown(value)} should be all, or a list of node names like [w0, w1]")


NodeNames = Annotated[list[str] | None, BeforeValidator(_node_names)]


class PlacementSpec(_Strict):
    """Node names by rank; ``all`` in the file (None here) is every worker or server there is.

    kind: see ``testbed.placements``.
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


def _power_of_two(value: object) -> object:
    if isinstance(value, int) and value > 0 and value & (value - 1):
        raise ValueError(
            f"{value} is no power of two; allowed: 0 (chosen by the controller), 1, 2, 4, ..."
        )
    return value


class JobSpec(_Strict):
    """One training run. Sizes are per iteration over all workers together.

    patience: seconds without any sum after which a worker gives the job up. The slowest worker's
    computation is no fault, so it should be many times longer. lease: seconds without a sign of
    life of a worker or server, after which the others go on without it. poison: values of an
    iteration that do not fit fixed point (``testbed.poison``).
    """

    name: Name = Field(max_length=40)
    workload: Literal["digits"] = "digits"
    hidden: list[Annotated[int, Field(strict=True, ge=1, le=4096)]] = Field(
        default=[128, 64], min_length=1, max_length=8
    )
    iterations: int = Field(strict=True, ge=1, le=10_000_000)
    batch: int = Field(default=128, strict=True, ge=1, le=1_000_000)
    seed: int = Field(default=1, strict=True, ge=0, lt=2**32)
    optimizer: OptimizerSpec = OptimizerSpec()
    placement: Annotated[PlacementSpec, BeforeValidator(_word_or_group)] = PlacementSpec()
    tree: Tree = "two-level"
    window: Annotated[int, BeforeValidator(_power_of_two), Field(strict=True, ge=0, le=32768)] = 0
    streams: int = Field(default=0, strict=True, ge=0, le=255)
    patience: Annotated[float, duration("1 s", "86400 s", "120 s")] = 120.0
    lease: Annotated[float, duration("5 s", "86400 s", "30 s")] = 30.0
    poison: int = Field(default=0, strict=True, ge=0, le=10_000)


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

    def refusal(self, location: Location, text: str) -> JobFileError:
        """The error that a field of this file is."""
        return JobFileError([self.document.problem(location, text)])

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


def load(path: str | Path) -> JobFile:
    """Read a job file; raises ``JobFileError``."""
    try:
        document = load_document(path, JobSpec)
        placements.settle(document)
        _check_optimizer(document)
    except DocumentError as error:
        raise JobFileError(error.problems) from error
    return JobFile(document.content, str(path), document)


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
    """Steps at servers need sums that end there. Raises ``DocumentError``."""
    spec = document.content
    if spec.optimizer.at == "servers" and spec.tree in ("two-level", "core"):
        document.refuse(
            ("optimizer", "at"),
            f"servers take steps where a tree's root is a server, and that of tree {spec.tree} is a"
            f" switch; allowed: workers, or tree {spec.tree}-server, tor or none",
        )
    document.check()
