# SPDX-License-Identifier: Apache-2.0
"""The fields of a job file, with what is allowed in each (docs/files.md). What does not go together
is ``specs.jobfile``'s business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from protocol.consistency import SYNCHRONOUS, Consistency
from protocol.optimizer import MOMENTUM, NESTEROV, KeyOptions, OptimizerPlan
from protocol.pipeline import Pipeline
from protocol.schedule import COSINE, LINEAR, Schedule
from specs.placements import Tree, Word
from topologies.model.documents import Name, shown
from topologies.model.units import duration, size

__all__ = [
    "CheckpointSpec",
    "ComputeSpec",
    "JobSpec",
    "KeySpec",
    "OptimizerSpec",
    "PlacementSpec",
    "ScheduleSpec",
    "ServerSpec",
]


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

    kind: see ``specs.placements``.
    """

    kind: Word | None = None
    workers: NodeNames = None
    servers: NodeNames = None


_DURATION = duration("0 s", "3600 s")


class ComputeSpec(_Strict):
    """How long an iteration's gradients take in virtual time: so many seconds in all, or by layer,
    as a file says (``specs.layerfile``)."""

    seconds: Annotated[float, _DURATION] = 0.0
    layers: str | None = Field(default=None, min_length=1, max_length=1000)


def _compute(value: object) -> object:
    if isinstance(value, (dict, ComputeSpec)):
        return value
    convert = cast(Callable[[object], float], _DURATION.func)
    return {"seconds": convert(value)}


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

    layers: bytes of each layer's gradients (float32), of workload ``layers``. payload: whether
    chunks carry one, which is summed, or only occupy the wire, ``chunk_bytes`` each, in virtual
    time.

    admission: where switches have no slots for it, it is refused (network) or runs without them.
    slice: bytes of a parameter that go to one server process as a whole. patience: seconds without
    any sum after which a worker gives the job up. The slowest worker's computation is no fault, so
    it should be many times longer. lease: seconds without a sign of life of a worker or server,
    after which the others go on without it. poison: values of an iteration that do not fit fixed
    point (``workloads.poison``). gradients: what workers round theirs to; parameters and
    sums are float32. restore: a checkpoint's file, which the job goes on from. consistency: whose
    gradients servers take a step with.
    """

    name: Name = Field(max_length=40)
    workload: Literal["digits", "characters", "resnet50", "layers"] = "digits"
    layers: list[Annotated[int, size("4 B", "4 GiB")]] = Field(default=[], max_length=10_000)
    payload: Literal["summed", "none"] = "summed"
    chunk_bytes: Annotated[int, size("4 B", "32 KiB")] = 1 << 10
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
    compute: Annotated[ComputeSpec, BeforeValidator(_compute)] = ComputeSpec()

    def service(self) -> dict[str, Any]:
        """Options of ``hosts.session.job_service.create_service``, beside name and members."""
        return {
            "tree": self.tree,
            "window": self.window,
            "streams": self.streams,
            "lease": self.lease,
            "admission": self.admission,
            "slice_bytes": self.slice_bytes,
            "pipeline": self.server.pipeline,
            "ablate": self.server.ablate,
        }

    @property
    def learns(self) -> bool:
        """Whether there is something to learn, from data; else layers have sizes, and no more."""
        return self.workload not in ("resnet50", "layers")

    @property
    def plan(self) -> OptimizerPlan:
        """The optimizer as workers and servers are told."""
        return replace(self.optimizer.plan(self.iterations), consistency=self.consistency)
