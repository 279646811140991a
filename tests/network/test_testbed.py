# SPDX-License-Identifier: Apache-2.0
"""Tests testbeds end to end: a job on a network of P4 switches, and several at once."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from observability import series
from protocol.outcomes import Outcome
from tests.network.testbeds import Rackhub, interfaces, wait_for
from tests.packet.p4runtime.shell_client import needs_shell
from tests.unit.observability import small_run

ROOT = Path(__file__).resolve().parent.parent.parent
TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]


@pytest.fixture
def rackhub(tmp_path: Path) -> Rackhub:
    return Rackhub(tmp_path)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rackhub]:
    """A testbed called mine that is up, for tests which leave it as it was."""
    rackhub = Rackhub(tmp_path_factory.mktemp("standing"))
    up = rackhub.call("up", rackhub.topology, "--target", "embedded", "--name", "mine")
    assert up.returncode == 0, up.stderr
    assert up.stdout.splitlines()[-1] == str(rackhub.latest())
    yield rackhub
    rackhub.call("down")
    assert not rackhub.processes()


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_trains_through_the_switches(rackhub: Rackhub, target: str) -> None:
    """The sums are bit for bit right, and each link carries what the closed forms say."""
    before = interfaces()
    result = rackhub.call(
        "run", rackhub.topology, "--job", rackhub.job, "--target", target, "--pcap"
    )
    assert result.returncode == 0, result.stderr + result.stdout
    assert "matches reference" in result.stdout
    assert "\x1b[" not in result.stdout  # no colour when it is not a terminal
    run = rackhub.latest()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["target"] == target
    assert summary["matches_reference"] is True
    assert summary["test_accuracy"] > 0.3  # 12 steps are no training, but more than guessing
    iterations = summary["iterations"]
    # 64 x 32 weights, 32 biases, 32 x 10 weights, 10 biases; 256 values a chunk.
    assert summary["chunks"]["aggregated_in_network"] == iterations * (8 + 1 + 2 + 1)
    assert summary["chunks"]["served_by_server"] == 0
    assert len(summary["seconds_per_iteration"]) == iterations
    tensor = 12 * (iterations * (74 + 1024) + 74)
    links = {(row["from"], row["to"]): row for row in summary["links"]}
    assert len(links) == 2 * 8
    for (_, to), row in links.items():
        idle = "s0" in (_, to) or "s1" in (_, to)
        assert row["expected_bytes"] == (0 if idle else tensor)
        # Stragglers on a loaded machine are asked about, by packets of 74 bytes.
        assert row["bytes"] == pytest.approx(row["expected_bytes"], rel=0.05, abs=10 * 74)
    for private, mode in ((run, 0o700), (run / "logs", 0o700), (run / "journal.db", 0o600)):
        assert stat.S_IMODE(private.stat().st_mode) == mode, private
    for name in ("supervisor", "controller", "tor0", "core0", "s0", "w0", "w3", "reference"):
        assert (run / "logs" / f"{name}.log").exists()
    assert list((run / "pcap").glob("core0-eth1*.pcap"))
    for capture in (run / "pcap").iterdir():  # those of idle ports, too
        subprocess.run(["tshark", "-r", capture, "-c", "1"], capture_output=True, check=True)
    found = series.read(run / series.FILE)
    (curve,) = found.jobs.values()
    assert [one.number for one in curve.iterations] == list(range(1, iterations + 1))
    assert [state for _, state in curve.states] == ["running", "done"]
    assert found.samples[-1].switches["tor0"]["held"] == 0  # taken once more when it was over
    assert rackhub.call("report").stdout.strip() == str(run / "report.html")
    page = (run / "report.html").read_text()
    assert "done: weights match the reference, bit by bit" in page
    assert "Loss of each job over time" in page
    assert not rackhub.processes()
    assert interfaces() == before


def test_retransmissions_are_counted_at_every_node(rackhub: Rackhub) -> None:
    """A lost result is had again from a switch; the sums that switches made stay one per chunk."""
    topology = rackhub.topology.read_text().replace("Mbit/s}", "Mbit/s, loss: 0.05}")
    rackhub.topology.write_text(topology)
    rackhub.job.write_text(rackhub.job.read_text().replace("12", "4"))
    summary = rackhub.json("run", rackhub.topology, "--job", rackhub.job, "--target", "embedded")
    assert summary["matches_reference"] is True
    chunks = summary["chunks"]
    assert chunks["retransmitted"] > chunks["retransmitted_by_switches"] > 0
    assert chunks["aggregated_in_network"] == 4 * (8 + 1 + 2 + 1)


def test_concurrent_jobs_on_same_switches_are_separate(rackhub: Rackhub) -> None:
    """Switches count for all jobs together; what each job's workers received is in that count."""
    summary = rackhub.json(
        "run", rackhub.topology, "--job", rackhub.job, "--job", rackhub.job, "--target", "embedded"
    )
    assert {job["job"]: job["shared_with"] for job in summary["jobs"]} == {
        "brief": ["brief-2"],
        "brief-2": ["brief"],
    }
    for job in summary["jobs"]:
        assert job["matches_reference"] is True
        assert job["chunks"]["aggregated_in_network"] == 144


