# SPDX-License-Identifier: Apache-2.0
"""Slowdowns of links and hosts: how much, and how that changes while they last.

The fault ``slow`` of fault files (``specs.faultfile``, docs/reference/files.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from topologies.model.documents import shown
from topologies.model.quantity_fields import duration

MOST_SLOW = 1000
_PARTS = 1000  # factors are multiples of 1 / 1000, so that times stay exact
_LEVELS = 8  # of a random walk, evenly spaced on a logarithmic scale
EVERY_LINK = ("every", "link")  # in place of the two ends of one
Way = Literal["both", "up", "down"]

Steps = Iterator[tuple[float, Fraction]]
"""Seconds since a slowdown began, and the factor from then on."""


def exact(factor: float) -> Fraction:
    """Rounds a factor to a multiple of 1/1000."""
    return Fraction(round(factor * _PARTS), _PARTS)


@dataclass(frozen=True)
class Pattern:
    """Changes of a slowdown while it lasts.

    kind: constant; periodic, in the first half of each period; or a random walk.
    seconds: of a period, or between two steps of a walk.
    seed: of a walk.
    """

    kind: Literal["constant", "periodic", "walk"] = "constant"
    seconds: float = 0.0
    seed: int = 1

    def steps(self, by: float, lasts: float) -> Steps:
        """Yields the steps of a slowdown by a factor.

        lasts: seconds; inf: it does not end by itself.
        """
        for number, factor in enumerate(self._factors(by)):
            at = self._time(number)
            if at >= lasts:
                break
            yield at, factor
        if lasts < math.inf:
            yield lasts, Fraction(1)

    def _time(self, number: int) -> float:
        if self.kind == "constant":
            return 0.0
        return number * (self.seconds / 2 if self.kind == "periodic" else self.seconds)

    def _factors(self, by: float) -> Iterator[Fraction]:
        """Yields factors from 1 to `by`, without end unless constant."""
        if self.kind == "constant":
            yield exact(by)
        elif self.kind == "periodic":
            while True:
                yield exact(by)
                yield Fraction(1)
        else:
            draw, level = random.Random(self.seed), _LEVELS // 2
            while True:
                yield exact(by ** (level / _LEVELS))
                step = draw.choice((-1, 1))
                level += step if 0 <= level + step <= _LEVELS else -step


CONSTANT = Pattern()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def ends_of(value: object) -> object:
    """Converts ``all``, which stands for both ends, to ``EVERY_LINK``; raises ``ValueError`` for
    names that would be taken for that."""
    if value == list(EVERY_LINK):
        raise ValueError(f"{shown(value)} are no nodes; every link: all")
    return list(EVERY_LINK) if value == "all" else value


def _factor(value: object) -> object:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not known or not 1 <= value <= MOST_SLOW:  # type: ignore[operator]
        raise ValueError(
            f"{shown(value)} is no factor; allowed: 1 (as without it) to {MOST_SLOW:,}, such as 3.5"
        )
    return value


def _pattern(value: object) -> object:
    return {} if value == "constant" else value


_Span = Annotated[float, duration("1 ms", "1000000 s")]


class PatternSpec(_Strict):
    """The field ``pattern``: neither time means constant."""

    periodic: _Span | None = None
    walk: _Span | None = None
    seed: int | None = Field(default=None, strict=True, ge=0, lt=2**32)

    def pattern(self) -> Pattern:
        """Returns the pattern. Raises ``ValueError`` for fields that exclude each other."""
        if self.periodic is not None and self.walk is not None:
            raise ValueError("is periodic or a walk; leave one of them out")
        if self.seed is not None and self.walk is None:
            raise ValueError("seed is of a walk; leave it out, or give `walk`")
        if self.walk is not None:
            return Pattern("walk", self.walk, 1 if self.seed is None else self.seed)
        return CONSTANT if self.periodic is None else Pattern("periodic", self.periodic)


class SlowSpec(_Strict):
    """The content of ``slow``. draw: seed of factors from 1 to `by`, one for each of a group."""

    link: (
        Annotated[list[str], BeforeValidator(ends_of), Field(min_length=2, max_length=2)] | None
    ) = None
    host: str | None = None
    way: Way | None = None
    by: Annotated[float, BeforeValidator(_factor)]
    draw: int | None = Field(default=None, strict=True, ge=0, lt=2**32)
    pattern: Annotated[PatternSpec, BeforeValidator(_pattern)] = PatternSpec()

    def of_each(self, hosts: Sequence[str]) -> list[SlowSpec]:
        """Returns the slowdowns of the hosts that one of a group stands for.

        With `draw`, a seed, each has a factor of its own from 1 to `by`, evenly on a logarithmic
        scale. Random walks have seeds of their own, too.
        """
        source = random.Random(self.draw)
        found = []
        for number, host in enumerate(hosts):
            by = self.by if self.draw is None else float(exact(self.by ** source.random()))
            pattern = self.pattern
            if pattern.walk is not None:
                first = 1 if pattern.seed is None else pattern.seed
                pattern = pattern.model_copy(update={"seed": (first + number) % 2**32})
            changed = {"host": host, "by": by, "draw": None, "pattern": pattern}
            found.append(self.model_copy(update=changed))
        return found
