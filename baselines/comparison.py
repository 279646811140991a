# SPDX-License-Identifier: Apache-2.0
"""A contender of ``rackhub compare``, the traffic it should cause, and rows of results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from baselines.members import Report
from observability import cpu_use
from observability.links import Carried
from observability.messages.jobs import Clock, Target
from planner.collectives import Team
from planner.flows import Pair, Round, Wires
from planner.link_loads import Direction, Load, qualities, receivers, total
from protocol.errors import Error
from testbed.preflight import JobPlan
from topologies.model.addressing import Addressing, HostInterface
from topologies.model.topology import LinkQuality

_DECIMALS = 12  # of seconds: simulated time counts picoseconds


class ComparisonError(Error):
    """A comparison is impossible; the text says why and what to do."""


@dataclass(frozen=True)
class Work:
    """The tensors to sum.

    sizes: Values of each tensor.
    iterations: Measured sums, after a first one that is not measured.
    compute: Seconds in which a worker of a collective with servers computes its values, one after
        another; 0: it has them from the start. In virtual time only.
    """

    sizes: tuple[int, ...]
    iterations: int
    compute: float = 0.0

    @property
    def size(self) -> int:
        """Values of all tensors together, which baselines send as one."""
        return sum(self.sizes)


@dataclass(frozen=True)
class SwitchedJob:
    """A job in which the servers of a collective are the workers.

    plan: Of the job; its workers are the hosts of the servers, in order.
    bounds: Boundaries of its keys in the tensor.
    chunk_bytes: Of a frame.
    """

    plan: JobPlan
    bounds: tuple[int, ...]
    chunk_bytes: int


@dataclass(frozen=True)
class Contender:
    """One way to all-reduce.

    name, meaning: As printed.
    team: Its members.
    ends: The interface of each member.
    loads: Expected traffic of an iteration on each link direction, by consecutive rounds.
    rounds: Messages between members; none for in-network aggregation.
    wires: The paths of these messages.
    piece: Values forwarded before the rest has arrived (pipelining).
    switched: The job of servers for which switches sum; the last of the loads is its.
    """

    name: str
    meaning: str
    team: Team
    ends: tuple[HostInterface, ...]
    loads: tuple[Mapping[Direction, Load], ...]
    rounds: tuple[Round, ...] = ()
    wires: Wires | None = None
    piece: int = 0
    switched: SwitchedJob | None = None

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.team.workers)

    @property
    def servers(self) -> int:
        """The number of server members."""
        return len(self.team.servers)

    @property
    def segment(self) -> int:
        """Bytes of data in a full segment."""
        assert self.wires is not None
        return self.wires.segment

    @property
    def pairs(self) -> list[Pair]:
        """Pairs of connected members, the lower number first."""
        return sorted({(min(pair), max(pair)) for one in self.rounds for pair in one})

    def least_seconds(self, lines: Mapping[Direction, LinkQuality], *, framing: bool) -> float:
        """Returns a lower bound of an iteration's time, by the rates of links alone."""
        if self.wires is not None:
            least = self.wires.least_seconds(self.rounds, framing=framing)
            if self.switched is None:
                return least
            (one,) = self.rounds
            both = total((self.wires.data(one), self.loads[-1]))
            times = [load.seconds(lines[way].rate, framing=framing) for way, load in both.items()]
            return max(least, *times)
        # Every contribution and every result is needed.
        (loads,) = self.loads
        times = [one.seconds(lines[way].rate, framing=framing) for way, one in loads.items()]
        return max(times, default=0.0)

    def windows(self) -> dict[Pair, int]:
        """Returns the window of each pair in each direction, in segments.

        Raises:
            ComparisonError: A queue cannot hold two segments of each stream; acknowledgements
                are sent for every second one.
        """
        assert self.wires is not None
        taken: dict[Direction, int] = {}
        if self.switched is not None:
            held = self.switched.plan.reservation.window * self.switched.chunk_bytes
            taken = dict.fromkeys(self.loads[-1], held)
        found = self.wires.windows(self.rounds, taken)
        for (a, b), window in found.items():
            if window < 2:
                raise ComparisonError(
                    f"{self.name}: a queue between {self.ends[a].node} and {self.ends[b].node} is"
                    f" shared by so many that it has room for {window:.2g} segments of each; TCP"
                    " acknowledges every second one, and in virtual time lost ones are not"
                    " retransmitted: choose a larger queue_bytes, or leave it out with --only"
                )
        both = {pair: 1 for a, b in found for pair in ((a, b), (b, a))}
        return both | {pair: int(window) for pair, window in found.items()}


_LinkFrom = TypedDict("_LinkFrom", {"from": str})  # sending node


class ComparedLink(_LinkFrom):
    """Bytes in one direction of a link in an iteration, on average; None if unknown."""

    interface: str
    """Interface of the sender."""
    core: bool
    """True for a link between switches."""
    bytes: float | None
    packets: float | None
    dropped_packets: float | None
    """Packets that found the sender's queue full."""
    expected_bytes: int
    """By the closed form."""
    expected_packets: int


