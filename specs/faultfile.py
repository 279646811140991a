# SPDX-License-Identifier: Apache-2.0
"""Fault files: which faults to inject into a run, and when (docs/reference/files.md).

``load(path)`` reads one; ``schedule(file, topology, seed)`` returns its list of faults, including
random ones. Both raise ``FaultsError``, which lists all problems with file, line and field.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from specs.scaling import changes
from specs.slowdowns import CONSTANT, EVERY_LINK, Pattern, SlowSpec, Way, ends_of
from topologies.model.documents import Document, DocumentError, Location, Name, errors_as, shown
from topologies.model.documents import load as load_document
from topologies.model.documents import parse as parse_document
from topologies.model.quantity_fields import Fraction, Rate, duration
from topologies.model.spec import MOST_BAD
from topologies.model.topology import Topology
from topologies.model.units import TIMES, quantity
from topologies.model.wording import few

CONTROLLER = "controller"
_Drawn = Literal["kill", "stop", "repush", "disconnect", "impair"]
Kind = Literal[_Drawn, "slow", "load", "scale"]
Clock = Literal["emulated", "virtual"]
DRAWN: tuple[_Drawn, ...] = get_args(_Drawn)  # that may be random
KINDS: tuple[Kind, ...] = get_args(Kind)
LASTING: tuple[Kind, ...] = ("stop", "disconnect", "impair", "slow", "load")
# Faults that may last for a number of chunks, as the job progresses meanwhile.
_PROGRESSING: tuple[Kind, ...] = ("disconnect", "impair", "slow", "load")
_ENDLESS: tuple[Kind, ...] = ("slow", "load")  # that may last for ever
_BY_CLOCK: dict[Clock, tuple[Kind, ...]] = {
    "emulated": (*DRAWN, "slow", "scale"),
    "virtual": KINDS,
}
_OF_SWITCHES: tuple[Kind, ...] = ("repush", "disconnect", "impair")
_QUALITIES = ("loss", "duplicate", "reorder", "corrupt")
_LONGEST = "1000000 s"
# Random faults: range of durations, and the highest probabilities of impairments.
_SECONDS = (0.2, 3.0)
_WORST = {"loss": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.001}


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
        """Whether it lasts to the end of the run."""
        return self.kind in _ENDLESS and self.lasts is None and math.isinf(self.seconds)

    @property
    def span(self) -> str:
        """Its duration in words, behind what happened; empty if it has no end of its own."""
        if self.lasts is None and math.isinf(self.seconds):
            return ""
        return f" for {self.seconds:g} s" if self.lasts is None else f" for {self.lasts:,} chunks"


@dataclass(frozen=True)
class _When:
    seconds: float = 0.0
    chunks: int | None = None


def _chunks(value: object) -> int | None:
    words = value.split() if isinstance(value, str) else []
    counted = len(words) == 2 and words[1] == "chunks" and words[0].isdecimal()
    return int(words[0]) if counted else None


def _when(value: object) -> object:
    chunks = _chunks(value)
    if chunks is not None:
        return _When(chunks=chunks)
    return _When(quantity(value, TIMES, '"2 s" or "1500 chunks"'))


def _only_chunks(value: object) -> object:
    chunks = _chunks(value)
    if chunks is None:
        raise ValueError(f"{value!r} is not understood; like this: 500 chunks")
    return chunks


_span = duration("1 ms", _LONGEST)


def _lasting(value: object) -> object:
    chunks = _chunks(value)
    if value == "forever":
        return _When(math.inf)
    return _When(chunks=chunks) if chunks else _When(_span.func(value))  # type: ignore[call-arg]


def _away(value: object) -> object:
    return math.inf if value == "forever" else quantity(value, TIMES, '"5 s", or forever')


def slow_words(fault: Fault) -> str:
    """Returns what a slow link or host does, in words behind its name."""
    way = "" if fault.node or fault.way == "both" else f" {fault.way}"
    how = {"constant": "", "periodic": "up to, by turns, ", "walk": "up to, at random, "}
    return f"takes{way} {how[fault.pattern.kind]}{fault.by:g} times as long{fault.span}"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class _Impair(_Strict):
    ends: Annotated[list[str], BeforeValidator(ends_of), Field(min_length=2, max_length=2)]
    loss: Fraction = 0.0
    duplicate: Fraction = 0.0
    reorder: Fraction = 0.0
    corrupt: Fraction = 0.0


_Span = Annotated[float, _span]


class _Load(_Strict):
    from_: str = Field(alias="from")
    to: str
    rate: Rate
    busy: _Span | None = None
    idle: _Span | None = None


def _changes(value: list[str]) -> list[str]:
    changes(value)
    return value


class _Scale(_Strict):
    servers: Annotated[list[str], AfterValidator(_changes)] = []
    workers: Annotated[list[str], AfterValidator(_changes)] = []


class _Fault(_Strict):
    at: Annotated[_When, BeforeValidator(_when)] | None = None
    after: Annotated[int, BeforeValidator(_only_chunks)] | None = None
    kill: str | None = None
    stop: str | None = None
    repush: str | None = None
    disconnect: str | None = None
    impair: _Impair | None = None
    slow: SlowSpec | None = None
    load: _Load | None = None
    scale: _Scale | None = None
    gone: Annotated[float, BeforeValidator(_away)] | None = None
    for_: Annotated[_When, BeforeValidator(_lasting)] | None = Field(default=None, alias="for")


class _Random(_Strict):
    seed: int = Field(default=1, strict=True, ge=0, lt=2**32)
    every: _Span
    kinds: list[_Drawn] = Field(default=list(DRAWN), min_length=1)
    nodes: list[str] = Field(default=["switches", "controller", "servers"], min_length=1)
    count: int = Field(strict=True, ge=1, le=100_000)


class FaultsFile(_Strict):
    """The content of a fault file. name: for readers; nothing needs it."""

    name: Name | None = Field(default=None, max_length=60)
    faults: list[_Fault] = []
    random: _Random | None = None


@errors_as(FaultsError)
def load(path: str | Path) -> Document[FaultsFile]:
    """Reads a fault file; raises ``FaultsError``."""
    return load_document(path, FaultsFile)


@errors_as(FaultsError)
def parse(text: str, file: str = "<text>") -> Document[FaultsFile]:
    """Reads faults from text; raises ``FaultsError`` naming ``file``."""
    return parse_document(text, file, FaultsFile)


def schedule(
    document: Document[FaultsFile],
    topology: Topology,
    seed: int | None = None,
    *,
    clock: Clock = "emulated",
    servers: Collection[str] = (),
) -> list[Fault]:
    """Returns the faults of a file on a topology: by time, then by chunks, then relative ones.

    seed: of random faults, instead of the file's. Equal seeds give equal faults. servers: hosts of
    the first job's servers, spare ones included; none: not known. Raises ``FaultsError``, also for
    nodes and links that the topology lacks, and for kinds that the clock does not have.
    """
    document = Document(document.file, document.content, document.lines)
    file = document.content
    faults = []
    for number, given in enumerate(file.faults):
        fault = _read(document, ("faults", number), given, topology, clock, servers)
        if fault is not None:
            faults.append(fault)
    if file.random is not None:
        unknown = [kind for kind in file.random.kinds if kind not in _BY_CLOCK[clock]]
        if unknown:
            _refuse_kind(document, ("random", "kinds"), unknown[0], clock)
        faults += _drawn(document, file.random, topology, seed)
    elif not file.faults:
        document.refuse((), "has no faults; allowed: faults, random, or both")
    elif seed is not None:
        document.refuse((), "--seed is for random faults, and this file has no group `random`")
    with errors_as(FaultsError):
        document.check()

    def order(fault: Fault) -> tuple[bool, bool, float]:
        return fault.after is not None, fault.chunks is not None, fault.at

    return sorted(faults, key=order)


def _refuse_kind(document: Document[FaultsFile], place: Location, kind: Kind, clock: Clock) -> None:
    allowed = ", ".join(_BY_CLOCK[clock])
    document.refuse(place, f"{kind} is of virtual time: --clock virtual; allowed here: {allowed}")


def _read(
    document: Document[FaultsFile],
    place: Location,
    given: _Fault,
    topology: Topology,
    clock: Clock,
    servers: Collection[str],
) -> Fault | None:
    kinds = [kind for kind in KINDS if getattr(given, kind) is not None]
    if len(kinds) != 1:
        document.refuse(place, f"needs exactly one of {', '.join(KINDS)}")
        return None
    kind = kinds[0]
    if kind not in _BY_CLOCK[clock]:
        _refuse_kind(document, (*place, kind), kind, clock)
        return None
    lasting = kind in LASTING
    if lasting != (given.for_ is not None):
        needs = "needs" if lasting else "takes no"
        document.refuse(place, f"{kind} {needs} `for`, how long it lasts")
    if given.gone is not None and kind != "kill":
        document.refuse((*place, "gone"), f"is for kill, not for {kind}")
    if (given.at is None) == (given.after is None):
        document.refuse(place, "needs either `at` or `after`: when it happens")
    when = given.at or _When()
    span = given.for_ or _When()
    if span.chunks is not None and kind not in _PROGRESSING:
        document.refuse((*place, "for"), f"{kind} lasts for a time: chunks may not progress then")
    if math.isinf(span.seconds) and kind not in _ENDLESS:
        document.refuse((*place, "for"), f"{kind} has to end: give a time, such as 5 s")
    at: dict[str, Any] = {
        "at": when.seconds,
        "chunks": when.chunks,
        "after": given.after,
        "seconds": given.gone or 0.0 if kind == "kill" else span.seconds,
        "lasts": span.chunks,
        "place": (*place, kind),
    }
    if given.slow is not None:
        return _slow(document, (*place, kind), given.slow, topology, at)
    if given.load is not None:
        return _load(document, (*place, kind), given.load, topology, at)
    if given.impair is not None:
        return _impair(document, (*place, kind), given.impair, topology, at)
    if given.scale is not None:
        hosts = servers or [one.name for one in topology.hosts]
        return _scale(document, (*place, kind), given.scale, topology, hosts, at)
    node = getattr(given, kind)
    switches = [one.name for one in topology.switches]
    allowed = switches
    if kind not in _OF_SWITCHES:
        allowed = [one.name for one in topology.nodes] + _server_processes(topology) + [CONTROLLER]
    if node not in allowed:
        text = f"there is no {shown(node)} here; allowed: {few(allowed)}"
        document.refuse((*place, kind), text)
        return None
    return Fault(kind, node=node, **at)


def _server_processes(topology: Topology) -> list[str]:
    """Returns the server processes of hosts with several; the host's name means all of them."""
    names = [topology.units_of(one.name) for one in topology.servers]
    return [name for several in names if len(several) > 1 for name in several]


