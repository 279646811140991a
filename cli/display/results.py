# SPDX-License-Identifier: Apache-2.0
"""Tables of a finished run: figures of its jobs, and bytes per link."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.display.tables import fits, plain_table, rows_table, show, show_rows
from observability.messages.summary import FaultImpact, FinishedJob, JobMachine, Link, PlanUse
from observability.wording import count, deviation, sending_ends, sums, where_summed
from topologies.model.units import size_text, time_text

MOST_LINK_ROWS = 40  # about the height of a terminal
MOST_NAMES = 8  # of nodes listed by name
_DIGITS = 4  # of times and bytes, as in `rackhub compare`
_VIRTUAL_SECONDS = 0.1  # shorter times are told in a smaller unit
_ENOUGH = 3  # iterations for a median that is not the first, which has exponent rounds


def show_results(console: Console, jobs: Sequence[FinishedJob], links: list[Link]) -> None:
    """Prints the figures of finished jobs and what links carried meanwhile."""
    together = _results(jobs)
    apart = [_results([job]) for job in jobs]
    for table in [together] if fits(console, together) else apart:
        show(console)
        show(console, table)
    bound = [job["machine"] for job in jobs if job["machine"]["cpu_bound"]]
    if bound:
        why = "; ".join(bound[0].get("cpu_bound_by", ()))
        text = "Times are this machine's, not the network's" + (f" ({why})." if why else ".")
        show(console, Text(text, style="yellow"))
    for job in jobs:
        if not sums(job):
            text = f"{job['job']}: chunks only occupied the wire, so there are no sums to check."
            show(console, Text(text, style="dim"))
        elif job["matches_reference"] is None:
            text = (
                f"{job['job']}: whether its weights are right is not known: {job['no_reference']}."
            )
            show(console, Text(text, style="yellow"))
        if why := job["chunks"]["unknown"]:
            text = (
                f"{job['job']}: chunks are a worker's count, as switches' own cannot tell: {why}."
            )
            show(console, Text(text, style="dim"))
    show(console)
    show_links(console, links, _together(jobs))
    meanwhile = sorted({name for job in jobs for name in job["alongside"]} - _names(jobs))
    if meanwhile:
        show(
            console, Text(f"These include what {', '.join(meanwhile)} sent meanwhile.", style="dim")
        )
    direct = sum(job["chunks"]["in_float32"] for job in jobs)
    if direct:
        text = (
            f"{count(direct, 'chunk')} did not fit fixed point and went to servers in float32:"
            " these bytes are beyond what is expected."
        )
        show(console, Text(text, style="dim"))


def show_links(console: Console, links: list[Link], during: str) -> None:
    """Prints what links carried.

    Args:
        during: The period in words, such as "in 3 iterations".
    """
    full = [row for row in links if row["bytes"] != 0 or row["expected_bytes"]]
    busy = {end for row in full for end in (row["from"], row["to"])}
    used = [row for row in links if {row["from"], row["to"]} <= busy]
    if not used:
        show(console, Text(f"Links carried nothing {during}.", style="dim"))
        return
    idle = list(dict.fromkeys(row["from"] for row in links if row["from"] not in busy))
    show(console, Text(f"What links carried {during}, in frames without FCS:", style="dim"))
    show(console, link_table(used))
    if dropped := [(row["dropped"], row) for row in links if row["dropped"]]:
        most, worst = max(dropped, key=lambda one: one[0])
        text = f"Full queues dropped {count(sum(number for number, _ in dropped), 'frame')}"
        text += f", most of them ({most:,}) from {worst['from']} to {worst['to']}."
        show(console, Text(text))
    if idle:
        more = f" and {len(idle) - MOST_NAMES:,} more" if len(idle) > MOST_NAMES else ""
        text = f"Nothing went to or from {', '.join(idle[:MOST_NAMES])}{more}."
        show(console, Text(text, style="dim"))
    for why in sorted({row["unknown"] for row in used if row["bytes"] is None}):
        show(console, Text(f"unknown: {why}.", style="dim"))


def _together(jobs: Sequence[FinishedJob]) -> str:
    """Describes the period of the link counters."""
    if len(jobs) != 1:
        return "in all, of all jobs"
    return f"in all, in {count(len(jobs[0]['seconds_per_iteration']), 'iteration')}"


def _names(jobs: Iterable[FinishedJob]) -> set[str]:
    return {job["job"] for job in jobs}


def _results(jobs: Sequence[FinishedJob]) -> Table:
    table = plain_table("", *(job["job"] for job in jobs))
    chunks = [job["chunks"] for job in jobs]
    summed = [where_summed(job["chunks"], job["plans"]) for job in jobs]
    rows: list[tuple[str, list[str]]] = [
        ("topology", [f"{job['topology']}, {count(job['racks'], 'rack')}" for job in jobs]),
        ("workers, servers", [f"{job['workers']}, {job['servers']}" for job in jobs]),
        ("target, clock", [f"{job['target']}, {job['clock']}" for job in jobs]),
        ("iterations", [f"{job['iterations']:,}" for job in jobs]),
        *_averaged(jobs),
        *_apart(jobs),
        ("time per iteration", [_median(job["seconds_per_iteration"]) for job in jobs]),
        *([("CPU busy", [_busy(job["machine"]) for job in jobs])] if _measured(jobs) else []),
        *_learned(jobs),
        ("matches reference", [_yes(job) for job in jobs]),
        ("chunks summed by switches", [f"{network:,}" for network, _ in summed]),
        ("chunks by servers alone", [f"{server:,}" for _, server in summed]),
        ("retransmitted packets", [f"{one['retransmitted']:,}" for one in chunks]),
        *_moved(jobs),
    ]
    for title, values in rows:
        table.add_row(title, *values)
    return table


def _learned(jobs: Sequence[FinishedJob]) -> list[tuple[str, list[str]]]:
    """Returns rows of test accuracy and loss if a job has any."""
    if all(job["test_accuracy"] is None for job in jobs):
        return []
    pairs = [
        (f"{job['test_accuracy']:.4f}", f"{loss:.4f} ({job['test_bits']:.3f} bits)")
        if (loss := job["test_loss"]) is not None
        else ("-", "-")
        for job in jobs
    ]
    return [("test accuracy", [one for one, _ in pairs]), ("test loss", [two for _, two in pairs])]


def _averaged(jobs: Sequence[FinishedJob]) -> list[tuple[str, list[str]]]:
    """Returns a row of the workers in the sums if their number changed: 8, 7, 8."""
    runs = [[str(n) for n, _ in groupby(job.get("workers_per_iteration", ()))] for job in jobs]
    return [("averaged over", [", ".join(one) for one in runs])] if any(r[1:] for r in runs) else []


def _apart(jobs: Sequence[FinishedJob]) -> list[tuple[str, list[str]]]:
    """Returns a row of staleness in asynchronous jobs: how far others led the slowest worker."""
    seen = [job.get("staleness_seen") for job in jobs]
    texts = [f"{one['max']}, mean {one['mean']:.2f}" if one else "" for one in seen]
    return [("gradients ahead", texts)] if any(texts) else []


def _moved(jobs: Sequence[FinishedJob]) -> list[tuple[str, list[str]]]:
    """Returns a row of the moves of load between servers if there were any."""
    found = [job.get("moves") or [] for job in jobs]
    texts = [
        f"{len(moves)}, of {count(sum(one['slices'] for one in moves), 'slice')},"
        f" {size_text(sum(one['bytes'] for one in moves), _DIGITS)};"
        f" blocked {time_text(job['blocked_seconds'], _DIGITS)}"
        if moves
        else ""
        for job, moves in zip(jobs, found, strict=True)
    ]
    return [("moves between servers", texts)] if any(texts) else []


def _measured(jobs: Sequence[FinishedJob]) -> bool:
    """Tells whether CPU load was measured; in virtual time it is meaningless."""
    return all("cpu_busy" in job["machine"] for job in jobs)


def _busy(machine: JobMachine) -> str:
    share = f"{100 * machine.get('cpu_busy', 0.0):.0f} %"
    return f"[yellow]{share}[/]" if machine["cpu_bound"] else share


def link_table(links: list[Link]) -> Table:
    """Returns a table of carried and expected bytes per link direction.

    A rack's hosts share a row; if that gives more than `MOST_LINK_ROWS`, racks share rows, too.
    """
    known = all(row["expected_bytes"] is not None and row["bytes"] is not None for row in links)
    table = plain_table("link", "carried", *(("expected", "difference") if known else ()))
    for names, group in _grouped(links):
        sizes = [row["bytes"] for row in group if row["bytes"] is not None]
        carried = _range(sizes) if sizes else "unknown"
        if not known:
            table.add_row(names, carried)
            continue
        wanted = [row["expected_bytes"] or 0 for row in group]
        beyond = [abs(size - one) for size, one in zip(sizes, wanted, strict=True)]
        worst = group[beyond.index(max(beyond))]
        table.add_row(names, carried, _range(wanted), deviation(worst))
    return table


def _grouped(links: list[Link]) -> list[tuple[str, list[Link]]]:
    rows = _alike(links, folded=("w", "s"))
    return rows if len(rows) <= MOST_LINK_ROWS else _alike(links, folded=("w", "s", "tor", "core"))


def _alike(links: list[Link], folded: tuple[str, ...]) -> list[tuple[str, list[Link]]]:
    """Groups links whose ends differ only in the numbers of `folded` kinds, under one name."""
    groups: dict[tuple[str, ...], list[Link]] = {}
    named = []
    for row, sender in zip(links, sending_ends(links), strict=True):
        kinds = [(name, name.rstrip("0123456789")) for name in (row["from"], row["to"])]
        ends = tuple(f"{kind}*" if kind in folded else name for name, kind in kinds)
        if sender != row["from"]:
            ends = sender, row["to"]
        groups.setdefault(ends, []).append({**row, "from": sender})
    for rows in groups.values():
        senders, receivers = _run([row["from"] for row in rows]), _run([row["to"] for row in rows])
        named.append((f"{senders} to {receivers}", rows))
    return named


def _run(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    return unique[0] if len(unique) == 1 else f"{unique[0]}..{unique[-1]}"


def _range(sizes: list[int]) -> str:
    low, high = size_text(min(sizes), _DIGITS), size_text(max(sizes), _DIGITS)
    if low == high:
        return low
    return f"{low.removesuffix(high[high.index(' ') :])}..{high}"  # one unit is enough


def _median(seconds: list[float]) -> str:
    """Formats the median, or each value if there are too few (see `_ENOUGH`)."""
    if len(seconds) < _ENOUGH:
        return ", ".join(time_text(one, _DIGITS) for one in seconds)
    return f"{time_text(statistics.median(seconds), _DIGITS)} (median)"


def _yes(job: FinishedJob) -> str:
    matches = job["matches_reference"]
    if not sums(job):
        return "no sums"
    if matches is None:
        return "[yellow]not known[/]"  # `show_results` prints why below the tables
    return "[green]yes, bit by bit[/]" if matches else "[bold red]NO[/]"


def show_faults(console: Console, faults: list[FaultImpact]) -> None:
    """Prints the faults and how long the job took to recover from each.

    On a narrow terminal the faults' texts are wrapped, then bytes and slots left out.
    """
    columns = {
        "at": "at", "node": "node", "what": "fault", "on": "went on", "back": "back",
        "plan": "plan", "slots": "slots", "packets": "resent", "bytes": "in bytes",
    }  # fmt: skip
    for width in (1000, 30, 20):
        rows = [_fault(row, width) for row in faults]
        if fits(console, rows_table(rows, columns)):
            break
    show_rows(console, rows, columns, spare=("bytes", "slots"))
    text = (
        "went on: when each worker had ended an iteration that it began after the fault; back: when"
        " the lost worker had joined again; plan: epochs before and then; slots: that were"
        " aggregating + partial at the fault; resent: packets of workers and switches until then."
    )
    show(console, Text(text, style="dim"))


def _fault(row: FaultImpact, width: int) -> dict[str, str]:
    """Formats a fault's cells. width: of its text, in columns."""

    def after(seconds: float | None) -> str:
        if seconds is not None and 0 < seconds < _VIRTUAL_SECONDS:
            return time_text(seconds)
        return "" if seconds is None else f"{seconds:.1f} s"

    known = row["aggregating"], row["partial"]
    epochs = dict.fromkeys(n for n in (row["epoch_before"], row["epoch_after"]) if n is not None)
    return {
        "at": after(row["at"]),
        "node": row["node"],
        "what": textwrap.fill(row["what"], width),
        "on": after(row["seconds"]),
        "back": after(row["rejoined_after"]),
        "plan": " to ".join(map(str, epochs)),
        "slots": "" if None in known else f"{known[0]} + {known[1]}",
        "packets": "" if row["resent_packets"] is None else f"{row['resent_packets']:,}",
        "bytes": "" if row["resent_bytes"] is None else size_text(row["resent_bytes"]),
    }


def show_plans(console: Console, plans: list[PlanUse]) -> None:
    """Prints where a job's sums were completed under each plan."""
    columns = {
        "epoch": "plan epoch", "tree": "tree", "roots": "sums end at",
        "by_switch": "completed at a switch", "by_server": "at a server",
    }  # fmt: skip
    show_rows(console, plans, columns)
