# SPDX-License-Identifier: Apache-2.0
"""Tests run directories, expected bytes, and the descriptions of processes' ends."""

from __future__ import annotations

import asyncio
import datetime
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.planning.tree_planner import TreeKind, plan_trees
from emulation.lifecycle.launcher import Launch
from emulation.network.shaping import passed
from emulation.nodes.processes import ProcessError, Processes, describe
from observability import record
from observability.record import RunDirectory, RunError
from planner.link_loads import HEADER_FRAME_BYTES, Direction, Workload, expected
from testbed.errors import CONSEQUENCE
from tests.conftest import ROOT
from topologies.model.addressing import Addressing
from topologies.model.spec import load

# 100 + 1 chunks, of which the first is filled and the second holds one value.
WORK = Workload(sizes=(25_600, 1), lanes=256, iterations=10, chunks_per_slice=32)
FULL = 14 + 20 + 8 + 32 + 1024
TENSOR = 101 * (10 * FULL + HEADER_FRAME_BYTES)  # U of the design


def loads(name: str, kind: TreeKind) -> tuple[Addressing, dict[Direction, int]]:
    topology = load(ROOT / "topologies" / f"{name}.yaml")
    addressing = Addressing(topology)
    workers = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    trees = plan_trees(
        topology, addressing, workers, [addressing.address(s) for s in servers], kind
    )
    found = expected(addressing, trees, servers, WORK)
    return addressing, {direction: load.bytes for direction, load in found.items()}


def between(addressing: Addressing, a: str, b: str) -> Direction:
    """The direction from switch a to b."""
    return Direction(a, addressing.ports_between(a, b)[0].interface)


def test_two_level_tree_loads_an_uplink_with_one_tensor_per_rack() -> None:
    addressing, found = loads("two-racks", TreeKind.TWO_LEVEL)
    for tor in ("tor0", "tor1"):
        assert found[between(addressing, tor, "core0")] == TENSOR
        assert found[between(addressing, "core0", tor)] == TENSOR
    for worker in range(8):
        assert found[Direction(f"w{worker}", f"w{worker}-eth0")] == TENSOR
    assert not any(direction.node in ("s0", "s1") for direction in found)


def test_without_aggregation_servers_get_every_workers_tensor() -> None:
    addressing, found = loads("two-racks", TreeKind.NONE)
    to_servers = [
        found[Direction("tor0", addressing.ports_between("tor0", "s0")[0].interface)],
        found[Direction("tor1", addressing.ports_between("tor1", "s1")[0].interface)],
    ]
    assert sum(to_servers) == 8 * TENSOR
    # Half of each rack's chunks has its server in the other rack: w U / 2 instead of U.
    up = found[between(addressing, "tor0", "core0")] + found[between(addressing, "tor1", "core0")]
    assert up == pytest.approx((4 + 4) * TENSOR, rel=0.02)


def test_server_root_under_switches_gets_one_tensor_per_rack() -> None:
    addressing, found = loads("two-racks", TreeKind.TOR)
    sent = found[Direction("s0", "s0-eth0")] + found[Direction("s1", "s1-eth0")]
    assert sent == 2 * TENSOR
    assert found[Direction("w0", "w0-eth0")] == TENSOR
    assert addressing.topology.racks == 2


def test_a_name_in_use_is_refused_when_chosen_and_numbered_when_not(runs: Path) -> None:
    with record.create("bed", chosen=False, facts={}) as first:
        assert [run.name for run in record.live_runs()] == ["bed"]
        assert (runs / "latest").resolve() == first.path
        with (
            pytest.raises(RunError, match="named 'bed' is up"),
            record.create("bed", chosen=True, facts={}),
        ):
            pass
        with record.create("bed", chosen=False, facts={}) as second:
            assert second.name == "bed-2"
            with pytest.raises(RunError, match="--on NAME: bed, bed-2"):
                record.find(None)
            assert record.find("bed-2").path == second.path
        assert record.find(None).path == first.path
    assert record.live_runs() == []
    with pytest.raises(RunError, match="no testbed is up"):
        record.find(None)


def test_a_run_in_virtual_time_is_no_testbed_that_could_be_asked(runs: Path) -> None:
    facts = {"clock": "virtual"}
    with record.create("quick", chosen=False, facts=facts) as run:
        for name in (None, "quick", run.path.name):
            with pytest.raises(RunError, match=r"runs in virtual time.*summary\.json"):
                record.find(name)
        assert record.testbeds() == []
        with record.create("bed", chosen=False, facts={}) as bed:
            assert record.find(None).path == bed.path
        with pytest.raises(RunError, match="no testbed 'other' is up; up: none"):
            record.find("other")


