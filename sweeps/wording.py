# SPDX-License-Identifier: Apache-2.0
"""Titles and units of axes and columns in plots, such as ``link rate``."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specs.sweepfile import Axis
from sweeps.table import unit
from topologies.model.units import rate_text, size_text, time_text

_FIELDS = {
    "queue_bytes": "queue",
    "ecn_bytes": "ECN threshold",
    "mtu": "MTU",
    "duplicate": "duplication",
    "reorder": "reordering",
    "corrupt": "corruption",
    "chunk_bytes": "chunk",
    "slice_bytes": "slice",
    "host_per_packet": "host time per packet",
    "host_per_byte": "host time per byte",
}
# Prefixes of groups whose field names alone are ambiguous.
_GROUPS = {"defaults": "link ", "uplinks": "uplink ", "costs": ""}
_COLUMNS = {
    "iteration_median_s": "time of an iteration, median",
    "iteration_mean_s": "time of an iteration, mean",
    "iteration_longest_s": "time of the longest iteration",
    "virtual_time_s": "time of the run",
    "chunks_summed_in_network": "chunks summed in the network",
    "chunks_summed_by_servers": "chunks summed by servers",
    "links_packets": "packets on all links",
    "links_bytes": "bytes on all links",
    "busiest_link_bytes": "bytes on the busiest link",
    "test_accuracy_share": "test accuracy",
    "test_loss_nats": "test loss",
    "matches_reference": "weights as the reference's",
}
_SUFFIXES = ("bit_per_s", "s", "bytes", "share", "nats")
_SCALED = {
    "bit_per_s": (
        (1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s"),
    ),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
    "": ((1e9, "billions"), (1e6, "millions"), (1, "")),
    "share": ((0.01, "%"),),
}  # fmt: skip
_BINARY = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DIGITS = 4


@dataclass(frozen=True)
class Measure:
    """The title of a scale. factor: divides values to give the title's unit."""

    title: str
    factor: float


def axis_name(axis: Axis) -> str:
    """Names an axis in words: ``uplink delay``, ``workers in rack 0``, ``window``."""
    location = list(axis.location)
    last = str(location[-1])
    name = _FIELDS.get(last, last.replace("_", " "))
    if len(location) == 1:
        return name
    if location[0] == "racks" and isinstance(location[1], int) and len(location) > 2:
        return f"{name} in rack {location[1]}"
    if location[0] in _GROUPS and len(location) == 2:
        return f"{_GROUPS[str(location[0])]}{name}"
    return " ".join(str(part).replace("_", " ") for part in location)


def value_text(axis: Axis, value: Any) -> str:
    """Formats a value of an axis, given in base units."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value if isinstance(value, str) else json.dumps(value)
    kind = unit(axis)
    if kind == "bytes" or str(axis.location[-1]).endswith("_bytes"):
        for factor, name in _BINARY:
            if value and value % factor == 0:
                return f"{value // factor:,} {name}"
        return size_text(value, _DIGITS)
    if kind == "share":
        return f"{100 * value:g} %"
    form = {"bit_per_s": rate_text, "s": time_text}.get(kind)
    if form is None:
        return f"{value:,.6g}"
    return form(value, _DIGITS).replace(" us", " µs")


def of_axis(axis: Axis, values: Sequence[float], *, log: bool) -> Measure:
    """Returns the scale of an axis."""
    kind = "bytes" if str(axis.location[-1]).endswith("_bytes") else unit(axis)
    return _measure(axis_name(axis), kind, values, log)


def of_column(name: str, values: Sequence[float], *, log: bool) -> Measure:
    """Returns the scale of a column."""
    kind = next((one for one in _SUFFIXES if name.endswith(f"_{one}")), "")
    plain = name.removesuffix(f"_{kind}").replace("_", " ")
    return _measure(_COLUMNS.get(name, plain), kind, values, log)


def _measure(title: str, kind: str, values: Sequence[float], log: bool) -> Measure:
    """Chooses the largest unit in which the largest value, or on a logarithmic scale the middle
    one, is at least 1."""
    known = _SCALED.get(kind)
    if known is None:
        return Measure(f"{title} ({kind})", 1)
    if kind == "bytes" and all(value % 1024 == 0 for value in values):
        known = (*_BINARY, (1, "B"))
    most = math.sqrt(min(values) * max(values)) if log else max(map(abs, values))
    factor, name = next((one for one in known if most >= one[0]), known[-1])
    return Measure(f"{title} ({name})" if name else title, factor)
