# SPDX-License-Identifier: Apache-2.0
"""Checks the faults of a fault file against a topology, draws random ones, and orders them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from protocol.trees import TreeKind
from specs.faultfile import (
    CONTROLLER,
    ENDLESS,
    KINDS,
    LASTING,
    Fault,
    FaultsError,
    FaultsFile,
    FaultSpec,
    ImpairSpec,
    Kind,
    LoadSpec,
    RandomSpec,
    ScaleSpec,
    When,
)
from specs.jobfile import JobFile, Placement
from specs.jobspec import JobSpec
from specs.scaling import changes
from specs.slowdowns import EVERY_LINK, SlowSpec
from topologies.model.documents import Document, Location, errors_as, shown
from topologies.model.spec import MOST_BAD
from topologies.model.topology import Topology
from topologies.model.wording import few

# Faults that may last for a number of chunks, as the job progresses meanwhile.
_PROGRESSING: tuple[Kind, ...] = ("disconnect", "impair", "slow", "load")
_OF_SWITCHES: tuple[Kind, ...] = ("repush", "disconnect", "impair")
_QUALITIES = ("loss", "duplicate", "reorder", "corrupt")
# Random faults: range of durations, and the highest probabilities of impairments.
_SECONDS = (0.2, 3.0)
_WORST = {"loss": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.001}


def schedule(
    document: Document[FaultsFile],
    topology: Topology,
    seed: int | None = None,
    *,
    job: JobFile | None = None,
) -> list[Fault]:
    """Returns the faults of a file on a topology: by time, then by chunks, then relative ones.

    seed: of random faults, instead of the file's. Equal seeds give equal faults. job: the first
    one; None: not known. Raises ``FaultsError``, also for nodes and links that the topology lacks,
    and for servers and workers that can never come or go in the job.
    """
    document = Document(document.file, document.content, document.lines)
    file = document.content
    faults = []
    for number, given in enumerate(file.faults):
        for one in _of_each(given, topology):
            fault = _read(document, ("faults", number), one, topology, job)
            if fault is not None:
                faults.append(fault)
    if file.random is not None:
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


def _of_each(given: FaultSpec, topology: Topology) -> list[FaultSpec]:
    """Returns the faults that one of a group of hosts stands for."""
    groups = {"workers": topology.workers, "servers": topology.servers}
    if given.slow is None or not groups.get(given.slow.host or ""):
        return [given]
    hosts = [node.name for node in groups[given.slow.host or ""]]
    return [given.model_copy(update={"slow": slow}) for slow in given.slow.of_each(hosts)]


def _read(
    document: Document[FaultsFile],
    place: Location,
    given: FaultSpec,
    topology: Topology,
    job: JobFile | None,
) -> Fault | None:
    kinds = [kind for kind in KINDS if getattr(given, kind) is not None]
    if len(kinds) != 1:
        document.refuse(place, f"needs exactly one of {', '.join(KINDS)}")
        return None
    kind = kinds[0]
    lasting = kind in LASTING
    if lasting != (given.for_ is not None):
        needs = "needs" if lasting else "takes no"
        document.refuse(place, f"{kind} {needs} `for`, how long it lasts")
    if given.gone is not None and kind != "kill":
        document.refuse((*place, "gone"), f"is for kill, not for {kind}")
    if (given.at is None) == (given.after is None):
        document.refuse(place, "needs either `at` or `after`: when it happens")
    when = given.at or When()
    span = given.for_ or When()
    if span.chunks is not None and kind not in _PROGRESSING:
        document.refuse((*place, "for"), f"{kind} lasts for a time: chunks may not progress then")
    if math.isinf(span.seconds) and kind not in ENDLESS:
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
        return _scale(document, (*place, kind), given.scale, topology, job, at)
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
    given: ImpairSpec,
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
    if given.draw is not None:
        document.refuse((*place, "draw"), "is for `host: workers` or `host: servers`")
        return None
    changed: dict[str, Any] = {"by": given.by, "pattern": pattern, **at}
    if given.host is not None:
        if given.way is not None:
            document.refuse((*place, "way"), "is of a link; a host has none")
        allowed = [one.name for one in topology.hosts]
        if given.host not in allowed:
            text = f"there is no host {shown(given.host)} here; allowed: workers, servers, "
            document.refuse((*place, "host"), text + few(allowed))
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
    given: LoadSpec,
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
    given: ScaleSpec,
    topology: Topology,
    job: JobFile | None,
    at: dict[str, Any],
) -> Fault:
    everywhere = [one.name for one in topology.hosts]
    placed = Placement(tuple(everywhere), tuple(everywhere)) if job is None else job.place(topology)
    hosts = placed.servers
    allowed = [*hosts, *(name for host in hosts for name in topology.units_of(host))]
    for number, word in enumerate(given.servers):
        if word[1:] not in allowed:
            text = f"the job has no server {shown(word[1:])}; allowed: {few(list(hosts))}"
            document.refuse((*place, "servers", number), text)
    for number, word in enumerate(given.workers):
        if word[1:] not in everywhere:
            text = f"there is no host {shown(word[1:])} here; allowed: {few(everywhere)}"
            document.refuse((*place, "workers", number), text)
    if not given.servers and not given.workers:
        document.refuse(place, "needs `servers`, `workers`, or both")
    if job is not None:
        _check_scale(document, place, given, job.spec, placed)
    return Fault("scale", servers=tuple(given.servers), workers=tuple(given.workers), **at)


def _check_scale(
    document: Document[FaultsFile],
    place: Location,
    given: ScaleSpec,
    spec: JobSpec,
    placed: Placement,
) -> None:
    """Refuses what a job can never do, whatever happens before."""
    # With this admission the job may run with another tree than its file's.
    tree = TreeKind.of(spec.tree)
    if given.servers and not tree.ends_at_server and spec.admission == "network":
        text = f"tree {tree} of job {spec.name} has a switch sum, so servers have no slices"
        document.refuse((*place, "servers"), text)
    elif set(placed.servers) <= set(changes(given.servers).removed):
        text = f"no server of job {spec.name} would have any slices"
        document.refuse((*place, "servers"), text)
    further = set(changes(given.workers).added).difference(placed.workers)
    if further and not spec.consistency.together:
        text = f"servers of job {spec.name} count the gradients of those workers that it began with"
        document.refuse((*place, "workers"), text)


def _drawn(
    document: Document[FaultsFile],
    given: RandomSpec,
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
