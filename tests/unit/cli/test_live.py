# SPDX-License-Identifier: Apache-2.0
"""Tests the live view: rates from two snapshots, terminal width, unknown values."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from cli.display.live import picture
from observability.outcomes import OpenSlots
from protocol.outcomes import Outcome
from tests.unit.observability import small_run


def lines(now: dict[str, Any], before: dict[str, Any] | None, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture(now, before, width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(of: list[str], name: str) -> dict[str, str]:
    """Cells of the row of a name by their columns' titles: both end at the same place."""
    at = next(n for n, line in enumerate(of) if line.split()[:1] == [name])
    heading = next(of[n] for n in range(at, 0, -1) if not of[n - 1])
    cells: dict[str, str] = {}
    for title in [part.strip() for part in heading.split("  ") if part.strip()]:
        end = heading.index(title) + len(title)
        cells[title] = of[at][:end].split("  ")[-1].strip()
    return cells


def later(**changes: Any) -> dict[str, Any]:
    """The snapshot two seconds after small_run's, with other counts."""
    now = small_run.snapshot(monotonic=1002.0, **changes)
    for switch in now["switches"]:
        switch["outcomes"] = {**switch["outcomes"], "claimed": 90, "added": 270, "completed": 40}
        switch["outcomes"] |= {"stale": 6, "other_chunk": 2, "replayed": 10}
        switch["cpu_seconds"] = 2.0
    for server in now["servers"]:
        server["received_bytes"] += 500_000
    return now


def test_rates_are_what_counters_grew_by_in_a_second() -> None:
    of = lines(later(), small_run.snapshot())
    core = row(of, "core0")
    assert core["slots held"] == "64 of 8,192"
    assert (core["aggregating"], core["partial"]) == ("5", "2")
    assert core["contributions/s"] == "40"  # 20 claimed, 60 added
    assert core["sums/s"] == "20"
    assert core["retransmitted/s"] == "5"
    assert core["dropped/s"] == "4"
    assert core["CPU"] == "25 %"
    server = row(of, "s0")
    assert server["received"] == "2 Mbit/s (10 % of the link)"
    assert server["sent"] == "0 bit/s (0 % of the link)"
    job = row(of, "digits")
    assert (job["iteration"], job["in network"], job["workers"]) == ("3/100", "75.0 %", "8 of 8")


def test_one_snapshot_alone_shows_counts() -> None:
    of = lines(later(), None)
    assert row(of, "core0")["contributions"] == "360"
    assert row(of, "core0")["sums"] == "40"
    assert row(of, "s0")["received"] == "504 kB"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    of = lines(later(), small_run.snapshot(), width)
    assert max(map(cell_len, of)) <= width
    assert row(of, "tor1")["slots held"] == "64 of 8,192"
    assert row(of, "digits")["iteration"] == "3/100"
    assert not any("…" in line for line in of[1:])


def test_down_and_silent_nodes_are_shown() -> None:
    now = later(controller=False)
    now["switches"][0] |= {"up": False, "outcomes": None, "cpu_seconds": None}
    now["switches"][0]["slots"] = dict.fromkeys(now["switches"][0]["slots"])
    # Started again: its counters began at 0.
    now["switches"][1]["outcomes"] = dict.fromkeys(now["switches"][1]["outcomes"], 1)
    of = lines(now, small_run.snapshot())
    assert any(line.startswith("the controller is down: ") for line in of)
    (down,) = [line for line in of if line.startswith("tor0 (down)")]
    assert set(down.removeprefix("tor0 (down)").split()) == {"-"}
    assert row(of, "tor1")["contributions/s"] == "-"
    assert row(of, "core0")["contributions/s"] == "40"


def test_of_several_processes_of_a_server_those_that_are_down_are_named() -> None:
    now = later()
    processes = [
        {"name": f"s0.{number}", "up": number != 1, "cpu_seconds": 0.5} for number in range(3)
    ]
    now["servers"][0] |= {"up": False, "processes": processes}
    now["servers"][1] |= {"up": False, "processes": [{"name": "s1", "up": False}]}
    of = lines(now, None)
    assert any(line.startswith("s0 (s0.1 down) ") for line in of)
    assert any(line.startswith("s1 (down) ") for line in of)