def _impair(
    document: Document[FaultsFile],
    place: Location,
    given: _Impair,
    topology: Topology,
    at: dict[str, Any],
) -> Fault | None:
    one = tuple(given.ends) != EVERY_LINK
    if one and not any({link.a, link.b} == set(given.ends) for link in topology.links):
        a, b = (shown(end) for end in given.ends)
        document.refuse((*place, "ends"), f"no link joins {a} and {b}")
        return None
    quality = tuple((name, getattr(given, name)) for name in _QUALITIES if getattr(given, name))
    if not quality:
        document.refuse(place, f"needs one of {', '.join(_QUALITIES)}")
        return None
    for name, share in quality if at["lasts"] is not None else ():
        if name in ("loss", "corrupt") and share > MOST_BAD:
            document.refuse(
                (*place, name),
                f"{100 * share:.12g} % until {at['lasts']:,} chunks are done, which they would not"
                f" be; allowed: up to {100 * MOST_BAD:g} %, or `for` in seconds",
            )
    return Fault("impair", ends=tuple(given.ends), quality=quality, **at)


def _slow(
    document: Document[FaultsFile],
    place: Location,
    given: SlowSpec,
    topology: Topology,
    at: dict[str, Any],
) -> Fault | None:
    if (given.link is None) == (given.host is None):
        document.refuse(place, "needs either `link`, its two ends, or `host`")
        return None
    try:
        pattern = given.pattern.pattern()
    except ValueError as error:
        document.refuse((*place, "pattern"), str(error))
        return None
    changed: dict[str, Any] = {"by": given.by, "pattern": pattern, **at}
    if given.host is not None:
        if given.way is not None:
            document.refuse((*place, "way"), "is of a link; a host has none")
        allowed = [one.name for one in topology.hosts]
        if given.host not in allowed:
            text = f"there is no host {shown(given.host)} here; allowed: {few(allowed)}"
            document.refuse((*place, "host"), text)
            return None
        return Fault("slow", node=given.host, **changed)
    ends = tuple(given.link or ())
    if ends != EVERY_LINK and not any({one.a, one.b} == set(ends) for one in topology.links):
        a, b = (shown(end) for end in ends)
        document.refuse((*place, "link"), f"no link joins {a} and {b}")
        return None
    return Fault("slow", ends=ends, way=given.way or "both", **changed)


