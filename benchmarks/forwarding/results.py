# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark's sandbox and makes a report of its turns."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import NotRequired, TypedDict

from benchmarks.common import (
    LEAST_BUSY,
    BenchError,
    MachineFacts,
    Spread,
    machine,
    pin,
    spread_of,
    two_cores,
)
from benchmarks.forwarding import inprocess, routing
from benchmarks.forwarding.contenders import Name
from benchmarks.forwarding.inprocess import CompilationTimes, TableTimes
from benchmarks.forwarding.sandbox import Turn
from benchmarks.forwarding.traffic import Mode
from emulation.network.namespaces import command
from emulation.nodes.processes import environment, python

MODES: tuple[Mode, ...] = ("gso", "plain", "tcp", *routing.MODES)
_FIGURE = {mode: "tcp_bytes" if mode == "tcp" else mode for mode in MODES}
_SHORTEST_SECONDS = 1e-9
_MOST_OF_ENTRIES = 1.3
_MOST_SECONDS = 5.0


@dataclass(frozen=True)
class Ratio:
    """Relates one contender's figure to another's. asked: the required minimum, if any."""

    name: str
    of: tuple[str, Mode]
    to: tuple[str, Mode]
    asked: float | None = None


RATIOS = (
    Ratio("embedded.gso / bmv2.plain", ("embedded", "gso"), ("bmv2", "plain"), 40),
    Ratio("embedded.plain / bmv2.plain", ("embedded", "plain"), ("bmv2", "plain"), 5),
    Ratio("embedded.gso / null.gso", ("embedded", "gso"), ("null", "gso"), 0.7),
    Ratio("embedded.plain / null.plain", ("embedded", "plain"), ("null", "plain"), 0.85),
    Ratio("embedded.tcp_bytes / null.tcp_bytes", ("embedded", "tcp"), ("null", "tcp"), 0.85),
    Ratio("2048 bits / lanes, bare", ("bmv2_bare", "plain"), ("bmv2_bare_lanes", "plain"), 10),
    Ratio("2048 bits / lanes, whole program", ("bmv2", "plain"), ("bmv2_lanes", "plain"), 6),
    *(
        Ratio(f"embedded.{mode} / {other}.{mode}", ("embedded", mode), (other, mode))
        for mode in routing.MODES
        for other in ("null", "bmv2", "linux", "ovs")
    ),
)


class ModeRates(TypedDict):
    """A contender's measurements in a mode. Rates count packets received, or bytes of TCP."""

    contender: Name
    mode: Mode
    per_second: Spread
    """Rate per second of wall time."""
    per_second_of_core: Spread
    """Rate per second of the contender's CPU time, kernel included."""
    per_second_of_thread: Spread
    """Rate per second of CPU time of its busiest thread."""
    busy: float
    """Least share of time that it computed, 0 to 1."""
    busy_but_for_others: float
    """The same of the time in which no other process used its core or the load's."""
    load_busy: float
    """Highest share of time that the load was sending, 0 to 1."""
    others: float
    """Highest share of its core that other processes used, 0 to 1."""
    lost: int
    """Packets lost in all rounds."""


class RatioFacts(TypedDict):
    """A ratio of rates or times, or a time in seconds that has a bound."""

    ratio: str
    """What is related to what."""
    asked: str | None
    """Its bound; null if it has none."""
    received: Spread | None
    """By wall time; null if not measured."""
    of_core: Spread
    """By CPU time."""
    of_thread: Spread | None
    """By CPU time of the busiest threads; null if not measured."""
    valid: bool
    """True if what is related was the bottleneck of its turns."""
    holds: bool | None
    """True if it keeps its bound; null if it has none."""


Medians = dict[str, float | None]
"""Packets received per second by mode, bytes for `tcp_bytes`; null where not measured."""


