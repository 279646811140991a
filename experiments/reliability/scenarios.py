# SPDX-License-Identifier: Apache-2.0
"""The list of all faults: where each happens, and what must hold after it.

A scenario is one fault, or several at once, on one topology. Those of one topology and one kind of
job can be had in one run, one after the other (``Course``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Of the jobs that are hit: 70 chunks an iteration, which is what a window of 64 holds and a bit.
JOB: dict[str, Any] = {
    "workload": "digits",
    "hidden": [128, 64],
    "batch": 512,
    "seed": 1,
    "optimizer": {"name": "momentum", "rate": 0.05, "momentum": 0.9},
}
CHUNKS = 70
# Chunks before the first fault, after each one for the job to go on, and after the last.
START, REST, TAIL = 5 * CHUNKS, 8 * CHUNKS, 8 * CHUNKS

TWO_RACKS, FOUR_RACKS = "two-racks", "four-racks-two-cores"


@dataclass(frozen=True)
class Holds:
    """What must hold of a fault.

    epoch: whether the job is planned anew for it; None where that depends on luck. again: whether
    something must have been sent again. hits: whether it must have met slots that were AGGREGATING
    and PARTIAL. least: seconds that it cannot take less than to go on after.
    """

    epoch: bool | None = None
    again: bool = False
    hits: bool = True
    least: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """One line of the table.

    faults: as in a file of faults (docs/files.md), each without ``at``. job: what differs from
    ``JOB``. chunks: how many the faults last, where they are of links. quick: part of ``make
    test``, where it is one of a course; the others are for ``make soak`` and the command.
    """

    name: str
    what: str
    topology: str
    faults: tuple[Mapping[str, Any], ...]
    holds: Holds = Holds()
    job: Mapping[str, Any] = field(default_factory=dict)
    chunks: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Course:
    """Scenarios one after the other in one run of one job."""

    scenarios: tuple[Scenario, ...]

    def __post_init__(self) -> None:
        one = self.scenarios[0]
        for other in self.scenarios:
            if (other.topology, other.job) != (one.topology, one.job):
                raise ValueError(f"{other.name} and {one.name} need runs of their own")

    @property
    def topology(self) -> str:
        """Its topology's name."""
        return self.scenarios[0].topology

    @property
    def job(self) -> dict[str, Any]:
        """The job file's content, with as many iterations as all of them need."""
        chunks = START + sum(one.chunks + REST for one in self.scenarios) + TAIL
        return {
            "name": "reliability", **JOB, "iterations": math.ceil(chunks / CHUNKS),
            **self.scenarios[0].job,
        }  # fmt: skip

    @property
    def faults(self) -> dict[str, Any]:
        """The content of its file of faults."""
        return {"name": "reliability", "faults": list(self._faults())}

    def _faults(self) -> Iterator[dict[str, Any]]:
        at = START
        for scenario in self.scenarios:
            for fault in scenario.faults:
                yield {"at": f"{at} chunks", **fault}
            at += scenario.chunks + REST


def _impaired(chunks: int, **quality: str) -> tuple[dict[str, Any], ...]:
    return ({"impair": {"ends": "all", **quality}, "for": f"{chunks} chunks"},)


def _links(topology: str) -> Iterator[Scenario]:
    """Every hop is bad, those between ToRs and cores included."""
    for share, chunks in (("0.1 %", 700), ("1 %", 350), ("10 %", 140), ("30 %", 70)):
        yield Scenario(
            f"loss of {share}", f"every hop loses {share} of the packets", topology,
            _impaired(chunks, loss=share), Holds(epoch=False, again=True), chunks=chunks,
        )  # fmt: skip
    yield Scenario(
        "duplication", "every hop sends 10 % of the packets twice", topology,
        _impaired(350, duplicate="10 %"), Holds(epoch=False), chunks=350,
    )  # fmt: skip
    yield Scenario(
        "reordering", "every hop delays 10 % of the packets", topology,
        _impaired(350, reorder="10 %"), Holds(epoch=False), chunks=350,
    )  # fmt: skip
    yield Scenario(
        "corruption", "every hop changes a lane of 0.01 % of the packets", topology,
        _impaired(1400, corrupt="0.01 %"), Holds(), chunks=1400,
    )  # fmt: skip


def _nodes(topology: str) -> Iterator[Scenario]:
    """Processes and connections."""
    anew = Holds(epoch=True, again=True)
    unnoticed = Holds(epoch=False)
    for name, what, fault, holds in (
        ("ToR killed", "a ToR is killed and started again", {"kill": "tor0"}, anew),
        ("core killed", "a core is killed and started again", {"kill": "core0"}, anew),
        ("ToR pushed", "a ToR's program is pushed anew", {"repush": "tor1"}, anew),
        ("core pushed", "a core's program is pushed anew", {"repush": "core0"}, anew),
        (
            "controller killed", "the controller is killed and started again",
            {"kill": "controller"}, unnoticed,
        ),
        (
            "worker stopped", "a worker is stopped for 10 s",
            {"stop": "w2", "for": "10 s"}, Holds(epoch=False, least=10),
        ),
    ):  # fmt: skip
        yield Scenario(name, what, topology, (fault,), holds)


SCENARIOS: tuple[Scenario, ...] = (
    *_links(TWO_RACKS), *_nodes(TWO_RACKS),
    *_links(FOUR_RACKS), *_nodes(FOUR_RACKS),
)  # fmt: skip


def chosen(names: Sequence[str], topology: str | None) -> list[Scenario]:
    """Scenarios by name, of one topology or all."""
    return [
        one for one in SCENARIOS
        if (not names or one.name in names) and topology in (None, one.topology)
    ]  # fmt: skip
