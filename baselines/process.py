# SPDX-License-Identifier: Apache-2.0
"""A member of a comparison as a process on its host: ``python -m baselines.process``.

It reads JSON lines: first the member's setup (``create_member``), then steps: ``{"do":
"prepare"}``, ``open`` with the setup of the job, ``iterate`` with a number, ``close``. It answers
each with a line, and ends at the end of its input.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any, TypedDict

from typing_extensions import NotRequired

from baselines import tcp
from baselines.gloo import GlooMember
from baselines.members import GLOO, IN_NETWORK, Member, ServiceOptions, StreamMember
from baselines.sockets import TcpStreams
from hosts.errors import ClientError
from planner.collectives import COLLECTIVES, Team
from protocol.runtime import REAL


class MemberSetup(TypedDict):
    """The set-up of a member. ``name`` decides which optional keys there are."""

    name: str
    """The contender."""
    member: int
    """Number of the member."""
    workers: int
    sizes: Sequence[int]
    """Values of each tensor."""
    job: NotRequired[ServiceOptions]
    """The job that this member creates: in-network the first, else the first box."""
    addresses: NotRequired[list[tuple[str, int]]]
    """Baselines: address and port of each member."""
    set_up_tcp: NotRequired[bool]
    """Baselines: whether the network namespace is the testbed's own."""
    interface: NotRequired[str]
    """gloo: the host's interface."""
    racks: NotRequired[list[int]]
    """Streams: the rack of each member."""
    peers: NotRequired[list[int]]
    """Streams: members that this one is connected with."""
    piece: NotRequired[int]
    """Streams: values forwarded before the rest has arrived."""
    bounds: NotRequired[Sequence[int]]
    """Boxes for which switches sum: boundaries of keys."""


class Step(TypedDict):
    """A request to a member."""

    do: str
    """``prepare``, ``open``, ``iterate`` or ``close``."""
    setup: NotRequired[Any]
    """Of ``open``: what the first member's ``prepare`` answered."""
    number: NotRequired[int]
    """Of ``iterate``."""


def create_member(setup: MemberSetup) -> Member:
    """Creates the member that a setup message describes."""
    name, member, workers = setup["name"], setup["member"], setup["workers"]
    if name == IN_NETWORK:
        # Imported here, as it takes longer than baselines need to start.
        from baselines.innetwork import InNetwork
        from hosts.client import Client

        return InNetwork(member, workers, setup["sizes"], Client, setup.get("job"))
    if setup["set_up_tcp"]:
        tcp.set_up()
    addresses = [(host, port) for host, port in setup["addresses"]]
    if name == GLOO:
        return GlooMember(member, workers, sum(setup["sizes"]), setup["interface"], *addresses[0])
    racks = setup["racks"]
    streams = TcpStreams(member, addresses, setup["peers"], setup["piece"])
    team = Team(tuple(racks[:workers]), tuple(racks[workers:]))
    size = sum(setup["sizes"])
    opened, closed = streams.open, streams.close
    if "bounds" in setup:
        from baselines.boxes import BoxMember, ClientSwitches
        from hosts.client import Client

        rank = member - workers
        switches = ClientSwitches(rank, setup["bounds"], Client, setup.get("job"))
        streams.switches = switches
        return BoxMember(
            *(switches, COLLECTIVES[name], member, team, size, streams, REAL.now, opened, closed)
        )
    return StreamMember(COLLECTIVES[name], member, team, size, streams, REAL.now, opened, closed)


def main() -> int:
    """Serves steps until the input ends; returns the exit status."""
    member: Member | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: Any = None
            if member is None:
                member = create_member(request)
            elif request["do"] == "prepare":
                answer = member.prepare()
            elif request["do"] == "open":
                member.open(request["setup"])
            elif request["do"] == "iterate":
                answer = dataclasses.asdict(member.iterate(request["number"]))
            else:
                member.close()
        except (ClientError, OSError, RuntimeError) as error:  # RuntimeError: torch's
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            return 1
        print(json.dumps({"answer": answer}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