def test_unsubmitted_job_has_unknown_fields() -> None:
    """With and without rates, which bring progress bars."""
    now = later()
    (job,) = now["jobs"]
    fields = ("iteration", "iterations", "loss", "accuracy", "chunks_per_second", "tree", "state")
    now["jobs"].append({**job, **dict.fromkeys(fields), "job": "own", "share_in_network": None})
    for before in (small_run.snapshot(), None):
        own = row(lines(now, before), "own")
        assert (own["iteration"], own["loss"], own["in network"]) == ("-", "-", "-")
        assert own["workers"] == "8 of 8"


def test_measured_servers_of_a_job_are_shown() -> None:
    of = lines(later(), small_run.snapshot(), 200)
    at = next(n for n, line in enumerate(of) if line.startswith("servers of digits"))
    table = ["", *of[at + 1 :]]
    slow, other = row(table, "s0"), row(table, "s1")
    assert (slow["waiting"], slow["handling"], slow["propagation"]) == ("12 ms", "10 ms", "2 ms")
    assert (slow["queue"], slow["sent"], slow["blame"]) == ("2.5", "16 Mbit/s", "75 %")
    assert "straggles" in next(line for line in table if line.startswith("s0"))
    assert (other["waiting"], other["handling"], other["propagation"]) == ("2 ms", "-", "-")


def test_a_testbed_without_a_job_says_so() -> None:
    assert "no job has been submitted" in lines(small_run.snapshot(jobs=[]), None)


# --- slots with a sum under way ---


def counts(claimed: int, partial_sent: int, completed: int, down: int) -> Counter[Outcome]:
    return Counter(
        {
            Outcome.CLAIMED: claimed,
            Outcome.PARTIAL_SENT: partial_sent,
            Outcome.COMPLETED: completed,
            Outcome.RESULT_DOWN: down,
        }
    )


def test_abandoned_slots_are_not_active() -> None:
    slots = OpenSlots()
    slots.plans({1: 1})
    assert slots.look("tor0", counts(100, 80, 0, 70), 64) == (20, 10)
    # The next epoch begins with what was left behind, which stays counted.
    slots.plans({1: 2})
    assert slots.look("tor0", counts(100, 80, 0, 70), 64) == (0, 0)
    assert slots.look("tor0", counts(130, 105, 0, 90), 64) == (5, 5)
    # Fewer than at first: some of those had still been under way.
    assert slots.look("tor0", counts(130, 117, 0, 110), 64) == (0, 0)
    assert slots.look("tor0", counts(133, 117, 0, 110), 64) == (3, 0)
    # Another job that comes changes no plan, and a restarted switch has none.
    slots.plans({1: 2, 2: 1})
    assert slots.look("tor0", counts(4, 1, 0, 0), 64) == (0, 0)
    assert slots.look("tor0", counts(6, 1, 0, 1), 64) == (2, 0)


def test_unheld_slots_are_not_active() -> None:
    slots = OpenSlots()
    slots.plans({1: 1})
    assert slots.look("tor0", counts(100, 80, 0, 70), 64) == (20, 10)
    assert slots.look("tor0", counts(100, 80, 0, 70), 16) == (16, 0)  # by a plan that has fewer
    # The job is over, and with it all that was under way; the next one begins with none.
    slots.plans({})
    assert slots.look("tor0", counts(101, 80, 0, 70), 0) == (0, 0)
    slots.plans({2: 1})
    assert slots.look("tor0", counts(101, 80, 0, 70), 64) == (0, 0)
    assert slots.look("tor0", counts(108, 82, 0, 70), 64) == (5, 2)


def test_leftovers_of_ended_job_are_not_active() -> None:
    slots = OpenSlots()
    slots.plans({1: 1, 2: 1})
    assert slots.look("tor0", counts(100, 80, 0, 70), 128) == (20, 10)
    slots.plans({2: 1})
    slots.look("tor0", counts(100, 80, 0, 70), 64)
    # All of the other's sums are over: what is left is of the first, and stays.
    assert slots.look("tor0", counts(100, 84, 0, 79), 64) == (0, 0)
    assert slots.look("tor0", counts(103, 84, 0, 79), 64) == (3, 0)


def test_active_slots_are_known_without_controller() -> None:
    assert OpenSlots().look("tor0", counts(9, 4, 0, 2), None) == (5, 2)
