# SPDX-License-Identifier: Apache-2.0
"""Tests restarts of killed processes and the report of `rackhub chaos`.

What each kind of fault does to a job is in tests/network/test_every_fault.py.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.network.testbeds import Rackhub, read_until, wait_for
from topologies.model.spec import load as load_topology
from workloads.trainer import digest

TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]
ITERATIONS = 200  # long enough to be hit in the middle
COMMANDS = {
    "controller": "-m controller --topology",
    "w0": "testbed.worker --rank 0 ",
    "w2": "testbed.worker --rank 2 ",
}


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    rackhub = Rackhub(tmp_path)
    job = rackhub.job.read_text().replace("iterations: 12", f"iterations: {ITERATIONS}")
    rackhub.job.write_text(job)
    return rackhub


def process_of(rackhub: Rackhub, name: str) -> int:
    """The process of a node."""
    words = COMMANDS.get(name, f"--grpc-server-addr unix:sockets/{name} ").split()
    (found,) = [
        pid
        for pid, command in rackhub.processes().items()
        # Not what started the supervisor, nor the supervisor.
        if all(word in command.split() for word in words)
    ]
    return found


def struck(
    rackhub: Rackhub, target: str, name: str, number: signal.Signals
) -> tuple[str, dict[str, Any]]:
    """What a run said, and its summary, one of whose processes got a signal while it trained."""
    arguments = ("run", rackhub.topology, "--job", rackhub.job, "--target", target)
    with rackhub.started(*arguments) as process:
        said = read_until(process, "iteration")
        os.kill(process_of(rackhub, name), number)
        rest, _ = process.communicate(timeout=180)
    said += rest
    assert process.returncode == 0, said
    summary: dict[str, Any] = json.loads((rackhub.latest() / "summary.json").read_text())
    return said, summary


# On the embedded target the fault table (test_every_fault.py) has both.
@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param("tor0", "embedded", marks=pytest.mark.soak),
        pytest.param("tor0", "bmv2", marks=pytest.mark.bmv2),
        pytest.param("controller", "embedded", marks=pytest.mark.soak),
    ],
)
def test_killed_process_is_restarted_and_job_continues(
    rackhub: Rackhub, target: str, name: str
) -> None:
    said, summary = struck(rackhub, target, name, signal.SIGKILL)
    assert f"{name} was killed by SIGKILL; started again" in said
    assert summary["matches_reference"] is True
    assert len(summary["seconds_per_iteration"]) == ITERATIONS
    (fault,) = summary["faults"]
    assert (fault["node"], fault["what"], fault["job"]) == (name, "was killed by SIGKILL", "brief")
    assert fault["seconds"] > 0
    if name == "controller":
        # Running jobs do not notice.
        assert fault["epoch_after"] == fault["epoch_before"]
        assert summary["chunks"]["aggregated_in_network"] == ITERATIONS * (8 + 1 + 2 + 1)
    else:
        assert fault["epoch_after"] > fault["epoch_before"]
        assert summary["chunks"]["aggregated_in_network"] is None
        assert f"{name} lost its counters" in summary["chunks"]["unknown"]
        # BMv2's ports are counted by the kernel. What went to other switches those have counted.
        hosts = [r for r in summary["links"] if r["from"] == name and r["to"][0] in "ws"]
        between = [r for r in summary["links"] if r["from"] == name and r not in hosts]
        assert {row["bytes"] is None for row in hosts} == (
            {target == "embedded"} if hosts else set()
        )
        assert all(row["bytes"] > 0 for row in between)
        if hosts and target == "embedded":
            assert "unknown: tor0 has lost its counters." in said


WORKERS = ["w0", "w1", "w2", "w3"]


def test_reference_follows_killed_worker_that_rejoins(rackhub: Rackhub) -> None:
    """The first one, whose reports are the run's progress."""
    name = "w0"
    iterations = 3 * ITERATIONS  # enough to rejoin before the end where the machine is busy
    job = rackhub.job.read_text().replace(f"iterations: {ITERATIONS}", f"iterations: {iterations}")
    rackhub.job.write_text(job)
    said, summary = struck(rackhub, "embedded", name, signal.SIGKILL)
    rest = ", ".join(other for other in WORKERS if other != name)
    assert f"{name} was killed by SIGKILL; job brief goes on with {rest}" in said
    assert f"{name} has joined job brief again" in said
    assert summary["lost_workers"] == {}
    assert summary["rejoined_workers"] == {name: 1}
    assert summary["finished_workers"] == WORKERS
    assert summary["matches_reference"] is True
    counts = summary["workers_per_iteration"]
    assert len(counts) == len(summary["seconds_per_iteration"]) == iterations
    # All, one less, all.
    away = counts.index(3), iterations - counts[::-1].index(3)
    assert counts == [4] * away[0] + [3] * (away[1] - away[0]) + [4] * (iterations - away[1])
    (fault,) = summary["faults"]
    # Nobody waits for a lease to end.
    assert fault["seconds"] < fault["rejoined_after"] < 30


