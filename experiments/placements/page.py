# SPDX-License-Identifier: Apache-2.0
"""The table of placements, for a terminal and as docs/results/placements.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from experiments.common import tables
from experiments.placements import larger
from experiments.placements.rows import EACH, ITERATIONS, RACKS, SERVERS, TOPOLOGY, WORKERS, Line
from observability.messages.summary import Machine
from specs.placements import KINDS

_HEADINGS = (
    "servers", "weights", "server host", "expected", "rack up", "rack down", "expected",
    "sums in network", "in float32", "retransmitted", "s/iteration",
)  # fmt: skip
_INTRODUCTION = """\
# Placements

    make placements ARGS="--target embedded --target bmv2 --clock emulated --clock virtual"

measures what each placement of servers puts on links, and writes this page. Written by
`rackhub experiment placements{options} --write docs/results/placements.md` on {machine}.

Each line is a training job of {iterations} iterations on real processes: {workers} workers in
{racks} racks, {servers} servers in a rack of their own, one core:

{topology}
Bytes are in tensors: one is the model's gradients, packed into whole chunks, as frames with all
headers, in all iterations, and the packets without payload that find exponents.

| column | |
|---|---|
| weights | `same`: bit by bit those of one process that trains without a network, and so every loss on the way |
| server host | sent and received by one, the mean of all; *expected*: the formulas of PHub (SoCC'18, section 2.3) below, with headers |
| rack up, rack down | between a rack of {each} workers and the core: one where the rack's switch sums, {each} where it does not. With `inc-server` every worker sends the initial parameters to the server first, which no switch sums; *expected* includes that |
| sums in network | by the switches' own counters |
| in float32, retransmitted | chunks that did not fit fixed point, and retransmitted packets; both come on top |
| s/iteration | the median, with this machine's CPUs shared by all of these processes; in [virtual time](../explanation/virtual-time.md) the network's alone |

*Server host* and *rack* are held to 2 % of *expected*. For N workers and S servers, in copies of
the model M:

| placement | is | M at a server host an iteration |
|---|---|---|
{formulas}
"""  # noqa: E501  # rows of a table
_LARGER = """
## A larger job

A model of English by character (`workload: {workload}`, hidden {hidden}, {iterations} iterations
of {batch} characters) with each placement and its first tree, on the same network;
`jobs/characters.yaml` is larger still. *weights*: as above. *loss*: of text that was held out, in
nats a character: the same wherever the weights are. *from float32*: the relative distance of the
loss with float16 gradients; up to {tolerance:.0%} is allowed.
"""
_TEXTS = 3  # leading text columns of that table


def cells(line: Line) -> tuple[str, ...]:
    """Formats a line of the table."""
    return (
        str(line.servers),
        {True: "same", None: "", False: "DIFFER"}[line.matches],
        _tensors(line, line.server),
        _tensors(line, line.server_expected),
        _tensors(line, line.up),
        _tensors(line, line.down),
        _tensors(line, line.rack_expected),
        "" if line.in_network is None else f"{line.in_network:,}",
        "" if line.in_float32 is None else f"{line.in_float32:,}",
        "" if line.again is None else f"{line.again:,}",
        "" if line.seconds is None else f"{line.seconds:.3f}",
    )


def _tensors(line: Line, size: float | None) -> str:
    return "" if size is None or not line.tensor else f"{size / line.tensor:.3f}"


def table(lines: Sequence[Line]) -> Table:
    """Returns the table for a terminal; problems are below their lines."""
    rows = (
        ((line.placement, line.tree, line.target, *cells(line)), line.problems) for line in lines
    )
    return tables.table(("placement", "tree", "target"), _HEADINGS, rows)


def larger_table(lines: Sequence[larger.Line]) -> Table:
    """Returns the larger job's table for a terminal."""
    rows = ((tuple(larger.cells(line, lines)), line.problems) for line in lines)
    headings = larger.HEADINGS
    return tables.table(headings[: _TEXTS + 1], headings[_TEXTS + 1 :], rows)


def page(
    lines: Sequence[Line],
    larger_lines: Sequence[larger.Line],
    machine: Machine,
    options: str,
) -> str:
    """Returns the text of docs/results/placements.md."""
    where = f"{machine['cpus']} CPUs ({machine['processor']}), Linux {machine['kernel']}"
    formulas = "\n".join(f"| `{kind.name}` | {kind.meaning} | {kind.formula} |" for kind in KINDS)
    parts = [
        _INTRODUCTION.format(
            options=options,
            machine=where,
            iterations=ITERATIONS,
            workers=WORKERS,
            racks=RACKS,
            servers=SERVERS,
            each=EACH,
            topology="".join(f"    {line}\n" for line in TOPOLOGY.splitlines()),
            formulas=formulas,
        )
    ]
    for target in dict.fromkeys(line.target for line in lines):
        parts.append(f"\n## {target}\n")
        parts.append("| placement | tree | " + " | ".join(_HEADINGS) + " |")
        parts.append("|---|---" + "|---:" * len(_HEADINGS) + "|")
        for line in lines:
            if line.target == target:
                what = f"| `{line.placement}` | `{line.tree}` | " + " | ".join(cells(line)) + " |"
                if line.problems:
                    what += f" **{line.problems[0].splitlines()[0]}** |"
                parts.append(what)
    parts.append(_LARGER.format(**larger.JOB, tolerance=larger.TOLERANCE))
    parts.append("| " + " | ".join(larger.HEADINGS) + " |")
    parts.append("|---" * (_TEXTS + 1) + "|---:" * (len(larger.HEADINGS) - _TEXTS - 1) + "|")
    for one in larger_lines:
        what = f"| {' | '.join(larger.cells(one, larger_lines))} |"
        if one.problems:
            what += f" **{one.problems[0].splitlines()[0]}** |"
        parts.append(what)
    return "\n".join(parts) + "\n"