@pytest.mark.parametrize(("tree", "by_switches"), [("tor", True), ("none", False)])
def test_server_sums_are_distinguished_from_network_sums(
    standing: Rackhub, tree: str, by_switches: bool
) -> None:
    job = standing.folder / f"{tree}.yaml"
    job.write_text(standing.job.read_text() + f"tree: {tree}\n")
    summary = standing.json("submit", job)
    assert summary["matches_reference"] is True
    names = ("aggregated_in_network", "served_by_server")
    counts = tuple(summary["chunks"][name] for name in names)
    assert counts == ((144, 0) if by_switches else (0, 144))


def test_main_job_meets_requirements(rackhub: Rackhub) -> None:
    """What the README says of `make run`: the model learns, and nothing is sent twice."""
    summary = rackhub.json("run", ROOT / "topologies/two-racks.yaml", "--target", "embedded")
    assert summary["test_accuracy"] >= 0.95
    assert summary["matches_reference"] is True
    assert summary["chunks"]["retransmitted"] == 0
    assert summary["chunks"]["served_by_server"] == 0
    for row in summary["links"]:
        assert row["bytes"] == pytest.approx(row["expected_bytes"], rel=0.02), row


def test_testbeds_with_same_node_names_coexist(rackhub: Rackhub) -> None:
    options = ("--target", "embedded")
    try:
        for name in ("a", "b"):
            assert rackhub.json("up", rackhub.topology, "--name", name, *options)["name"] == name
        again = rackhub.call("up", rackhub.topology, "--name", "a", *options)
        assert again.returncode == 1
        assert "a testbed named 'a' is up" in again.stderr
        unclear = rackhub.call("status")
        assert unclear.returncode == 1
        assert "--on NAME: a, b" in unclear.stderr

        submitted = rackhub.json("submit", rackhub.endless, "--on", "a", "--detach")
        assert submitted == {"job": "endless", "state": "running"}
        done = rackhub.json("submit", rackhub.job, "--on", "b")
        assert done["matches_reference"] is True
        (row,) = rackhub.json("jobs", "--on", "a")
        assert (row["job"], row["state"]) == ("endless", "running")
        assert rackhub.call("stop", "endless", "--on", "a").returncode == 0
        wait_for(
            lambda: rackhub.json("jobs", "--on", "a")[0]["state"] == "stopped", "the job to stop"
        )
        # What a job that was stopped held is free for the next.
        assert rackhub.json("submit", rackhub.job, "--on", "a")["matches_reference"] is True
    finally:
        for name in ("a", "b"):
            rackhub.call("down", "--on", name)
    assert not rackhub.processes()


def see_it(rackhub: Rackhub, job: str) -> None:
    """What a job that runs holds and does, as a snapshot, as metrics and as a table."""
    snapshot = rackhub.json("status", "--live")
    known = small_run.snapshot()
    for one in known["jobs"]:
        one["servers"] = []  # they are not measured
    assert shape(snapshot) == shape(known)
    (running,) = [one for one in snapshot["jobs"] if one["job"] == job]
    assert (running["state"], running["present"]) == ("running", 4)
    # A few chunks have values that their exponents have no room for.
    assert 0.9 < running["share_in_network"] <= 1
    held = {one["name"]: one["slots"]["held"] for one in snapshot["switches"]}
    assert held == running["slots"]  # the only one that holds any
    assert set(held.values()) == {2 * running["window"]}
    first = metrics(rackhub)
    assert first["rackhub_switch_slots_held", "core0", "small"] == held["core0"]
    for name in ("tor0", "tor1", "core0"):
        sums = ("rackhub_switch_packets_total", *sorted(["added", "small", name]))
        assert first[sums] > 0
        wait_for(lambda sums=sums: metrics(rackhub)[sums] > first[sums], f"more sums at {name}")
    assert metrics(rackhub)["rackhub_job_iteration", job, "small"] > running["iteration"]
    assert f"{held['tor1']} of {snapshot['switches'][1]['slots']['total']:,}" in (
        rackhub.call("status", "--live").stdout
    )


def metrics(rackhub: Rackhub) -> dict[tuple[str, ...], float]:
    """Metrics by name and labels, once every switch tells what it has counted."""
    found: dict[tuple[str, ...], float] = {}

    def whole() -> bool:
        families = text_string_to_metric_families(rackhub.call("metrics").stdout)
        found.update(
            {(s.name, *sorted(s.labels.values())): s.value for f in families for s in f.samples}
        )
        counted = [key for key in found if key[0] == "rackhub_switch_packets_total"]
        return len(counted) == 3 * len(Outcome)

    wait_for(whole, "switches to tell what they have counted")
    return found


