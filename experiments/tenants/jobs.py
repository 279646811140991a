# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: up to eight jobs of two workers each in a rack with one hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from experiments.common.declaration import InRealTime, Point, Real, Values
from experiments.common.sensitivity import setting, variations

__all__ = [
    "HUBS",
    "IN_REAL_TIME",
    "LINE_RATE",
    "SWITCH",
    "VARIED",
    "Hub",
    "counts",
    "points",
]

LINE_RATE = 10  # Gbit/s of workers' links
_MOST_JOBS = 8
_WORKERS = 2  # of a job
_LINKS = 10  # of a PBox
_ITERATION = "16 ms"  # of AlexNet on a GTX 1080 Ti, recalled of PHub's table 3
_CHUNK_BYTES = 16_000
_MTU = 16_370
_TOGETHER = "experiments.tenants.together:run"
VARIED = {
    "computing": "time of computing",
    "window": "window",
    "packets": "packets that a host gets at a time",
    "delay": "delay of a link",
}
# Small jobs for these, with as much computing for their bytes as AlexNet.
_SMALL = {"workload": "layers", "layers": ["8 MB"], "payload": "none"}
_SMALL_COMPUTE_MS = 0.63
_WINDOW, _DELAY_US, _INTERVAL_US = 512, 10, 200


@dataclass(frozen=True)
class Hub:
    """Something that sums for all jobs.

    name: Of its points. title: On the page.
    rate: Gbit/s of each link of a server; 0: the rack's switch sums.
    """

    name: str
    title: str
    rate: int = 0

    def slowdown(self, jobs: int) -> float:
        """Returns by how much longer so many jobs take if links alone bound them: a PBox takes the
        gradients of all workers, each with a link of its own."""
        return max(1.0, jobs * _WORKERS * LINE_RATE / (_LINKS * self.rate)) if self.rate else 1.0


SWITCH = Hub("switch", "the rack's switch")
HUBS: Sequence[Hub] = (
    Hub("pbox-10x56", "PBox, ten links of 56 Gbit/s", 56),
    Hub("pbox-10x10", "PBox, ten links of 10 Gbit/s", 10),
    SWITCH,
)


def counts(quick: bool) -> Sequence[int]:
    """Returns how many jobs run at a time."""
    return (1, 8) if quick else (1, 2, 4, 6, 8)


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the longest runs first."""
    for jobs in counts(quick)[::-1]:
        for hub in HUBS:
            first, *others = (_job(hub, number, quick) for number in range(jobs))
            files = {f"job-{number}.yaml": _text(one) for number, one in enumerate(others, 2)}
            values: Values = {"of": "jobs", "hub": hub.name, "jobs": jobs}
            yield Point(values, _network(hub), first, files, by=_TOGETHER)
    if not quick:
        yield from _sensitivity()


def _sensitivity() -> Iterator[Point]:
    for jobs in (_MOST_JOBS, 1):
        for hub in HUBS:
            for parameter, factor, of in variations(VARIED, base=True):
                yield _varied(hub, jobs, parameter, factor, of)


def _varied(hub: Hub, jobs: int, parameter: str, factor: float, of: Mapping[str, float]) -> Point:
    """Returns a point with a parameter times a factor. of: Factors of all."""
    network = dict(_network(hub))
    network["defaults"]["delay"] = f"{_DELAY_US * of['delay']:g} us"
    network["costs"] = {"interrupt_interval": f"{_INTERVAL_US * of['packets']:g} us"}
    first, *others = (
        {
            **_job(hub, number, quick=True),
            "compute": f"{_SMALL_COMPUTE_MS * of['computing']:g} ms",
            "window": int(_WINDOW * of["window"]),
        }
        for number in range(jobs)
    )
    files = {f"job-{number}.yaml": _text(one) for number, one in enumerate(others, 2)}
    values: Values = {**setting(parameter, factor), "hub": hub.name, "jobs": jobs}
    return Point(values, network, first, files, by=_TOGETHER)


def _text(content: Mapping[str, Any]) -> str:
    return "# SPDX-License-Identifier: Apache-2.0\n" + yaml.safe_dump(dict(content))


def _network(hub: Hub) -> Mapping[str, Any]:
    network: dict[str, Any] = {
        "name": "tenants",
        "defaults": {
            "rate": f"{LINE_RATE} Gbit/s",
            "delay": f"{_DELAY_US} us",
            "queue_bytes": "64 MiB",
            "mtu": _MTU,
        },
        "racks": [{"workers": _MOST_JOBS * _WORKERS, "servers": 1}],
        "costs": {"interrupt_interval": f"{_INTERVAL_US} us"},
    }
    if hub.rate:
        rate = f"{hub.rate} Gbit/s"
        link = {"ends": ["s0", "tor0"], "rate": rate}
        network["links"] = [link, *({**link, "add": True} for _ in range(_LINKS - 1))]
    return network


def _job(hub: Hub, number: int, quick: bool) -> Mapping[str, Any]:
    workers = [f"w{_WORKERS * number + one}" for one in range(_WORKERS)]
    model = {"workload": "model", "model": "alexnet", "compute": {"iteration": _ITERATION}}
    return {
        "name": f"tenant{number}",
        **(_SMALL if quick else model),
        "iterations": 4 if quick else 3,
        "placement": {"kind": "ncs" if hub.rate else "inc", "workers": workers, "servers": ["s0"]},
        "chunk_bytes": _CHUNK_BYTES,
        "window": _WINDOW,
        "schedule": {"slice": _CHUNK_BYTES // 2},  # of 32,000 bytes, about PHub's 32 KiB
    }


def _real(jobs: int, placement: str) -> Real:
    """Returns a small setting: so many jobs of two workers each in a rack with one hub."""
    network: dict[str, Any] = {
        "name": "tenants",
        "defaults": {"rate": "10 Mbit/s"},
        "racks": [{"workers": _WORKERS * 2, "servers": 1}],
    }
    first, *others = (
        {
            "name": f"tenant{number}",
            "workload": "layers",
            "layers": ["128 KiB"],
            "iterations": 10,
            "placement": {
                "kind": placement,
                "workers": [f"w{_WORKERS * number + one}" for one in range(_WORKERS)],
                "servers": ["s0"],
            },
        }
        for number in range(jobs)
    )
    files = {f"job-{number}.yaml": _text(one) for number, one in enumerate(others, 2)}
    hub = "a server" if placement == "ncs" else "the rack's switch"
    return Real(
        f"{hub}, {jobs} job{'s' if jobs > 1 else ''}", network, first, files, by=_TOGETHER,
        real="experiments.common.emulated:run_all",
    )  # fmt: skip


IN_REAL_TIME = InRealTime(
    "One job and two jobs of two workers each, on a server and on the rack's switch, all links 10"
    " Mbit/s, 128 KiB of gradients, nothing computed. Jobs do not begin at the same moment in real"
    " time, and the first and the last iterations of one may have the hub for themselves; the"
    " slowest job's are shown.",
    [_real(jobs, placement) for placement in ("ncs", "inc") for jobs in (1, 2)],
)
