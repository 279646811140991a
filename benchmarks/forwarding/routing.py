# SPDX-License-Identifier: Apache-2.0
"""Table and flows of the plain IPv4 router mode.

All routers have the same 10,000 prefixes of 16 to 28 bits, equally many per length and a quarter
through each port. A flow is a destination address, at most one per prefix. Flows are in random
order, so neither caches nor lookups profit from locality.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.forwarding import traffic
from benchmarks.forwarding.traffic import PORTS, Mode, Traffic
from controller.p4rt.entries import Entity, P4Info

FRAME_BYTES = (64, 1400)
FLOWS = (1, 10_000)
PREFIXES = 10_000
MODES: tuple[Mode, ...] = (
    "router_64_1", "router_64_10000", "router_1400_1", "router_1400_10000",
)  # fmt: skip
TTL = 64  # of sent packets

_SHORTEST, _LONGEST = 16, 28
_LONE = 24  # prefix length of a single flow
_FIRST, _LAST = 20, 120  # first bytes of prefixes, without special-purpose ranges
_ETHERNET, _IPV4 = 14, 20
_TTL_AT, _CHECKSUM_AT = _ETHERNET + 8, _ETHERNET + 10
_VARYING = 10  # bytes of a header: checksum, source, destination
_TRAIN = 32


@dataclass(frozen=True)
class Route:
    """A prefix and its output port (from 0)."""

    address: int
    length: int
    port: int


def sizes(mode: Mode) -> tuple[int, int] | None:
    """Returns frame bytes and number of flows; None if it is not a router mode."""
    if mode not in MODES:
        return None
    _, size, flows = mode.split("_")
    return int(size), int(flows)


@cache
def table() -> tuple[Route, ...]:
    """Returns all routes; prefixes may be nested."""
    rng = np.random.default_rng(PREFIXES)
    routes: dict[tuple[int, int], Route] = {}
    while len(routes) < PREFIXES:
        at = len(routes)
        length = _SHORTEST + at % (_LONGEST - _SHORTEST + 1)
        drawn = int(rng.integers(_FIRST << 24, _LAST << 24))
        address = drawn & _mask(length)
        routes.setdefault((address, length), Route(address, length, at % PORTS))
    return tuple(routes.values())


def longest(destination: int) -> Route | None:
    """Returns the longest-prefix match of an address."""
    for length in range(_LONGEST, _SHORTEST - 1, -1):
        found = _by_prefix().get((destination & _mask(length), length))
        if found is not None:
            return found
    return None


@cache
def destinations(port: int) -> tuple[int, ...]:
    """Returns an IPv4 address in each prefix of a port, in random order; the first is in a prefix
    of 24 bits."""
    rng = np.random.default_rng(port)
    found = []
    for route in table():
        if route.port != port:
            continue
        for _ in range(8):  # a nested prefix may lead elsewhere
            address = route.address | int(rng.integers(1 << (32 - route.length)))
            if longest(address) is route:
                found.append((route.length, address))
                break
    order = [found[at] for at in rng.permutation(len(found))]
    lone = next(at for at, (length, _) in enumerate(order) if length == _LONE)
    order[0], order[lone] = order[lone], order[0]
    return tuple(address for _, address in order)


def load(mode: Mode, window: int, routed: bool, train: int | None = None) -> Traffic:
    """Makes the traffic of a mode: each port sends to prefixes of its neighbour.

    Args:
        routed: Received packets must have a TTL of one less.
        train: Packets per train; by default what fits best.
    """
    size, flows = sizes(mode) or (0, 0)
    count = min(train or _TRAIN, window)
    trains, varying = [], []
    for worker in range(PORTS):
        own = [
            traffic.datagram(worker, destination, size)
            for destination in destinations(worker ^ 1)[: max(1, flows // PORTS)]
        ]
        trains.append(own[0] * count)
        varying.append(b"".join(one[_CHECKSUM_AT : _CHECKSUM_AT + _VARYING] for one in own))
    return Traffic(
        mode=mode,
        trains=tuple(trains),
        messages=count,
        vnet=False,
        numbers=0,
        number_at=0,
        number_stride=0,
        number_step=0,
        number_again=0,
        headers=traffic.PAYLOAD_AT,
        segment=size - traffic.PAYLOAD_AT,
        packets=count,
        window=window,
        sign=(_TTL_AT, TTL - routed),
        varying=tuple(varying),
        varying_at=_CHECKSUM_AT,
        varying_bytes=_VARYING,
        across=True,
    )


def wrong_route(frame: bytes, port: int) -> str | None:
    """Describes an error in a frame (from Ethernet on) routed to a port; None if it is right."""
    header = frame[_ETHERNET : _ETHERNET + _IPV4]
    destination = int.from_bytes(header[16:20], "big")
    route = longest(destination)
    if route is None or route.port != port:
        return f"a packet for {destination:#x} left through port {port + 1}"
    macs = (traffic.WORKER_MACS + port).to_bytes(6, "big") + traffic.ROUTER_MAC.to_bytes(6, "big")
    if frame[: len(macs)] != macs:
        return f"its Ethernet addresses are {frame[: len(macs)].hex()}"
    if header[8] != TTL - 1:
        return f"its TTL is {header[8]}"
    if traffic.internet_sum(header) != 0xFFFF:
        return "its IPv4 checksum is wrong"
    return None


def program(path: Path) -> tuple[P4Info, bytes]:
    """Loads a router program, with its table enlarged to the routes."""
    p4info = P4Info.load(path.with_suffix(".p4info.txtpb"))
    routes = p4info.table("routes")
    routes.size = PREFIXES
    compiled = json.loads(path.with_suffix(".json").read_bytes())
    for pipeline in compiled["pipelines"]:
        for one in pipeline["tables"]:
            if one["name"] == routes.preamble.name:
                one["max_size"] = PREFIXES
    return p4info, json.dumps(compiled).encode()


def entries(p4info: P4Info) -> list[Entity]:
    """Returns the table as P4Runtime entries."""
    return [
        p4info.table_entry(
            "routes",
            {"hdr.ipv4.destination": (route.address, route.length)},
            "forward",
            {"port": route.port + 1, "next_hop": traffic.WORKER_MACS + route.port},
        )
        for route in table()
    ]


def text(address: int) -> str:
    """Formats an IPv4 address."""
    return ".".join(map(str, struct.pack(">I", address)))


def mac(address: int) -> str:
    """Formats an Ethernet address."""
    return address.to_bytes(6, "big").hex(":")


@cache
def _by_prefix() -> dict[tuple[int, int], Route]:
    return {(route.address, route.length): route for route in table()}


def _mask(length: int) -> int:
    return 0xFFFFFFFF << (32 - length) & 0xFFFFFFFF