# Always in virtual time (test_virtual_kills.py); the fault table has another worker.
@pytest.mark.soak
def test_job_finishes_without_absent_worker(rackhub: Rackhub) -> None:
    schedule = rackhub.folder / "faults.yaml"
    schedule.write_text("name: w0\nfaults: [{at: 500 chunks, kill: w0, gone: forever}]\n")
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", schedule, "--job", rackhub.job,
        "--target", "embedded",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "goes on with w1, w2, w3; it stays away" in result.stdout
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["lost_workers"] == {"w0": "was killed by SIGKILL"}
    assert summary["finished_workers"] == WORKERS[1:]
    assert summary["matches_reference"] is True
    assert summary["attendance"][-1]["sums"] == [{"workers": WORKERS[1:], "chunks": None}]
    assert summary["test_accuracy"] > 0.9
    weights = np.load(rackhub.latest() / "weights-brief.npz")
    assert digest(dict(weights)) == summary["weights_sha256"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_slow_link_carries_no_more_than_its_share(
    rackhub: Rackhub, target: str, way: str
) -> None:
    """In each direction, whoever paces it: so an iteration takes at least as long as that."""
    k, iterations = 10, 40
    job = rackhub.job.read_text().replace(f"iterations: {ITERATIONS}", f"iterations: {iterations}")
    rackhub.job.write_text(job.replace("hidden: [32]", "hidden: [256]"))
    file = rackhub.folder / "faults.yaml"
    slow = f"{{link: [w0, tor0], by: {k}, way: {way}}}"
    file.write_text(f"faults: [{{at: 0 s, slow: {slow}, for: forever}}]\n")
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", file, "--job", rackhub.job, "--target", target,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"w0-tor0 takes 10 times as long {way}ward" in result.stdout
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    (fault,) = summary["faults"]
    assert (fault["kind"], fault["node"]) == ("slow", "w0-tor0")
    ends = ("w0", "tor0") if way == "up" else ("tor0", "w0")
    (load,) = [row for row in summary["links"] if (row["from"], row["to"]) == ends]
    rate = load_topology(rackhub.topology).links[0].forward.rate
    # The bucket holds a burst of a millisecond or a frame.
    least = 0.8 * k * 8 * load["bytes"] / iterations / rate
    assert min(summary["seconds_per_iteration"][-5:]) > least


@pytest.mark.parametrize("target", TARGETS)
def test_background_traffic_takes_the_links_of_its_route(rackhub: Rackhub, target: str) -> None:
    """It comes and goes by turns, nobody answers it, and sums are those of a run without it."""
    rackhub.job.write_text(rackhub.job.read_text().replace(str(ITERATIONS), "250"))
    file = rackhub.folder / "faults.yaml"
    load = "{from: s1, to: w0, rate: 8 Mbit/s, busy: 50 ms, idle: 50 ms}"
    file.write_text(f"faults: [{{at: 0 s, load: {load}, for: 1 s}}]\n")
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", file, "--job", rackhub.job, "--target", target,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "s1 to w0 has other traffic for 1 s: 8 Mbit/s, 0.05 s busy" in result.stdout
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    links = {(row["from"], row["to"]): row for row in summary["links"]}
    assert all(row["expected_bytes"] is None for row in links.values())
    sent = links["s1", "tor1"]["bytes"]
    # Half of 1 MB, which a busy machine does not send all of, or stops to send a little later.
    assert 250_000 < sent < 750_000
    assert links["tor1", "s1"]["bytes"] == 0
    # Beside what the other worker of the rack gets, too; both count the job's packets.
    assert links["tor0", "w0"]["bytes"] - links["tor0", "w1"]["bytes"] == pytest.approx(
        sent, rel=0.05
    )


def test_a_host_has_several_flows_of_background_traffic(rackhub: Rackhub) -> None:
    """In both directions, and what carries them leaves no error."""
    rackhub.job.write_text(rackhub.job.read_text().replace(str(ITERATIONS), "250"))
    file = rackhub.folder / "faults.yaml"
    flows = (("s1", "w0"), ("s1", "w2"), ("w3", "s1"))
    text = "".join(
        f"- {{at: 0 s, load: {{from: {a}, to: {b}, rate: 4 Mbit/s}}, for: 1 s}}\n" for a, b in flows
    )
    file.write_text(f"faults:\n{text}")
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", file, "--job", rackhub.job, "--target", "embedded",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    carried = {(row["from"], row["to"]): row["bytes"] for row in summary["links"]}
    # Each is 500 kB, of which a busy machine does not send all; all workers have the job's packets.
    least = 150_000
    assert carried["tor0", "w0"] - carried["tor0", "w1"] > least
    assert carried["tor1", "w2"] - carried["tor1", "w3"] > least
    assert carried["tor1", "s1"] > least
    for log in (rackhub.latest() / "logs").glob("traffic*.log"):
        assert log.read_text() in ("", "ready\n")


def test_orders_to_scale_that_are_refused_are_recorded(rackhub: Rackhub) -> None:
    file = rackhub.folder / "faults.yaml"
    file.write_text("faults: [{at: 0 s, scale: {workers: [-w0, +w1]}}]\n")
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", file, "--job", rackhub.job, "--target", "embedded",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    (row,) = summary["faults"]
    assert row["what"] == "were refused: job brief: w1 is in the job, or on its way"
    assert summary["left_workers"] == {}


@pytest.mark.parametrize("wakes", [True, False], ids=["wakes up", "stays stopped"])
def test_job_continues_without_worker_stopped_past_limit(rackhub: Rackhub, wakes: bool) -> None:
    iterations = 3 * ITERATIONS if wakes else ITERATIONS
    job = rackhub.job.read_text().replace(str(ITERATIONS), str(iterations))
    rackhub.job.write_text(job + "lease: 5\n")
    arguments = ("run", rackhub.topology, "--job", rackhub.job, "--target", "embedded")
    with rackhub.started(*arguments) as process:
        said = read_until(process, "iteration")
        worker = process_of(rackhub, "w2")
        os.kill(worker, signal.SIGSTOP)
        log = rackhub.latest() / "logs" / "controller.log"
        wait_for(lambda: "w2) was not heard of for" in log.read_text(), "the lease to end")
        if wakes:
            os.kill(worker, signal.SIGCONT)
        rest, _ = process.communicate(timeout=180)
    said += rest
    assert process.returncode == 0, said
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    assert min(summary["workers_per_iteration"]) == 3
    if wakes:
        assert "w2 was too long without a sign of life; job brief goes on" in said
        assert summary["rejoined_workers"] == {"w2": 1}
        assert summary["lost_workers"] == {}
        assert summary["workers_per_iteration"][-1] == 4
    else:
        assert summary["lost_workers"] == {"w2": "was too long without a sign of life"}
        assert summary["finished_workers"] == ["w0", "w1", "w3"]


FAULTS = """\
name: everything
faults:
  - {at: 0.5 s, kill: core0, gone: 1 s}
  - {after: 200 chunks, stop: w2, for: 2 s}
  - {after: 200 chunks, impair: {ends: [tor0, core0], loss: 10 %}, for: 300 chunks}
  - {after: 200 chunks, disconnect: tor0, for: 1 s}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_fault_schedule_is_executed_and_measured(rackhub: Rackhub, target: str) -> None:
    rackhub.job.write_text(rackhub.job.read_text().replace(str(ITERATIONS), "500"))
    schedule = rackhub.folder / "faults.yaml"
    schedule.write_text(FAULTS)
    result = rackhub.call(
        "chaos", rackhub.topology, "--faults", schedule, "--job", rackhub.job,
        "--target", target,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "core0 was killed by SIGKILL; it stays away for 1 s" in result.stdout
    heading = ["at", "node", "fault", "went", "on", "plan", "slots", "resent", "in", "bytes"]
    assert heading in [line.split() for line in result.stdout.splitlines()]
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert summary["matches_reference"] is True
    faults = {(row["kind"], row["node"]): row for row in summary["faults"]}
    planned_anew = ("kill", "core0")
    others = [("stop", "w2"), ("impair", "tor0-core0"), ("disconnect", "tor0")]
    # What was lost on the impaired link was retransmitted.
    assert faults["impair", "tor0-core0"]["resent_packets"] > 0
    assert set(faults) == {planned_anew, *others}
    for row in faults.values():
        assert row["seconds"] > 0
        assert row["resent_bytes"] == row["resent_packets"] * (74 + 1024)
    # Nothing was sent through the core while it was away, nor by w2 while it was stopped.
    assert faults["kill", "core0"]["seconds"] > 1
    assert faults["stop", "w2"]["seconds"] > 2
    assert faults[planned_anew]["epoch_after"] > faults[planned_anew]["epoch_before"]
    for where in others:
        assert faults[where]["epoch_after"] == faults[where]["epoch_before"]
    # Each came when the job had gone on after the one before.
    times = sorted((row["at"], row["at"] + row["seconds"]) for row in faults.values())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))
