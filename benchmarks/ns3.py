# SPDX-License-Identifier: Apache-2.0
"""Benchmark of virtual time beside the simulator ns-3, which sends as many packets over the same
links (``native/ns3.cc``), in turns with the exchanges of this package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from typing_extensions import TypedDict

from benchmarks import exchanges
from benchmarks.common import (
    BenchError,
    MachineFacts,
    Spread,
    machine,
    pinned,
    spread_of,
    two_cores,
)
from protocol.header import HEADER_BYTES, LANE_BYTES
from simulation.links.trains import picoseconds
from switch.compiler import CompilerError, build_executable, compiler
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

NS3 = ("udp", "devices")
"""Ways of ns-3: with sockets, IPv4 and static routes; links alone."""
OURS = ("payload", "headers")
"""Kinds of exchanges that are compared with them."""

_SOURCE = Path(__file__).parent / "native" / "ns3.cc"
_LIBRARIES = ("ns3-core", "ns3-network", "ns3-internet", "ns3-point-to-point")
# Of a job: the first round needs exponents, the memory of the second is new, and in the last
# workers leave, which ns-3's hosts do not.
_ROUNDS, _COUNTED = 4, 2


class Ns3Comparison(TypedDict):
    """Costs of virtual time and of ns-3 in turns on the same core."""

    version: str
    """Of ns-3."""
    chunks: int
    """Packets of each link and direction."""
    window: int
    """Packets of a host in flight."""
    packet_bytes: int
    """UDP payload of a packet."""
    packet_hops: int
    """Packets times links in a turn: counted in ns-3, the least that ours were."""
    packet_hops_per_second: dict[str, Spread]
    """Packet-hops per second of CPU time, by an element of `NS3` or `OURS`."""
    ratios: dict[str, dict[str, Spread]]
    """Ours to ns-3's of the same round, by elements of `OURS` and `NS3`."""
    machine: MachineFacts
    """Where it was measured."""


class Ns3Turn(TypedDict):
    """What the program prints. arrived: packets at each end of each link."""

    version: str
    cpu_seconds: float
    arrived: list[int]


@cache
def program() -> Path:
    """Returns ns-3's program, built at its first use.

    Raises BenchError, saying what to install.
    """
    try:
        compiler("C++")
    except CompilerError as error:
        raise BenchError(str(error)) from error
    try:
        return build_executable(_SOURCE, _LIBRARIES)
    except OSError as error:
        raise BenchError(f"the program for ns-3 cannot be kept: {error}") from error
    except CompilerError as error:
        raise BenchError(
            "the program for ns-3 cannot be built: is ns-3 installed (Debian: apt install"
            f" libns3-dev)?\n{error}"
        ) from error


def measure(chunks: int, window: int, rounds: int, turn: Callable[[str], None]) -> Ns3Comparison:
    """Measures packet-hops per second of CPU time, all in turns.

    turn: called with the way or kind that is measured next.

    Raises BenchError.
    """
    core, _ = two_cores()
    program()  # before anything is measured
    link = Addressing(parse(exchanges.TOPOLOGY)).host_interfaces("w0")[0].outgoing
    bytes_ = HEADER_BYTES + 256 * LANE_BYTES
    hops = exchanges.case_of("headers", chunks, window).hops
    load = (chunks, window, bytes_, link.rate, picoseconds(link.delay), link.queue_bytes)
    rates: dict[str, list[float]] = {one: [] for one in (*NS3, *OURS)}
    version = ""
    with pinned(core):
        for _ in range(rounds):
            for way in NS3:
                turn(way)
                found = run_program(way, load)
                if set(found["arrived"]) != {chunks} or sum(found["arrived"]) != hops:
                    raise BenchError(f"packets at ns-3's devices: {found['arrived']}, not {chunks}")
                rates[way].append(hops / found["cpu_seconds"])
                version = found["version"]
            for kind in OURS:
                turn(kind)
                case = exchanges.case_of(kind, chunks, window)
                rates[kind].append(hops / exchanges.run(case, _ROUNDS).cpu(_COUNTED))
    return {
        "version": version,
        "chunks": chunks,
        "window": window,
        "packet_bytes": bytes_,
        "packet_hops": hops,
        "packet_hops_per_second": {one: spread_of(found) for one, found in rates.items()},
        "ratios": {
            kind: {
                way: spread_of([a / b for a, b in zip(rates[kind], rates[way], strict=True)])
                for way in NS3
            }
            for kind in OURS
        },
        "machine": machine(),
    }


def run_program(way: str, load: tuple[int, ...]) -> Ns3Turn:
    """Runs ns-3 once.

    load: packets of each link and direction, of a host in flight, bytes of a packet; bit/s, delay
        in ps and bytes of the queue of each link.

    Raises BenchError.
    """
    command = [str(program()), way, *map(str, load)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise BenchError(f"ns-3 failed ({run.returncode}): {run.stderr[-2000:].strip()}")
    turn: Ns3Turn = json.loads(run.stdout)
    return turn
