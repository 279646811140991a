# SPDX-License-Identifier: Apache-2.0
"""``rackhub launch``: runs a training program of the user's own, one process for each rank."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cli.display.ranks import RankLines
from cli.files import FILE
from cli.options import launching, live_names, say
from cli.signals import ending_on_signals
from controller.planning.tree_planner import PlanRefusedError, plan_trees
from emulation.lifecycle.execution import check_command, search_path
from emulation.lifecycle.ranks import Failure, Ranks
from emulation.lifecycle.running import bringing_up
from emulation.nodes.processes import describe
from hosts.session.testbed_environment import NONCE, RANK, WORLD_SIZE
from hosts.worker.scheduling.registry import SCHEDULERS
from observability import control, record
from observability.control import ControlError
from observability.messages.jobs import CreatedJob, JobRow, NewJob
from observability.record import RunDirectory, shown
from protocol.propagation import FIFO
from protocol.trees import TREE_NUMBERS, TreeKind
from specs import placements
from specs.jobspec import PropagationSpec
from testbed.errors import LaunchError
from topologies.model.addressing import Addressing
from topologies.model.replica_order import units_by_rank
from topologies.model.spec import load as load_topology
from topologies.model.topology import Topology
from topologies.model.wording import few


class RankError(LaunchError):
    """A rank failed; ``status`` is its exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class _Launch(click.Command):
    """Options end at the program: what follows it is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {
            name
            for one in self.params
            if isinstance(one, click.Option) and not one.is_flag
            for name in one.opts
        }
        at, before = 0, 1  # words before the program: the topology, if there is no --on
        while at < len(args) and args[at] != "--":
            if not args[at].startswith("-"):
                if not before:
                    return super().parse_args(ctx, [*args[:at], "--", *args[at:]])
                before -= 1
            elif args[at].partition("=")[0] == "--on":
                before -= 1
            at += 2 if args[at] in valued else 1
        return super().parse_args(ctx, args)


def _names(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [name.strip() for name in value.split(",")]


@click.command("launch", cls=_Launch, short_help="Run a program of your own as a job's workers.")
@click.option(
    "-n", "number", type=click.IntRange(1), metavar="N", help="Workers; default: one at each host."
)
@click.option(
    "--hosts",
    metavar="w0,w3,..",
    callback=_names,
    help="Their hosts, by rank; default: the first ones of the topology.",
)
@click.option(
    "--placement",
    type=click.Choice([kind.name for kind in placements.KINDS]),
    help="Sets servers and tree.",
)
@click.option(
    "--servers",
    metavar="s0,s1,..",
    callback=_names,
    help="Hosts of servers; default: the placement's, or all servers.",
)
@click.option(
    "--tree",
    type=click.Choice(list(TREE_NUMBERS)),
    help="Default: the placement's, or two-level.",
)
@click.option(
    "--order",
    type=click.Choice(list(SCHEDULERS)),
    default=FIFO,
    help="In which gradients are sent; priority: that of push(priority=), or of declaration.",
)
@click.option(
    "--on",
    metavar="NAME",
    shell_complete=live_names,
    help="Use this testbed, which is up, instead of bringing TOPOLOGY up.",
)
@launching
@click.argument(
    "words",
    metavar="[TOPOLOGY] PROGRAM [ARGUMENT]...",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=click.Path().shell_complete,
)
@click.pass_context
def launch_command(
    context: click.Context,
    /,
    words: tuple[str, ...],
    number: int | None,
    hosts: list[str] | None,
    placement: str | None,
    servers: list[str] | None,
    tree: str | None,
    order: str,
    on: str | None,
    **options: Any,
) -> None:
    """Bring TOPOLOGY up, run PROGRAM at N workers as one job, take the testbed down.

    A PROGRAM that ends in .py is run by the interpreter that runs rackhub, anything else as it is,
    in this folder. In it `Client()` and `client.connect_service()` need no arguments:
    RACKHUB_NONCE, RACKHUB_RANK and RACKHUB_WORLD_SIZE are set. Lines of its output begin with the
    rank. Standard input is empty.

    When a rank fails the others are ended (SIGTERM, after 5 s SIGKILL), and the exit status is its
    own, 128 + n for signal n.
    """
    if on is None:
        if len(words) < 2:
            raise click.UsageError(
                "TOPOLOGY and PROGRAM are needed: `rackhub launch TOPOLOGY -n 4 train.py`, or on a"
                " testbed that is up `rackhub launch --on NAME -n 4 train.py`",
                context,
            )
        path = FILE.convert(words[0], None, None)
        words, topology = words[1:], load_topology(path)
    else:
        _refuse_given(context, options)
        up = record.find(on)
        topology = load_topology(up.facts["topology"])
    job = _job(topology, _name(words[0]), number, hosts, placement, servers, tree, order)
    program = _program(words)
    if on is not None:
        with ending_on_signals():
            _run(up, job, program)
        return
    with ending_on_signals(), bringing_up(path, say, **options) as launched:
        launched.wait_until_up()
        launched.ask(lambda run: _run(run, job, program))


def _refuse_given(context: click.Context, options: dict[str, Any]) -> None:
    """Raises ``LaunchError`` for options of a testbed that is not to be brought up."""
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise LaunchError(f"{option}: the testbed of --on is up; leave {option} out")


def _name(program: str) -> str:
    """Returns the name of a job by its program."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(program).stem).lstrip("._-")[:40] or "job"