class Contenders(TypedDict):
    """Median rates of the contenders that were measured."""

    null: NotRequired[Medians]
    embedded: NotRequired[Medians]
    bmv2: NotRequired[Medians]
    bmv2_lanes: NotRequired[Medians]
    bmv2_bare: NotRequired[Medians]
    bmv2_bare_lanes: NotRequired[Medians]
    linux: NotRequired[Medians]
    ovs: NotRequired[Medians]


class Report(Contenders):
    """The report of all turns."""

    rows: list[ModeRates]
    """Measurements by contender and mode."""
    ratios: list[RatioFacts]
    """Ratios between contenders that were measured."""
    in_process: dict[str, float]
    """Packets per second of CPU time without links, by program; empty if not measured."""
    busy: dict[Name, dict[str, float]]
    """Least share of time that a contender computed, by figure, 0 to 1."""
    rounds: list[dict[str, str | float]]
    """Fields of each `Turn`."""
    machine: MachineFacts
    """Where it was measured."""
    valid: bool
    """True if each contender was the bottleneck of its turns."""


class FullReport(Report):
    """The report with what is measured without links."""

    tables: dict[str, TableTimes]
    """Cost of table sizes by match kind."""
    compilation: dict[str, CompilationTimes]
    """Times to compile, by program."""