def test_of_a_run_that_is_over_no_lock_and_sockets_stay_even_if_it_was_killed(runs: Path) -> None:
    begin = (
        "import os; from observability import record;"
        " held = record.create('bed', chosen=False, facts={}); held.__enter__(); os.kill(0, 9)"
    )
    killed = subprocess.run([sys.executable, "-c", begin], check=False, start_new_session=True)
    assert killed.returncode == -9
    (crashed,) = record.all_runs()
    assert sorted(one.name for one in crashed.path.iterdir()) == [
        *(".lock", "logs", "sockets", "testbed.json")
    ]
    with record.create("bed", chosen=False, facts={}) as run:
        assert run.name == "bed"
        assert record.live_runs()[0].sockets.exists()
    assert not crashed.alive
    assert not run.alive
    assert sorted(one.name for one in run.path.iterdir()) == ["logs", "testbed.json"]
    assert sorted(one.name for one in crashed.path.iterdir()) == [
        *("failure.txt", "logs", "summary.json", "testbed.json")
    ]
    assert record.live_runs() == []
    assert [one.path for one in record.all_runs()] == [crashed.path, run.path]


@pytest.mark.usefixtures("runs")
def test_killed_testbed_is_named_while_it_is_the_last_one() -> None:
    begin = (
        "import os; from observability import record;"
        " held = record.create('bed', chosen=False, facts={'clock': 'emulated'});"
        " run = held.__enter__(); (run.logs / 'supervisor.log').write_text('up'); os.kill(0, 9)"
    )
    subprocess.run([sys.executable, "-c", begin], check=False, start_new_session=True)
    with record.create("quick", chosen=False, facts={"clock": "virtual"}):
        pass
    (killed, _) = record.all_runs()
    written = (killed.logs / "supervisor.log").stat().st_mtime
    at = datetime.datetime.fromtimestamp(written)
    text = f"its supervisor was killed, or the machine went down, at about {at:%Y-%m-%d %H:%M:%S}"
    for name in (None, "bed", killed.path.name):
        with pytest.raises(RunError) as refused:
            record.find(name)
        assert str(refused.value).endswith(
            f"\nthe last one, bed, failed: {text}; its logs: {killed.logs}"
        )
    failure = json.loads(killed.summary.read_text())["failure"]
    assert failure == {"message": text, "process": "supervisor"}
    with record.create("bed", chosen=False, facts={"clock": "emulated"}):
        pass
    with pytest.raises(RunError, match=r"TOPOLOGY`$"):
        record.find(None)


@pytest.mark.parametrize("place", ["a file", "a folder below a file", "nobody's", "latest"])
def test_a_runs_folder_that_cannot_be_used_is_refused_with_path_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    folder, reason = {
        "a file": (tmp_path / "file", "it is not a folder"),
        "a folder below a file": (tmp_path / "file" / "runs", "Not a directory"),
        # A filesystem where not even root can make folders.
        "nobody's": (
            Path("/sys/kernel/runs"),
            "(Operation not permitted|Permission denied|Read-only)",
        ),
        "latest": (tmp_path / "mine", "latest is in the way: it is not a link"),
    }[place]
    if place == "latest":
        (folder / "latest").mkdir(parents=True)
    monkeypatch.setenv("RACKHUB_RUNS", str(folder))
    with (
        pytest.raises(RunError, match=rf"{folder}.*{reason}.*RACKHUB_RUNS=FOLDER"),
        record.create("bed", chosen=False, facts={}),
    ):
        pass
    if place == "latest":
        assert [entry.name for entry in folder.iterdir()] == ["latest"]


def test_a_failure_is_added_to_a_summary_once(runs: Path) -> None:
    with record.create("bed", chosen=False, facts={"target": "embedded"}) as run:
        run.note_failure("supervisor was killed", "supervisor")
        run.note_failure("nobody was there to take it down", None)
        summary = json.loads(run.summary.read_text())
        assert summary["failure"] == {"message": "supervisor was killed", "process": "supervisor"}
        assert (summary["name"], summary["target"], summary["jobs"]) == ("bed", "embedded", [])
        assert run.supervisor() is None


