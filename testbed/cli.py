# SPDX-License-Identifier: Apache-2.0
"""The command line: ``rackhub --help``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class
from rich.console import Console

from testbed import faults, preflight, record
from testbed.control import ControlError, SupervisorGoneError, ask, converse
from testbed.dataplane import DataPlaneError
from testbed.execution import execute
from testbed.explained import show_trace, show_why
from testbed.jobfile import JobFileError
from testbed.launcher import LaunchError, check_jobs, program_files, translate
from testbed.namespaces import SandboxError
from testbed.pcap import CaptureError
from testbed.preflight import read_program
from testbed.processes import ROOT, python
from testbed.record import RunDirectory, RunError, shown
from testbed.run import bringing_up, run
from testbed.targets import DEVICE_ID, TargetError, choose
from testbed.trace import TraceError
from testbed.trace import read as read_trace
from testbed.view import View, link_table, show, show_faults, show_plans, show_results, show_rows
from topologies.documents import DocumentError
from topologies.drawing import draw
from topologies.spec import load as load_topology
from topologies.spec import read as read_topology

DEFAULT_JOB = ROOT / "jobs" / "digits.yaml"
INTERRUPTED = 130
WAITS = 3

_ERRORS = (
    CaptureError,
    ControlError,
    DataPlaneError,
    DocumentError,
    JobFileError,
    LaunchError,
    RunError,
    SandboxError,
    TargetError,
    TraceError,
)
_File = click.Path(exists=True, dir_okay=False, path_type=Path)
Command = TypeVar("Command", bound=Callable[..., Any])


class _Group(click.Group):
    """Turns errors that the project foresees into messages and an exit status, mostly 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except _ERRORS as error:
            for text in getattr(error, "problems", None) or [error]:
                click.secho("error: ", fg="red", bold=True, nl=False, err=True)
                click.echo(str(text), err=True)
            ctx.exit(getattr(error, "status", 1))
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def _live_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = [one.name for one in record.live_runs()]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _node_names(kinds: tuple[str, ...]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with contextlib.suppress(*_ERRORS):
            topology = load_topology(record.find(ctx.params.get("on")).facts["topology"])
            names = [node.name for node in topology.nodes if node.kind in kinds]
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []

    return complete


def _on(command: Command) -> Command:
    option = click.option(
        "--on",
        metavar="NAME",
        shell_complete=_live_names,
        help="Which testbed; not needed when only one is up.",
    )
    return option(command)


def _json(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _building(command: Command) -> Command:
    """Options that say which data plane runs on what."""
    for option in (
        click.option("--p4info", type=_File, help="Its p4info, as text."),
        click.option("--program", type=_File, help="Another build of the data plane (BMv2 JSON)."),
        click.option(
            "--target",
            type=click.Choice(["auto", "embedded", "bmv2"]),
            default="auto",
            show_default=True,
            help="What switches run on; auto: BMv2 if it is installed.",
        ),
    ):
        command = option(command)
    return command


def _launching(command: Command) -> Command:
    """Options of the commands that start a testbed."""
    for option in (
        click.option("--name", help="Name of the testbed; default: the topology's."),
        click.option("--pcap", is_flag=True, help="Capture what every switch port carries."),
        click.option(
            "--clock",
            type=click.Choice(["emulated", "virtual"]),
            default="emulated",
            show_default=True,
            help="Real time on Mininet; virtual (a simulated network): not in this version.",
        ),
        _building,
    ):
        command = option(command)
    return command


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="rackhub")
def main() -> None:
    """In-network gradient aggregation on emulated racks of P4 switches."""


@main.command("run")
@click.argument("topology", type=_File)
@click.option(
    "--job", "jobs", type=_File, multiple=True, help="Job file, repeatable. [default: digits]"
)
@_launching
@_json
def run_command(topology: Path, jobs: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Bring a topology up, train on it, take it down.

    Exit status 0 means that every job was done and its weights match the reference bit by bit.
    """
    console = _console(stderr=as_json)
    with View(console) as view:
        launched, matches = run(topology, list(jobs) or [DEFAULT_JOB], view, **options)
    summary = json.loads(launched.run.summary.read_text())
    if as_json:
        _print_json(summary)
    else:
        done = [job for job in summary["jobs"] if job["state"] == "done"]
        show_results(console, done, summary["links"])
        click.echo(f"\n{shown(launched.run.summary)}")
    if not matches:
        raise LaunchError(
            "the weights differ from the reference's: some sum is not what it should be;"
            f" see {launched.run.path}"
        )


@main.command()
@click.argument("topology", type=_File)
@click.option("--faults", "file", type=_File, required=True, help="File of faults.")
@click.option("--job", type=_File, default=DEFAULT_JOB, help="Job file. [default: digits]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of random faults.")
@_launching
@_json
def chaos(
    topology: Path, file: Path, job: Path, seed: int | None, as_json: bool, **options: Any
) -> None:
    """Run a job while things break: processes are killed or stopped, links impaired.

    Exit status 0 means that the job was done nevertheless and its weights match the reference bit
    by bit, if it has kept its workers.
    """
    chosen = faults.schedule(faults.load(file), load_topology(topology), seed)
    console = _console(stderr=as_json)
    with View(console) as view:
        launched, matches = run(topology, [job], view, faults=chosen, **options)
    summary = json.loads(launched.run.summary.read_text())
    if as_json:
        _print_json(summary)
    else:
        show_results(console, summary["jobs"], summary["links"])
        show(console)
        show_faults(console, summary["faults"])
        for done in summary["jobs"]:
            show(console)
            show_plans(console, done["plans"])
        click.echo(f"\n{shown(launched.run.summary)}")
    if not matches:
        raise LaunchError(f"the weights differ from the reference's; see {launched.run.path}")


@main.command()
@click.argument("topology", type=_File)
@_launching
@_json
def up(topology: Path, as_json: bool, **options: Any) -> None:
    """Bring a topology up and leave it running."""
    with bringing_up(topology, _say, tied=False, **options) as launched:
        facts = launched.wait_until_up()
        launched.detach()
    if as_json:
        _print_json(facts)
    else:
        on = f"--on {facts['name']}"
        click.echo(
            f"{facts['name']} is up ({facts['target']}): `rackhub submit JOB {on}` trains on it,"
            f" `rackhub down {on}` ends it\n{shown(launched.run.path)}"
        )


@main.command()
@click.argument("job", type=_File, default=DEFAULT_JOB)
@_on
@click.option("--detach", is_flag=True, help="Return as soon as the job runs.")
@_json
def submit(job: Path, on: str | None, detach: bool, as_json: bool) -> None:
    """Run a job on a testbed that is up."""
    target = record.find(on)
    check_jobs(target, [job])
    console = _console(stderr=as_json)
    path = str(job.resolve())
    if detach:
        _print_or_say(as_json, _until_running(target, path))
        return
    with View(console) as view:
        try:
            summary = ask(target, "submit", view.event, job=path)
        except KeyboardInterrupt:
            view.note("the job goes on; `rackhub stop JOB` ends it, `rackhub jobs` shows it")
            raise
    if as_json:
        _print_json(summary)
    else:
        show_results(console, [summary], summary["links"])
        click.echo(f"\n{shown(target.summary)}")
    if summary["matches_reference"] is False:
        raise LaunchError(f"job {summary['job']}: the weights differ from the reference's")


def _until_running(target: RunDirectory, path: str) -> dict[str, Any]:
    for message in converse(target, "submit", job=path):
        if message.get("event") == "running":
            return {"job": message["job"], "state": "running"}
    raise ControlError("the job was over before it ran")


def _print_or_say(as_json: bool, facts: dict[str, Any]) -> None:
    if as_json:
        _print_json(facts)
    else:
        click.echo(" ".join(f"{name} {value}" for name, value in facts.items()))


@main.command()
@_on
@_json
def jobs(on: str | None, as_json: bool) -> None:
    """List the jobs of a testbed."""
    rows = ask(record.find(on), "jobs")
    if as_json:
        _print_json(rows)
        return
    columns = {
        "job": "job", "number": "number", "state": "state", "workers": "workers", "tree": "tree",
        "iteration": "iteration", "iterations": "of", "loss": "loss", "accuracy": "accuracy",
        "reason": "",
    }  # fmt: skip
    show_rows(_console(), rows, columns)


@main.command()
@click.argument("job")
@_on
def stop(job: str, on: str | None) -> None:
    """Stop a job; the testbed stays up."""
    click.echo(f"stopped {ask(record.find(on), 'stop', job=job)}")


@main.command("why")
@click.argument("job")
@_on
@_json
def why_command(job: str, on: str | None, as_json: bool) -> None:
    """Show what a JOB waits for: its oldest chunks, node by node.

    Exit status 0 means that it does not wait, 3 that it does: a chunk is in flight for more than
    ten times its timeout.
    """
    told = ask(record.find(on), "why", job=job)
    if as_json:
        _print_json(told)
    else:
        show_why(_console(), told)
    sys.exit(WAITS if told["waits"] else 0)


@main.command("trace")
@click.argument("job")
@click.option("--chunk", type=click.IntRange(min=0), required=True, help="Which, from 0.")
@click.option("--iteration", type=click.IntRange(min=1), help="Which; default: the last one.")
@click.option(
    "--run",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Which run; default: the newest.",
)
@_json
def trace_command(
    job: str, chunk: int, iteration: int | None, directory: Path | None, as_json: bool
) -> None:
    """Show what happened to one chunk of a JOB, hop by hop.

    The run, over or not, must have been started with --pcap. Times are those of the capturing
    switch port; what a port has sent, it captured when it left the switch.
    """
    run_directory = RunDirectory(directory.resolve()) if directory else record.newest()
    told = read_trace(run_directory, job, chunk, iteration)
    if as_json:
        _print_json(told)
    else:
        show_trace(_console(), job, chunk, told)


@main.command()
@_on
def down(on: str | None) -> None:
    """Take a testbed down."""
    target = record.find(on)
    try:
        for job in ask(target, "down"):
            at = f"iteration {job['iteration']:,} of {job['iterations']:,}"
            click.echo(f"stopped {job['job']}, which was {job['state']}: {at}")
    except SupervisorGoneError as error:
        if error.stuck:
            raise
    target.wait_until_gone()
    click.echo(f"{target.name} is down; its record is {shown(target.path)}")


@main.command()
@_on
@_json
def status(on: str | None, as_json: bool) -> None:
    """Show a testbed: nodes, jobs, and what its links have carried."""
    target = record.find(on)
    facts = ask(target, "status")
    pids = target.pids()
    for node in facts["nodes"]:
        node["pids"] = [pids[pid] for pid in node["pids"] if pid in pids]
    if as_json:
        _print_json(facts)
        return
    console = _console()
    console.print(
        f"{facts['name']}: {facts['topology']} on {facts['target']}, {facts['clock']},"
        f" up for {facts['seconds_up']:.0f} s\n{facts['run']}\n",
        soft_wrap=True,
    )
    nodes = {"name": "node", "kind": "kind", "address": "address", "pids": "pid"}
    show_rows(console, facts["nodes"], nodes)
    show(console)
    show(console, link_table(facts["links"]))
    if facts["jobs"]:
        show(console)
        show_rows(console, facts["jobs"], {"job": "job", "state": "state"})


@main.command("exec", context_settings={"allow_interspersed_args": False})
@_on
@click.argument("node", shell_complete=_node_names(("worker", "server", "switch")))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(on: str | None, node: str, command: tuple[str, ...]) -> None:
    """Run a COMMAND at a NODE; its exit status is the command's.

    Each worker and server has a network namespace of its own; the switches share one, which is the
    testbed's. What follows NODE belongs to the command: `rackhub exec --on NAME w0 ip -brief addr`.
    """
    sys.exit(execute(record.find(on), node, list(command)))


@main.command()
@_on
@click.argument("switch", shell_complete=_node_names(("switch",)))
def shell(on: str | None, switch: str) -> None:
    """Open a p4runtime-shell on a SWITCH: read its tables, counters and groups.

    The controller stays in charge: what it installed can be read here, not changed. Tables are
    known by their full names, which the Tab key completes, for example:

    \b
        tables                                                  # list them
        table_entry["IngressPipeline.arrival.impairments"].read(print)
        counter_entry["IngressPipeline.outcomes"].read(print)
    """
    target = record.find(on)
    names = [node.name for node in load_topology(target.facts["topology"]).switches]
    if switch not in names:
        raise ControlError(f"no switch {switch!r} in {target.name}: {', '.join(names)}")
    program = [
        *python("p4runtime_sh", "--grpc-addr", f"unix:sockets/{switch}"),
        *("--device-id", str(DEVICE_ID), "--election-id", "0,1"),
    ]
    os.chdir(target.path)
    if os.access(target.sockets / switch, os.W_OK):
        os.execv(program[0], program)
    sys.exit(execute(target, switch, program))


@main.command()
@click.argument("topology", type=_File)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="SVG file.")
def graph(topology: Path, output: Path | None) -> None:
    """Draw a topology as SVG."""
    drawing = draw(load_topology(topology))
    if output is None:
        click.echo(drawing)
    else:
        try:
            output.write_text(drawing)
        except OSError as error:
            raise RunError(f"{output} cannot be written: {error.strerror}") from error
        click.echo(str(output))


@main.command()
@click.argument("topology", type=_File)
@click.option(
    "--job", "jobs", type=_File, multiple=True, help="Job file, repeatable. [default: digits]"
)
@_building
@_json
def validate(
    topology: Path,
    jobs: tuple[Path, ...],
    target: str,
    program: Path | None,
    p4info: Path | None,
    as_json: bool,
) -> None:
    """Check what `run` with the same options would, without starting anything."""
    read = read_topology(topology)
    chosen = choose(target)
    given, info = program_files(program, p4info)
    plane = read_program(given, info)
    if program is not None and chosen == "embedded":
        translate(program)
    checked = preflight.check(read, list(jobs) or [DEFAULT_JOB], plane, chosen)
    if as_json:
        _print_json(preflight.facts(checked, chosen))
        return
    for warning in checked.warnings:
        click.echo(f"warning: {warning}", err=True)
    for line in preflight.describe(checked, plane):
        click.echo(line)


@main.command()
@click.argument("shell_name", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell_name: str) -> None:
    """Print the completion script of a SHELL: eval "$(rackhub completion bash)"."""
    kind = get_completion_class(shell_name)
    assert kind is not None
    click.echo(kind(main, {}, "rackhub", "_RACKHUB_COMPLETE").source())


if __name__ == "__main__":
    main()
