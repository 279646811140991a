# SPDX-License-Identifier: Apache-2.0
"""``rackhub plan``: bandwidth and iteration time of each server placement, from models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from cli.display.tables import plain_table, show, show_rows
from cli.files import FILE, JOB
from cli.options import DEFAULT_JOB, console_for, print_json, quantity_of, with_json
from controller.planning.balancing.registry import BALANCERS
from controller.planning.stream_numbers import wanted_streams
from observability.wording import count
from planner import bandwidth
from planner.bandwidth import Model
from planner.collectives import COLLECTIVES, Team
from planner.iteration_time import Prediction, Setting, Work
from planner.job_work import work_of
from planner.link_loads import Workload
from planner.network import ModelError, Network
from planner.placement_choice import (
    choose_across_racks,
    explain_fastest,
    link_name,
    refusal_reasons,
)
from planner.placement_table import Link, ModelRow, Need, needs, table
from planner.predictions import predictions
from protocol.trees import TreeKind
from specs import jobfile
from specs.jobfile import JobFile
from specs.placements import KINDS
from testbed.program import program_for
from topologies.model.addressing import Addressing
from topologies.model.spec import load as load_topology
from topologies.model.topology import Costs
from topologies.model.units import SIZES, TIMES, rate_text, size_text, time_text
from workloads.workloads import shapes

_BYTES_PER_ELEMENT = 4
_WORKERS = 8  # PHub's
# Up to these counts of workers and slices, bytes are added up per link; beyond, only per class of
# links (``planner.iteration_time``).
_EACH_LINK = 4096
_EACH_SLICE = 1 << 24
_MOST_BYTES = 1e15  # of gradients
_NOT_A_LINK = ("compute", "latency", "loss", "window")  # limits that no link causes


@click.command("plan", short_help="Show the bandwidth that placements of servers need.")
@click.argument("topology", type=FILE, required=False)
@click.option("--job", type=JOB, help="With TOPOLOGY: whose gradients. [default: digits]")
@click.option(
    "--model",
    type=click.Choice([model.name for model in bandwidth.MODELS], case_sensitive=False),
    help="One of PHub's table.",
)
@click.option(
    "--size", callback=quantity_of(SIZES, '"194 MB"'), help='Of a model\'s gradients: "194 MB".'
)
@click.option(
    "--seconds",
    callback=quantity_of(TIMES, '"17.6 ms"'),
    help='That an iteration\'s computation takes: "17.6 ms".',
)
@click.option(
    "--workers",
    type=click.IntRange(min=2),
    help=f"Without TOPOLOGY: how many. [default: {_WORKERS}]",
)
@click.option("--rack", type=click.IntRange(min=1), help="Without TOPOLOGY: workers in a rack.")
@click.option(
    "--window",
    type=click.IntRange(min=1, max=32768),
    help="With TOPOLOGY: chunks of a stream in flight. [default: as the controller would]",
)
@click.option(
    "--switch-latency",
    callback=quantity_of(TIMES, '"1 us"', nothing=True),
    help='With TOPOLOGY: of a packet in each switch, "1 us". [default: as its `costs` say]',
)
@click.option(
    "--skew",
    callback=quantity_of(TIMES, '"100 us"', nothing=True),
    help="With TOPOLOGY: from the first worker to the last at a chunk. [default: 0]",
)
@click.option(
    "--framing/--no-framing",
    default=None,
    help="With TOPOLOGY: preamble, FCS and gap take time, too. [default: as its `costs` say]",
)
@with_json
def plan(
    topology: Path | None,
    job: Path | None,
    model: str | None,
    size: float | None,
    seconds: float | None,
    workers: int | None,
    rack: int | None,
    window: int | None,
    switch_latency: float | None,
    skew: float | None,
    framing: bool | None,
    as_json: bool,
) -> None:
    """Show the bandwidth that each placement of servers needs.

    Without TOPOLOGY: the table of PHub (SoCC'18, table 2), or the same for a model of that --size,
    computed in --seconds: what a server host has to send and receive so that no worker waits.
    With TOPOLOGY: what an iteration puts on its links, which of them is the bottleneck, and, where
    it is known how long an iteration is computed, whether that is long enough; then, for any
    number of workers, how long an iteration takes by an analytic model
    (docs/explanation/planning.md), what limits it, and which placement is the quickest.
    """
    if model is not None and (size is not None or seconds is not None or job is not None):
        raise click.UsageError(
            "--model has a size and a time; leave --size, --seconds and --job out"
        )
    if size is not None and job is not None:
        raise click.UsageError("--job has a size; leave --size out")
    if size is not None and size > _MOST_BYTES:
        raise click.UsageError(
            f"--size: {size_text(size)}; allowed: up to {size_text(_MOST_BYTES)}"
        )
    known = next((one for one in bandwidth.MODELS if one.name == model), None)
    if topology is not None:
        if workers is not None or rack is not None:
            raise click.UsageError(
                "workers and racks are those of TOPOLOGY, which the job's"
                " `placement` can choose from; leave --workers and --rack out"
            )
        setting = Setting(skew=skew or 0.0, window=window or 0)
        _on_topology(topology, job, known, size, seconds, setting, switch_latency, framing, as_json)
        return
    if any(one is not None for one in (window, switch_latency, skew, framing)):
        raise click.UsageError(
            "--window, --switch-latency, --skew and --framing need a TOPOLOGY, whose links they"
            " are about"
        )
    if job is not None:
        raise click.UsageError("--job needs a TOPOLOGY")
    if (size is None) != (seconds is None):
        raise click.UsageError("--size and --seconds go together where no TOPOLOGY is")
    models = bandwidth.MODELS if known is None else (known,)
    if size is not None and seconds is not None:
        models = (Model("given", size, seconds),)
    world = _WORKERS if workers is None else workers
    rows = table(models, world, rack)
    if as_json:
        print_json({"workers": world, "rack": rack, "models": rows})
        return
    console = console_for()
    _say(console, f"What a host has to send and receive, {world} workers:\n")
    columns = {"model": "model", "size": "gradients", "time": "computed in"}
    columns |= {kind.name: kind.name for kind in KINDS} | {"worker": "a worker"}
    if rack is not None:
        columns |= {"uplink": f"rack of {rack}", "uplink_aggregated": "the same, summed there"}
    show_rows(console, [_model_row(row) for row in rows], columns)
    show(console)
    for kind in KINDS:
        _say(console, f"{kind.name}: {kind.meaning}")


def _on_topology(
    path: Path, job: Path | None, model: Model | None, size: float | None, seconds: float | None,
    setting: Setting, switch_latency: float | None, framing: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Prints predictions for a topology.

    switch_latency, framing: replace those of the topology's `costs`.
    """
    topology = load_topology(path)
    costs = topology.costs
    if switch_latency is not None:
        costs = replace(costs, switch_latency=switch_latency)
    if framing is not None:
        costs = replace(costs, framing=framing)
    setting = replace(setting, costs=costs)
    file: JobFile | None = None
    by_speed = False
    workers = [node.name for node in topology.workers]
    servers = [node.name for node in topology.servers]
    compute = seconds or 0.0
    if model is None and size is None:
        file = jobfile.load(job or DEFAULT_JOB)
        if job is None:  # whose batch is no concern here
            file = file.fitted(topology)
        by_speed = BALANCERS[file.spec.balance.policy].by_speed
        sizes = list(shapes(file.spec).values())
        name = f"job {file.spec.name}"
        if job is None and len(workers) > _EACH_LINK:
            file = None  # use its gradients only: so many workers cannot be placed one by one
        else:
            workers = list(file.place(topology).workers)
            setting = replace(setting, window=setting.window or file.spec.window)
    else:
        size = model.size if model is not None else size
        assert size is not None
        sizes = [max(1, round(size / _BYTES_PER_ELEMENT))]
        seconds = model.seconds if model is not None else seconds
        compute = seconds or 0.0
        name = model.name if model is not None else "a model"
    total = _BYTES_PER_ELEMENT * sum(sizes)
    plane = program_for([] if job is None else [job])[2]
    found: list[Need] = []
    load = Workload(tuple(sizes), plane.lanes, 1, 1)
    in_a_row = plane.chunks_per_slice(0 if file is None else file.spec.slice_size)
    if len(workers) <= _EACH_LINK and load.chunks <= _EACH_SLICE * in_a_row:
        addressing = Addressing(topology)
        found = list(needs(addressing, sizes, plane, workers, file, framing=costs.framing))
    try:
        network = Network.of(topology, workers, servers, by_speed=by_speed)
        work = Work(load.chunks, plane.frame_bytes, compute, in_a_row, total, load.counts)
        if file is not None:
            work = work_of(file, plane)
            streams = wanted_streams(
                *(file.spec.streams, file.spec.balance.plan, len(servers), file.spec.propagation)
            )
            work = replace(work, streams=max(1, streams))
            if seconds is not None:  # in place of those of layers
                work = replace(work, compute=seconds, layers=None)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    predicted = predictions(network, work, replace(setting, slots=plane.slots))
    racks = choose_across_racks(predicted, network)
    if as_json:
        print_json(
            {
                "topology": topology.name,
                "bytes": total,
                "seconds": seconds,
                "workers": workers,
                "placements": [need.message(seconds) for need in found],
                "model": {
                    "chunks": work.chunks,
                    "frame_bytes": work.frame_bytes,
                    "uniform": network.uniform,
                    "switch_slots": plane.slots,
                    "costs": _costs(setting.costs),
                    "why": explain_fastest(predicted, network),
                    "across_racks": None if racks is None else racks.message(),
                    "predictions": [one.message() for one in predicted],
                },
            }
        )
    else:
        what = f"{name}, {size_text(total)} of gradients"
        console = console_for()
        if found:
            _show_links(console, found, seconds, what, topology.name)
        _show_model(console, predicted, network, what, len(workers))
        _show_words(console, predicted, Team.of(network))
    if reasons := refusal_reasons(predicted, found):
        raise ModelError(f"{path}: no placement can be had here: {'; '.join(reasons)}")


def _show_model(
    console: Console, predicted: list[Prediction], network: Network, what: str, workers: int
) -> None:
    _say(
        console,
        f"\n{what}, {count(workers, 'worker')} in {count(sum(map(bool, network.workers)), 'rack')},"
        " by the"
        " analytic model: an iteration's time, what it puts on the busiest link of each kind, one"
        " direction (a worker's host that serves counts as a worker), and slots that a switch needs"
        " so that no window limits\n",
    )
    classes = list(network.lines)
    columns = {
        "name": "placement", "seconds": "iteration", **{one: link_name(one) for one in classes},
        "limit": "limited by", "window": "window", "slots": "slots", "note": "remarks",
    }  # fmt: skip
    show_rows(console, [_modelled(one, classes) for one in predicted if one.bytes], columns)
    refused = [one for one in predicted if one.refused and one.tree]
    rough = [one for one in predicted if one.rough and not (one.refused and one.tree)]
    if refused or rough:
        show(console)
    for what, those in (
        ("refused", [one for one in refused if one.bytes]),
        ("not here", [one for one in refused if not one.bytes]),
    ):
        _show_reasons(console, what, [(one.name, one.refused) for one in those])
    _show_reasons(console, "roughly", [(one.name, one.rough) for one in rough])
    _say(console, f"\n{explain_fastest(predicted, network)}")
    if racks := choose_across_racks(predicted, network):
        _say(console, f"\n{racks.why}")
    if not network.uniform:
        text = (
            "Links of a kind differ here; the worst of each is what counts for all above, which is"
        )
        _say(console, f"{text} exact only where that one is what limits.")


def _show_words(console: Console, predicted: list[Prediction], team: Team) -> None:
    """Prints what placements, trees and baselines are. team: of the baselines."""
    asked = {one.placement for one in predicted if one.tree}
    trees = {one.tree for one in predicted if one.tree}
    words = {kind.name: kind.meaning for kind in KINDS if kind.name in asked}
    words |= {f"({kind})": kind.meaning for kind in TreeKind if str(kind) in trees}
    for one in predicted:
        if one.name in COLLECTIVES:
            one_of = COLLECTIVES[one.name]
            what = one_of.describe(len(one_of.servers(team)))
            words[one.name] = what if one_of.switched else f"{what}; no switch sums"
    _say(
        console,
        "\nPlacements, trees (in brackets: which nodes sum) and baselines:\n",
    )
    legend = plain_table("", "")
    legend.show_header = False
    legend.columns[1].justify = "left"
    for word, meaning in words.items():
        legend.add_row(word, meaning)
    show(console, legend)


def _costs(costs: Costs) -> dict[str, float | None]:
    """Returns the costs under their JSON keys."""
    return {
        "framing": costs.framing,
        "switch_latency_seconds": costs.switch_latency,
        "host_seconds_per_packet": costs.host_per_packet,
        "host_seconds_per_byte": costs.host_per_byte,
        "interrupt_interval_seconds": costs.interrupt_interval,
        "server_bit_per_s": costs.server_rate,
    }


def _modelled(one: Prediction, classes: list[str]) -> dict[str, str]:
    baseline = "baseline" if not one.tree else "refused" if one.refused else ""
    return {
        "name": one.name,
        "seconds": time_text(one.seconds),
        **{name: size_text(one.bytes[name]) if one.bytes.get(name) else "-" for name in classes},
        "limit": one.limit if one.limit in _NOT_A_LINK else link_name(one.bottleneck),
        "window": str(one.window or ""),
        "slots": f"{one.slots_needed:,}" if one.slots_needed else "",
        "note": ", ".join(filter(None, [baseline, "roughly" if one.rough else ""])),
    }


def _show_links(
    console: Console, found: list[Need], seconds: float | None, what: str, where: str
) -> None:
    each = "an iteration" if seconds is None else f"an iteration in {time_text(seconds)}"
    _say(
        console,
        f"{what}, on {where}: what {each} puts on the busiest link of each kind, one direction,"
        " headers included; a worker's host that serves counts as a server\n",
    )
    columns = {
        "placement": "placement", "servers": "servers", "worker": "worker",
        "server": "server", "uplink": "uplink", "bottleneck": "bottleneck",
        "least": "at least", "fits": "fits",
    }  # fmt: skip
    show_rows(console, [_row(need, seconds) for need in found if not need.refused], columns)
    refused = [need for need in found if need.refused]
    if refused:
        show(console)
    reasons = [(f"{need.placement} ({need.tree})", need.refused) for need in refused]
    _show_reasons(console, "not here", reasons)


def _row(need: Need, seconds: float | None) -> dict[str, str]:
    slowest = need.bottleneck
    if slowest is None:  # a single node: no traffic
        where, least, fits = "-", "-", True
    else:
        where = f"{slowest.source} to {slowest.to}, {rate_text(slowest.rate)}"
        least, fits = time_text(slowest.seconds), slowest.seconds <= (seconds or 0)
    return {
        "placement": f"{need.placement} ({need.tree})",
        "servers": str(len(need.servers)),
        "worker": _load(need.worker, seconds),
        "server": _load(need.server, seconds),
        "uplink": _load(need.uplink, seconds),
        "bottleneck": where,
        "least": least,
        "fits": "" if seconds is None else "yes" if fits else "no",
    }


def _load(link: Link | None, seconds: float | None) -> str:
    """Formats bytes, or the rate that carries them within an iteration."""
    if link is None:
        return "-"
    return size_text(link.bytes) if seconds is None else rate_text(8 * link.bytes / seconds)


def _model_row(row: ModelRow) -> dict[str, str]:
    cells = {"model": row["model"], "size": size_text(row["bytes"])}
    cells["time"] = time_text(row["seconds"])
    rates = row["bit_per_s"].items()
    return {**cells, **{name: rate_text(rate) if rate else "-" for name, rate in rates}}


def _show_reasons(console: Console, what: str, reasons: list[tuple[str, str]]) -> None:
    """Prints placements by reason, one reason a line; remedies (after ";") are in JSON only."""
    placements: dict[str, list[str]] = {}
    for name, reason in reasons:
        placements.setdefault(reason.partition(";")[0], []).append(name)
    for reason, names in placements.items():
        _say(console, f"{what}: {', '.join(names)}: {reason}")


def _say(console: Console, text: str) -> None:
    show(console, Text(text))
