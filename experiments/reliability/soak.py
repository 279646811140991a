# SPDX-License-Identifier: Apache-2.0
"""Soak test: random simultaneous faults of all kinds, in rounds reproducible from a seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from experiments.common.script import VIRTUAL
from experiments.reliability.runner import Line, carry_out
from experiments.reliability.scenarios import FOUR_RACKS, JOB, TWO_RACKS
from observability.progress_view import View
from testbed.errors import LaunchError

# A round is long enough for overlapping faults, and short enough to repeat often.
ITERATIONS = 120
# Racks of four take twice the time.
_TOPOLOGIES = (TWO_RACKS, TWO_RACKS, FOUR_RACKS)
_TREES = ("two-level", "two-level", "tor")


def files(seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Returns topology, job and faults of a round."""
    draw = random.Random(seed)
    topology = draw.choice(_TOPOLOGIES)
    job = {
        "name": "soak", **JOB, "iterations": ITERATIONS, "seed": seed, "tree": draw.choice(_TREES),
        "poison": draw.choice((0, 1)),
    }  # fmt: skip
    # Faults last up to three seconds, so some overlap and there are quiet moments.
    every = draw.choice(("0.7 s", "1.5 s", "3 s"))
    return topology, job, {"name": "soak", "random": {"seed": seed, "every": every, "count": 200}}


def play_round(seed: int, target: str, folder: Path, view: View) -> Line:
    """Runs a round; returns its line."""
    topology, job, faults = files(seed)
    every = faults["random"]["every"]
    what = f"{job['tree']}, random faults every {every}"
    name = f"seed {seed}"
    try:
        summary, where = carry_out(topology, job, faults, target, folder, view, seed)
    except LaunchError as error:
        return Line(name, what, topology, target, None, problems=[str(error)])
    rows = summary["faults"]
    recovered = [
        seconds - (row["lasted"] or 0.0) for row in rows if (seconds := row["seconds"]) is not None
    ]
    problems = [
        f"unexpected fault: {row['node']} {row['what']}" for row in rows if row["kind"] == "died"
    ]
    if summary["matches_reference"] is not True:
        problems.append("the weights are not the reference's")
    return Line(
        name,
        f"{what}: {len(rows)}",
        topology,
        target,
        summary["matches_reference"],
        seconds=max(recovered, default=None),
        again=summary["chunks"]["retransmitted"],
        wall=summary["machine"].get("wall_seconds"),
        run=where,
        problems=problems,
    )


def command(seed: int, target: str) -> str:
    """Returns the command that repeats a round."""
    on = "--clock virtual" if target == VIRTUAL else f"--target {target}"
    return f"rackhub experiment reliability --soak 0 --seed {seed} {on}"
