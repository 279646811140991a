# SPDX-License-Identifier: Apache-2.0
"""Builds the answer to ``rackhub trace``: a chunk's hops through a run's captures, in words."""

from __future__ import annotations

from typing import TypedDict

from observability import control, series
from observability.messages.jobs import Clock
from observability.record import RunDirectory
from observability.trace import Hop, Round, Trace, TraceError, trace
from protocol.header import FLAGGED, PHASE_SHIFT, Flag, Op, Phase
from topologies.model.addressing import Addressing
from topologies.model.spec import load as load_topology

_HopFrom = TypedDict("_HopFrom", {"from": str})  # sending node


class HopRow(_HopFrom):
    """A packet on a link."""

    time: float
    """Seconds, by the clock of the captures."""
    time_ns: int
    """The same in nanoseconds."""
    after_ns: int
    """Nanoseconds since the first packet of the round."""
    ms: float
    """The same in milliseconds."""
    to: str
    """Receiving node."""
    op: str
    """Operation of the header."""
    bytes: int
    """Bytes of the frame without FCS."""
    what: str
    """Description in words."""
    again: int
    """How often the same packet was on this link before."""
    arrived: bool | None
    """True if the switch at the other end captured it; None if that is a host."""
    note: str
    """A remark on anything unusual; else empty."""


class RoundRow(TypedDict):
    """A round of a chunk: an exponent round or a sum."""

    epoch: int
    stream: int
    seq: int
    exponents: bool
    """True of an exponent round."""
    headers_only: bool
    """True if its packets have no payload."""
    iteration: int
    hops: list[HopRow]
    """In order of time."""


class TraceReport(TypedDict):
    """Answer to ``rackhub trace``."""

    run: str
    """Run directory."""
    job: str
    number: int
    """Number of the job in packets."""
    clock: Clock | None
    chunk: int
    whole: bool
    """False if captures lack their ends, as the run was killed or still runs in virtual time."""
    iterations: int
    """Iterations of the chunk that are captured."""
    rounds: list[RoundRow]


def rows(found: Trace, one: Round) -> list[HopRow]:
    """Returns a row for each hop of a round, in order."""
    first = one.hops[0].time
    return [
        {
            "time": hop.time / 1e9,
            "time_ns": hop.time,
            "after_ns": hop.time - first,
            "ms": (hop.time - first) / 1e6,
            "from": hop.sender,
            "to": hop.receiver,
            "op": hop.header.op.name,
            "bytes": hop.length,
            "what": _what(found, hop),
            "again": hop.times - 1,
            "arrived": hop.arrived,
            "note": _note(hop),
        }
        for hop in one.hops
    ]


def _note(hop: Hop) -> str:
    notes = [] if hop.times == 1 else [f"again ({hop.times})"]
    shown = (Flag.OVERFLOW, Flag.NONFINITE, Flag.ECN)
    notes += [str(flag.name) for flag in shown if hop.header.flags & flag]
    if hop.arrived is False:
        notes.append("did not arrive")
    return ", ".join(notes)


def _what(found: Trace, hop: Hop) -> str:
    header = hop.header
    key = header.epoch, header.stream, header.node
    direct = bool(header.flags & Flag.DIRECT)
    if header.op is Op.CONTRIBUTE:
        if direct:
            return f"DIRECT (float32) of {hop.source} for {hop.destination}"
        place = found.places.get(key, hop.destination)
        if hop.source not in found.switches:
            return f"CONTRIBUTE of {hop.source} to {place}"
        workers = "1 worker" if header.workers == 1 else f"{header.workers} workers"
        return f"partial sum of {hop.source} ({workers}) to {place}"
    if header.op is Op.RESULT:
        what = "DIRECT (float32) RESULT" if direct else "RESULT"
        if not direct and header.flags & FLAGGED:
            what = "RESULT without values"
        return f"{what} for {hop.destination}"
    if header.op is Op.QUERY:
        place = hop.destination if direct else found.places.get(key, hop.destination)
        return f"QUERY of {hop.source} to {place}"
    return f"STATE for {hop.destination}: {_state(found, hop, direct)}"


def _state(found: Trace, hop: Hop, direct: bool) -> str:
    header = hop.header
    phase = Phase((header.flags & Flag.PHASE) >> PHASE_SHIFT)
    if direct:
        return f"{hop.source} {phase.name} in float32"
    key = header.epoch, header.stream, header.node
    place = found.places.get(key, f"node {header.node}")
    text = f"{place} {phase.name}"
    if phase is Phase.AGGREGATING:
        below = found.children.get(key, {})
        absent = [name for bit, name in sorted(below.items()) if not header.children >> bit & 1]
        text += f", lacks {', '.join(absent)}" if absent else ", lacks none that was seen"
    return text


def read(run: RunDirectory, job: str, chunk: int, iteration: int | None) -> TraceReport:
    """Traces a job's chunk in an iteration (from 1; None: the last) through a run's captures.

    Raises ``TraceError``, ``CaptureError``, ``DocumentError``, and ``ControlError`` if a live
    testbed does not answer.
    """
    facts = run.facts
    if not facts.get("pcap"):
        raise TraceError(f"{run.path} has no captures: `run --pcap` and `up --pcap` make them")
    number = _number(run, job)
    addressing = Addressing(load_topology(facts["topology"]))
    found = trace(run.pcap, addressing, number, chunk)
    if not found.rounds:
        raise TraceError(
            f"no packet of chunk {chunk} of job {job} is in {run.pcap}: either the job has fewer"
            " chunks (they count from 0), or it has not reached it"
        )
    last = found.rounds[-1].iteration
    wanted = last if iteration is None else iteration
    chosen = [one for one in found.rounds if one.iteration == wanted]
    if not chosen:
        raise TraceError(f"iteration {wanted} is not in the captures, which have 1 to {last}")
    rounds: list[RoundRow] = [
        {
            "epoch": one.epoch,
            "stream": one.stream,
            "seq": one.seq,
            "exponents": one.exponents,
            "headers_only": not all(hop.whole for hop in one.hops),
            "iteration": one.iteration,
            "hops": rows(found, one),
        }
        for one in chosen
    ]
    return {
        "run": str(run.path),
        "job": job,
        "number": number,
        "clock": facts.get("clock"),
        "chunk": chunk,
        "whole": _is_whole(run),
        "iterations": last,
        "rounds": rounds,
    }


def _is_whole(run: RunDirectory) -> bool:
    """Returns whether the captures are complete so far: those of a killed run, or one in virtual
    time that still runs, lack their ends, and there is no summary."""
    return run.summary.exists() or (run.alive and run.facts.get("clock") != "virtual")


def _number(run: RunDirectory, job: str) -> int:
    """Returns a job's number, by its name; raises ``TraceError`` if there is none."""
    if run.alive and run.facts.get("clock") != "virtual":
        numbers = {one["job"]: one["number"] for one in control.jobs(run)}
    elif run.summary.exists():
        try:
            numbers = {one["job"]: one["number"] for one in run.read_summary()["jobs"]}
        except (OSError, ValueError, KeyError) as error:
            raise TraceError(f"{run.summary}: cannot read its jobs: {error}") from error
    else:
        known = series.read(run.path / series.FILE).jobs
        numbers = {name: curve.number or 0 for name, curve in known.items()}
    if not numbers.get(job):
        names = ", ".join(name for name, number in numbers.items() if number) or "none"
        raise TraceError(f"no job {job!r} with a number in {run.path}; there are: {names}")
    return numbers[job]
