# SPDX-License-Identifier: Apache-2.0
"""Formats figures of a run for the terminal and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from observability.messages.summary import Chunks, JobAbout, Link, PlanUse


def count(number: int, one: str, many: str = "") -> str:
    """Returns a number of things in words: 1 server, 2 servers, 2 switches."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def sums(job: JobAbout) -> bool:
    """Returns whether a job's chunks have a payload that is summed."""
    return job.get("payload") != "none"


def where_summed(chunks: Chunks, plans: Sequence[PlanUse]) -> tuple[int, int]:
    """Returns the chunks that switches summed, and those of servers alone.

    Where switches lost their counters, as after faults, a worker's count of each tree's sums tells.
    """
    network, server = chunks["aggregated_in_network"], chunks["served_by_server"]
    if network is None or server is None:
        counts = [(plan["tree"], plan["by_switch"] + plan["by_server"]) for plan in plans]
        network = sum(n for tree, n in counts if tree != "none")
        server = sum(n for tree, n in counts if tree == "none") + chunks["in_float32"]
    return network, server


def sending_ends(links: Sequence[Link]) -> list[str]:
    """Returns the sender of each link: the node, or its interface where links run in parallel."""
    pairs = Counter((row["from"], row["to"]) for row in links)
    return [row["interface"] if pairs[row["from"], row["to"]] > 1 else row["from"] for row in links]


def deviation(row: Link) -> str:
    """Returns the deviation of a link's bytes from the expected ones, as text; empty if one of them
    is unknown."""
    carried, wanted = row["bytes"], row["expected_bytes"]
    if carried is None or wanted is None:
        return ""
    if carried == wanted:
        return "0 %"
    percent = f"{(carried - wanted) / wanted * 100:+.2f} %" if wanted else ""
    return percent if percent.strip("+-0. %") else f"{carried - wanted:+,} B"