def _load(
    document: Document[FaultsFile],
    place: Location,
    given: _Load,
    topology: Topology,
    at: dict[str, Any],
) -> Fault | None:
    allowed = [one.name for one in topology.hosts]
    for name, host in (("from", given.from_), ("to", given.to)):
        if host not in allowed:
            text = f"there is no host {shown(host)} here; allowed: {few(allowed)}"
            document.refuse((*place, name), text)
    if given.from_ == given.to:
        text = f"{given.to} is where it comes from: no link would carry it"
        document.refuse((*place, "to"), text)
    if (given.busy is None) != (given.idle is None):
        document.refuse(place, "needs both `busy` and `idle`, or none: always busy")
    turns = given.busy or 0.0, given.idle or 0.0
    return Fault("load", ends=(given.from_, given.to), rate=given.rate, turns=turns, **at)


def _scale(
    document: Document[FaultsFile],
    place: Location,
    given: _Scale,
    topology: Topology,
    hosts: Collection[str],
    at: dict[str, Any],
) -> Fault:
    allowed = [*hosts, *(name for host in hosts for name in topology.units_of(host))]
    for number, word in enumerate(given.servers):
        if word[1:] not in allowed:
            text = f"the job has no server {shown(word[1:])}; allowed: {few(list(hosts))}"
            document.refuse((*place, "servers", number), text)
    everywhere = [one.name for one in topology.hosts]
    for number, word in enumerate(given.workers):
        if word[1:] not in everywhere:
            text = f"there is no host {shown(word[1:])} here; allowed: {few(everywhere)}"
            document.refuse((*place, "workers", number), text)
    if not given.servers and not given.workers:
        document.refuse(place, "needs `servers`, `workers`, or both")
    return Fault("scale", servers=tuple(given.servers), workers=tuple(given.workers), **at)


