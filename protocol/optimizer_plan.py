# SPDX-License-Identifier: Apache-2.0
"""The plan of the optimizer that a job's servers run, for all members.

Numbers are float32: users of them round nothing further, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from protocol import jobs_pb2
from protocol.consistency import SYNCHRONOUS, Consistency
from protocol.learning_rate import MOST_STEPS, Schedule

SGD = "sgd"
MOMENTUM = "momentum"
NESTEROV = "nesterov"
ADAM = "adam"
NAMES = (SGD, MOMENTUM, NESTEROV, ADAM)
_WITH_MOMENTUM = (MOMENTUM, NESTEROV)
_OF_ADAM = ("beta1", "beta2", "epsilon")

Column = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Options of some keys.

    Attributes:
        keys: A name or a pattern with `*`, `?` and `[...]` (case-sensitive).
        rate: Learning rate; None: the plan's.
        weight_decay: None: the plan's.
    """

    keys: str
    rate: float | None = None
    weight_decay: float | None = None


class Span(NamedTuple):
    """Options of the chunks from `first` up to the next span's."""

    first: int
    rate: float
    weight_decay: float


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """An optimizer: `sgd`, `momentum` (Polyak), `nesterov` or `adam`, see hosts.optimizers.

    Attributes:
        name: One of the four.
        rate: Learning rate.
        momentum: Of `momentum` and `nesterov` only.
        weight_decay: Times the parameter, added to the gradient.
        beta1: Of `adam` only.
        beta2: Of `adam` only.
        epsilon: Of `adam` only.
        schedule: Factor of the rate, also of single keys, from step to step.
        keys: Options of some keys; the first that fits a key's name applies.
        spans: The same by chunk, for servers, which know no keys (`by_chunk`).
        first_step: Number of steps taken before the job, which continues from a checkpoint.
        consistency: The gradients of a step.

    Raises:
        ValueError: An invalid number, which the text names.
    """

    name: str
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule: Schedule = field(default_factory=Schedule)
    keys: tuple[KeyOptions, ...] = ()
    spans: tuple[Span, ...] = ()
    first_step: int = 0
    consistency: Consistency = SYNCHRONOUS

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"optimizer {self.name[:40]!r} is none of {', '.join(NAMES)}")
        for name in ("rate", "momentum", "weight_decay", *_OF_ADAM):
            number = 0.0 if name in _OF_ADAM and self.name != ADAM else getattr(self, name)
            object.__setattr__(self, name, float(np.float32(number)))
        momentum = 0 <= self.momentum < 1 and (self.name in _WITH_MOMENTUM or self.momentum == 0)
        if not (_rate(self.rate) and momentum and _decay(self.weight_decay)):
            raise ValueError(
                f"optimizer {self.name}: rate {self.rate:g} must be positive, momentum"
                f" {self.momentum:g} in 0..1 (1 excluded; 0 for {SGD} and {ADAM}) and weight decay"
                f" {self.weight_decay:g} not negative"
            )
        betas = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if self.name == ADAM and not (betas and np.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(
                f"optimizer {self.name}: beta1 {self.beta1:g} and beta2 {self.beta2:g} must be in"
                f" 0..1 (1 excluded) and epsilon {self.epsilon:g} positive"
            )
        if not 0 <= self.first_step <= MOST_STEPS:
            raise ValueError(
                f"optimizer {self.name}: first step {self.first_step} is not in 0..{MOST_STEPS}"
            )
        self._check_keys()
        self._check_spans()

    def _check_keys(self) -> None:
        keys = tuple(
            KeyOptions(one.keys, _float32(one.rate), _float32(one.weight_decay))
            for one in self.keys
        )
        for one in keys:
            rate = one.rate is None or _rate(one.rate)
            if not (rate and (one.weight_decay is None or _decay(one.weight_decay))):
                raise ValueError(
                    f"optimizer {self.name}: of {one.keys[:40]!r} rate {one.rate} must be positive"
                    f" and weight decay {one.weight_decay} not negative"
                )
        object.__setattr__(self, "keys", keys)

    def _check_spans(self) -> None:
        spans = tuple(
            Span(int(first), float(np.float32(rate)), float(np.float32(decay)))
            for first, rate, decay in self.spans
        )
        starts = [span.first for span in spans]
        if starts and (starts[0] != 0 or any(a >= b for a, b in pairwise(starts))):
            raise ValueError(
                f"optimizer {self.name}: its spans begin at chunks {starts[:8]}, not from 0 upwards"
            )
        for span in spans:
            if not (_rate(span.rate) and _decay(span.weight_decay)):
                raise ValueError(
                    f"optimizer {self.name}: from chunk {span.first} on rate {span.rate:g} must be"
                    f" positive and weight decay {span.weight_decay:g} not negative"
                )
        object.__setattr__(self, "spans", spans)

    def __str__(self) -> str:
        numbers = f"rate {self.rate:g}"
        for text, number in (
            ("momentum", self.momentum), ("weight decay", self.weight_decay),
            ("beta1", self.beta1), ("beta2", self.beta2), ("epsilon", self.epsilon),
            ("first step", self.first_step),
        ):  # fmt: skip
            numbers += f", {text} {number:g}" if number else ""
        if self.schedule != Schedule():
            numbers += f", schedule {self.schedule}"
        if self.keys or self.spans:
            numbers += f", others for some of its keys ({len(self.spans) or len(self.keys)} parts)"
        if not self.consistency.together:
            numbers += f", {self.consistency}"
        return f"{self.name} ({numbers})"

    @property
    def decays(self) -> bool:
        """Returns true if any weights decay."""
        numbers = [self.weight_decay, *(span.weight_decay for span in self.spans)]
        return any(numbers) or any(one.weight_decay for one in self.keys)

    def of_key(self, name: str) -> tuple[float, float]:
        """Returns rate and weight decay of a key."""
        for one in self.keys:
            if fnmatchcase(name, one.keys):
                rate = self.rate if one.rate is None else one.rate
                decay = self.weight_decay if one.weight_decay is None else one.weight_decay
                return rate, decay
        return self.rate, self.weight_decay

    def of_chunks(self, chunks: int) -> tuple[Column, Column]:
        """Returns rates and weight decays (chunks,) of all chunks."""
        if not self.spans:
            return np.full(chunks, self.rate, "f4"), np.full(chunks, self.weight_decay, "f4")
        ends = [*(span.first for span in self.spans[1:]), max(chunks, self.spans[-1].first)]
        counts = [end - span.first for span, end in zip(self.spans, ends, strict=True)]
        rates = np.repeat(np.array([span.rate for span in self.spans], np.float32), counts)
        decays = np.array([span.weight_decay for span in self.spans], np.float32)
        return rates[:chunks], np.repeat(decays, counts)[:chunks]

    def by_chunk(self, names: Sequence[str], counts: Sequence[int]) -> OptimizerPlan:
        """Converts options by key to spans, for keys with these names and numbers of chunks.

        Raises ValueError for options that fit none of them.
        """
        for one in self.keys:
            if not any(fnmatchcase(name, one.keys) for name in names):
                raise ValueError(
                    f"optimizer {self.name}: no key is called {one.keys[:40]!r}; there are"
                    f" {', '.join(names[:20])}"
                )
        if not self.keys:
            return self
        spans: list[Span] = []
        first = 0
        for name, count in zip(names, counts, strict=True):
            span = Span(first, *self.of_key(name))
            if not spans or spans[-1][1:] != span[1:]:
                spans.append(span)
            first += count
        return replace(self, keys=(), spans=tuple(spans))

    @staticmethod
    def from_message(message: jobs_pb2.Optimizer) -> OptimizerPlan:
        """Raises ValueError."""
        try:
            schedule = Schedule.from_message(message.schedule)
            consistency = _consistency(message)
        except ValueError as error:
            raise ValueError(f"optimizer {message.name[:40]!r}: {error}") from error
        return OptimizerPlan(
            message.name,
            message.rate,
            message.momentum,
            message.weight_decay,
            message.beta1,
            message.beta2,
            message.epsilon,
            schedule,
            (),
            tuple(Span(span.first, span.rate, span.weight_decay) for span in message.spans),
            message.first_step,
            consistency,
        )

    def to_message(self) -> jobs_pb2.Optimizer:
        """Raises ValueError if it has options by key, see `by_chunk`."""
        if self.keys:
            raise ValueError("servers know of no keys: by_chunk makes chunks of them")
        return jobs_pb2.Optimizer(
            name=self.name,
            rate=self.rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            schedule=self.schedule.to_message(),
            spans=[jobs_pb2.Span(**span._asdict()) for span in self.spans],
            first_step=self.first_step,
            consistency=_kind(self.consistency),
            staleness=self.consistency.staleness or 0,
        )


_KINDS = "SYNCHRONOUS (0), ASYNCHRONOUS (1) and BOUNDED (2)"


def _kind(consistency: Consistency) -> jobs_pb2.Consistency:
    if consistency.together:
        return jobs_pb2.SYNCHRONOUS
    return jobs_pb2.ASYNCHRONOUS if consistency.staleness is None else jobs_pb2.BOUNDED


def _consistency(message: jobs_pb2.Optimizer) -> Consistency:
    kind = message.consistency
    if kind == jobs_pb2.BOUNDED:
        return Consistency(False, message.staleness)
    if kind not in (jobs_pb2.SYNCHRONOUS, jobs_pb2.ASYNCHRONOUS):
        raise ValueError(f"consistency {kind} is none of {_KINDS}")
    return Consistency(kind == jobs_pb2.SYNCHRONOUS)


def _float32(number: float | None) -> float | None:
    return None if number is None else float(np.float32(number))


def _rate(number: float) -> bool:
    return bool(np.isfinite(number) and number > 0)


def _decay(number: float) -> bool:
    return bool(np.isfinite(number) and number >= 0)
