# SPDX-License-Identifier: Apache-2.0
"""Tests the command line without a testbed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.commands import inspect
from cli.commands import run as run_commands
from cli.main import main
from cli.options import DEFAULT_JOB
from observability import record
from specs import jobfile
from switch.cli.launcher import install
from testbed.targets import BMV2, TargetError, choose
from tests.conftest import ROOT
from topologies.model.spec import parse as parse_topology

TWO_RACKS = str(ROOT / "topologies" / "two-racks.yaml")


def rackhub(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_validate_describes_a_topology() -> None:
    result = rackhub("validate", TWO_RACKS, "--json", "--job", str(ROOT / "jobs" / "digits.yaml"))
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert (facts["racks"], facts["workers"], facts["switches"]) == (2, 8, 3)
    assert [(job["job"], job["tree"], job["streams"]) for job in facts["jobs"]] == [
        ("digits", "two-level", 1)
    ]


FIFTEEN = "name: t\nracks:\n  - {workers: 15, servers: 1}\n"


@pytest.mark.parametrize("command", ["compare", "plan"])
def test_sizes_of_the_default_job_do_for_any_number_of_workers(
    tmp_path: Path, command: str
) -> None:
    topology = tmp_path / "t.yaml"
    topology.write_text(FIFTEEN)
    result = rackhub(command, str(topology), "--json")
    assert result.exit_code == 0, result.stderr
    workers = json.loads(result.stdout)["workers"]
    assert workers in (15, [f"w{n}" for n in range(15)])


@pytest.mark.parametrize("command", ["run", "validate", "chaos"])
def test_default_job_that_does_not_fit_is_named_with_a_way_on(
    runs: Path, tmp_path: Path, command: str
) -> None:
    """The advised batch runs."""
    topology, faults, job = (tmp_path / f"{name}.yaml" for name in ("t", "faults", "job"))
    topology.write_text(FIFTEEN)
    faults.write_text("name: f\nfaults: [{at: 1 s, kill: tor0}]\n")
    more = ["--faults", str(faults)] if command == "chaos" else []
    result = rackhub(command, str(topology), *more)
    assert result.exit_code == 1
    ((batch, better, advice),) = re.findall(
        r"batch: (512) cannot be split .* such as (\d+); (.*)", result.stderr
    )
    assert advice == "this is the default job: copy it, change that, and name the copy with --job"
    job.write_text(DEFAULT_JOB.read_text().replace(f"batch: {batch}", f"batch: {better}"))
    assert rackhub("validate", str(topology), "--job", str(job)).exit_code == 0


def test_default_job_that_is_submitted_is_named_with_a_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_jobs(_: object, jobs: list[Path], __: object) -> None:
        jobfile.load(jobs[0]).place(parse_topology(FIFTEEN))

    monkeypatch.setattr(record, "find", lambda _: None)
    monkeypatch.setattr(run_commands, "check_jobs", check_jobs)
    assert rackhub("submit").stderr.endswith("copy it, change that, and name the copy as JOB\n")


def test_validate_shows_what_each_job_gets_and_warns() -> None:
    job = str(ROOT / "jobs" / "core.yaml")
    result = rackhub("validate", str(ROOT / "topologies" / "server-rack.yaml"), "--job", job)
    assert result.exit_code == 0
    assert "tree     core: core0 over w0..w7" in result.stdout
    assert "servers  s0, s1" in result.stdout


@pytest.mark.parametrize("command", ["run", "up", "validate"])
@pytest.mark.parametrize(("given", "needed"), [("program", "p4info"), ("p4info", "program")])
def test_program_and_p4info_go_together(runs: Path, command: str, given: str, needed: str) -> None:
    result = rackhub(command, TWO_RACKS, f"--{given}", str(ROOT / "LICENSE"))
    assert result.exit_code == 1
    assert f"--{given} {ROOT / 'LICENSE'} needs --{needed} FILE with it" in result.output
    assert not runs.exists()


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_job_that_cannot_run_starts_nothing(runs: Path, tmp_path: Path, command: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: c\niterations: 2\nbatch: 512\ntree: core\n")
    result = rackhub(command, TWO_RACKS, "--job", str(job))
    assert result.exit_code == 1
    assert f"{job}:4: tree: packets from w0 to s0 pass no core" in result.output
    assert not runs.exists()


def test_validate_refuses_what_the_embedded_target_cannot_execute(tmp_path: Path) -> None:
    program, p4info = tmp_path / "x.json", ROOT / "p4src/build/aggregation.p4info.txtpb"
    program.write_text('{"pipelines": []}')
    options = ("--program", str(program), "--p4info", str(p4info))
    result = rackhub("validate", TWO_RACKS, "--target", "embedded", *options)
    assert result.exit_code == 1
    assert str(program) in result.output
    assert "Traceback" not in result.output


def test_a_cache_that_cannot_be_written_is_named(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rackhub").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = rackhub("run", TWO_RACKS, "--target", "embedded")
    assert result.exit_code == 1
    assert f"{tmp_path / 'rackhub'}: compiled programs cannot be kept there" in result.output
    assert "XDG_CACHE_HOME" in result.output
    assert not runs.exists()


def test_a_wrong_topology_is_refused_with_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\nracks:\n  - {workers: four}\n")
    result = rackhub("run", str(path))
    assert result.exit_code == 1
    assert f"{path}:3: racks[0].workers:" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("change", "reason"),
    [("defaults: {delay: 5 ms}", ":4: defaults.delay: "), ("tls: true", ":4: tls: ")],
)
def test_unsupported_in_emulation_is_rejected(tmp_path: Path, change: str, reason: str) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(f"name: t\nracks:\n  - {{workers: 1, servers: 1}}\n{change}\n")
    result = rackhub("up", str(path))
    assert result.exit_code == 1
    assert reason in result.output


def test_this_target_under_bmv2s_name_is_not_bmv2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(BMV2, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose("auto") == "embedded"
    with pytest.raises(TargetError, match="not installed"):
        choose("bmv2")


@pytest.mark.parametrize(("installed", "target"), [(True, "bmv2"), (False, "embedded")])
def test_validate_says_which_target_it_plans_for_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, target: str
) -> None:
    if installed:
        (tmp_path / "simple_switch_grpc").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    why = "simple_switch_grpc is on PATH (" if installed else "no simple_switch_grpc is on PATH"
    result = rackhub("validate", TWO_RACKS).stdout
    assert f"planned for target {target}: {why}" in result
    # Its ports' queues are shorter, whatever their bytes.
    assert f"window {32 if installed else 64} " in result
    asked = rackhub("validate", TWO_RACKS, "--target", "embedded").stdout
    assert "planned for target embedded: --target\n" in asked


FAULTS = str(ROOT / "jobs" / "faults" / "every-kind.yaml")
DIGITS = str(ROOT / "jobs" / "digits.yaml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["validate", DIGITS], "digits.yaml:6: this is a job, and a topology is wanted here"),
        (["graph", FAULTS], "this is a file of faults, and a topology is wanted here"),
        (["validate", TWO_RACKS, "--job", TWO_RACKS], "this is a topology, and a job is wanted"),
        (["chaos", TWO_RACKS, "--faults", DIGITS], "this is a job, and a file of faults is wanted"),
        (["validate", str(ROOT / "LICENSE")], "LICENSE:93: not valid YAML: mapping values are not"),
        (["validate", "empty.yaml"], "empty.yaml:1: is empty; needed: at least name, racks"),
        (["validate", TWO_RACKS, "--job", "empty.yaml"], "needed: at least name, iterations"),
        (["validate", "pipe.yaml"], "pipe.yaml:1: is no regular file, and it is read more than"),
    ],
)
def test_wrong_kind_of_file_is_reported_in_one_line(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.yaml").write_text("# nothing\n")
    os.mkfifo("pipe.yaml")
    result = rackhub(*arguments)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert says in line
    assert not runs.exists()


def test_number_of_reported_problems_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\niterations: 5\n" + "".join(f"k{n}: 1\n" for n in range(3000)))
    result = rackhub("validate", TWO_RACKS, "--job", str(path))
    assert result.exit_code == 1
    first, *others, last = result.output.splitlines()
    assert f"{path}:3: k0: unknown field; allowed here: name, " in first
    assert len(others) < 30
    assert max(map(len, others)) < len(str(path)) + 40  # what is allowed there is stated once
    assert last == f"... and {3000 - 1 - len(others):,} more"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_benchmark_without_duration_is_rejected(seconds: str) -> None:
    for which in ("worker", "server"):
        result = rackhub("bench", which, "--seconds", seconds)
        assert result.exit_code == 2
        assert "Invalid value for '--seconds'" in result.output


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        ("up", (), "nothing stays up in virtual time; `rackhub run --clock virtual --job FILE`"),
        ("run", ("--target", "bmv2"), "a switch in virtual time is the embedded target"),
    ],
)
def test_unsupported_in_virtual_time_is_rejected(
    runs: Path, command: str, options: tuple[str, ...], why: str
) -> None:
    result = rackhub(command, TWO_RACKS, "--clock", "virtual", *options)
    assert result.exit_code == 1
    assert why in " ".join(result.output.split())
    assert not runs.exists()


def test_commands_for_a_testbed_say_when_none_is_up(runs: Path) -> None:
    for command in (["status"], ["jobs"], ["down"], ["stop", "x"], ["exec", "w0", "true"]):
        result = rackhub(*command)
        assert result.exit_code == 1
        assert "no testbed is up; start one with `rackhub up TOPOLOGY`" in result.output
    assert "no testbed 'x' is up" in rackhub("status", "--on", "x").output
    assert not runs.exists()


def test_misspelled_command_gets_suggestion() -> None:
    result = rackhub("sweeep")
    assert result.exit_code == 2
    assert "No such command 'sweeep'. Did you mean 'sweep'?" in result.stderr
    assert "Did you mean" not in rackhub("xyz").stderr


@pytest.mark.parametrize(
    ("started", "slow"),
    [
        ("cli.main, cli.commands.control", {"controller", "grpc", "jinja2", "p4", "sklearn"}),
        ("baselines.process", {"grpc", "pydantic", "sklearn", "torch"}),  # one on every host
    ],
)
def test_what_starts_often_imports_nothing_slow(started: str, slow: set[str]) -> None:
    code = f"import sys, {started}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {name.split(".")[0] for name in result.stdout.split()} & slow


def test_graph_draws_every_node() -> None:
    drawing = rackhub("graph", TWO_RACKS).stdout
    assert drawing.lstrip().startswith("<")
    for name in ("w0", "w7", "s1", "tor1", "core0"):
        assert name in drawing


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "_RACKHUB_COMPLETE" in rackhub("completion", shell).stdout


def test_the_list_of_commands_is_not_cut_off_at_80_columns() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    commands = listed.split("Commands:\n", 1)[1].splitlines()
    assert len(commands) >= len(main.places) > 20
    assert not [line for line in commands if line.endswith("...")]


def test_run_ends_in_order_when_output_pipe_closes(runs: Path, tmp_path: Path) -> None:
    """As under `| head -1`."""
    (tmp_path / "t.yaml").write_text("name: t\nracks: [{workers: 2, servers: 1}]\ncores: 0\n")
    job = "name: endless\nworkload: layers\nlayers: [300 kB]\niterations: 100000\n"
    (tmp_path / "j.yaml").write_text(job)
    command = [sys.executable, "-m", "cli", "run", "t.yaml", "--job", "j.yaml"]
    with subprocess.Popen(
        [*command, "--clock", "virtual"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RACKHUB_RUNS": str(runs)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"t: 2 workers")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 128 + signal.SIGPIPE
    (run,) = record.all_runs()
    summary = json.loads(run.summary.read_text())
    assert summary["failure"]["message"] == "ended by SIGPIPE (its output pipe is closed)"
    assert [job["state"] for job in summary["jobs"]] == ["stopped"]
    assert not run.alive


def test_shell_that_is_not_installed_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "SHELL", tmp_path / "python")
    monkeypatch.chdir(tmp_path)
    result = rackhub("shell", "tor0")
    assert result.exit_code == 1
    said, _, installer = result.stderr.strip().rpartition(": run ")
    assert said == f"error: no p4runtime-shell at {tmp_path}/python"
    assert os.access(installer, os.X_OK)
