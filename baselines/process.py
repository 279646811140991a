# SPDX-License-Identifier: Apache-2.0
"""A member of a comparison as a process: ``python -m baselines.process``, at its host.

The first line of its input says which member it is (``begin``); each further one is a step:
``{"do": "prepare"}``, ``open`` with what the first member was told, ``iterate`` with a number,
``close``. It answers each with a line, and ends with its input.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from baselines import tcp
from baselines.gloo import GlooMember
from baselines.members import GLOO, IN_NETWORK, Member, StreamMember
from baselines.sockets import TcpStreams
from hosts.errors import ClientError
from protocol.runtime import REAL

Message = dict[str, Any]


def begin(told: Message) -> Member:
    """The member that a message describes."""
    name, member, workers = told["name"], told["member"], told["workers"]
    if name == IN_NETWORK:
        # Only here: it takes longer to import than baselines need to start.
        from baselines.innetwork import InNetwork
        from hosts.client import Client

        job = told["job"] if member == 0 else None
        return InNetwork(member, workers, told["sizes"], Client, job)
    if told["set_up_tcp"]:
        tcp.set_up()
    addresses = [(host, port) for host, port in told["addresses"]]
    if name == GLOO:
        return GlooMember(member, workers, sum(told["sizes"]), told["interface"], *addresses[0])
    streams = TcpStreams(member, addresses, told["peers"], told["piece"])
    return StreamMember(
        name,
        member,
        workers,
        len(addresses) - workers,
        (sum(told["sizes"]), told["part"]),
        streams,
        REAL.now,
        streams.open,
        streams.close,
    )


def main() -> int:
    """The process; returns its exit status."""
    member: Member | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: Any = None
            if member is None:
                member = begin(request)
            elif request["do"] == "prepare":
                answer = member.prepare()
            elif request["do"] == "open":
                member.open(request["told"])
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
