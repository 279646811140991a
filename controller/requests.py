# SPDX-License-Identifier: Apache-2.0
"""What callers of the job service may ask for: checks that need no state but the job's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address

from controller.admission import LARGEST_WINDOW
from controller.job import Job, JobError, Key, Membership, Refusal, Role
from controller.trees import MOST_STREAMS
from protocol.header import PORT
from protocol.plan import Address
from topologies.addressing import Addressing
from topologies.topology import Topology

__all__ = [
    "check_address",
    "check_create",
    "check_keys",
    "check_lease",
    "check_window",
    "difference",
]

NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MOST_KEYS = 1 << 16
LONGEST_KEY_NAME = 256
# Members call every two seconds.
SHORTEST_LEASE = 5.0
LONGEST_LEASE = 86400.0


def check_create(
    topology: Topology,
    namespace: str,
    workers: Sequence[str],
    servers: Sequence[str],
    window: int,
    streams: int,
) -> None:
    """Raises JobError unless the hosts exist, once each, and the numbers are possible."""
    if not NAMESPACE.fullmatch(namespace):
        raise _wrong(
            f"namespace {namespace[:80]!r}: 1 to 63 letters, digits, '.', '_' or '-',"
            " the first a letter or digit"
        )
    hosts = {node.name for node in topology.hosts}
    for role, names in ((Role.WORKER, workers), (Role.SERVER, servers)):
        if not names:
            raise _wrong(f"no {role}s; a job needs at least one")
        for name in names:
            if name not in hosts:
                known = ", ".join(node.name for node in topology.hosts)
                raise _wrong(f"{role} {name[:80]!r} is no host of {topology.name}; hosts: {known}")
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise _wrong(f"{', '.join(twice)}: named twice among the {role}s")
    check_window(window, streams)


def check_window(window: int, streams: int) -> None:
    """Raises JobError unless a stream can have that window, and a job so many streams."""
    if window and (window & (window - 1) or window > LARGEST_WINDOW):
        raise _wrong(
            f"window {window}: a power of two up to {LARGEST_WINDOW}, or 0 for the controller's"
            " choice"
        )
    if streams > MOST_STREAMS:
        raise _wrong(
            f"{streams} streams; allowed: 1 to {MOST_STREAMS}, or 0 (as few as the tree allows)"
        )


def check_lease(lease: float) -> None:
    """Raises JobError unless it is a time after which a silent member may count as dead."""
    if lease and not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        raise _wrong(
            f"lease {lease:g} s: allowed are {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} s, or 0 for"
            " the controller's choice"
        )


def check_address(addressing: Addressing, job: Job, place: Membership, address: Address) -> None:
    """Raises JobError unless the address is the member's host's, and a server's port the right one.

    Workers send by their host's first interface; a server may listen at any.
    """
    host = job.host(place)
    own = [interface.ipv4 for interface in addressing.host_interfaces(host)]
    allowed = own if place.role is Role.SERVER else own[:1]
    if IPv4Address(address.ipv4) not in allowed:
        raise _wrong(
            f"{job}: {job.name(place)} cannot listen at {address};"
            f" {host} has {', '.join(map(str, allowed))}"
        )
    if not 0 < address.port < 1 << 16:
        raise _wrong(f"{job}: {job.name(place)}: UDP port {address.port} is not in 1 to 65535")
    if place.role is Role.SERVER and address.port != PORT:
        raise _wrong(f"{job}: {job.name(place)}: servers listen at UDP port {PORT}")


def check_keys(keys: Sequence[Key], lanes: int) -> None:
    """Raises JobError unless there are keys, each once, not empty, and chunks can be counted."""
    if not 0 < len(keys) <= MOST_KEYS:
        raise _wrong(f"{len(keys)} keys; allowed: 1 to {MOST_KEYS}")
    seen: set[int] = set()
    chunks = 0
    for key in keys:
        if key.key in seen:
            raise _wrong(f"key {key.key} is given twice")
        seen.add(key.key)
        if len(key.name) > LONGEST_KEY_NAME:
            raise _wrong(f"key {key.key}: its name is longer than {LONGEST_KEY_NAME} characters")
        if key.elements == 0:
            raise _wrong(f"key {key.key} ({key.name}) has no elements")
        chunks += -(-key.elements // max(lanes, 1))
    if chunks > 1 << 32:
        raise _wrong(f"{chunks} chunks; the chunk number of a packet counts up to {1 << 32}")


def difference(known: Sequence[Key], given: Sequence[Key], who: str) -> str:
    """The first difference between the keys of the first worker and another's, in words."""
    for mine, theirs in zip(given, known, strict=False):
        if mine != theirs:
            return f"{who} has {_words(mine)} where workers before it have {_words(theirs)}"
    keys = "key" if len(given) == 1 else "keys"
    return f"{who} has {len(given)} {keys}, workers before it have {len(known)}"


def _words(key: Key) -> str:
    return f"key {key.key} ({key.name!r}) of {key.elements} elements"


def _wrong(text: str) -> JobError:
    return JobError(Refusal.INVALID_ARGUMENT, text)