class ComparedRow(TypedDict):
    """A contender in the answer to ``rackhub compare``. Bytes and packets are of an iteration."""

    name: str
    meaning: str
    workers: int
    servers: list[str]
    """Nodes of its servers."""
    right: bool | None
    """True if all sums were right; None without payload."""
    wrong_values: int | None
    seconds_per_iteration: list[float]
    seconds: float
    """Their median."""
    closed_form_seconds: float
    """Lower bound: what links need for its data, one after another where a member waits."""
    ratio: float | None
    """Median time over the lower bound."""
    seconds_in_virtual_time: float | None
    """Emulated: the same in virtual time, which has no gloo, and no TCP over links with losses."""
    cpu_bound: bool | None
    """True if `seconds` differs from that by over 10 %: then it is the machine's, not the links'.
    None if there is nothing to compare with."""
    host_bytes: float
    """On the busiest link of a host."""
    core_bytes: float
    """On the busiest link between switches."""
    total_bytes: float
    """On all links."""
    closed_form_host_bytes: float
    closed_form_core_bytes: float
    closed_form_total_bytes: float
    dropped_packets: float
    """On all links."""
    bytes_as_closed_form: bool
    """True if each link carried exactly the bytes of its closed form."""
    links: list[ComparedLink]


class ComparisonFacts(TypedDict):
    """Inputs of a comparison."""

    topology: str
    topology_seed: int
    job: str
    clock: Clock
    target: Target
    workers: int
    tensors: int
    bytes: int
    """Bytes of all tensors."""
    iterations: int
    framing: bool
    """True if preamble, FCS and gap of frames are counted."""


@dataclass(frozen=True)
class Outcome:
    """The measurements of a contender.

    iterations: The reports of all members, for each measured iteration.
    carried: The traffic of all these iterations on each link direction.
    clock: The clock.
    virtual: Median seconds of an iteration in virtual time; None if that is not known.
    """

    contender: Contender
    iterations: tuple[tuple[Report, ...], ...]
    carried: Mapping[Direction, Carried]
    clock: Clock = "virtual"
    virtual: float | None = None

    @property
    def seconds(self) -> list[float]:
        """Durations of iterations until the last member has the sum, to the picosecond."""
        took = [
            max(one.ended for one in reports) - min(one.began for one in reports)
            for reports in self.iterations
        ]
        return [round(one, _DECIMALS) for one in took]

    @property
    def wrong(self) -> int | None:
        """The number of wrong values; None if chunks had no payload."""
        counts = [one.wrong for reports in self.iterations for one in reports]
        return None if None in counts else sum(count or 0 for count in counts)

    def _cpu_bound(self, seconds: float) -> bool | None:
        if self.clock == "virtual":
            return False
        return None if self.virtual is None else cpu_use.is_off(seconds, self.virtual)

    def row(self, addressing: Addressing, *, framing: bool) -> ComparedRow:
        """Returns the row for ``--json``; bytes and packets are per iteration."""
        one = self.contender
        lines, to = qualities(addressing), receivers(addressing)
        nodes = addressing.topology.by_name
        should = total(one.loads)
        count = len(self.iterations)
        limit = one.least_seconds(lines, framing=framing)
        seconds = statistics.median(self.seconds)
        links: list[ComparedLink] = []
        for way, load in self.carried.items():
            expected = should.get(way, Load())
            links.append(
                {
                    "from": way.node,
                    "interface": way.interface,
                    "core": nodes[way.node].kind == nodes[to[way][0]].kind == "switch",
                    "bytes": None if load.bytes is None else load.bytes / count,
                    "packets": None if load.packets is None else load.packets / count,
                    "dropped_packets": None if load.dropped is None else load.dropped / count,
                    "expected_bytes": expected.bytes,
                    "expected_packets": expected.packets,
                }
            )
        host, core, every = _most([(one["core"], one["bytes"] or 0.0) for one in links])
        ideal = _most([(one["core"], one["expected_bytes"]) for one in links])
        return {
            "name": one.name,
            "meaning": one.meaning,
            "workers": one.workers,
            "servers": [end.node for end in one.ends[one.workers :]],
            "right": None if self.wrong is None else self.wrong == 0,
            "wrong_values": self.wrong,
            "seconds_per_iteration": self.seconds,
            "seconds": seconds,
            "closed_form_seconds": limit,
            "ratio": seconds / limit if limit else None,
            "seconds_in_virtual_time": self.virtual,
            "cpu_bound": self._cpu_bound(seconds),
            "host_bytes": host,
            "core_bytes": core,
            "total_bytes": every,
            "closed_form_host_bytes": ideal[0],
            "closed_form_core_bytes": ideal[1],
            "closed_form_total_bytes": ideal[2],
            "dropped_packets": sum(link["dropped_packets"] or 0 for link in links),
            "bytes_as_closed_form": all(
                link["bytes"] == link["expected_bytes"]
                and link["packets"] == link["expected_packets"]
                for link in links
            ),
            "links": links,
        }


def _most(links: Sequence[tuple[bool, float]]) -> tuple[float, float, float]:
    """Returns the most bytes on a host's link and on one between switches, and those of all links.

    links: whether each is between switches, and its bytes.
    """
    host = max((count for core, count in links if not core), default=0)
    between = max((count for core, count in links if core), default=0)
    return host, between, sum(count for _, count in links)
