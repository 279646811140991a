# SPDX-License-Identifier: Apache-2.0
"""Validates requests to the job service, with no state but the job's own.

Error texts quote at most `QUOTED` characters of a caller's text, so their length is bounded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address

from controller.jobs.job import Job, JobError, Key, Membership, Refusal, Role
from controller.planning.admission import LARGEST_WINDOW
from controller.planning.balancing.registry import BALANCERS
from controller.planning.stream_numbers import most_streams
from controller.planning.tree_planner import TreeKind
from controller.planning.windows import MOST as LARGEST_CHOSEN_WINDOW
from protocol.balance import Balance
from protocol.header import LANE_BYTES, SERVER_PORTS
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address
from protocol.propagation import USUAL as USUAL_PROPAGATION
from protocol.propagation import Propagation
from protocol.propagation import refusal as not_with
from protocol.server_pipelines import USUAL, Pipeline, refusal
from topologies.model.addressing import Addressing
from topologies.model.topology import Topology
from topologies.model.wording import few

__all__ = [
    "LONGEST_KEY_NAME",
    "QUOTED",
    "check_address",
    "check_balance",
    "check_beat",
    "check_create",
    "check_enrolment",
    "check_keys",
    "check_lease",
    "check_optimizer",
    "check_pipeline",
    "check_propagation",
    "check_spans",
    "check_spares",
    "check_window",
    "difference",
    "said",
]

NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MOST_KEYS = 1 << 16
LONGEST_KEY_NAME = 256
# Of all keys together, as the journal writes them whenever the job changes.
MOST_NAME_CHARACTERS = 1 << 20
# A report has 4 bytes for each chunk, and goes in one message (service.MOST_MESSAGE_BYTES).
MOST_CHUNKS = 1 << 21
# Memory that a server reserves for one job: 2 x window slots of each stream, each with a chunk of
# every worker and the sum. All jobs of a host share the server.
MOST_SERVER_BYTES = 8 << 30
QUOTED = 80  # characters of what a caller sent
# Members call every two seconds.
SHORTEST_LEASE = 5.0
LONGEST_LEASE = 86400.0
MOST_SLICE_BYTES = 64 << 20


def check_create(
    topology: Topology,
    namespace: str,
    workers: Sequence[str],
    servers: Sequence[str],
    window: int,
    streams: int,
    lanes: int,
    propagation: Propagation = USUAL_PROPAGATION,
) -> None:
    """Raises JobError unless the hosts exist, once each, and the numbers are possible."""
    if not NAMESPACE.fullmatch(namespace):
        raise _wrong(
            f"namespace {namespace[:QUOTED]!r}: 1 to 63 letters, digits, '.', '_' or '-',"
            " the first a letter or digit"
        )
    hosts = {node.name for node in topology.hosts}
    for role, names in ((Role.WORKER, workers), (Role.SERVER, servers)):
        if not names:
            raise _wrong(f"no {role}s; a job needs at least one")
        for name in names:
            if name not in hosts:
                known = few([node.name for node in topology.hosts])
                text = f"{role} {name[:QUOTED]!r} is no host of {topology.name}; hosts: {known}"
                raise _wrong(text)
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise _wrong(f"{few(twice)}: named twice among the {role}s")
    check_window(window, streams, len(workers), lanes, propagation)


def check_spares(servers: Sequence[str], spares: Collection[str], kind: TreeKind) -> None:
    """Raises JobError unless some servers are not spare, and it is servers that sum."""
    if spares and len(spares) == len(servers):
        raise _wrong("all servers are spare; a job needs at least one that is not")
    if spares and not kind.ends_at_server:
        raise _wrong(f"spare servers: the root of tree {kind} is a switch, so servers sum nothing")


def check_enrolment(topology: Topology, job: Job, host: str, lanes: int) -> None:
    """Raises JobError unless a running job can have a further worker at a host."""
    hosts = [node.name for node in topology.hosts]
    if host not in hosts:
        text = f"{job}: {host[:QUOTED]!r} is no host of {topology.name}; hosts: {few(hosts)}"
        raise _wrong(text)
    if host in job.workers:
        rank = job.workers.index(host)
        text = f"{job} has worker {rank} at {host}, whose process can be restarted"
        raise JobError(Refusal.ALREADY_EXISTS, text)
    if not job.started:
        raise JobError(Refusal.FAILED_PRECONDITION, f"{job} is {job.state.value}, not running")
    if job.optimizer is not None and not job.optimizer.consistency.together:
        text = "its servers count the gradients of those workers that it began with"
        raise JobError(Refusal.FAILED_PRECONDITION, f"{job}: {text}")
    check_window(job.window, job.streams, len(job.workers) + 1, lanes, job.propagation)


def check_slice(slice_bytes: int) -> None:
    """Raises JobError unless the size of slices is possible."""
    if slice_bytes > MOST_SLICE_BYTES:
        text = f"slices of {slice_bytes} bytes; allowed: up to {MOST_SLICE_BYTES}, or 0 for 32 KiB"
        raise _wrong(text)


def check_window(
    window: int, streams: int, world: int, lanes: int, propagation: Propagation
) -> None:
    """Raises JobError unless the window and the number of streams are possible, and a server has
    memory for chunks of ``world`` workers in all streams."""
    if window and (window & (window - 1) or window > LARGEST_WINDOW):
        raise _wrong(
            f"window {window}: a power of two up to {LARGEST_WINDOW}, or 0 for the controller's"
            " choice"
        )
    most, classes = most_streams(propagation), propagation.classes
    if not most:
        raise _wrong(f"{classes} classes, and there are not so many streams; allowed: fewer")
    if streams > most:
        of_each = f" of each of {classes} classes" if classes > 1 else ""
        raise _wrong(
            f"{streams} streams{of_each}; allowed: 1 to {most}, or 0 (as few as the tree allows)"
        )
    slots = 2 * (window or LARGEST_CHOSEN_WINDOW) * max(1, streams) * classes
    needed = slots * (world + 1) * LANE_BYTES * lanes
    if needed > MOST_SERVER_BYTES:
        raise _wrong(
            f"window {window}, {classes * streams} streams: chunks of {world} workers in"
            f" {slots} slots need {needed >> 20} MiB at each server; allowed:"
            f" {MOST_SERVER_BYTES >> 20} MiB"
        )


def check_beat(job: Job, place: Membership, epoch: int, unanswered: float) -> None:
    """Raises JobError for an impossible heartbeat."""
    if not (math.isfinite(unanswered) and unanswered >= 0):
        raise _wrong(f"{job}: {job.name(place)}: unanswered for {unanswered} s; allowed: 0 or more")
    if epoch > job.epoch:
        raise _wrong(f"{job} is in epoch {job.epoch}; {job.name(place)} cannot run {epoch}")


def check_lease(lease: float) -> None:
    """Raises JobError unless the lease is 0 or within its limits."""
    if lease and not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        raise _wrong(
            f"lease {lease:g} s: allowed are {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} s, or 0 for"
            " the controller's choice"
        )


def check_address(addressing: Addressing, job: Job, place: Membership, address: Address) -> None:
    """Raises JobError unless a worker has its host's first address and a port that is no server's,
    and a server the address of its process."""
    name = job.host(place)
    is_server = place.role is Role.SERVER
    own = addressing.unit(name).address if is_server else addressing.address(name)
    if IPv4Address(address.ipv4) != own:
        raise _wrong(f"{job}: {job.name(place)} cannot listen at {address}; {name} has {own}")
    if is_server and address.port != addressing.unit(name).port:
        port = addressing.unit(name).port
        raise _wrong(f"{job}: {job.name(place)}: {name} listens at UDP port {port}")
    if not 0 < address.port < 1 << 16:
        raise _wrong(f"{job}: {job.name(place)}: UDP port {address.port} is not in 1 to 65535")
    if not is_server and address.port in SERVER_PORTS:
        ports = f"{SERVER_PORTS[0]} to {SERVER_PORTS[-1]}"
        raise _wrong(
            f"{job}: {job.name(place)}: UDP port {address.port} is one of servers' ({ports});"
            " workers have others"
        )


def check_keys(keys: Sequence[Key], lanes: int) -> None:
    """Raises JobError unless there are keys, unique, not empty, and within the limits."""
    if not 0 < len(keys) <= MOST_KEYS:
        raise _wrong(f"{len(keys)} keys; allowed: 1 to {MOST_KEYS}")
    seen: set[int] = set()
    chunks = named = 0
    for key in keys:
        if key.key in seen:
            raise _wrong(f"key {key.key} is given twice")
        seen.add(key.key)
        if len(key.name) > LONGEST_KEY_NAME:
            raise _wrong(f"key {key.key}: its name is longer than {LONGEST_KEY_NAME} characters")
        if key.elements == 0:
            raise _wrong(f"key {key.key} ({key.name[:QUOTED]!r}) has no elements")
        named += len(key.name)
        chunks += -(-key.elements // max(lanes, 1))
    if named > MOST_NAME_CHARACTERS:
        raise _wrong(f"names of {named} characters; allowed: {MOST_NAME_CHARACTERS} for all keys")
    if chunks > MOST_CHUNKS:
        raise _wrong(
            f"{chunks} chunks; allowed: {MOST_CHUNKS}, {MOST_CHUNKS * max(lanes, 1)} elements"
        )


def check_optimizer(job: Job, optimizer: OptimizerPlan | None, kind: TreeKind) -> None:
    """Raises JobError if servers cannot run the optimizer with this kind of tree."""
    if optimizer is not None and not kind.ends_at_server:
        raise _wrong(
            f"{job}: an optimizer at the servers needs every tree to have a server as its root,"
            f" and those of tree {kind} have a switch; use tree"
            f" {' or '.join(str(kind) for kind in TreeKind if kind.ends_at_server)}"
        )
    if optimizer is not None and not optimizer.consistency.together and kind is not TreeKind.NONE:
        raise _wrong(
            f"{job}: with consistency {optimizer.consistency} servers take a step with each"
            f" worker's gradient, so no switch may add them up; use tree {TreeKind.NONE} instead of"
            f" {kind}"
        )
    if optimizer is not None and not optimizer.consistency.together and job.pipeline != USUAL:
        raise _wrong(
            f"{job}: pipeline {job.pipeline} is about sums over workers, and with consistency"
            f" {optimizer.consistency} there are none; use pipeline {USUAL}"
        )


def check_pipeline(pipeline: Pipeline, kind: TreeKind, optimizer: bool = True) -> None:
    """Raises JobError if servers cannot run the pipeline with this kind of tree.

    optimizer: servers run an optimizer, or may do so later.
    """
    reason = refusal(
        pipeline,
        str(kind),
        at_server=kind.ends_at_server,
        switches=kind is not TreeKind.NONE,
        optimizer=optimizer,
    )
    if reason:
        raise _wrong(reason)


def check_propagation(propagation: Propagation, kind: TreeKind) -> None:
    """Raises JobError if a job with this kind of tree cannot send gradients so."""
    if reason := not_with(propagation, str(kind), at_server=kind.ends_at_server):
        raise _wrong(reason)


def check_balance(balance: Balance | None) -> None:
    """Raises JobError unless the policy of a load balancer is known."""
    if balance is not None and balance.policy not in BALANCERS:
        raise _wrong(f"balance {balance.policy[:QUOTED]!r} is none of {', '.join(BALANCERS)}")


def check_spans(optimizer: OptimizerPlan | None, keys: Sequence[Key], lanes: int) -> None:
    """Raises JobError if an optimizer refers to chunks beyond those of the keys."""
    chunks = sum(-(-key.elements // max(lanes, 1)) for key in keys)
    if optimizer is not None and optimizer.spans and optimizer.spans[-1].first >= chunks:
        raise _wrong(
            f"optimizer {optimizer.name} speaks of chunk {optimizer.spans[-1].first}; allowed:"
            f" 0..{chunks - 1}, which the keys have"
        )


def difference(known: Sequence[Key], given: Sequence[Key], who: str) -> str:
    """Describes the first difference between the keys of the first worker and another's."""
    for mine, theirs in zip(given, known, strict=False):
        if mine != theirs:
            return f"{who} has {_words(mine)} where workers before it have {_words(theirs)}"
    keys = "key" if len(given) == 1 else "keys"
    return f"{who} has {len(given)} {keys}, workers before it have {len(known)}"


def _words(key: Key) -> str:
    return f"key {key.key} ({key.name[:QUOTED]!r}) of {key.elements} elements"


def said(text: str, most: int) -> str:
    """Sanitizes a member's text for logs: one line of at most `most` printable characters."""
    line = " ".join(text[: 4 * most].split())[:most]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def _wrong(text: str) -> JobError:
    return JobError(Refusal.INVALID_ARGUMENT, text)
