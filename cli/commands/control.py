# SPDX-License-Identifier: Apache-2.0
"""Commands that query, control or stop a running testbed.

These run often and briefly, so this module imports nothing slow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from cli.display.results import show_links
from cli.display.tables import ENDLESS, show, show_rows
from cli.options import (
    Command,
    console_for,
    node_names,
    on_testbed,
    print_json,
    run_names,
    say,
    with_json,
)
from emulation.lifecycle.ending import end, end_all
from emulation.lifecycle.execution import execute
from observability import control, record
from observability.messages.events import Event
from observability.messages.jobs import JobRow
from observability.messages.live import NodeRow
from observability.record import RunDirectory, shown
from specs.scaling import changes, scaled_words
from topologies.model.units import time_text
from topologies.model.wording import few

# Exit status of `why` if the job waits.
WAITS = 3


@click.command("why", short_help="Show what a JOB waits for, node by node.")
@click.argument("job")
@on_testbed
@click.option("--servers", is_flag=True, help="Show what was measured of its servers instead.")
@click.option(
    "--run",
    metavar="RUN",
    shell_complete=run_names,
    help="With --servers: of a run that is over, such as one in virtual time: latest.",
)
@with_json
def why_command(job: str, on: str | None, servers: bool, run: str | None, as_json: bool) -> None:
    """Show what a JOB waits for: its oldest chunks, node by node.

    Exit status 0 means that it does not wait, 3 that it does: a chunk has been in flight for more
    than ten times its timeout, or the plan is changing.

    --servers shows which server keeps its workers waiting, and whether that is the server or the
    path to it. The job has to measure them: `balance: {measure: true}`, or a balancer.
    """
    if servers:
        _show_servers(job, on, run, as_json)
        return
    if run is not None:
        raise click.UsageError("--run goes with --servers")
    found = control.why(record.find(on), job)
    if as_json:
        print_json(found)
    else:
        from cli.display.diagnostics import show_why

        show_why(console_for(), found)
    sys.exit(WAITS if found["waits"] else 0)


def _show_servers(job: str, on: str | None, run: str | None, as_json: bool) -> None:
    from observability import server_times

    if run is not None and on is not None:
        raise click.UsageError("--on is a testbed that is up, --run a run that is over: choose one")
    if run is None:
        found = control.servers(record.find(on), job)
    else:
        found = server_times.of_run(record.known(run), job)
    if as_json:
        print_json(found)
        return
    from cli.display.diagnostics import show_servers

    show_servers(console_for(), found)


@click.command()
@on_testbed
@click.option("--live", is_flag=True, help="Follow it: slots, outcomes, servers, jobs.")
@with_json
def status(on: str | None, live: bool, as_json: bool) -> None:
    """Show a testbed: nodes, jobs, and what its links have carried.

    With --live, follow what switches, servers and jobs do until Ctrl-C; where there is no terminal,
    or with --json, show it once.
    """
    target = record.find(on)
    if live:
        _show_live(target, as_json)
        return
    facts = control.status(target)
    pids = target.pids()
    for node in facts["nodes"]:
        node["pids"] = [pids[pid] for pid in node["pids"] if pid in pids]
    if as_json:
        print_json(facts)
        return
    console = console_for()
    console.print(
        f"{facts['name']} is up for {time_text(facts['seconds_up'], 2)}:"
        f" topology {facts['topology']}, target {facts['target']}\n"
        f"its logs and results: {shown(Path(facts['run']))}\n",
        soft_wrap=True,
    )
    rows = [{**dict(node), "process": _process(node)} for node in facts["nodes"]]
    nodes = {"name": "node", "kind": "kind", "address": "address", "process": "process"}
    show_rows(console, rows, nodes)
    show(console)
    show_links(console, facts["links"], "since it came up")
    show(console)
    if facts["jobs"]:
        show_rows(console, facts["jobs"], {"job": "job", "state": "state"})
        return
    on = "" if len(record.testbeds()) == 1 else f" --on {facts['name']}"
    show(console, f"No job yet: `rackhub submit{on} JOB` runs one, `rackhub down{on}` ends this.")


def _process(node: NodeRow) -> str:
    if node["pids"]:
        return f"pid {', '.join(map(str, node['pids']))}"
    return "none: in no job" if node["kind"] == "worker" else "none"


def _show_live(target: RunDirectory, as_json: bool) -> None:
    from cli.display.live import picture, watch

    console = console_for()
    if as_json:
        print_json(control.snapshot(target))
    elif console.is_terminal:
        watch(console, target)
    else:
        show(console, picture(control.snapshot(target), None, ENDLESS))


@click.command()
@on_testbed
@with_json
def jobs(on: str | None, as_json: bool) -> None:
    """List the jobs of a testbed."""
    rows = control.jobs(record.find(on))
    if as_json:
        print_json(rows)
        return
    columns = {
        "job": "job", "number": "number", "state": "state", "workers": "workers", "tree": "tree",
        "iteration": "iteration", "loss": "loss", "accuracy": "accuracy", "reason": "why",
    }  # fmt: skip
    show_rows(console_for(), [_job_row(row) for row in rows], columns)


def _job_row(row: JobRow) -> dict[str, object]:
    """Formats a job's fields for the table: 7 of 8 workers, iteration 12/100."""
    workers = row["workers"] if row["present"] is None else f"{row['present']} of {row['workers']}"
    known = row["iteration"] is not None  # only jobs submitted to the testbed report it
    iteration = f"{row['iteration']}/{row['iterations']}" if known else ""
    return {**dict(row), "workers": workers, "iteration": iteration}


