# SPDX-License-Identifier: Apache-2.0
"""The results of a sweep as a table: one row per trial, with units in column names.

Counts have no unit; shares are from 0 to 1. Columns that depend on the machine are last.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specs.sweepfile import SEEDS, Axis
from sweeps.execution import Outcome
from sweeps.store import FAILED, Result
from sweeps.trials import Trial

Row = dict[str, Any]
# Units that are not in the field's name, by file, then by the last part of the path.
_UNITS = {
    "topology": {
        "rate": "bit_per_s",
        "delay": "s",
        "mtu": "bytes",
        "server_rate": "bit_per_s",
        **dict.fromkeys(("switch_latency", "host_per_packet", "host_per_byte"), "s"),
        **dict.fromkeys(("loss", "duplicate", "reorder", "corrupt"), "share"),
    },
    "faults": {},
    "job": {"window": "chunks", **dict.fromkeys(("patience", "lease", "compute"), "s")},
}
# Decimals of seconds: simulated time counts picoseconds.
_PICOSECONDS, _MICROSECONDS = 12, 6
_JOB_RATES = "optimizer"  # whose rates are not bit rates


def column(axis: Axis) -> str:
    """Returns the column of an axis, such as ``topology_defaults_rate_bit_per_s``."""
    if axis.path == SEEDS:
        return "seed"
    name = re.sub(r"[^A-Za-z0-9]+", "_", axis.path).strip("_")
    return f"{name}_{unit(axis)}" if unit(axis) else name


def unit(axis: Axis) -> str:
    """Returns an axis's unit (``bit_per_s``), or "" if its field's name has it."""
    last = [part for part in axis.location if isinstance(part, str)][-1]
    return _UNITS[axis.kind].get(last, "") if axis.location[0] != _JOB_RATES else ""


def row(trial: Trial, axes: Sequence[Axis], result: Result) -> Row:
    """Returns a trial's row; cells that a failed trial lacks are None."""
    values = {column(axis): plain(trial.measures[axis.path]) for axis in axes}
    return row_with(trial, values, result)


def row_with(trial: Trial, values: Mapping[str, Any], result: Result) -> Row:
    """Returns a trial's row; values: by column."""
    found: Row = {
        "trial": trial.id,
        "state": result["state"],
        "attempts": result["attempts"],
        **values,
    }
    summary: Mapping[str, Any] = result["summary"] or {}
    times = summary.get("seconds_per_iteration") or None
    links = summary.get("links") or None
    chunks = summary.get("chunks", {})
    return {
        **found,
        **{
            name: summary.get(name)
            for name in ("topology", "racks", "workers", "servers", "job", "tree", "placement")
        },
        "iterations": summary.get("iterations"),
        "iteration_median_s": times and round(statistics.median(times), _PICOSECONDS),
        "iteration_mean_s": times and round(statistics.fmean(times), _PICOSECONDS),
        "iteration_longest_s": times and max(times),
        "virtual_time_s": summary.get("virtual", {}).get("seconds"),
        "chunks_summed_in_network": chunks.get("aggregated_in_network"),
        "chunks_summed_by_servers": chunks.get("served_by_server"),
        "packets_sent_again": chunks.get("retransmitted"),
        "links_packets": links and sum(link["packets"] for link in links),
        "links_bytes": links and sum(link["bytes"] for link in links),
        "busiest_link_bytes": links and max(link["bytes"] for link in links),
        "test_accuracy_share": summary.get("test_accuracy"),
        "test_loss_nats": summary.get("test_loss"),
        "matches_reference": summary.get("matches_reference"),
        "weights_sha256": summary.get("weights_sha256"),
        "error": result["error"] or None,
        "wall_time_s": round(result["seconds"], _MICROSECONDS),
    }


def columns() -> list[str]:
    """Returns the columns of every sweep."""
    nothing: Result = {
        "trial": "",
        "state": FAILED,
        "attempts": 0,
        "values": {},
        **Outcome(None).to_message(),
    }
    return list(row(Trial("", "", {}, {}, "", ""), (), nothing))


def plain(value: Any) -> Any:
    """Converts an axis's value to a cell: groups of fields as JSON."""
    group = isinstance(value, (list, dict))
    return json.dumps(value, sort_keys=True, default=str) if group else value


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Writes CSV (RFC 4180) atomically; unknown cells are empty."""
    draft = path.with_suffix(".part")
    with draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    draft.replace(path)


def can_write_parquet() -> bool:
    """Tells whether the extra ``rackhub[sweep]`` is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Writes Parquet atomically. Axes whose values are of several types become text."""
    import pyarrow
    import pyarrow.parquet

    table = {
        name: _of_one_kind([row[name] for row in rows], text=name == "error") for name in rows[0]
    }
    draft = path.with_suffix(".part")
    pyarrow.parquet.write_table(
        pyarrow.table({name: pyarrow.array(*given) for name, given in table.items()}), draft
    )
    draft.replace(path)


def _of_one_kind(values: list[Any], *, text: bool) -> tuple[list[Any], Any]:
    """Returns values and their pyarrow type; None lets pyarrow infer it."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values], None
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values], pyarrow.string()
    return values, pyarrow.string() if text else None
