# SPDX-License-Identifier: Apache-2.0
"""Random faults of all kinds, several at a time, in rounds that each follow from one number."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from cli.view import View
from emulation.lifecycle.launcher import LaunchError
from experiments.reliability.playing import Line, carry_out
from experiments.reliability.scenarios import FOUR_RACKS, JOB, TWO_RACKS

# Of one round: long enough for one fault on top of the other, short enough to be repeated often.
ITERATIONS = 120
# Racks of four take twice the time.
_TOPOLOGIES = (TWO_RACKS, TWO_RACKS, FOUR_RACKS)
_TREES = ("two-level", "two-level", "tor")


def files(seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Topology, job and faults of a round."""
    draw = random.Random(seed)
    topology = draw.choice(_TOPOLOGIES)
    job = {
        "name": "soak", **JOB, "iterations": ITERATIONS, "seed": seed, "tree": draw.choice(_TREES),
        "poison": draw.choice((0, 1)),
    }  # fmt: skip
    # A fault may last for three seconds: there are several at a time, and quiet moments.
    every = draw.choice(("0.7 s", "1.5 s", "3 s"))
    return topology, job, {"name": "soak", "random": {"seed": seed, "every": every, "count": 200}}


def play_round(seed: int, target: str, folder: Path, view: View) -> Line:
    """One round, and what came of it."""
    topology, job, faults = files(seed)
    every = faults["random"]["every"]
    what = f"{job['tree']}, random faults every {every}"
    name = f"seed {seed}"
    try:
        summary, where = carry_out(topology, job, faults, target, folder, view, seed)
    except LaunchError as error:
        return Line(name, what, topology, target, None, problems=[str(error)])
    rows = summary["faults"]
    known = [row for row in rows if row["seconds"] is not None]
    problems = [
        f"nobody asked for this: {row['node']} {row['what']}"
        for row in rows
        if row["kind"] == "died"
    ]
    if summary["matches_reference"] is not True:
        problems.append("the weights are not the reference's")
    return Line(
        name,
        f"{what}: {len(rows)}",
        topology,
        target,
        summary["matches_reference"],
        seconds=max((row["seconds"] - (row["lasted"] or 0.0) for row in known), default=None),
        again=summary["chunks"]["retransmitted"],
        wall=summary["machine"].get("wall_seconds"),
        run=where,
        problems=problems,
    )


def command(seed: int, target: str) -> str:
    """What repeats a round."""
    return f"python -m experiments.reliability --soak 0 --seed {seed} --target {target}"