def _words(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[str]:
    words = [word for one in given for word in one.split(",")]
    try:
        changes(words)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return words


def _signed(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes the last of several signed hosts."""
    before, comma, last = incomplete.rpartition(",")
    names = node_names(("server", "worker"))(ctx, parameter, last[1:])
    signs = [last[0]] if last[:1] in ("+", "-") else [] if last else ["+", "-"]
    return [
        CompletionItem(f"{before}{comma}{sign}{name.value}") for sign in signs for name in names
    ]


def _changing(option: str, what: str) -> Callable[[Command], Command]:
    """Adds an option that takes signed hosts."""
    return click.option(
        option,
        multiple=True,
        metavar="+NODE|-NODE",
        callback=_words,
        shell_complete=_signed,
        help=f"{what} Several: +NODE,-NODE, or repeat it.",
    )


@click.command()
@click.argument("job")
@_changing("--servers", "A server of the job that gets slices of keys, or loses all.")
@_changing("--workers", "A host where a worker joins, or leaves.")
@on_testbed
@with_json
def scale(job: str, servers: list[str], workers: list[str], on: str | None, as_json: bool) -> None:
    """Let servers and workers of a JOB come and go while it trains.

    Servers that come get slices of its keys, and those that go lose all. They have to be in the
    job: its job file names spare ones (`placement: {spares: [s4]}`). Nothing halts, and weights do
    not change. Workers join and leave between two rounds; means are those of the workers present.
    One that does not leave within half of the job's `patience` is killed.
    """

    def report(event: Event) -> None:
        if event["event"] == "waiting":
            say(f"not yet after {time_text(event['seconds'], 2)}: {event['why']}")

    if not servers and not workers:
        raise click.UsageError("name --servers, --workers, or both")
    done = control.scale(record.find(on), job, servers, workers, report)
    if as_json:
        print_json(done)
        return
    if done["workers"] is not None:
        click.echo(f"workers of {job}: {few(done['workers'])}")
    if done["killed"]:
        say(f"did not leave in time, killed: {few(done['killed'])}")
    if (moved := done["servers"]) is not None:
        words = scaled_words(moved["slices"], moved["bytes"], moved["from_round"])
        spare = few(moved["spares"]) or "none"
        click.echo(f"{job} {words}\nservers: {few(moved['servers'])}; spare: {spare}")


@click.command()
@click.argument("job")
@on_testbed
def stop(job: str, on: str | None) -> None:
    """Stop a job; the testbed stays up."""
    click.echo(f"stopped {control.stop(record.find(on), job)}")


_ENDS = {
    "down": "is down",
    "killed": "did not answer and was killed",
    "found killed": "had been killed; what it had left is removed",
}


@click.command()
@on_testbed
@click.option("--all", "every", is_flag=True, help="All that are up, even if they do not answer.")
@with_json
def down(on: str | None, every: bool, as_json: bool) -> None:
    """Take a testbed down.

    With --all: every one of the runs folder; what killed ones have left is removed, too, and that
    none is up is no error.
    """
    if every and on is not None:
        raise click.UsageError("--all ends every testbed; leave --on out")
    ended = end_all() if every else [end(record.find(on))]
    if as_json:
        print_json(ended)
        return
    for testbed in ended:
        for job in testbed["jobs"]:
            text = f"stopped {job['job']}"
            if job["iteration"] is not None:
                at = f"iteration {job['iteration']:,} of {job['iterations']:,}"
                text += f", which was {job['state']}: {at}"
            click.echo(text)
        where = shown(Path(testbed["run"]))
        click.echo(f"{testbed['name']} {_ENDS[testbed['end']]}; its record is {where}")
    if not ended:
        click.echo("no testbed is up")


@click.command("exec", context_settings={"allow_interspersed_args": False})
@on_testbed
@click.argument("node", shell_complete=node_names(("worker", "server", "switch")))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(on: str | None, node: str, command: tuple[str, ...]) -> None:
    """Run a COMMAND at a NODE; its exit status is the command's.

    Each worker and server has a network namespace of its own; the switches share one, which is the
    testbed's. What follows NODE belongs to the command: `rackhub exec --on NAME w0 ip -brief addr`.
    Programs that train find the job service and the host's address in their environment, see
    docs/howto/use-the-api.md.
    """
    sys.exit(execute(record.find(on), node, list(command)))
