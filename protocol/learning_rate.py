# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules: functions of the step's number alone.

So the number determines the rate: at a server and its replica, at a worker that joins, in a job
that continues from a checkpoint. Only additions, multiplications and divisions of float64 are used,
which IEEE 754 defines to the last bit; powers and cosines of C libraries differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from protocol import jobs_pb2

CONSTANT = "constant"
STEP = "step"
LINEAR = "linear"
COSINE = "cosine"
KINDS = (CONSTANT, STEP, LINEAR, COSINE)
MOST_STEPS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """The factor of the rate, by step.

    In the first `warmup` steps it is 1/warmup, 2/warmup .. 1. Then, counting from there:

    - `constant`: 1;
    - `step`: `factor` to the power of the number of completed periods of `every` steps;
    - `linear`: a line from 1 down to `floor`, which it has from step `steps` on (warm-up counts);
    - `cosine`: likewise, along half a cosine (Loshchilov and Hutter, SGDR, 2017, without restarts).

    Raises:
        ValueError: An invalid number, which the text names.
    """

    kind: str = CONSTANT
    warmup: int = 0
    steps: int = 0
    floor: float = 0.0
    every: int = 0
    factor: float = 0.0

    def __post_init__(self) -> None:
        for field in ("floor", "factor"):
            object.__setattr__(self, field, float(np.float32(getattr(self, field))))
        if self.kind not in KINDS:
            raise ValueError(f"schedule {self.kind[:40]!r} is none of {', '.join(KINDS)}")
        falls, by_steps = self.kind in (LINEAR, COSINE), self.kind == STEP
        for name, number in (("warmup", self.warmup), ("steps", self.steps), ("every", self.every)):
            if not 0 <= number <= MOST_STEPS:
                raise ValueError(f"schedule {self.kind}: {name} {number} is not in 0..{MOST_STEPS}")
        if falls != bool(self.steps) or (falls and self.steps <= self.warmup):
            allowed = f"more than warmup {self.warmup}" if falls else "0"
            raise ValueError(f"schedule {self.kind}: steps {self.steps} must be {allowed}")
        if not (0 <= self.floor <= 1 and (falls or not self.floor)):
            allowed = "in 0..1" if falls else "0"
            raise ValueError(f"schedule {self.kind}: floor {self.floor:g} must be {allowed}")
        if by_steps != bool(self.every):
            allowed = "at least 1" if by_steps else "0"
            raise ValueError(f"schedule {self.kind}: every {self.every} must be {allowed}")
        if not (0 < self.factor <= 1 if by_steps else self.factor == 0):
            allowed = "above 0 and at most 1" if by_steps else "0"
            raise ValueError(f"schedule {self.kind}: factor {self.factor:g} must be {allowed}")

    def share(self, step: int) -> float:
        """Returns the factor of the rate at a step; the first step is 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        after = step - self.warmup
        if self.kind == STEP:
            return power(self.factor, after // self.every)
        if self.kind == CONSTANT:
            return 1.0
        way = min(1.0, after / (self.steps - self.warmup))
        left = 1.0 - way if self.kind == LINEAR else _half_wave(way)
        return self.floor + (1.0 - self.floor) * left

    def __str__(self) -> str:
        text = self.kind
        if self.kind == STEP:
            text += f", times {self.factor:g} every {self.every} steps"
        elif self.kind != CONSTANT:
            text += f" to {self.floor:g} at step {self.steps}"
        return text + (f", warm-up {self.warmup}" if self.warmup else "")

    @staticmethod
    def from_message(message: jobs_pb2.Schedule) -> Schedule:
        """Raises ValueError."""
        return Schedule(
            message.kind or CONSTANT,
            message.warmup,
            message.steps,
            message.floor,
            message.every,
            message.factor,
        )

    def to_message(self) -> jobs_pb2.Schedule:
        return jobs_pb2.Schedule(
            kind=self.kind,
            warmup=self.warmup,
            steps=self.steps,
            floor=self.floor,
            every=self.every,
            factor=self.factor,
        )


def power(base: float, times: int) -> float:
    """Returns `base` to the power of an integer, by squaring: the same bits everywhere."""
    result = 1.0
    while times:
        if times & 1:
            result *= base
        base *= base
        times >>= 1
    return result


def _half_wave(way: float) -> float:
    """Returns (1 + cos(pi way)) / 2 for 0..1: the square of cos(pi way / 2), by Taylor's series,
    whose terms end below a float64's last digit."""
    half = way * (math.pi / 2)
    square = half * half
    value = 1.0
    for n in range(24, 0, -2):
        value = 1.0 - value * square / (n * (n - 1))
    return value * value