def _drawn(
    document: Document[FaultsFile],
    given: _Random,
    topology: Topology,
    seed: int | None,
) -> list[Fault]:
    groups = {
        "switches": [one.name for one in topology.switches],
        "servers": [one.name for one in topology.servers],
        "workers": [one.name for one in topology.workers],
        CONTROLLER: [CONTROLLER],
    }
    nodes: list[str] = []
    for number, name in enumerate(given.nodes):
        if name in groups:
            nodes += groups[name]
        elif name in topology.by_name or name in _server_processes(topology):
            nodes.append(name)
        else:
            text = f"{shown(name)} is no node here; allowed: names, {', '.join(groups)}"
            document.refuse(("random", "nodes", number), text)
    switches = [name for name in nodes if name in groups["switches"]]
    possible = [kind for kind in given.kinds if switches or kind not in _OF_SWITCHES]
    if not possible:
        kinds = " and ".join(given.kinds)
        text = f"of {kinds} only switches can have any, and there are none in `nodes`"
        document.refuse(("random", "kinds"), text)
    if document.problems:
        return []
    draw = random.Random(given.seed if seed is None else seed)
    faults = []
    for number in range(1, given.count + 1):
        kind = draw.choice(possible)
        faults.append(_draw(draw, kind, number * given.every, nodes, topology))
    return faults


def _draw(
    draw: random.Random, kind: Kind, at: float, nodes: Sequence[str], topology: Topology
) -> Fault:
    seconds = round(draw.uniform(*_SECONDS), 3)
    lasts = seconds if kind in LASTING else 0.0
    if kind not in _OF_SWITCHES:
        return Fault(kind, at, node=draw.choice(nodes), seconds=lasts)
    switch = draw.choice(
        [name for name in nodes if topology.by_name.get(name) in topology.switches]
    )
    if kind != "impair":
        return Fault(kind, at, node=switch, seconds=lasts)
    link = draw.choice(topology.links_of(switch))
    name = draw.choice(_QUALITIES)
    quality = ((name, round(draw.uniform(0, _WORST[name]), 6)),)
    return Fault(kind, at, ends=(link.a, link.b), seconds=lasts, quality=quality)
