# SPDX-License-Identifier: Apache-2.0
"""``rackhub runs``: lists recorded runs, and removes old ones."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from cli.display.tables import show_rows
from cli.options import console_for, print_json, quantity_of, with_json
from observability import runs as recorded
from observability.record import runs_folder, shown
from observability.runs import RunRow
from observability.wording import count
from topologies.model.units import size_text, time_text

_AGES = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 86400.0}
_COLUMNS = {
    "run": "run", "began": "began", "command": "command", "topology": "topology", "jobs": "jobs",
    "state": "state", "took": "took", "size": "on disk",
}  # fmt: skip
# Left out, in this order, of a table that is too wide: the run's name has most of it.
_SPARE = ("began", "topology", "jobs")


@click.group(short_help="List recorded runs, or remove old ones.")
def runs() -> None:
    """List recorded runs, or remove old ones.

    Sweeps keep their results in runs/sweeps; they are neither listed nor removed.
    """


@runs.command("list")
@click.option("-n", "most", type=click.IntRange(min=1), metavar="N", help="Only the newest N.")
@with_json
def list_command(most: int | None, as_json: bool) -> None:
    """List runs, the newest first.

    STATE: up; done; wrong (weights differ from the reference's); failed; stopped (a job was); down
    (it had no job).
    """
    found = recorded.rows()[:most]
    if as_json:
        print_json(found)
    elif not found:
        click.echo(f"there is no run in {shown(runs_folder())}")
    else:
        _show(found)


@runs.command()
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="Keep the newest N.")
@click.option(
    "--older-than",
    "older",
    callback=quantity_of(_AGES, "7d or 12h"),
    metavar="AGE",
    help="Only runs that began so long ago: 7d, 12h.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@with_json
def prune(keep: int | None, older: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove the directories of old runs.

    With both options, a run has to meet both. One that is up stays, and so does the one that
    runs/latest points to.
    """
    if keep is None and older is None:
        raise click.UsageError("say which: --keep N, --older-than AGE, or both")
    removed = recorded.prune(keep, older, dry_run=dry_run)
    freed = sum(row["bytes"] for row in removed)
    if as_json:
        print_json({"removed": removed, "bytes": freed, "dry_run": dry_run})
        return
    if dry_run and removed:
        _show(removed)
    would = "would be " if dry_run else ""
    click.echo(f"{count(len(removed), 'run')} {would}removed, {size_text(freed)} {would}freed")


def _show(found: list[RunRow]) -> None:
    rows = [
        {
            **dict(row),
            "began": f"{datetime.datetime.fromisoformat(row['began']):%Y-%m-%d %H:%M}",
            "command": recorded.kind(row),
            "topology": Path(row["topology"]).stem,
            "took": time_text(row["seconds"], 2),
            "size": size_text(row["bytes"]),
        }
        for row in found
    ]
    show_rows(console_for(), rows, _COLUMNS, spare=_SPARE)
