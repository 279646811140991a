# SPDX-License-Identifier: Apache-2.0
"""The list of faults, where each happens, and what is checked after it.

A scenario is one fault, or several at once, on one topology. Scenarios with the same topology and
kind of job can share a run, one after the other (``Course``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from protocol.propagation import FIFO

# Jobs have 70 chunks an iteration, slightly more than a window of 64.
JOB: dict[str, Any] = {
    "workload": "digits",
    "hidden": [128, 64],
    "batch": 512,
    "seed": 1,
    "optimizer": {"name": "momentum", "rate": 0.05, "momentum": 0.9},
}
CHUNKS = 70
# Chunks before the first fault, after each one for recovery, and after the last one.
START, REST, TAIL = 5 * CHUNKS, 2 * CHUNKS, 8 * CHUNKS
# Chunks that pass until recovery is known, while links change or a process that was not missed
# comes back: a second or more, whatever an iteration takes.
SLACK = 12 * CHUNKS
# In virtual time it is known how many iterations pass until recovery is known, no more than these;
# and those after the last one, which show that the job goes on.
VIRTUAL_SLACK, VIRTUAL_TAIL = 3, 2  # iterations

TWO_RACKS, FOUR_RACKS = "two-racks", "four-racks-two-cores"


@dataclass(frozen=True)
class Holds:
    """The checks of a fault, in addition to weights equal to the reference's.

    epoch: The job is replanned; None if that depends on timing.
    again: Something was retransmitted.
    hits: The fault met slots that were AGGREGATING and PARTIAL.
    least: Minimum seconds of recovery.
    corrupted: Receivers dropped packets with a wrong checksum.
    unfit: Exactly the chunks that do not fit fixed point went to servers in float32.
    lost: Workers that the job ends without.
    joins: A worker that the job went on without has rejoined.
    """

    epoch: bool | None = None
    again: bool = False
    hits: bool = True
    least: float = 0.0
    corrupted: bool = False
    unfit: bool = False
    lost: tuple[str, ...] = ()
    joins: bool = False
    restored: str = ""
    detour: bool = False


@dataclass(frozen=True)
class Scenario:
    """One line of the table.

    faults: As in a fault file (docs/reference/files.md), without ``at``; all at once.
    job: Fields that differ from ``JOB``.
    chunks: Their duration in chunks, if given so.
    per_iteration: Chunks of an iteration of its job.
    needs: Iterations in virtual time, beside those of all scenarios, until all that holds does.
    alone: It needs a run of its own, as it affects later faults.
    """

    name: str
    what: str
    topology: str
    faults: tuple[Mapping[str, Any], ...]
    holds: Holds = Holds()
    job: Mapping[str, Any] = field(default_factory=dict)
    chunks: int = 0
    per_iteration: int = CHUNKS
    needs: int = 0
    alone: bool = False

    @property
    def identity(self) -> str:
        """A unique name, for tests."""
        return f"{self.name} at {self.topology}"


@dataclass(frozen=True)
class Course:
    """Consecutive scenarios in one run of one job."""

    scenarios: tuple[Scenario, ...]

    @property
    def topology(self) -> str:
        """The topology's name."""
        return self.scenarios[0].topology

    def job(self, *, virtual: bool) -> dict[str, Any]:
        """Returns the job file's content, with enough iterations for all scenarios."""
        chunks = START + sum(one.chunks + REST for one in self.scenarios)
        if virtual:
            count = math.ceil(chunks / self.scenarios[0].per_iteration)
            count += sum(VIRTUAL_SLACK + one.needs for one in self.scenarios) + VIRTUAL_TAIL
            return {"name": "reliability", **JOB, **self.scenarios[0].job, "iterations": count}
        count = math.ceil((chunks + SLACK * len(self.scenarios) + TAIL) / CHUNKS)
        own = {"name": "reliability", **JOB, "iterations": count}
        return {**own, **self.scenarios[0].job}

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Returns the list of its fault file."""
        return list(self._faults())

    def _faults(self) -> Iterator[dict[str, Any]]:
        for number, scenario in enumerate(self.scenarios):
            for fault in scenario.faults:
                # Spaced out, so that each is measured by itself.
                yield (
                    {"after": f"{REST} chunks", **fault}
                    if number
                    else {
                        "at": f"{START} chunks",
                        **fault,
                    }
                )


def courses(scenarios: Sequence[Scenario]) -> list[Course]:
    """Groups scenarios into as few runs as possible."""

    def key(number: int) -> tuple[Any, ...]:
        one = scenarios[number]
        return one.topology, sorted(one.job.items()), number if one.alone else -1

    runs = groupby(sorted(range(len(scenarios)), key=lambda i: str(key(i))), key)
    return [Course(tuple(scenarios[number] for number in numbers)) for _, numbers in runs]


def _impaired(chunks: int, **quality: str) -> tuple[dict[str, Any], ...]:
    return ({"impair": {"ends": "all", **quality}, "for": f"{chunks} chunks"},)


def _links(topology: str) -> Iterator[Scenario]:
    """Yields impairments of every hop, uplinks included."""
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
        _impaired(1400, corrupt="0.01 %"), Holds(corrupted=True), chunks=1400,
    )  # fmt: skip


def _nodes(topology: str) -> Iterator[Scenario]:
    """Yields faults of processes and connections."""
    anew = Holds(epoch=True, again=True)
    unnoticed = Holds(epoch=False)
    for name, what, fault, holds in (
        ("ToR killed", "a ToR is killed and started again", {"kill": "tor0"}, anew),
        ("core killed", "a core is killed and started again", {"kill": "core0"}, anew),
        ("ToR pushed", "a ToR's program is pushed again", {"repush": "tor1"}, anew),
        ("core pushed", "a core's program is pushed again", {"repush": "core0"}, anew),
        (
            "ToR disconnected", "a ToR forwards, and the controller cannot talk to it",
            {"disconnect": "tor1", "for": "700 chunks"}, unnoticed,
        ),
        (
            "core disconnected", "a core forwards, and the controller cannot talk to it",
            {"disconnect": "core0", "for": "700 chunks"}, unnoticed,
        ),
        (
            "controller killed", "the controller is killed and started again",
            {"kill": "controller"}, unnoticed,
        ),
        (
            "worker stopped", "a worker is stopped for 10 s",
            {"stop": "w2", "for": "10 s"}, Holds(epoch=False, least=10),
        ),
        (
            "ToR stopped", "a ToR is stopped for 5 s: it forwards nothing and answers nobody",
            {"stop": "tor0", "for": "5 s"}, Holds(least=5),
        ),
        (
            "core stopped", "a core is stopped for 5 s", {"stop": "core0", "for": "5 s"}, Holds(),
        ),
    ):  # fmt: skip
        chunks = 700 if "disconnect" in fault else 0
        yield Scenario(name, what, topology, (fault,), holds, chunks=chunks)


def _others(topology: str, *cores: str) -> Iterator[Scenario]:
    """Yields scenarios that need a job or a run of their own."""
    # Three windows an iteration: faults aim at sums by counters about 50 ms old; those may be over
    # by then, but others are in flight.
    summing = {"tree": "tor", "hidden": [256, 128], "iterations": 18}
    per_iteration = 200
    yield Scenario(
        "server killed", "a server that is the root of trees is killed and started again", topology,
        ({"kill": "s0"},), Holds(epoch=True, again=True), summing,
        per_iteration=per_iteration,
    )  # fmt: skip
    optimizer = {**summing, "optimizer": {**JOB["optimizer"], "at": "servers"}}
    yield Scenario(
        "optimizer killed", "a server that has the optimizer is killed and started again", topology,
        ({"kill": "s0"},), Holds(epoch=True, again=True, restored="server"), optimizer,
        per_iteration=per_iteration,
    )  # fmt: skip
    yield Scenario(
        "optimizer and replica killed", "with it the one that has its replica", topology,
        ({"kill": "s0"}, {"kill": "s1"}), Holds(epoch=True, again=True, restored="worker"),
        optimizer, alone=True, per_iteration=per_iteration,
    )  # fmt: skip
    yield Scenario(
        "no core to plan with", "cores only forward, out of the controller's reach, when a ToR is"
        " killed: servers sum until the cores are back", topology,
        (*({"disconnect": core, "for": "700 chunks"} for core in cores), {"kill": "tor0"}),
        Holds(again=True, detour=True), chunks=700, needs=15, alone=True,
    )  # fmt: skip
    yield Scenario(
        "worker killed", "a worker is killed and stays away", topology,
        ({"kill": "w2", "gone": "forever"},), Holds(epoch=True, lost=("w2",)), alone=True,
    )  # fmt: skip
    yield Scenario(
        "worker restarted", "a worker is killed, and is in the job again", topology,
        ({"kill": "w2", "gone": "500 ms"},), Holds(epoch=True, joins=True), alone=True,
        job={"iterations": 100}, needs=20,
    )  # fmt: skip
    yield Scenario(
        "values", "two values in each iteration are too large, infinite or no number", topology,
        (), Holds(hits=False, unfit=True), {"poison": 2},
    )  # fmt: skip
    faults: tuple[dict[str, Any], ...] = (
        {"impair": {"ends": "all", "loss": "5 %"}, "for": "140 chunks"},
        {"stop": "w3", "for": "2 s"},
        {"kill": "tor1"},
        {"repush": "core0"},
        {"kill": "controller"},
    )
    yield Scenario(
        "several at once", "loss, a stopped worker, a killed ToR and controller, a pushed core",
        topology, faults, Holds(again=True, least=2), chunks=140, alone=True,
    )  # fmt: skip


SCENARIOS: tuple[Scenario, ...] = (
    *_links(TWO_RACKS),
    *_nodes(TWO_RACKS),
    Scenario(
        "only core gone", "the only core stays away for 5 s", TWO_RACKS,
        ({"kill": "core0", "gone": "5 s"},), Holds(epoch=True, again=True, least=5),
    ),
    *_others(TWO_RACKS, "core0"),
    *_links(FOUR_RACKS),
    *_nodes(FOUR_RACKS),
    Scenario(
        "core gone", "a core is killed and never comes back: there is another one", FOUR_RACKS,
        ({"kill": "core0", "gone": "forever"},), Holds(epoch=True, again=True),
    ),
    *_others(FOUR_RACKS, "core0", "core1"),
)  # fmt: skip


def chosen(names: Sequence[str], topology: str | None = None, order: str = FIFO) -> list[Scenario]:
    """Returns scenarios by name, of one topology or all, whose jobs send gradients in this order.

    Raises ``KeyError``.
    """
    for name in names:
        if all(one.name != name for one in SCENARIOS):
            raise KeyError(name)
    own = {} if order == FIFO else {"schedule": {"order": order}}
    return [
        replace(one, job={**one.job, **own}) for one in SCENARIOS
        if (not names or one.name in names) and topology in (None, one.topology)
    ]  # fmt: skip