def measure(
    contenders: Sequence[str],
    modes: Sequence[Mode],
    rounds: int,
    seconds: float,
    follow: Callable[[int, str, float], None],
) -> list[Turn]:
    """Runs all turns; calls `follow` (round, what, rate) after each.

    Raises BenchError, SandboxError.
    """
    options = [w for name in contenders for w in ("--contender", name)]
    options += [w for mode in modes for w in ("--mode", mode)]
    options += ["--rounds", str(rounds), "--seconds", str(seconds)]
    sandbox = python("benchmarks.forwarding.sandbox", *options)
    found = []
    with subprocess.Popen(
        command(sandbox, tied=True),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            turn = Turn(**json.loads(line))
            found.append(turn)
            follow(turn.round, f"{turn.contender} {turn.mode}", rate(turn))
        said = process.stderr.read().strip()
    if process.returncode != 0:
        raise BenchError(said.removeprefix("error: ") or "the benchmark's sandbox has ended")
    return found


def rate(turn: Turn) -> float:
    """Returns packets, or bytes of TCP, received per second."""
    return _amount(turn) / turn.seconds


def rate_of_core(turn: Turn) -> float:
    """Returns the same per second of the contender's CPU time, kernel included."""
    return _amount(turn) / max(_SHORTEST_SECONDS, turn.computed)


def rate_of_thread(turn: Turn) -> float:
    """Returns the same per CPU second of its busiest thread: its rate with a core per thread."""
    return _amount(turn) / max(_SHORTEST_SECONDS, turn.busiest)


def _amount(turn: Turn) -> int:
    return turn.bytes if turn.mode == "tcp" else turn.packets


def busy(turn: Turn) -> float:
    """Returns the share of time that the contender computed."""
    return turn.computed / turn.seconds


def busy_but_for_others(turn: Turn) -> float:
    """Returns the same share of the time in which no other process used its core or the load's."""
    blocked = max(0.0, turn.blocked - turn.load_waited)
    return turn.computed / max(_SHORTEST_SECONDS, turn.computed + blocked)


def load_busy(turn: Turn) -> float:
    """Returns the share of time that the load was sending rather than waiting for results."""
    return turn.load_sending / turn.seconds


def report(turns: Sequence[Turn]) -> Report:
    """Returns the JSON report: medians by contender and mode, then the details."""
    names = list(dict.fromkeys(turn.contender for turn in turns))
    medians: Contenders = {}
    details: list[ModeRates] = []
    for name in names:
        own_medians: Medians = dict.fromkeys(_FIGURE.values())
        medians[name] = own_medians
        for mode in MODES:
            own = of(turns, name, mode)
            if own:
                one = _row(name, mode, own)
                details.append(one)
                own_medians[_FIGURE[mode]] = one["per_second"]["median"]
    return {
        **medians,
        "rows": details,
        "ratios": ratios(turns),
        "in_process": {},
        "busy": {
            name: {_FIGURE[one["mode"]]: one["busy"] for one in details if one["contender"] == name}
            for name in names
        },
        "rounds": [turn.__dict__ for turn in turns],
        "machine": machine(),
        "valid": all(one["busy"] >= LEAST_BUSY for one in details),
    }


def of(turns: Sequence[Turn], name: str, mode: Mode) -> list[Turn]:
    """Returns a contender's turns in a mode, in order of rounds."""
    return [turn for turn in turns if (turn.contender, turn.mode) == (name, mode)]


def _row(name: Name, mode: Mode, turns: Sequence[Turn]) -> ModeRates:
    return {
        "contender": name,
        "mode": mode,
        "per_second": spread_of([rate(turn) for turn in turns]),
        "per_second_of_core": spread_of([rate_of_core(turn) for turn in turns]),
        "per_second_of_thread": spread_of([rate_of_thread(turn) for turn in turns]),
        "busy": min(busy(turn) for turn in turns),
        "busy_but_for_others": min(busy_but_for_others(turn) for turn in turns),
        "load_busy": max(load_busy(turn) for turn in turns),
        "others": max(0.0, *(1 - (turn.computed + turn.idle) / turn.seconds for turn in turns)),
        "lost": sum(turn.lost for turn in turns),
    }


def ratios(turns: Sequence[Turn]) -> list[RatioFacts]:
    """Returns medians of the rounds' ratios between measured contenders."""
    found: list[RatioFacts] = []
    for one in RATIOS:
        first, second = of(turns, *one.of), of(turns, *one.to)
        if not first or not second:
            continue
        pairs = list(zip(first, second, strict=True))
        received = spread_of([rate(a) / rate(b) for a, b in pairs])
        core = spread_of([rate_of_core(a) / rate_of_core(b) for a, b in pairs])
        thread = spread_of([rate_of_thread(a) / rate_of_thread(b) for a, b in pairs])
        found.append(
            {
                "ratio": one.name,
                "asked": None if one.asked is None else f">= {one.asked:g}",
                "received": received,
                "of_core": core,
                "of_thread": thread,
                "valid": all(busy(turn) >= LEAST_BUSY for turn in (*first, *second)),
                "holds": None if one.asked is None else received["median"] >= one.asked,
            }
        )
    return found


def in_process(found: Report, rounds: int, seconds: float) -> FullReport:
    """Returns a report with the embedded target's figures without links added."""
    cores = os.sched_getaffinity(0)
    pin(two_cores()[0])
    programs = inprocess.programs(rounds, seconds)
    tables = inprocess.tables(rounds, seconds)
    os.sched_setaffinity(0, cores)  # a compiler may use all
    compilation = inprocess.compilation()
    bounded: list[RatioFacts] = [
        {
            "ratio": f"10,000 entries / 10, {kind}",
            "asked": f"<= {_MOST_OF_ENTRIES:g}",
            "received": None,
            "of_core": one["ratio"],
            "of_thread": None,
            "valid": True,
            "holds": one["ratio"]["median"] <= _MOST_OF_ENTRIES,
        }
        for kind, one in tables.items()
    ]
    slowest = max(compilation.values(), key=lambda one: one["seconds"])
    bounded.append(
        {
            "ratio": "seconds to compile a program, at most",
            "asked": f"< {_MOST_SECONDS:g}",
            "received": spread_of([slowest["seconds"]]),
            "of_core": spread_of([slowest["cpu_seconds"]]),
            "of_thread": None,
            "valid": True,
            "holds": slowest["seconds"] < _MOST_SECONDS,
        }
    )
    return {
        **found,
        "ratios": [*found["ratios"], *bounded],
        "in_process": programs,
        "tables": tables,
        "compilation": compilation,
    }
