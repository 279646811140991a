# SPDX-License-Identifier: Apache-2.0
"""The fields of a job file and their allowed values (docs/reference/files.md).

``specs.jobfile`` checks that they fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from controller.planning.balancing.registry import BALANCERS
from hosts.worker.scheduling.registry import CREDIT, SCHEDULERS
from protocol.assignment.registry import ASSIGNMENTS, BALANCED
from protocol.balance import STATIC, Balance
from protocol.consistency import SYNCHRONOUS, Consistency
from protocol.learning_rate import COSINE, LINEAR, Schedule
from protocol.optimizer_plan import MOMENTUM, NESTEROV, KeyOptions, OptimizerPlan
from protocol.priorities import PRIORITIES
from protocol.propagation import FIFO, MOST_CLASSES, Propagation
from protocol.server_pipelines import Pipeline
from protocol.trees import TREE_NUMBERS
from specs import placements
from topologies.model.documents import Name, shown
from topologies.model.quantity_fields import duration, size

# The networks of ``workloads.architectures``.
ModelName = Literal[
    "alexnet",
    "vgg11",
    "vgg19",
    "googlenet-224-full",
    "googlenet-299",
    "inception-v3",
    "resnet18-v2",
    "resnet50-v1",
    "resnet50-v2",
    "resnet269-v2",
    "resnext269",
    "sockeye-iwslt15",
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Count = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class ScheduleSpec(_Strict):
    """Schedule of the learning rate (``protocol.learning_rate``).

    steps: length of the schedule; None: the job's iterations.
    """

    kind: Literal["constant", "step", "linear", "cosine"] = "constant"
    warmup: _Count = 0
    steps: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = None
    floor: float = Field(default=0.0, ge=0, le=1)
    every: _Count = 0
    factor: float = Field(default=0.0, ge=0, le=1)


class KeySpec(_Strict):
    """Options of single keys; None: as for all keys."""

    rate: float | None = Field(default=None, gt=0, le=100)
    weight_decay: float | None = Field(default=None, ge=0, le=1)


class OptimizerSpec(_Strict):
    """Stochastic gradient descent: plain (``sgd``), with ``momentum`` or ``nesterov``, or ``adam``.

    keys: options by parameter name or pattern; the first match applies.
    at: where steps are taken: at every worker, or at the servers, each for the chunks that it sums.
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

    def plan(self, iterations: int, consistency: Consistency) -> OptimizerPlan:
        """Returns the plan for workers and servers in a job of so many iterations."""
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
            consistency=consistency,
        )


class ServerSpec(_Strict):
    """The processing of chunks by servers, and steps left out (``protocol.server_pipelines``)."""

    pipeline: Literal["tall", "wide"] = "tall"
    ablate: list[Literal["aggregation", "optimizer", "elision"]] = Field(default=[], max_length=3)

    @property
    def plan(self) -> Pipeline:
        """The plan for workers and servers."""
        return Pipeline(self.pipeline, tuple(self.ablate))


def _one_of(value: str, names: Sequence[str]) -> str:
    """Accepts a registered name; the error is that of ``Literal``."""
    if value not in names:
        expected = f"{', '.join(names[:-1])} or {names[-1]}"
        raise PydanticCustomError("literal_error", "one of {expected}", {"expected": expected})
    return value


# Keys with more parameters are cut by MXNet's parameter servers (MXNET_KVSTORE_BIGARRAY_BOUND), and
# whole ones are not.
_BOUND = 1_000_000
_WHOLE = "whole"
_CREDIT = 4 << 20  # bytes
_MOST_PARAMETERS = 1 << 24
_FLOAT_BYTES = 4


def _order(value: str) -> str:
    return _one_of(value, list(SCHEDULERS))


def _assignment(value: str) -> str:
    return _one_of(value, list(ASSIGNMENTS))


def _slice(value: object) -> object:
    if value == _WHOLE or (isinstance(value, int) and not isinstance(value, bool)):
        if value != _WHOLE and not 1 <= cast(int, value) <= _MOST_PARAMETERS:
            raise ValueError(f"{value} parameters; allowed: 1 to {_MOST_PARAMETERS:,}, or {_WHOLE}")
        return value
    raise ValueError(f"{shown(value)} should be a number of parameters, or {_WHOLE}")