def test_traffic_control_counters_are_read() -> None:
    text = """class htb 1:1 root leaf 10: prio 0 rate 20Mbit ceil 20Mbit burst 2500b cburst 2500b
 Sent 527928 bytes 492 pkt (dropped 3, overlimits 17 requeues 0)
 backlog 0b 0p requeues 0
"""
    counted = passed(text)
    assert (counted.bytes, counted.packets, counted.dropped) == (527928, 492, 3)


def ended(tmp_path: Path, *scripts: tuple[str, str]) -> ProcessError:
    """The failure of a group of Python scripts."""

    async def run() -> ProcessError:
        group = Processes(tmp_path, tmp_path)
        for name, script in scripts:
            group.start(name, [sys.executable, "-c", script])
        await asyncio.wait([group.failure], timeout=60)
        await group.stop()
        failure = group.failure.exception()
        assert isinstance(failure, ProcessError)
        return failure

    return asyncio.run(run())


def test_a_failing_process_is_named_with_its_status_and_log(tmp_path: Path) -> None:
    failure = ended(tmp_path, ("w3", "import sys; print('out of paper'); sys.exit(7)"))
    assert failure.name == "w3"
    assert "w3 ended with exit status 7" in str(failure)
    assert "out of paper" in str(failure)


def test_the_cause_is_named_not_what_failed_because_of_it(tmp_path: Path) -> None:
    failure = ended(
        tmp_path,
        ("victim", f"import sys; sys.exit({CONSEQUENCE})"),
        ("culprit", "import time, os; time.sleep(0.5); os.kill(os.getpid(), 9)"),
    )
    assert failure.name == "culprit"
    assert "was killed by SIGKILL" in str(failure)


def test_invalid_line_fails_its_group(tmp_path: Path) -> None:
    """Neither has ended: the group does not wait for what would come of it much later."""

    async def run() -> tuple[BaseException | None, list[str]]:
        group = Processes(tmp_path, tmp_path)
        heard: list[str] = []

        def read(line: str) -> None:
            heard.append(json.loads(line)["report"])

        script = """print('{"reprt": "done"}\\n{"report": "then"}', flush=True); input()"""
        group.start("w1", [sys.executable, "-c", script], on_line=read, wants_input=True)
        await asyncio.wait([group.failure], timeout=60)
        await group.stop()
        return group.failure.exception(), heard

    failure, heard = asyncio.run(run())
    assert isinstance(failure, ProcessError)
    assert failure.name == "w1"
    assert '(KeyError: \'report\'): {"reprt": "done"}' in str(failure)
    assert heard == ["then"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, "ended with exit status 1"),
        (-9, "was killed by SIGKILL"),
        (137, "was killed by SIGKILL"),
        (128 + 99, "ended with exit status 227"),
    ],
)
def test_exit_statuses_are_described_in_words(status: int, words: str) -> None:
    assert describe(status) == words


def test_a_stopped_process_is_found_and_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def run() -> tuple[list[ProcessError], int]:
        group = Processes(tmp_path, tmp_path)
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        script = "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
        process = group.start(
            "w2", [sys.executable, "-c", script], on_line=lambda _: up.set_result(None)
        )
        await up
        while not (found := group.stopped()):
            assert process.running
            await asyncio.sleep(0.01)  # only the kernel knows
        await group.stop()
        assert not group.failure.done()
        return found, await process.exited

    found, status = asyncio.run(run())
    assert [one.name for one in found] == ["w2"]
    assert "w2 is stopped" in str(found[0])
    assert status == -signal.SIGKILL


def test_a_process_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulation.nodes.processes._STOP_SECONDS", 0.3)

    async def run() -> int:
        group = Processes(tmp_path, tmp_path)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        script = (
            "import signal, time; signal.signal(15, signal.SIG_IGN);"
            " print('up', flush=True); time.sleep(60)"
        )
        process = group.start(
            "deaf", [sys.executable, "-c", script], on_line=lambda _: waiting.set_result(None)
        )
        await waiting
        await group.stop()
        assert not group.failure.done()
        return await process.exited

    assert asyncio.run(run()) == -9


def test_missing_failure_file_still_gives_message(
    tmp_path: Path,
) -> None:
    """A full disk takes the file, and nothing of what is in it."""
    (tmp_path / "failure.txt").touch()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        failure = Launch(RunDirectory(tmp_path), process).failure()
    assert f"could not write why to {tmp_path}/failure.txt" in str(failure)
