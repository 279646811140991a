# SPDX-License-Identifier: Apache-2.0
"""Plans of a job's members: their place in each stream's tree, and the assignment of chunks.

Frozen values, validated when they are made from a message, so that the state machines that run on
them can rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from protocol import jobs_pb2
from protocol.codecs.codec import Codec
from protocol.codecs.registry import USUAL as USUAL_CODEC
from protocol.codecs.registry import codec_named
from protocol.optimizer_plan import OptimizerPlan
from protocol.partition import ChunkAssignment, Moved, shares
from protocol.propagation import USUAL as USUAL_PROPAGATION
from protocol.propagation import Propagation
from protocol.server_pipelines import USUAL, Pipeline
from protocol.trees import TREE_NAMES, TREE_NUMBERS

MOST_CHILDREN = 32
LARGEST_WINDOW = 1 << 15
LARGEST_WORLD = (1 << 16) - 1
# The congestion window of workers unless their plan names another.
FIXED = "fixed"


class PlanError(ValueError):
    """An invalid plan; the text names the field and what it must be."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """An IPv4 address (as a number, host order) and a UDP port."""

    ipv4: int
    port: int

    def __str__(self) -> str:
        return f"{IPv4Address(self.ipv4)}:{self.port}"

    def pair(self) -> tuple[int, int]:
        return self.ipv4, self.port

    @staticmethod
    def of(host: str, port: int) -> Address:
        """Parses dotted text."""
        return Address(int(IPv4Address(host)), port)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One stream as one worker sees it.

    node: its parent's id.
    sender: its child index there.
    window: chunks in flight.
    priority: the class of its chunks; streams of higher priority send first.
    """

    stream: int
    node: int
    sender: int
    window: int
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemberPlan:
    """The part of a plan that workers and servers both have.

    rank: the member's, among workers or among servers.
    servers: addresses by rank.
    counts: chunks of each key, in order.
    link_rate: of the member's link, in bit/s; 0 when unknown (no pacing).
    members: the workers by rank, as their ranks when the job was created; none: all of them.
    optimizer: run by the servers, whose results are parameters then, not sums; every stream's root
        is a server.
    pipeline: of the servers.
    propagation: how gradients are sent.
    codec: of all members of the job.
    moved: slices that are at other servers than the assignment says, in order, and those servers.
    measures: workers report what came from each server, round by round, and servers their own
        times.
    """

    job: int
    epoch: int
    world: int
    lanes: int
    rank: int
    servers: tuple[Address, ...]
    counts: tuple[int, ...]
    chunks_per_slice: int = 1
    link_rate: int = 0
    members: tuple[int, ...] = ()
    optimizer: OptimizerPlan | None = None
    pipeline: Pipeline = USUAL
    propagation: Propagation = USUAL_PROPAGATION
    codec: Codec = USUAL_CODEC
    moved: Moved = ()
    measures: bool = False
    # A chunk map is long, so a look in the cache of `shares` takes longer than what it is asked.
    _assigned: dict[int, ChunkAssignment] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        job, epoch, world, lanes = self.job, self.epoch, self.world, self.lanes
        _need(0 < job < 1 << 16, f"job {job} is not in 1..65535 (0 is never used)")
        _need(0 < epoch < 1 << 16, f"epoch {epoch} is not in 1..65535 (0 is never used)")
        _need(0 < world <= LARGEST_WORLD, f"world {world} is not in 1..{LARGEST_WORLD}")
        _need(0 <= lanes < 1 << 16, f"lanes {lanes} is not in 0..65535")
        counts, members = self.counts, self.members
        _need(bool(counts), "a job has at least one key, this plan has none")
        _need(min(counts) > 0, f"key {counts.index(min(counts))} has no chunks")
        _need(self.chunks_per_slice > 0, "chunks_per_slice must be at least 1")
        _ascending(members, "members")
        _ascending([one for one, _ in self.moved], "moved slices")
        for one, server in self.moved:
            _need(
                0 <= server < len(self.servers),
                f"slice {one} is at server {server}, and there are {len(self.servers)}",
            )
        _need(len(members) in (0, world), f"{len(members)} members are named in a world of {world}")

    @property
    def is_asynchronous(self) -> bool:
        """True if servers take a step with each worker's gradient, instead of sums."""
        return self.optimizer is not None and not self.optimizer.consistency.together

    def _shares(self, streams: int) -> ChunkAssignment:
        if streams not in self._assigned:
            self._assigned[streams] = shares(
                *(self.counts, self.chunks_per_slice, len(self.servers), streams),
                *(self.propagation, self.moved),
            )
        return self._assigned[streams]

    @staticmethod
    def _fields(message: jobs_pb2.Plan) -> dict[str, Any]:
        """Returns this part of a message; raises PlanError."""
        try:
            return {
                "job": message.job,
                "epoch": message.epoch,
                "world": message.world,
                "lanes": message.lanes,
                "rank": message.rank,
                "servers": _addresses(message.servers),
                "counts": tuple(message.key_chunks),
                "chunks_per_slice": message.chunks_per_slice,
                "link_rate": message.link_rate,
                "members": tuple(message.members),
                "optimizer": OptimizerPlan.from_message(message.optimizer)
                if message.HasField("optimizer")
                else None,
                "pipeline": Pipeline.from_message(message.pipeline),
                "propagation": Propagation.from_message(message.propagation),
                "codec": codec_named(message.codec),
                "moved": moved_of(message.moved),
                "measures": message.measures,
            }
        except ValueError as error:
            raise PlanError(str(error)) from error

    def _message(self) -> jobs_pb2.Plan:
        return jobs_pb2.Plan(
            job=self.job,
            epoch=self.epoch,
            world=self.world,
            lanes=self.lanes,
            rank=self.rank,
            servers=map(_address, self.servers),
            key_chunks=self.counts,
            chunks_per_slice=self.chunks_per_slice,
            link_rate=self.link_rate,
            members=self.members,
            optimizer=self.optimizer.to_message() if self.optimizer is not None else None,
            pipeline=self.pipeline.to_message(),
            propagation=self.propagation.to_message(),
            codec=self.codec.name,
            moved=moved_message(self.moved),
            measures=self.measures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan(_MemberPlan):
    """A worker's plan.

    tree, roots: for display: the tree's name in job files, and the switches or servers at its
        roots.
    congestion: name of the congestion window (hosts.worker.congestion).
    """

    streams: tuple[StreamPlan, ...]
    tree: str = ""
    roots: tuple[str, ...] = ()
    congestion: str = FIXED

    def __post_init__(self) -> None:
        _MemberPlan.__post_init__(self)  # super() does not know a class with slots
        _need(0 <= self.rank < self.world, f"rank {self.rank} is not below world {self.world}")
        _need(bool(self.servers), "a job has at least one server, this plan names none")
        _need(bool(self.streams), "a plan has at least one stream, this one has none")
        _ascending([stream.stream for stream in self.streams], "streams")
        _check_classes(self.propagation, len(self.streams))
        for stream in self.streams:
            _check_stream(stream.stream, stream.node, stream.window)
            _need(
                0 <= stream.sender < MOST_CHILDREN,
                f"stream {stream.stream}: sender {stream.sender} is not in 0..{MOST_CHILDREN - 1}",
            )

    def server_of(self, chunk: Any) -> Any:
        """Returns the rank of the server that a chunk (or each of an array) is addressed to."""
        return self.shares.server_of(chunk)

    def stream_of(self, chunk: Any) -> Any:
        """Returns the index into `streams` of the stream that carries a chunk (or each of an
        array)."""
        return self.shares.stream_of(chunk)

    @property
    def shares(self) -> ChunkAssignment:
        """The assignment of chunks to servers and streams."""
        return self._shares(len(self.streams))

    @staticmethod
    def from_message(message: jobs_pb2.Plan) -> WorkerPlan:
        """Raises PlanError."""
        streams = [
            StreamPlan(s.stream, s.node, s.sender, s.window, s.priority) for s in message.streams
        ]
        return WorkerPlan(
            streams=tuple(sorted(streams, key=lambda stream: stream.stream)),
            tree=TREE_NAMES.get(message.tree, ""),
            roots=tuple(message.summed_at),
            congestion=message.congestion or FIXED,
            **_MemberPlan._fields(message),
        )

    def to_message(self) -> jobs_pb2.Plan:
        message = self._message()
        message.MergeFrom(
            jobs_pb2.Plan(
                streams=[jobs_pb2.Stream(**asdict(stream)) for stream in self.streams],
                tree=TREE_NUMBERS.get(self.tree),
                summed_at=self.roots,
                congestion=self.congestion,
            )
        )
        return message


@dataclass(frozen=True, slots=True)
class Child:
    """A child of a server that is a stream's root.

    `workers` is the number of workers below it; `node` is 0 for a worker, else the switch's node.
    """

    sender: int
    address: Address
    workers: int
    node: int


@dataclass(frozen=True, slots=True)
class RootStream:
    """A stream whose tree has this server as its root, under the node id `node`."""

    stream: int
    node: int
    window: int
    children: tuple[Child, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan(_MemberPlan):
    """A server's plan.

    workers: addresses by rank; this server sums their DIRECT chunks.
    windows: by stream.
    roots: streams whose root it is.
    met: of an asynchronous job, the epoch of the last boundary at which workers joined (0: none),
        and a worker that was present, numbered likewise.
    callers: IPv4 addresses that servers' hosts call each other from, by rank, shared by processes
        of one host; none: those that they listen at.
    """

    workers: tuple[Address, ...]
    windows: Mapping[int, int]
    roots: tuple[RootStream, ...] = ()
    met: tuple[int, int] = (0, 0)
    callers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _MemberPlan.__post_init__(self)
        _need(
            len(self.callers) in (0, len(self.servers)),
            f"{len(self.callers)} callers are named for {len(self.servers)} servers",
        )
        object.__setattr__(self, "windows", MappingProxyType(dict(self.windows)))
        _need(
            0 <= self.rank < len(self.servers),
            f"rank {self.rank} is not one of the plan's {len(self.servers)} servers",
        )
        _need(
            len(self.workers) == self.world,
            f"{len(self.workers)} workers' addresses for a world of {self.world}",
        )
        _need(len(set(self.workers)) == self.world, "two workers share one address and port")
        for number, window in self.windows.items():
            _check_stream(number, 1, window)
        for root in self.roots:
            _check_stream(root.stream, root.node, root.window)
            _check_children(root, self.world)
        spans = self.optimizer.spans if self.optimizer is not None else ()
        _need(
            not spans or spans[-1].first < self.chunks,
            f"the optimizer speaks of chunk {spans[-1].first if spans else 0}, the job has 0.."
            f"{self.chunks - 1}",
        )

    def calls_from(self, rank: int, source: int) -> bool:
        """Returns true if the server of a rank may call from this IPv4 address: its host's or, on
        this server's own host, the address that it calls."""
        if not self.callers:
            return source == self.servers[rank].ipv4
        caller = self.callers[rank]
        at_home = caller == self.callers[self.rank]
        return source == caller or (at_home and source == self.servers[self.rank].ipv4)

    @property
    def chunks(self) -> int:
        """Number of chunks of the job."""
        return sum(self.counts)

    def server_of(self, chunk: Any) -> Any:
        """Returns the rank of the server that a chunk (or each of an array) is addressed to; -1 if
        the job has no such chunk."""
        return self.shares.server_of(chunk)

    @property
    def shares(self) -> ChunkAssignment:
        """The assignment of chunks to servers and streams."""
        return self._shares(max(len(self.windows), self.propagation.classes))

    @staticmethod
    def from_message(message: jobs_pb2.Plan) -> ServerPlan:
        """Raises PlanError."""
        return ServerPlan(
            workers=_addresses(message.workers),
            windows=dict(message.windows),
            roots=tuple(
                RootStream(
                    r.stream,
                    r.node,
                    r.window,
                    tuple(
                        Child(c.sender, Address(c.address.ipv4, c.address.port), c.workers, c.node)
                        for c in r.children
                    ),
                )
                for r in message.roots
            ),
            met=(message.met_in, message.met_worker),
            callers=tuple(message.callers),
            **_MemberPlan._fields(message),
        )

    def to_message(self) -> jobs_pb2.Plan:
        message = self._message()
        # A nested dataclass has the fields of its message.
        message.MergeFrom(
            jobs_pb2.Plan(
                workers=map(_address, self.workers),
                windows=dict(self.windows),
                roots=[jobs_pb2.RootStream(**asdict(root)) for root in self.roots],
                met_in=self.met[0],
                met_worker=self.met[1],
                callers=self.callers,
            )
        )
        return message


def moved_of(message: jobs_pb2.Moved) -> Moved:
    """Returns the slices of a message. Raises ValueError if it does not name a server for each."""
    return tuple(zip(message.slices, message.servers, strict=True))


def moved_message(moved: Moved) -> jobs_pb2.Moved:
    """Returns the message of slices and their servers."""
    return jobs_pb2.Moved(slices=[one for one, _ in moved], servers=[server for _, server in moved])


def backup_of(server: Any, servers: int) -> Any:
    """Returns the rank of the server that replicates another's chunks (of each of an array of
    ranks); its own if there is no other."""
    return (server + 1) % servers


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PlanError(otherwise)


def _check_stream(stream: int, node: int, window: int) -> None:
    _need(0 <= stream < 1 << 8, f"stream {stream} is not in 0..255")
    _need(0 < node < 1 << 16, f"stream {stream}: node {node} is not in 1..65535")
    _need(
        0 < window <= LARGEST_WINDOW and window & (window - 1) == 0,
        f"stream {stream}: window {window} is not a power of two up to {LARGEST_WINDOW}",
    )


def _check_classes(propagation: Propagation, streams: int) -> None:
    _need(
        streams % propagation.classes == 0,
        f"{streams} streams cannot be divided into {propagation.classes} classes",
    )


def _check_children(root: RootStream, world: int) -> None:
    where = f"root of stream {root.stream}"
    senders = [child.sender for child in root.children]
    _need(bool(senders), f"{where}: no children")
    _need(
        sorted(senders) == list(range(len(senders))) and len(senders) <= MOST_CHILDREN,
        f"{where}: senders {senders} are not 0..n-1 with n at most {MOST_CHILDREN}",
    )
    below = sum(child.workers for child in root.children)
    _need(below == world, f"{where}: its children have {below} workers, the job {world}")


def _ascending(numbers: Sequence[int], what: str) -> None:
    _need(
        all(a < b for a, b in pairwise(numbers)),
        f"{what} {list(numbers)} are not in ascending order without repeats",
    )


def _addresses(messages: Any) -> tuple[Address, ...]:
    return tuple(Address(a.ipv4, a.port) for a in messages)


def _address(address: Address) -> jobs_pb2.Address:
    return jobs_pb2.Address(ipv4=address.ipv4, port=address.port)
