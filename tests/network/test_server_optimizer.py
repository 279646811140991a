# SPDX-License-Identifier: Apache-2.0
"""Tests servers that run the job's optimizer when other nodes fail.

That it survives one of them: tests/network/test_every_fault.py.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.network.testbeds import Rackhub, read_until, wait_for

CHUNKS = 8 + 1 + 2 + 1  # of brief.yaml
ITERATIONS = 150


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    rackhub = Rackhub(tmp_path)
    job = rackhub.job.read_text().replace("iterations: 12", f"iterations: {ITERATIONS}")
    job = job.replace("rate: 0.05}", "rate: 0.05, at: servers}")
    rackhub.job.write_text(f"{job}tree: none\n")
    return rackhub


def servers(rackhub: Rackhub) -> list[int]:
    """The servers' processes, in the order of their addresses."""
    found = {
        command.partition("--address ")[2]: pid
        for pid, command in rackhub.processes().items()
        if "-m hosts.server --address " in command
    }
    return [found[address] for address in sorted(found)]


def worker(rackhub: Rackhub, rank: int) -> int:
    """A worker's process."""
    (pid,) = (
        pid
        for pid, command in rackhub.processes().items()
        if "-m testbed.worker " in command and f"--rank {rank} " in command
    )
    return pid


def trained(
    rackhub: Rackhub, *victims: int, workers: tuple[int, ...] = (), also: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The summary of a run; servers of these numbers, workers of these ranks, and processes with
    these texts in their command lines, are killed once it trains."""
    arguments = ("run", rackhub.topology, "--job", rackhub.job, "--target", "embedded")
    with rackhub.started(*arguments) as process:
        said = read_until(process, "iteration")
        pids = servers(rackhub)
        killed = [pids[number] for number in victims] + [worker(rackhub, rank) for rank in workers]
        killed += [rackhub.pid(text) for text in also]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said + rest
    summary: dict[str, Any] = json.loads((rackhub.latest() / "summary.json").read_text())
    assert len(summary["seconds_per_iteration"]) == ITERATIONS
    return summary


@pytest.mark.parametrize(
    ("target", "tree"),
    [("embedded", "none"), pytest.param("bmv2", "tor", marks=pytest.mark.bmv2)],
)
def test_weights_equal_reference_bit_by_bit(rackhub: Rackhub, target: str, tree: str) -> None:
    job = rackhub.job.read_text().replace(f"iterations: {ITERATIONS}", "iterations: 12")
    rackhub.job.write_text(job.replace("tree: none", f"tree: {tree}"))
    # Beside it, one whose workers do not wait for each other.
    apart = rackhub.folder / "apart.yaml"
    rate = job.replace("name: brief", "name: apart").replace("rate: 0.05", "rate: 0.01")
    apart.write_text(f"{rate}consistency: {{staleness: 1}}\n")
    jobs = ("--job", rackhub.job, "--job", apart)
    summary = rackhub.json("run", rackhub.topology, *jobs, "--target", target)
    assert summary["no_reference"] == ""
    assert summary["matches_reference"] is True
    assert summary["restored"] == []
    assert summary["chunks"]["in_float32"] == 0
    beside = summary["jobs"][1]
    assert (beside["state"], beside["consistency"]) == ("done", "staleness 1")
    assert len(beside["seconds_per_iteration"]) == 12
    assert beside["staleness_seen"]["max"] <= 1
    assert beside["matches_reference"] is None


def test_restarted_worker_continues_with_server_parameters(rackhub: Rackhub) -> None:
    """Also where some gradients do not fit fixed point: the reference follows all of it."""
    rackhub.job.write_text(rackhub.job.read_text() + "poison: 2\n")
    summary = trained(rackhub, workers=(1,))
    assert summary["rejoined_workers"] == {"w1": 1}
    assert summary["matches_reference"] is True
    assert summary["reference_in_float32"] > 0
    counts = summary["workers_per_iteration"]
    assert (counts[0], counts[-1], len(counts)) == (summary["workers"],) * 2 + (ITERATIONS,)
    assert min(counts) == summary["workers"] - 1
    # A step that only a replica has completed when the plan changes comes from there.
    assert {one["from"] for one in summary["restored"]} <= {"s0", "s1"}


def test_parameters_come_from_workers_if_all_servers_fail(
    rackhub: Rackhub,
) -> None:
    summary = trained(rackhub, 0, 1)
    assert summary["workers_agree"] is True
    assert summary["matches_reference"] is None
    assert "without the optimizer's state" in summary["no_reference"]
    sources = [one for one in summary["restored"] if one["from"].startswith("w")]
    assert sum(one["chunks"] for one in sources) >= CHUNKS
    assert summary["test_accuracy"] > 0.8


def test_restarted_servers_join_when_controller_returns(
    rackhub: Rackhub,
) -> None:
    """Both are killed with it, so the job has none until they have joined."""
    summary = trained(rackhub, 0, 1, also=("-m controller --topology",))
    assert {fault["node"] for fault in summary["faults"]} == {"s0", "s1", "controller"}
    assert all(fault["seconds"] is not None for fault in summary["faults"])
    assert summary["workers_agree"] is True
    assert {one["server"] for one in summary["restored"]} == {"s0", "s1"}


def test_server_stopped_past_lease_rejoins(rackhub: Rackhub) -> None:
    """Else the job would have no replica any more, and end with the server that is left."""
    job = rackhub.job.read_text().replace(str(ITERATIONS), str(2 * ITERATIONS))
    rackhub.job.write_text(f"{job}lease: 5\n")
    arguments = ("run", rackhub.topology, "--job", rackhub.job, "--target", "embedded")
    with rackhub.started(*arguments) as process:
        said = read_until(process, "iteration")
        stopped = servers(rackhub)[1]
        os.kill(stopped, signal.SIGSTOP)
        log = rackhub.latest() / "logs" / "controller.log"
        wait_for(lambda: "(s1) was not heard of for" in log.read_text(), "the lease to end")
        os.kill(stopped, signal.SIGCONT)
        rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said + rest
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    restored = [(one["server"], one["from"], one["chunks"]) for one in summary["restored"]]
    assert ("s1", "s0", CHUNKS) in restored
    assert {server for one in summary["plans"][-1:] for server in one["roots"]} == {"s0", "s1"}
