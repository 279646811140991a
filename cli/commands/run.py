# SPDX-License-Identifier: Apache-2.0
"""Commands that start testbeds and run jobs: run, chaos, up, submit."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, cast

import click

from cli.display.results import show_faults, show_plans, show_results
from cli.display.tables import show
from cli.files import FILE, JOB, OUTPUT
from cli.options import DEFAULT_JOB, console_for, launching, on_testbed, print_json, say, with_json
from cli.signals import ending_on_signals
from emulation.lifecycle.launcher import check_jobs
from emulation.lifecycle.running import bringing_up, run
from observability import control, record
from observability.control import ControlError, Request
from observability.messages.summary import RunPart, is_finished
from observability.progress_view import View
from observability.record import RunDirectory, shown
from specs import fault_schedule
from specs import faultfile as faults
from specs.jobfile import load as load_job
from testbed.errors import LaunchError
from topologies.model.spec import load as load_topology


@click.command("run")
@click.argument("topology", type=FILE)
@click.option(
    "--job",
    "jobs",
    type=JOB,
    multiple=True,
    help="Job file, or the name of a shipped one: vgg19; repeatable. [default: digits]",
)
@click.option(
    "--trace",
    type=OUTPUT,
    metavar="FILE",
    help="Write what happens, for ui.perfetto.dev; compressed if FILE ends in .gz; needs --clock"
    " virtual.",
)
@launching
@with_json
def run_command(
    topology: Path, jobs: tuple[Path, ...], trace: Path | None, as_json: bool, **options: Any
) -> None:
    """Bring a topology up, train on it, take it down.

    Exit status 0 means that every job was done and its weights match the reference bit by bit.
    """
    console = console_for(stderr=as_json)
    files = list(jobs) or [DEFAULT_JOB]
    with ending_on_signals(), View(console) as view:
        if options.pop("clock") == "virtual":
            from simulation.running import run_virtually  # slow to import

            directory, matches = run_virtually(topology, files, view, trace=trace, **options)
            gc.freeze()  # the process ends soon: what a network leaves is not looked through
        elif trace is not None:
            raise LaunchError(
                f"--trace {trace}: only simulated time can be traced; use --clock virtual as well"
                " (in emulation --pcap captures packets, and `rackhub status --live` watches)"
            )
        else:
            launched, matches = run(topology, files, view, **options)
            directory = launched.run
    summary = directory.read_summary()
    if as_json:
        print_json(summary)
    else:
        done = [job for job in summary["jobs"] if is_finished(job)]
        show_results(console, done, summary["links"])
        click.echo(f"\n{shown(directory.summary)}")
        if trace is not None:
            click.echo(f"{trace}: for ui.perfetto.dev or chrome://tracing")
    if not matches:
        raise LaunchError(
            "the weights differ from the reference's: some sum is not what it should be;"
            f" see {directory.path}"
        )


@click.command(short_help="Run a job while things break.")
@click.argument("topology", type=FILE)
@click.option("--faults", "file", type=FILE, required=True, help="File of faults.")
@click.option(
    "--job",
    type=JOB,
    default=DEFAULT_JOB,
    help="Job file, or the name of a shipped one: vgg19. [default: digits]",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of random faults.")
@launching
@with_json
def chaos(
    topology: Path, file: Path, job: Path, seed: int | None, as_json: bool, **options: Any
) -> None:
    """Run a job while things break: processes are killed or stopped, links impaired.

    In virtual time all of it happens to simulated nodes, the same again packet by packet.

    Exit status 0 means that the job was done nevertheless and its weights match the reference bit
    by bit, unless there is nothing to compare them with (the summary's `no_reference` says why).
    """
    console = console_for(stderr=as_json)
    with ending_on_signals(), View(console) as view:
        if options["clock"] == "virtual":
            from simulation.running import run_virtually  # slow to import

            del options["clock"]
            directory, matches = run_virtually(
                topology, [job], view, faults=file, faults_seed=seed, **options
            )
        else:
            network = load_topology(topology)
            chosen = fault_schedule.schedule(faults.load(file), network, seed, job=load_job(job))
            launched, matches = run(topology, [job], view, faults=chosen, **options)
            directory = launched.run
    summary = directory.read_summary()
    if as_json:
        print_json(summary)
    else:
        done = [job for job in summary["jobs"] if is_finished(job)]
        show_results(console, done, summary["links"])
        show(console)
        show_faults(console, cast(RunPart, summary)["faults"])
        for one in done:
            show(console)
            show_plans(console, one["plans"])
        click.echo(f"\n{shown(directory.summary)}")
    if not matches:
        raise LaunchError(f"the weights differ from the reference's; see {directory.path}")


@click.command()
@click.argument("topology", type=FILE)
@launching
@with_json
def up(topology: Path, as_json: bool, **options: Any) -> None:
    """Bring a topology up and leave it running."""
    with ending_on_signals(), bringing_up(topology, say, tied=False, **options) as launched:
        facts = launched.wait_until_up()
        launched.detach()
    if as_json:
        print_json(facts)
    else:
        on = f"--on {facts['name']}"
        click.echo(
            f"{facts['name']} is up ({facts['target']}): `rackhub submit JOB {on}` trains on it,"
            f" `rackhub down {on}` ends it\n{shown(launched.run.path)}"
        )


@click.command()
@click.argument("job", type=JOB, default=DEFAULT_JOB)
@on_testbed
@click.option("--restore", type=FILE, help="Checkpoint to go on from.")
@click.option("--detach", is_flag=True, help="Return as soon as the job runs.")
@with_json
def submit(job: Path, on: str | None, restore: Path | None, detach: bool, as_json: bool) -> None:
    """Run a job on a testbed that is up."""
    target = record.find(on)
    check_jobs(target, [job], restore)
    console = console_for(stderr=as_json)
    request = control.submission(job, restore=restore)
    if detach:
        _print_or_say(as_json, _until_running(target, request))
        return
    with View(console) as view:
        try:
            summary = control.submit(target, request, view.event)
        except KeyboardInterrupt:
            view.note("the job goes on; `rackhub stop JOB` ends it, `rackhub jobs` shows it")
            raise
    if as_json:
        print_json(summary)
    else:
        show_results(console, [summary], summary["links"])
        click.echo(f"\n{shown(target.summary)}")
    if summary["matches_reference"] is False:
        raise LaunchError(f"job {summary['job']}: the weights differ from the reference's")


def _until_running(target: RunDirectory, request: Request) -> dict[str, str]:
    for event in control.converse(target, request):
        if event["event"] == "running":
            return {"job": event["job"], "state": "running"}
    raise ControlError("the job was over before it ran")


def _print_or_say(as_json: bool, facts: dict[str, str]) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(" ".join(f"{name} {value}" for name, value in facts.items()))
