# SPDX-License-Identifier: Apache-2.0
"""``rackhub compare``: in-network all-reduce against baselines on the same links."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.text import Text

from baselines import emulated, gloo, plot, virtual
from baselines.comparison import (
    ComparedRow,
    ComparisonError,
    ComparisonFacts,
    Contender,
    Outcome,
    Work,
)
from baselines.contenders import check_lossless, contenders, default_names
from baselines.members import GLOO, IN_NETWORK
from cli.display.tables import show, show_rows
from cli.files import FILE, JOB, PICTURE
from cli.options import (
    DEFAULT_JOB,
    building,
    console_for,
    print_json,
    quantity_of,
    say,
    seeded,
    with_json,
)
from cli.signals import ending_on_signals
from controller.p4rt.dataplane import DataPlane
from controller.planning.admission import Resources
from controller.planning.tree_planner import PlanRefusedError
from emulation.lifecycle.running import bringing_up
from observability import pictures
from observability.messages.events import Within
from observability.messages.jobs import Clock
from observability.progress_view import Meanwhile, within
from observability.wording import count
from planner.collectives import COLLECTIVES
from specs import jobfile
from specs.p4program import make_ready
from testbed import preflight
from testbed.errors import LaunchError
from testbed.preflight import JobPlan
from testbed.program import compile_once, program_files, program_for, read_program
from testbed.targets import Target, choose
from topologies.model.addressing import Addressing
from topologies.model.spec import TopologyFile
from topologies.model.spec import read as read_topology
from topologies.model.units import SIZES, size_text, time_text
from workloads.workloads import shapes

_BYTES_PER_VALUE = 4
_LEAST_REPLAY_SECONDS = 10.0  # in virtual time; more if emulation takes longer
_DIGITS = 4  # enough to show differences from the closed form


def _contenders() -> tuple[str, ...]:
    """Returns the names that ``--only`` takes."""
    return (IN_NETWORK, *COLLECTIVES, GLOO)


def _names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",")) if value else ()
    for name in names:
        if name not in _contenders():
            raise click.BadParameter(f"{name!r} is none of {', '.join(_contenders())}")
    return tuple(dict.fromkeys(names))


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(before + comma + name) for name in _contenders() if name.startswith(last)
    ]


@click.command(short_help="Compare sums in the network with ring, halving-doubling and servers.")
@click.argument("topology", type=FILE)
@click.option("--job", type=JOB, help="Whose gradients, workers and tree. [default: digits]")
@click.option(
    "--size",
    callback=quantity_of(SIZES, '"97 MB"'),
    help='Gradients of that size, as one tensor of all workers: "97 MB".',
)
@click.option(
    "--only",
    callback=_names,
    shell_complete=_complete,
    metavar="NAME,..",
    help=f"Some of {', '.join(_contenders())}. [default: all but gloo]",
)
@click.option(
    "--clock",
    type=click.Choice(["virtual", "emulated"]),
    default="virtual",
    show_default=True,
    help="A simulated network, without root, or real TCP on Mininet.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1, 10_000),
    default=3,
    show_default=True,
    help="Sums that are measured, after a first one that is not.",
)
@click.option("--framing", is_flag=True, help="Virtual: preamble, FCS and gap take time, too.")
@click.option(
    "--plot", "drawing", type=PICTURE, help="Draw it into this file (.svg, .png or .pdf)."
)
@building
@seeded
@with_json
def compare(
    topology: Path,
    job: Path | None,
    size: float | None,
    only: tuple[str, ...],
    clock: Clock,
    iterations: int,
    framing: bool,
    drawing: Path | None,
    target: str,
    program: Path | None,
    p4info: Path | None,
    topology_seed: int | None,
    as_json: bool,
) -> None:
    """Sum the same tensors over the same workers and links in several ways, one after another.

    in-network: as the job's file says, with the real clients, switches and servers. ring and
    halving-doubling: among the workers. ps and sharded-ps: one server process, or all that the job
    has, without help of the network. gloo: PyTorch's, with --clock emulated. Baselines use TCP, in
    virtual time a model of it (docs/explanation/baselines.md). Beside what was measured stand the
    bytes in closed form, and a lower bound of the time, by the rates of links alone. Exit
    status 0 means that all sums were right.
    """
    if size is not None and job is not None:
        raise click.UsageError("--job has a size; leave --size out")
    if framing and clock == "emulated":
        raise click.UsageError("--framing is for --clock virtual; leave it out")
    if GLOO in only:
        if clock == "virtual":
            raise ComparisonError("gloo needs real sockets: use --clock emulated")
        if text := gloo.missing():
            raise ComparisonError(text)
    if clock == "virtual" and target == "bmv2":
        raise LaunchError("--target bmv2: virtual time has the embedded target only; leave it out")
    chosen: Target = "embedded" if clock == "virtual" else choose(target)
    loaded = read_topology(topology).seeded(topology_seed)
    framing = framing or (clock == "virtual" and loaded.topology.costs.framing)
    if program is None and p4info is None:
        make_ready(say=say)
    if clock == "virtual":
        path = job or DEFAULT_JOB
        program, p4info, plane = program_for([path] if size is None else [], program, p4info)
    else:
        program, p4info = program_files(program, p4info)
        plane = read_program(program, p4info)
    plan, work = _work(loaded, job, size, plane, chosen, clock == "virtual")
    work = replace(work, iterations=iterations)
    addressing = Addressing(loaded.topology)
    names = only or default_names(addressing, plan)
    listed = contenders(names, addressing, plan, plane, work)
    if clock == "virtual":
        if any(one.rounds for one in listed):
            check_lossless(loaded.topology)
        for one in listed:
            if one.rounds:
                one.windows()
        compile_once(program)
        rows = _play_all(
            listed,
            lambda one, tell: virtual.play(
                one, addressing, plan, plane, work, framing=framing, tell=tell
            ),
            addressing,
            framing=framing,
        )
    else:
        options = {"target": target, "program": program, "p4info": p4info}
        options["topology_seed"] = topology_seed
        with ending_on_signals(), bringing_up(topology, say, **options) as launched:
            launched.wait_until_up()

            def play(one: Contender, tell: Callable[[Within], None]) -> Outcome:
                began = time.monotonic()
                outcome = emulated.play(launched, one, plan, work, tell)
                left = max(_LEAST_REPLAY_SECONDS, time.monotonic() - began)
                explained = virtual.explained(one, addressing, plan, plane, work, left)
                return replace(outcome, virtual=explained)

            rows = _play_all(listed, play, addressing, framing=False)
    facts: ComparisonFacts = {
        "topology": loaded.topology.name,
        "topology_seed": loaded.topology.seed,
        "job": plan.file.spec.name,
        "clock": clock,
        "target": chosen,
        "workers": len(plan.placement.workers),
        "tensors": len(work.sizes),
        "bytes": _BYTES_PER_VALUE * work.size,
        "iterations": iterations,
        "framing": framing,
    }
    if drawing is not None:
        try:
            about = "time and bytes of sums in the network and of baselines"
            pictures.write(drawing, plot.draw(facts, rows), about)
        except OSError as error:
            raise ComparisonError(f"{drawing}: cannot be written: {error.strerror}") from error
    if as_json:
        print_json({**facts, "rows": rows})
    else:
        show_comparison(console_for(), facts, rows)
    wrong = [row["name"] for row in rows if row["right"] is False]
    if wrong:
        raise ComparisonError(f"wrong sums: {', '.join(wrong)}")


def _play_all(
    listed: list[Contender],
    play: Callable[[Contender, Callable[[Within], None]], Outcome],
    addressing: Addressing,
    *,
    framing: bool,
) -> list[ComparedRow]:
    rows = []
    for number, one in enumerate(listed, start=1):
        say(f"{number}/{len(listed)} {one.name} ({one.meaning})")
        began = time.monotonic()
        with Meanwhile(console_for(stderr=True)) as meanwhile:
            outcome = play(one, lambda progress: meanwhile.tell(within(progress, "bytes")))
        rows.append(outcome.row(addressing, framing=framing))
        took = time_text(time.monotonic() - began, 2)
        say(f"    {time_text(rows[-1]['seconds'], _DIGITS)} an iteration; it took {took} here")
    return rows


def _work(
    loaded: TopologyFile,
    job: Path | None,
    size: float | None,
    plane: DataPlane,
    target: Target,
    virtual_: bool,
) -> tuple[JobPlan, Work]:
    """Returns the admitted job's plan, and its tensors. Raises ``ComparisonError``."""
    if size is None:
        file = jobfile.load(job or DEFAULT_JOB)
        if job is None:  # whose batch is no concern here
            file = file.fitted(loaded.topology)
        checked = preflight.check(loaded, [file], plane, target, virtual=virtual_)
        (plan,) = checked.jobs
        for warning in checked.warnings:  # the launcher prints those of the topology
            if virtual_ or warning.file == plan.file.source:
                say(f"warning: {warning}")
        return plan, Work(tuple(shapes(plan.file.spec).values()), 1)
    preflight.check(loaded, [], plane, target, virtual=virtual_)
    world = len(loaded.topology.workers)
    file = jobfile.parse(f"{{name: size, iterations: 1, batch: {max(1, world)}}}", "--size")
    addressing = Addressing(loaded.topology)
    resources = Resources((node.name for node in loaded.topology.switches), plane.slots)
    try:
        plan = preflight.admit(
            file, file.place(loaded.topology), 0, addressing, resources, plane, None
        )
    except PlanRefusedError as refusal:
        raise ComparisonError(f"{loaded.topology.source}: {refusal}") from refusal
    return plan, Work((max(1, round(size / _BYTES_PER_VALUE)),), 1)


