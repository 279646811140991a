# SPDX-License-Identifier: Apache-2.0
"""The points of the experiment: a rack with four workers and some servers, one of them slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.common.declaration import InRealTime, Point, Real, Values
from experiments.common.sensitivity import AS_ASSUMED, setting, variations

__all__ = [
    "BALANCED",
    "CASES",
    "HASHED",
    "IMBALANCE",
    "IN_REAL_TIME",
    "LEAST_LOADED",
    "LINE_RATE",
    "NOTHING",
    "NO_BALANCER",
    "QUICK",
    "SLICES",
    "SWITCHES",
    "TRAFFIC",
    "VARIED",
    "Case",
    "K",
    "job",
    "network",
    "points",
    "varied_cases",
]

LINE_RATE = 10  # Gbit/s
_SERVER_RATE = 5  # Gbit/s of a server's processing, where that is to bound the job
_SLOW_LINE = 2.5  # Gbit/s of servers' links, where these are to bound a job with ten servers
K = 3.5  # of the published figure
NO_BALANCER, BALANCED, LEAST_LOADED = "none", "psld", "least-loaded"
HASHED, SLICES, SWITCHES = "MXNet's hashing", "slices", "switches"

_BASE_ROUNDS = 4  # all alike but the first, which also agrees on exponents
_FEW = 8  # for moves at the start
_ROUNDS = 16  # the first move comes after three, another after six more
_LONG = 48  # where what is wrong comes and goes


@dataclass(frozen=True)
class Case:
    """Something that is wrong with servers, and the job that it happens to.

    name: of its points. title: on the page.
    model: of the job; its iteration has little computing, so that servers bound it.
    ks: how many times slower servers are.
    slow: what is: a server's link, or its processing; "": nothing.
    workers: how many there are.
    stragglers, servers: how many are slow, and how many there are. spares: servers beside these,
        which only a balancer uses.
    placement: of servers; with cs they are at workers' hosts.
    rounds: of a run with a balancer.
    others: what is run besides no balancer and `psld`: another balancer, or another assignment.
    """

    name: str
    title: str
    model: str = "resnet50-v1"
    ks: tuple[float, ...] = (K,)
    slow: str = "link"
    stragglers: int = 1
    servers: int = 4
    spares: int = 0
    workers: int = 4
    placement: str = "ncs"
    rounds: int = _ROUNDS
    others: tuple[str, ...] = ()

    def bound(self, k: float) -> float:
        """Returns by how much rounds become shorter if all servers are busy all the time, where
        some take k times as long, and were what all waited for."""
        slow = self.stragglers
        return (k * (self.servers - slow) + slow) / self.servers


NOTHING = Case("nothing-wrong", "nothing", ks=(1.0,), slow="", stragglers=0, rounds=_FEW)
IMBALANCE = Case(
    *("imbalance", "whole keys, VGG-19, ten servers", "vgg19", (1.0,), "", 0, 10),
    workers=2,
    rounds=12,  # the first move holds from the sixth
    others=(LEAST_LOADED, SLICES),
)
TRAFFIC = Case("traffic", "traffic that comes and goes", ks=(1.0,), slow="traffic", rounds=_LONG)
VGG = Case("vgg19", "a slow link, VGG-19", model="vgg19", rounds=10)
LONGEST: Sequence[Case] = (IMBALANCE, VGG, TRAFFIC)  # runs
CASES: Sequence[Case] = (
    NOTHING,
    Case("bandwidth", "a slow link", ks=(2.0, K, 5.0), others=(HASHED, LEAST_LOADED, SWITCHES)),
    Case("cpu", "slow processing", slow="processing"),
    Case("two", "two slow links", stragglers=2),
    Case("spare", "a slow link, and a spare server", spares=1, rounds=28),
    Case(
        "colocated",
        "slow processing, servers at workers",
        slow="processing",
        placement="cs",
        rounds=12,
    ),
    Case("alexnet", "a slow link, AlexNet", model="alexnet", rounds=12),
    VGG,
    TRAFFIC,
    IMBALANCE,
)
QUICK: Sequence[Case] = (NOTHING, Case("bandwidth", "a slow link"))
_SMALL = {
    "workload": "layers",
    "layers": ["1.6 MB", "400 kB"] * 3,
    "payload": "none",
    "schedule": {"slice": 4_000},
}


# What no paper gives, in a small setting: a slow link, or slow processing for the last.
VARIED = {
    "computing": "time of computing",
    "slice": "parameters of a slice",
    "packets": "packets that a host gets at a time",
    "server_rate": "rate of a server",
}
_COMPUTE_MS, _SLICE = 20, 40_000
_SMALLER = ("resnet18-v2", 9)  # with as much computing for its bytes, in ms
_VARIED_ROUNDS = 10


def points(quick: bool) -> Iterator[Point]:
    """Yields the points, the longest runs first: then all CPUs are busy until the end."""
    for case in QUICK if quick else (*LONGEST, *(one for one in CASES if one not in LONGEST)):
        for k in case.ks:
            for balance in (BALANCED, *(case.others if k in (1.0, K) else ()), NO_BALANCER):
                yield _point(case, k, balance, quick)
    if not quick:
        yield from _sensitivity()


def _sensitivity() -> Iterator[Point]:
    for parameter, factor, of in variations(VARIED, base=True):
        for case in varied_cases(parameter):
            for balance in (NO_BALANCER, BALANCED):
                yield _varied(case, parameter, factor, balance, of)


def varied_cases(parameter: str) -> Sequence[Case]:
    """Returns the cases that a parameter is varied in."""
    link, processing = (
        replace(case, model=_SMALLER[0], rounds=_VARIED_ROUNDS)
        for case in CASES
        if case.name in ("bandwidth", "cpu")
    )
    if parameter == AS_ASSUMED:
        return link, processing
    return (processing,) if parameter == "server_rate" else (link,)


def _varied(
    case: Case, parameter: str, factor: float, balance: str, of: Mapping[str, float]
) -> Point:
    """Returns a point with a parameter times a factor. of: Factors of all."""
    topology, content = dict(network(case)), dict(job(case, balance, quick=False))
    costs = dict(topology["costs"])
    interval = float(costs["interrupt_interval"].removesuffix(" us"))
    costs["interrupt_interval"] = f"{interval * of['packets']:g} us"
    if "server_rate" in costs:
        costs["server_rate"] = f"{_SERVER_RATE * of['server_rate']:g} Gbit/s"
    content["compute"] = {"iteration": f"{_SMALLER[1] * of['computing']:g} ms"}
    content["schedule"] = {"slice": int(_SLICE * of["slice"])}
    values: Values = {**setting(parameter, factor), "slow": case.slow, "balance": balance}
    return Point(values, {**topology, "costs": costs}, content, faults=_faults(case, K))


def _point(case: Case, k: float, balance: str, quick: bool) -> Point:
    """Returns a point.

    Args:
        case: What is wrong, and with what job.
        k: How many times longer that takes.
        balance: A balancer, or what is done in place of it.
        quick: Whether the model is a small one.
    """
    values: Values = {"case": case.name, "k": k, "balance": balance}
    faults = _faults(case, k)
    return Point(values, network(case), job(case, balance, quick), faults=faults)


def network(case: Case) -> Mapping[str, Any]:
    """Returns the topology file."""
    costs = {"interrupt_interval": "400 us"}  # up to 31 packets at a time: few events
    if case.slow == "processing":
        costs["server_rate"] = f"{_SERVER_RATE} Gbit/s"
    network: dict[str, Any] = {
        "name": "psld",
        "defaults": {
            "rate": f"{LINE_RATE} Gbit/s",
            "delay": "10 us",
            "queue_bytes": "1 GiB",
            "mtu": 16_370,
        },
        "racks": [{"workers": case.workers, "servers": case.servers + case.spares}],
        "costs": costs,
    }
    if case is IMBALANCE:
        network["links"] = [
            {"ends": [f"s{n}", "tor0"], "rate": f"{_SLOW_LINE} Gbit/s"} for n in range(case.servers)
        ]
    return network


def job(case: Case, balance: str, quick: bool) -> Mapping[str, Any]:
    """Returns the job file."""
    moves = balance in (BALANCED, LEAST_LOADED)
    job: dict[str, Any] = {
        "name": "psld",
        "placement": "inc" if balance == SWITCHES else case.placement,
        "iterations": _iterations(case, balance),
        "chunk_bytes": 16_000,
        "window": 256,
        "streams": case.servers,
        **(_SMALL if quick else _model(case, balance)),
    }
    if balance == SWITCHES:
        del job["streams"]
    if case.spares:
        names = [f"s{number}" for number in range(case.servers + case.spares)]
        used, spares = names[: case.servers], names[case.servers :]
        job["placement"] = {"kind": case.placement, "servers": used, "spares": spares}
    if moves:
        job["balance"] = balance
    return job


def _iterations(case: Case, balance: str) -> int:
    if balance == BALANCED or case in (TRAFFIC, NOTHING):
        return case.rounds
    return _FEW if balance == LEAST_LOADED else _BASE_ROUNDS


def _model(case: Case, balance: str) -> Mapping[str, Any]:
    schedule: dict[str, Any] = {"slice": _SLICE}
    if case is IMBALANCE and balance != SLICES:
        schedule["assign"] = "keys"
    if balance == HASHED:
        schedule = {"slice": "whole", "assign": "hashed"}
    return {
        "workload": "model",
        "model": case.model,
        "compute": {"iteration": f"{_COMPUTE_MS} ms"},  # assumed
        "schedule": schedule,
    }


def _faults(case: Case, k: float) -> Sequence[Mapping[str, Any]]:
    if case is TRAFFIC:
        load = {"from": "s0", "to": "s1", "rate": "7 Gbit/s", "busy": "3 s", "idle": "3 s"}
        return [{"at": "500 ms", "load": load, "for": "forever"}]
    host = "w" if case.placement == "cs" else "s"
    names = [f"{host}{number}" for number in range(case.stragglers)]
    what = [{"link": [one, "tor0"]} if case.slow == "link" else {"host": one} for one in names]
    return [{"at": 0, "slow": {**one, "by": k}, "for": "forever"} for one in what]


def _real(balance: str) -> Real:
    """Returns a small setting: two workers and three servers, one of which has a slow link."""
    network = {
        "name": "psld",
        "defaults": {"rate": "2 Mbit/s"},
        "racks": [{"workers": 2, "servers": 3}],
    }
    content: dict[str, Any] = {
        "name": "psld",
        "workload": "digits",
        "hidden": [256],
        "iterations": 24 if balance == BALANCED else 10,
        "batch": 64,
        "slice_bytes": "4 KiB",
        "placement": "ncs",
    }
    if balance == BALANCED:
        content["balance"] = balance
    slow = {"link": ["s0", "tor0"], "by": K}
    faults = [{"at": 0, "slow": slow, "for": "forever"}]
    return Real(f"a slow link, {balance}", network, content, faults=faults)


IN_REAL_TIME = InRealTime(
    f"Two workers and three servers, links of 2 Mbit/s, a model of digits; a server's link is {K}"
    " times slower. Iterations until PSLD has moved slices count, too; most are later. How slow"
    " processing makes a job in real time depends on the machine; that PSLD helps there, too, on"
    " both targets, is a test (`tests/network/test_stragglers.py`).",
    [_real(balance) for balance in (NO_BALANCER, BALANCED)],
)