def shape(value: Any) -> Any:
    """Names of all fields, of the first of each list, and whether values are texts or numbers."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items() if name != "slots" or "held" in one}
    if isinstance(value, list):
        return [shape(one) for one in value[:1]]
    return type(value) if isinstance(value, (str, bool)) else float


def test_jobs_of_testbed_are_reported_separately(rackhub: Rackhub) -> None:
    """Links of a later job carry that job's bytes; all jobs are in the record, however they end."""
    tensor = 12 * (12 * (74 + 1024) + 74)
    rackhub.json("up", rackhub.topology, "--target", "embedded")
    try:
        for name in ("brief", "brief-2"):
            job = rackhub.json("submit", rackhub.job)
            assert (job["job"], job["state"], job["alongside"]) == (name, "done", [])
            for row in job["links"]:
                idle = {"s0", "s1"} & {row["from"], row["to"]}
                assert row["expected_bytes"] == (0 if idle else tensor)
                assert row["bytes"] == pytest.approx(row["expected_bytes"], rel=0.05)
        rackhub.json("submit", rackhub.endless, "--detach")
        stopped = rackhub.call("stop", "endless")
        assert stopped.stdout == "stopped endless\n"
        rackhub.json("submit", rackhub.endless, "--detach")
        beside = rackhub.json("submit", rackhub.job)
        assert beside["alongside"] == ["endless-2"]
        assert {row["expected_bytes"] for row in beside["links"]} == {None}

        see_it(rackhub, "endless-2")
        nodes = {node["name"]: node for node in rackhub.json("status")["nodes"]}
        running = rackhub.processes()
        for name, words in (
            ("w1", "testbed.worker"),
            ("s0", "hosts.server"),
            ("core0", "unix:sockets/core0"),
        ):
            (pid,) = nodes[name]["pids"]
            assert words in running[pid]
    finally:
        down = rackhub.call("down")
    assert "stopped endless-2, which was running: iteration " in down.stdout
    summary = json.loads((rackhub.latest() / "summary.json").read_text())
    assert [(job["job"], job["state"]) for job in summary["jobs"]] == [
        ("brief", "done"),
        ("brief-2", "done"),
        ("endless", "stopped"),
        ("endless-2", "stopped"),
        ("brief-3", "done"),
    ]
    assert [job["reason"] for job in summary["jobs"]][2:4] == [
        "stopped on request",
        "the testbed is taken down",
    ]
    assert summary["matches_reference"] is True  # the first job's, which is done


@needs_shell
def test_the_shell_reads_what_the_controller_wrote(standing: Rackhub) -> None:
    """From its own environment, whatever environment is activated and wherever it is started."""
    standing.environment["VIRTUAL_ENV"] = sys.prefix
    lines = 'print(len(list(table_entry["IngressPipeline.forwarding.routes"].read())), "routes")'
    shown = standing.call("shell", "tor0", keyboard=f"{lines}\n")
    assert re.search(r"\b[1-9]\d* routes\n", shown.stdout), shown.stderr
    assert "Traceback" not in shown.stdout + shown.stderr
    wrong = standing.call("shell", "w0")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "error: no switch 'w0' in mine: tor0, tor1, core0\n",
    )


def test_commands_run_at_a_node(standing: Rackhub) -> None:
    addresses = standing.call("exec", "w1", "ip", "-brief", "address")
    assert "w1-eth0" in addresses.stdout
    assert "tor0-eth1" not in addresses.stdout
    assert standing.call("exec", "tor0", "sh", "-c", "exit 7").returncode == 7
    # Options that `exec` has itself are the command's.
    assert standing.call("exec", "w0", "echo", "-h", "--on", "b").stdout == "-h --on b\n"
    plain = standing.folder / "plain"
    plain.touch(mode=0o644)
    for name, status, reason in (
        ("nosuch", 127, "command not found"),
        ("./nosuch", 127, "command not found"),
        (str(plain), 126, "not executable"),
        (str(standing.folder), 126, "is a folder"),
    ):
        refused = standing.call("exec", "w0", name, "-x")
        assert (refused.returncode, refused.stdout) == (status, "")
        assert refused.stderr.endswith(f"error: {name}: {reason}\n")
    wrong = standing.call("exec", "w9", "true")
    assert wrong.returncode == 1
    assert "no node 'w9' in mine: w0, w1," in wrong.stderr
    # Ordinary packets are routed, by way of both ToRs and the core.
    status = standing.json("status")
    other = next(node["address"] for node in status["nodes"] if node["name"] == "w3")
    script = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        f" s.settimeout(20); s.connect(('{other}', 9)); s.send(b'x');"
        # Nobody listens there: the answer of w3's kernel comes back as an error.
        "\ntry: s.recv(1)\nexcept ConnectionRefusedError: print('answered')"
    )
    assert "answered" in standing.call("exec", "w0", "python3", "-c", script).stdout