def show_comparison(console: Console, facts: ComparisonFacts, rows: list[ComparedRow]) -> None:
    """Prints the comparison as a table.

    Args:
        facts, rows: As ``--json`` prints them.
    """
    clock = "virtual time" if facts["clock"] == "virtual" else f"emulated on {facts['target']}"
    many = facts["iterations"]
    measured = f"medians of {many} iterations" if many > 1 else "one iteration"
    framed = " and framing" if facts["framing"] else ""
    show(
        console,
        f"{facts['topology']}: {count(facts['workers'], 'worker')} sum {size_text(facts['bytes'])}"
        f" in {count(facts['tensors'], 'tensor')}, {clock}; {measured}\n"
        f"lower bound: what links need for data{framed} where nobody waits for anything else;"
        " bytes: of an iteration, with all headers, in the busier direction of the busiest link of"
        " a host and between switches\n",
    )
    columns = {
        "name": "", "meaning": "", "time": "time",
        **({"virtual": "in virtual time"} if facts["clock"] == "emulated" else {}),
        "least": "lower bound", "ratio": "ratio",
        "host": "host link", "core": "core link", "total": "all links",
        "expected": "expected (host, core)", "dropped": "dropped", "right": "sums",
    }  # fmt: skip
    alike = all(row["bytes_as_closed_form"] for row in rows)
    if alike:
        del columns["expected"]
    # What a name means was printed before; it and the sum of all links give way to one table.
    show_rows(console, [_cells(row) for row in rows], columns, spare=("meaning", "total"))
    if alike:
        show(console, "\nEvery link carried exactly the bytes of its closed form.")
    if bound := [row["name"] for row in rows if row["cpu_bound"]]:
        text = f"\n{', '.join(bound)}: times are this machine's, not the network's."
        show(console, Text(text, style="yellow"))
    if len(rows) > 1:
        first, *others = sorted(rows, key=lambda row: row["seconds"])
        text = ", ".join(f"{row['name']} {row['seconds'] / first['seconds']:.3g}" for row in others)
        show(console, f"\nquickest: {first['name']}; times as long: {text}")


