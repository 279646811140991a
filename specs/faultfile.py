# SPDX-License-Identifier: Apache-2.0
"""Fault files: which faults to inject into a run, and when (docs/reference/files.md).

``load(path)`` reads one; ``FaultsError`` lists all problems with file, line and field.
``specs.fault_schedule`` makes the list of faults of it, for a topology.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from specs.scaling import changes
from specs.slowdowns import CONSTANT, EVERY_LINK, Pattern, SlowSpec, Way, ends_of
from topologies.model.documents import Document, DocumentError, Location, Name, errors_as
from topologies.model.documents import load as load_document
from topologies.model.documents import parse as parse_document
from topologies.model.quantity_fields import Fraction, Rate, duration
from topologies.model.units import TIMES, quantity, rate_text

CONTROLLER = "controller"
_Drawn = Literal["kill", "stop", "repush", "disconnect", "impair"]
Kind = Literal[_Drawn, "slow", "load", "scale"]
DRAWN: tuple[_Drawn, ...] = get_args(_Drawn)  # that may be random
KINDS: tuple[Kind, ...] = get_args(Kind)
LASTING: tuple[Kind, ...] = ("stop", "disconnect", "impair", "slow", "load")
ENDLESS: tuple[Kind, ...] = ("slow", "load")  # that may last for ever
_LONGEST = "1000000 s"


class FaultsError(DocumentError):
    """A fault file is invalid, or does not fit the topology."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    at: seconds since the job runs.
    chunks: completed chunks, instead of ``at``.
    node: the node hit, unless it is a link.
    ends: ends of the link to impair or slow down, or ``EVERY_LINK``; of load, sender and receiver.
    seconds: duration; of a kill, the time until the restart (inf: never).
    quality: names and probabilities of an impairment.
    lasts: duration in chunks, instead of ``seconds``.
    after: chunks after the job has recovered from all earlier faults of the list, instead of
    ``at``.
    by: how many times as long a slow link or host takes.
    way: of a slow link: up is toward the cores.
    pattern: how ``by`` changes.
    rate: of load, in bit/s.
    turns: of load, how many seconds it is busy, then idle; (0, 0): always busy.
    servers, workers: of a change of the first job's, words of ``specs.scaling``.
    place: its location in the file.
    """

    kind: Kind
    at: float = 0.0
    chunks: int | None = None
    node: str = ""
    ends: tuple[str, ...] = ()
    seconds: float = 0.0
    quality: tuple[tuple[str, float], ...] = ()
    lasts: int | None = None
    after: int | None = None
    by: float = 1.0
    way: Way = "both"
    pattern: Pattern = CONSTANT
    rate: int = 0
    turns: tuple[float, float] = (0.0, 0.0)
    servers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    place: Location = field(default=(), compare=False)

    @property
    def where(self) -> str:
        """The node, or the link."""
        if self.kind == "load":
            return " to ".join(self.ends)
        if self.kind == "scale":
            named = (("servers", self.servers), ("workers", self.workers))
            return ", ".join(f"{what} {' '.join(words)}" for what, words in named if words)
        return self.node or ("every link" if self.ends == EVERY_LINK else "-".join(self.ends))

    @property
    def endless(self) -> bool:
        """True if it lasts to the end of the run."""
        return self.kind in ENDLESS and self.lasts is None and math.isinf(self.seconds)

    @property
    def span(self) -> str:
        """Its duration in words, behind what happened; empty if it has no end of its own."""
        if self.lasts is None and math.isinf(self.seconds):
            return ""
        return f" for {self.seconds:g} s" if self.lasts is None else f" for {self.lasts:,} chunks"


@dataclass(frozen=True)
class When:
    """A point in time or a duration: seconds, or a number of chunks."""

    seconds: float = 0.0
    chunks: int | None = None


def _chunks(value: object) -> int | None:
    words = value.split() if isinstance(value, str) else []
    counted = len(words) == 2 and words[1] == "chunks" and words[0].isdecimal()
    return int(words[0]) if counted else None


def _when(value: object) -> object:
    chunks = _chunks(value)
    if chunks is not None:
        return When(chunks=chunks)
    return When(quantity(value, TIMES, '"2 s" or "1500 chunks"'))


def _only_chunks(value: object) -> object:
    chunks = _chunks(value)
    if chunks is None:
        raise ValueError(f"{value!r} is not understood; like this: 500 chunks")
    return chunks


_span = duration("1 ms", _LONGEST)


def _lasting(value: object) -> object:
    chunks = _chunks(value)
    if value == "forever":
        return When(math.inf)
    return When(chunks=chunks) if chunks else When(_span.func(value))  # type: ignore[call-arg]


def _away(value: object) -> object:
    return math.inf if value == "forever" else quantity(value, TIMES, '"5 s", or forever')


def slow_words(fault: Fault) -> str:
    """Returns what a slow link or host does, in words behind its name."""
    way = "" if fault.node or fault.way == "both" else f" {fault.way}ward"
    most = "up to " if fault.pattern.kind == "walk" else ""
    how = {"constant": "", "periodic": " by turns", "walk": " at random"}[fault.pattern.kind]
    return f"takes {most}{fault.by:g} times as long{way}{how}{fault.span}"


def load_words(fault: Fault) -> str:
    """Returns what background traffic is, in words behind its ends."""
    busy, idle = fault.turns
    by_turns = f", {busy:g} s busy, {idle:g} s idle" if idle else ""
    return f"has other traffic{fault.span}: {rate_text(fault.rate)}{by_turns}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class ImpairSpec(_Strict):
    """The fault ``impair``: probabilities of a link."""

    ends: Annotated[list[str], BeforeValidator(ends_of), Field(min_length=2, max_length=2)]
    loss: Fraction = 0.0
    duplicate: Fraction = 0.0
    reorder: Fraction = 0.0
    corrupt: Fraction = 0.0


_Span = Annotated[float, _span]


class LoadSpec(_Strict):
    """The fault ``load``: traffic between two hosts; busy, idle: seconds of each turn."""

    from_: str = Field(alias="from")
    to: str
    rate: Rate
    busy: _Span | None = None
    idle: _Span | None = None


def _changes(value: list[str]) -> list[str]:
    changes(value)
    return value


class ScaleSpec(_Strict):
    """The fault ``scale``: servers and workers that a job gains or gives up."""

    servers: Annotated[list[str], AfterValidator(_changes)] = []
    workers: Annotated[list[str], AfterValidator(_changes)] = []


class FaultSpec(_Strict):
    """An element of ``faults``: one kind, and when and how long it happens."""

    at: Annotated[When, BeforeValidator(_when)] | None = None
    after: Annotated[int, BeforeValidator(_only_chunks)] | None = None
    kill: str | None = None
    stop: str | None = None
    repush: str | None = None
    disconnect: str | None = None
    impair: ImpairSpec | None = None
    slow: SlowSpec | None = None
    load: LoadSpec | None = None
    scale: ScaleSpec | None = None
    gone: Annotated[float, BeforeValidator(_away)] | None = None
    for_: Annotated[When, BeforeValidator(_lasting)] | None = Field(default=None, alias="for")


class RandomSpec(_Strict):
    """The group ``random``: faults that are drawn."""

    seed: int = Field(default=1, strict=True, ge=0, lt=2**32)
    every: _Span
    kinds: list[_Drawn] = Field(default=list(DRAWN), min_length=1)
    nodes: list[str] = Field(default=["switches", "controller", "servers"], min_length=1)
    count: int = Field(strict=True, ge=1, le=100_000)


class FaultsFile(_Strict):
    """The content of a fault file. name: for readers; nothing needs it."""

    name: Name | None = Field(default=None, max_length=60)
    faults: list[FaultSpec] = []
    random: RandomSpec | None = None


@errors_as(FaultsError)
def load(path: str | Path) -> Document[FaultsFile]:
    """Reads a fault file; raises ``FaultsError``."""
    return load_document(path, FaultsFile)


@errors_as(FaultsError)
def parse(text: str, file: str = "<text>") -> Document[FaultsFile]:
    """Reads faults from text; raises ``FaultsError`` naming ``file``."""
    return parse_document(text, file, FaultsFile)
