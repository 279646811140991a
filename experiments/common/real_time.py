# SPDX-License-Identifier: Apache-2.0
"""Results in real time: kept beside pages, so that these need not be measured again to be written,
and the section that sets them beside virtual time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common.declaration import InRealTime, Point, Row, Section, Table
from observability.cpu_use import typical
from sweeps import table

__all__ = ["Kept", "in_real_time", "measured_times"]

_TITLE = "In real time"
_FILE = "real-time.json"  # in the folder of a page's plots


class Kept:
    """Measures of points in real time, by what they run."""

    def __init__(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        self._found = dict(found)
        self._used: dict[str, Mapping[str, Any]] = {}

    @staticmethod
    def read(*pages: Path) -> Kept:
        """Reads what was kept beside pages, of the first that has it."""
        found: dict[str, Mapping[str, Any]] = {}
        for page in reversed(pages):
            file = page.with_suffix("") / _FILE
            if file.exists():
                found |= {one["content"]: one for one in json.loads(file.read_text())}
        return Kept(found)

    def get(self, point: Point) -> Mapping[str, Any] | None:
        """Returns the measures of a point; None if what it runs was never measured."""
        key = _content(point)
        if key not in self._found:
            return None
        self._used[key] = self._found[key]
        measures: Mapping[str, Any] = self._found[key]["measures"]
        return measures

    def put(self, point: Point, measures: Mapping[str, Any], day: str) -> None:
        """Keeps the measures of a point. day: ISO 8601."""
        plain = {name: table.plain(value) for name, value in measures.items()}
        key = _content(point)
        self._used[key] = {
            "values": dict(point.values), "measured": day, "measures": plain, "content": key,
        }  # fmt: skip

    @property
    def days(self) -> list[str]:
        """The days on which what the page has in real time was measured."""
        return sorted({one["measured"] for one in self._used.values()})

    def write(self, page: Path) -> list[Path]:
        """Writes what the page has beside it. Returns what was written."""
        if not self._used:
            return []
        file = page.with_suffix("") / _FILE
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(list(self._used.values()), indent=1) + "\n")
        return [file]


def _content(point: Point) -> str:
    """Returns a digest of what a point runs; unlike a trial's of no code."""
    content = [point.topology, point.job, point.files, point.faults, point.by]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def measured_times(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the typical seconds of an iteration but the first, of the slowest job if there are
    several, and whether these are times of the machine (``cpu_bound``)."""
    if "closed_form_seconds" in summary:  # a baseline, whose first iteration is left out already
        return {"seconds": summary["seconds"], "cpu_bound": summary["cpu_bound"]}
    jobs = summary.get("jobs", [summary])
    return {
        "seconds": max(typical(one["seconds_per_iteration"][1:]) for one in jobs),
        "cpu_bound": any((one.get("machine") or {}).get("cpu_bound") for one in jobs),
    }


def in_real_time(what: InRealTime, rows: Sequence[Row]) -> Section | None:
    """Returns the section on settings that ran by both clocks, or why there are none; None if none
    ran.

    rows: with the values ``real`` and ``clock``, as measured (``measured_times``).
    """
    found = {(row.values["real"], row.values["clock"]): row.measures for row in rows}
    lines = []
    for one in what.settings:
        ran, explained = (found.get((one.name, clock)) for clock in ("emulated", "virtual"))
        if ran is None or explained is None:
            continue
        real, virtual = float(ran["seconds"]), float(explained["seconds"])
        times = f"{1e3 * virtual:.0f}", f"{1e3 * real:.0f}", f"{real / virtual:.2f}"
        lines.append((one.name, *times, "yes" if ran["cpu_bound"] else "no"))
    if not what.settings:
        return Section(_TITLE, [what.about])
    if not lines:
        return None
    return Section(
        _TITLE,
        [
            what.about,
            Table(("", "virtual ms", "emulated ms", "emulated / virtual", "cpu_bound"), lines),
            "Typical iterations, on an emulated testbed with this project's own switch and in"
            " virtual time. `cpu_bound`: the time is this machine's, not the network's.",
        ],
    )