def _cells(row: ComparedRow) -> dict[str, str]:
    closed = row["closed_form_host_bytes"], row["closed_form_core_bytes"]
    expected = [size_text(one, _DIGITS) for one in closed]
    explained = row["seconds_in_virtual_time"]
    return {
        "name": row["name"],
        "meaning": row["meaning"],
        "time": time_text(row["seconds"], _DIGITS),
        "virtual": "not known" if explained is None else time_text(explained, _DIGITS),
        "least": time_text(row["closed_form_seconds"], _DIGITS),
        "ratio": "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        "host": size_text(row["host_bytes"], _DIGITS),
        "core": size_text(row["core_bytes"], _DIGITS),
        "total": size_text(row["total_bytes"], _DIGITS),
        "expected": "same, on every link" if row["bytes_as_closed_form"] else ", ".join(expected),
        "dropped": _dropped(row),
        "right": {True: "right", None: "no payload"}.get(
            row["right"], f"{count(row['wrong_values'] or 0, 'value')} wrong"
        ),
    }


def _dropped(row: ComparedRow) -> str:
    """Formats the number of frames that full queues dropped, and the worst link."""
    if not row["dropped_packets"]:
        return ""
    most = max(row["links"], key=lambda link: link["dropped_packets"] or 0)
    return f"{row['dropped_packets']:,.4g}, most at {most['interface']}"