class PropagationSpec(_Strict):
    """The way in which gradients are sent (``protocol.propagation``).

    order: chunk scheduler; ``priority``, and ``credit`` without priorities in the network.
    slice: parameters of a slice; ``whole``: keys are whole, but those above 10^6 parameters have a
    part for each server; None: as `slice_bytes` says.
    classes: of urgency; None: 8, with order fifo 1.
    assign: which server has which slice.
    release: servers send the sums of a slice chunk by chunk, or all together.
    credit: bytes that a worker may have in flight, with order ``credit``.
    """

    order: Annotated[str, AfterValidator(_order)] = FIFO
    slice: Annotated[int | Literal["whole"] | None, BeforeValidator(_slice)] = None
    classes: Annotated[int, Field(strict=True, ge=1, le=MOST_CLASSES)] | None = None
    assign: Annotated[str, AfterValidator(_assignment)] = BALANCED
    release: Literal["chunk", "slice"] = "chunk"
    credit: Annotated[int, size("1 KiB", "1 GiB")] | None = None

    @property
    def plan(self) -> Propagation:
        """The plan for controller, workers and servers."""
        classes = self.classes or (1 if self.order == FIFO else PRIORITIES)
        return Propagation(
            order=self.order,
            classes=classes,
            in_network=SCHEDULERS[self.order].in_network and classes > 1,
            parts=self.slice == _WHOLE,
            assign=self.assign,
            release=self.release,
            credit=(self.credit or _CREDIT) if self.order == CREDIT else 0,
        )


def _policy(value: str) -> str:
    return _one_of(value, list(BALANCERS))


class BalanceSpec(_Strict):
    """The load balancer of a job's servers (``controller.planning.balancing``).

    move: bytes of parameters that one move may take; 0: any.
    explore: probability that a round in which nothing is wrong tries a move; it decays.
    measure: measure servers even if nothing moves.
    """

    policy: Annotated[str, AfterValidator(_policy)] = STATIC
    move: Annotated[int, size("0 B", "64 GiB")] = 0
    explore: float = Field(default=0.0, ge=0, le=1)
    seed: int = Field(default=1, strict=True, ge=1, lt=2**32)
    measure: bool = Field(default=False, strict=True)

    @property
    def plan(self) -> Balance:
        """The same for the controller."""
        return Balance(self.policy, self.move, self.explore, self.seed, self.measure)


def _balance(value: object) -> object:
    return {"policy": value} if isinstance(value, str) else value


class CheckpointSpec(_Strict):
    """A checkpoint ``to/NAME-ITERATION.checkpoint`` every so many iterations, and at the end.

    to: a folder, relative to the run's directory.
    """

    every: int = Field(strict=True, ge=1, le=10_000_000)
    to: str = Field(default="checkpoints", min_length=1, max_length=1000)


def _node_names(value: object) -> object:
    if value == "all" or isinstance(value, list):
        return None if value == "all" else value
    raise ValueError(f"{shown(value)} should be all, or a list of node names like [w0, w1]")


NodeNames = Annotated[list[str] | None, BeforeValidator(_node_names)]


def _placement(value: str) -> str:
    return _one_of(value, [kind.name for kind in placements.KINDS])


def _tree(value: str) -> str:
    return _one_of(value, list(TREE_NUMBERS))


class PlacementSpec(_Strict):
    """Node names by rank; None (``all`` in the file) means all workers or servers.

    kind: a word of ``specs.placements``.
    spares: further servers, which have no slices of keys until they are given some.
    """

    kind: Annotated[str, AfterValidator(_placement)] | None = None
    workers: NodeNames = None
    servers: NodeNames = None
    spares: list[str] = []


_DURATION = duration("0 s", "3600 s")


class ComputeSpec(_Strict):
    """Time to compute an iteration's gradients in virtual time, in one of three forms.

    seconds: total, after which all gradients are ready.
    layers: path of a layer trace (``specs.layerfile``).
    iteration: total seconds, divided over a model's layers by their multiplications.
    model: the model whose layers these are, which is the job's.
    source: where the time is from, for readers.
    """

    seconds: Annotated[float, _DURATION] = 0.0
    layers: str | None = Field(default=None, min_length=1, max_length=1000)
    iteration: Annotated[float | None, _DURATION] = None
    model: str | None = Field(default=None, min_length=1, max_length=100)
    source: str | None = Field(default=None, min_length=1, max_length=500)