def _program(words: Sequence[str]) -> list[str]:
    """Returns the command line of a rank.

    Raises ``DocumentError`` for a script that cannot be read, ``CommandError`` for a command that
    cannot be run.
    """
    if words[0].endswith(".py"):
        FILE.convert(words[0], None, None)
        return [sys.executable, *words]
    check_command(words[0], Path.cwd(), search_path(os.environ))
    return list(words)


def _job(
    topology: Topology,
    name: str,
    number: int | None,
    hosts: list[str] | None,
    placement: str | None,
    servers: list[str] | None,
    tree: str | None,
    order: str,
) -> NewJob:
    """Returns the job; raises ``LaunchError`` if the topology has no such hosts or trees."""
    every = [node.name for node in topology.workers]
    workers = _known("--hosts", hosts, every, f"{topology.name} has no worker")
    if workers is None:
        workers = every[:number]
        if number is not None and number > len(every):
            text = f"-n {number}: {topology.name} has {len(every)} workers, one for each rank"
            raise LaunchError(f"{text}; allowed: 1 to {len(every)}")
    elif number not in (None, len(workers)):
        raise LaunchError(f"-n {number}: --hosts names {len(workers)}; leave -n out")
    kind = placements.kind_of(placement)
    allowed, default = placements.hosts(kind, topology, workers)
    unknown = f"{topology.name} has no server"
    if kind is not None:
        unknown = f"placement {kind.name} ({kind.meaning}) has no server"
        if tree is not None and tree not in kind.trees:
            text = f"--tree {tree} does not go with placement {kind.name} ({kind.meaning})"
            raise LaunchError(f"{text}; allowed: {', '.join(kind.trees)}")
        tree = kind.trees[tree or next(iter(kind.trees))]
        if kind.central and servers is not None and len(servers) > 1:
            text = f"--servers: placement {kind.name} ({kind.meaning}) has one"
            raise LaunchError(f"{text}; allowed: one of {few(allowed)}")
    chosen = _known("--servers", servers, allowed, unknown) or list(default)
    if not chosen:
        text = f"{topology.name} has no servers, and a job needs one"
        raise LaunchError(f"{text}; allowed: --placement cs, on the workers' hosts")
    tree = tree or "two-level"
    addressing = Addressing(topology)
    addresses = [unit.address for unit in units_by_rank(addressing, chosen)]
    try:
        way = PropagationSpec(order=order).plan
        plan_trees(topology, addressing, workers, addresses, TreeKind.of(tree), propagation=way)
    except PlanRefusedError as error:
        raise LaunchError(f"--tree {tree}: {error}") from error
    return {"name": name, "workers": workers, "servers": chosen, "tree": tree, "order": order}


def _known(
    option: str, given: list[str] | None, allowed: Sequence[str], unknown: str
) -> list[str] | None:
    """Returns the hosts of an option; raises ``LaunchError`` for unknown or repeated ones.

    unknown: begin of the error text for a host that is not allowed.
    """
    for at, name in enumerate(given or ()):
        if name not in allowed:
            raise LaunchError(f"{option}: {unknown} {name!r}; allowed: {few(allowed)}")
        if name in (given or ())[:at]:
            raise LaunchError(f"{option}: {name} is named twice")
    return given


def _run(run: RunDirectory, job: NewJob, program: list[str]) -> None:
    """Runs the job's workers to their end; raises ``RankError`` for the first that fails."""
    created, hosts = control.create(run, job), job["workers"]
    say(f"{created['job']}: {few(hosts)} of {run.name}; {shown(run.path)}")
    try:
        with Ranks(run, RankLines().show) as ranks:
            for rank, host in enumerate(hosts):
                place = {NONCE: created["nonce"], RANK: str(rank), WORLD_SIZE: str(len(hosts))}
                environment = {**os.environ, "PYTHONUNBUFFERED": "1", **place}
                ranks.start(rank, host, program, environment)
            failure = ranks.wait(lambda: _culprit(_row(run, created), hosts))
            if failure is not None:
                raise _error(failure, _row(run, created), hosts)
    finally:
        # Workers that were ended have not left it, and some programs do not take part.
        with contextlib.suppress(ControlError):
            if (row := _row(run, created)) and row["state"] in ("starting", "running"):
                control.stop(run, row["job"])


def _row(run: RunDirectory, created: CreatedJob) -> JobRow | None:
    """Returns what the testbed knows of the job; None if it does not answer."""
    with contextlib.suppress(ControlError):
        return next((r for r in control.jobs(run) if r["number"] == created["number"]), None)
    return None


def _culprit(row: JobRow | None, hosts: Sequence[str]) -> int | None:
    """Returns the rank that ended the job: by the reason of its end, which names a worker so
    (``controller.jobs.job.Job.name``)."""
    if row is None or row["state"] != "failed":
        return None
    names = [f"worker {rank} ({host}) " for rank, host in enumerate(hosts)]
    return next((rank for rank, name in enumerate(names) if row["reason"].startswith(name)), None)


def _error(failure: Failure, row: JobRow | None, hosts: Sequence[str]) -> RankError:
    """Returns the error of the rank that failed first, with why the job ended if no rank did it."""
    text = f"rank {failure.rank} ({hosts[failure.rank]}) {describe(failure.status)}"
    if row is not None and row["state"] in ("failed", "stopped") and _culprit(row, hosts) is None:
        text += f"; the job had ended: {row['reason']}"
    elif len(hosts) > 1:
        text += "; the others were ended"
    return RankError(text, failure.status)
