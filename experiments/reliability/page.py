# SPDX-License-Identifier: Apache-2.0
"""The table of faults, for a terminal and as docs/results/reliability.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from experiments.common import tables
from experiments.reliability.runner import Line
from observability.messages.summary import Machine

_HEADINGS = (
    "weights", "recovered after, s", "fault lasted, s", "retransmitted packets",
    "retransmitted bytes", "AGGREGATING", "PARTIAL",
)  # fmt: skip
_INTRODUCTION = """\
# Reliability

    make reliability ARGS="--target embedded --target bmv2"

injects every fault that a job has to survive, and writes this page. Written by
`rackhub experiment reliability{options} --write docs/results/reliability.md` on {machine}.

Each line is a fault in the middle of a training job on real processes, or on simulated ones
(`virtual time`); several lines may be of one job, one after the other. Faults: `experiments/reliability/scenarios.py`; a single one:
`rackhub experiment reliability --only NAME`.

| column | |
|---|---|
| weights | `same`: bit by bit those of one process that trains without a network, with the same workers in each sum; `no reference`: the optimizer's state was lost with all that had it, and all workers ended with the same weights |
| recovered after | from the fault, or from its end where it lasts, until every worker has ended an iteration that it began after that |
| retransmitted packets, bytes | of workers and (not in virtual time) switches, by then; a killed switch loses its count |
| AGGREGATING, PARTIAL | slots of switches that the fault met in these phases, by the switches' own counters, at least; of several faults at once, the first. Slots at servers are not counted |

Times of real processes are this machine's, whose CPUs were busy with all of them; a simulated process starts in no time.
"""  # noqa: E501  # rows of a table


def cells(line: Line) -> tuple[str, ...]:
    """Formats a line of the table."""
    weights = {True: "same", None: "no reference", False: "DIFFER"}[line.matches]
    return (
        weights,
        _number(line.seconds, ".2f"),
        _number(line.lasted, ".2f"),
        _number(line.again, ","),
        _number(line.bytes, ","),
        _number(line.aggregating, ","),
        _number(line.partial, ","),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def table(lines: Sequence[Line]) -> Table:
    """Returns the table for a terminal; problems are below their lines."""
    rows = (
        ((line.scenario, line.topology, line.target, *cells(line)), line.problems) for line in lines
    )
    return tables.table(("fault", "topology", "target"), _HEADINGS, rows)


def page(lines: Sequence[Line], machine: Machine, options: str) -> str:
    """Returns the text of docs/results/reliability.md."""
    where = f"{machine['cpus']} CPUs ({machine['processor']}), Linux {machine['kernel']}"
    parts = [_INTRODUCTION.format(options=options, machine=where).rstrip("\n")]
    for topology, target in dict.fromkeys((one.topology, one.target) for one in lines):
        parts.append(f"\n## {topology}, {target}\n")
        parts.append("| fault | " + " | ".join(_HEADINGS) + " |")
        parts.append("|---|---" + "|---:" * (len(_HEADINGS) - 1) + "|")
        for one in lines:
            if (one.topology, one.target) == (topology, target):
                what = f"**{one.scenario}**: {one.what}"
                if one.problems:
                    what += f" (**{one.problems[0].splitlines()[0]}**)"
                parts.append(f"| {what} | " + " | ".join(cells(one)) + " |")
    return "\n".join(parts) + "\n"