def _compute(value: object) -> object:
    if isinstance(value, (dict, ComputeSpec)):
        return value
    convert = cast(Callable[[object], float], _DURATION.func)
    return {"seconds": convert(value)}


def _word_or_group(value: object) -> object:
    names = [kind.name for kind in placements.KINDS]
    if value in names:
        return {"kind": value}
    if isinstance(value, str):
        words = ", ".join(names)
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
    """One training run. Sizes are per iteration, over all workers together.

    layers: bytes of each layer's gradients (float32), for workload ``layers``.
    model: the network whose parameters are exchanged, for workload ``model``.
    payload: whether chunks carry a payload, which is summed, or in virtual time only occupy the
    wire, ``chunk_bytes`` each.
    gradients: type that workers round gradients to; parameters and sums are float32.
    consistency: whose gradients servers take a step with.
    balance: who moves load between servers while the job runs.
    schedule: in which order, units and classes gradients are sent.
    restore: checkpoint that the job continues from.
    admission: without free slots in switches the job is refused (network) or runs without
    (servers).
    slice_bytes: bytes of a parameter that go to one server process as a whole.
    patience: seconds without any sum after which a worker leaves the job; many times the slowest
    worker's computation.
    lease: seconds without a heartbeat of a worker or server after which the job continues without.
    poison: values per iteration that do not fit fixed point (``workloads.poison``).
    """

    name: Name = Field(max_length=40)
    workload: Literal["digits", "characters", "resnet50", "layers", "model"] = "digits"
    model: ModelName | None = None
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
    schedule: PropagationSpec = PropagationSpec()
    balance: Annotated[BalanceSpec, BeforeValidator(_balance)] = BalanceSpec()
    gradients: Literal["float32", "float16", "bfloat16"] = "float32"
    checkpoint: CheckpointSpec | None = None
    restore: str | None = Field(default=None, min_length=1, max_length=1000)
    placement: Annotated[PlacementSpec, BeforeValidator(_word_or_group)] = PlacementSpec()
    tree: Annotated[str, AfterValidator(_tree)] = "two-level"
    admission: Literal["network", "servers"] = "network"
    window: Annotated[int, BeforeValidator(_power_of_two), Field(strict=True, ge=0, le=32768)] = 0
    streams: int = Field(default=0, strict=True, ge=0, le=128)
    slice_bytes: Annotated[int, size("1 KiB", "64 MiB")] = 32 << 10
    patience: Annotated[float, duration("1 s", "86400 s", "120 s")] = 120.0
    lease: Annotated[float, duration("5 s", "86400 s", "30 s")] = 30.0
    poison: int = Field(default=0, strict=True, ge=0, le=10_000)
    compute: Annotated[ComputeSpec, BeforeValidator(_compute)] = ComputeSpec()

    def service(self) -> dict[str, Any]:
        """Returns the options of ``hosts.session.job_service.create_service``."""
        return {
            "tree": self.tree,
            "window": self.window,
            "streams": self.streams,
            "lease": self.lease,
            "admission": self.admission,
            "slice_bytes": self.slice_size,
            "propagation": self.propagation,
            "balance": self.balance.plan,
            "pipeline": self.server.pipeline,
            "ablate": self.server.ablate,
        }

    @property
    def slice_size(self) -> int:
        """Bytes of a slice; of whole keys, up to which they are not cut."""
        parameters = self.schedule.slice
        if parameters is None:
            return self.slice_bytes
        return _FLOAT_BYTES * (_BOUND if isinstance(parameters, str) else parameters)

    @property
    def propagation(self) -> Propagation:
        """The way in which gradients are sent, for controller, workers and servers."""
        return self.schedule.plan

    @property
    def learns(self) -> bool:
        """True if the workload learns from data; the others have only sizes of layers."""
        return self.workload not in ("resnet50", "layers", "model")

    @property
    def subject(self) -> str:
        """The model by name, or else the workload."""
        return self.model or self.workload

    @property
    def plan(self) -> OptimizerPlan:
        """The optimizer's plan for workers and servers."""
        return self.optimizer.plan(self.iterations, self.consistency)
