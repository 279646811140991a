# SPDX-License-Identifier: Apache-2.0
"""Tests a host that impersonates others while their job runs: packets are dropped and counted, and
every sum is exact.

The hostile host is a worker of a job of its own, so it knows the protocol, the numbers and the
addresses; it answers each packet of its victim with a forged one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from controller.planning.tree_planner import TreeKind
from protocol.frames import OVERHEAD
from protocol.header import PEER, PORT, VERSION, Batch, Flag, Op, decode
from protocol.outcomes import Outcome
from tests.impaired_links import Impairments
from tests.packet.jobs.forged import contribution, send
from tests.packet.jobs.protocol_run import LIMIT, Run, network_of
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import SwitchedNetwork

VICTIM = 0  # rank of the worker that is spoken for, in another rack than the hostile host
HOSTILE = "w4"
HOSTILE_PORT = 47111
WORDS = np.full(LANES, 12345)


@dataclass
class Scene:
    network: SwitchedNetwork
    job: StartedJob
    own: StartedJob  # the hostile host's

    def address(self, node: str) -> int:
        return int(self.network.addressing.address(node))

    def forged(self, **fields: int) -> Batch:
        """What the victim could send."""
        return contribution(self.job, VICTIM, WORDS, **fields)

    def to(self, batch: Batch, node: str, port: int) -> Batch:
        batch.peers[:] = np.array([(self.address(node), port)], PEER)
        return batch

    def answer(self, **fields: int) -> Batch:
        """A RESULT for the victim."""
        fields = {"op": Op.RESULT, "node": 0, "sender": 0, "workers": 4} | fields
        op = fields.pop("op")
        batch = self.forged(**fields)
        batch.headers["version_op"] = VERSION << 4 | op
        batch.full[:] = op == Op.RESULT
        batch.headers["checksum"] += 3 * (batch.headers["checksum"] - np.uint32(WORDS.sum()))
        return self.to(batch, "w0", self.job.ports[VICTIM])


Forge = Callable[[Scene, dict[str, int]], tuple[Batch, int | None, int]]


def spoken(batch: Batch, source: int | None = None, port: int = HOSTILE_PORT):
    return batch, source, port


# A worker looks first whether it waits for such a thing at all.
ANSWER: set[Outcome | str] = {"wrong_source", "stale"}
# What is sent (and from which address, None: its own, and UDP port), and as what each one is
# refused: an outcome of a switch, a server's counter or a worker's.
FORGED: dict[str, tuple[Forge, set[Outcome | str]]] = {
    "another's source address": (
        lambda s, f: spoken(s.forged(**f), s.address("w0"), s.job.ports[VICTIM]),
        {Outcome.SPOOFED_SOURCE},
    ),
    "another's sender": (lambda s, f: spoken(s.forged(**f)), {Outcome.NOT_A_CHILD}),
    "another's sender at its own switch": (
        lambda s, f: spoken(s.forged(**f | neighbour(s))),
        {Outcome.NOT_A_CHILD},
    ),
    "an epoch to come": (
        lambda s, f: spoken(s.forged(**f | neighbour(s) | {"epoch": 2})),
        {"other_epoch"},
    ),
    "a job that is not": (
        lambda s, f: spoken(s.forged(**f | neighbour(s) | {"job": 77})),
        {"foreign"},
    ),
    "its own job's packet with another job's number": (
        lambda s, f: spoken(contribution(s.own, 0, WORDS, **f | {"job": s.job.job.number})),
        {"no_such_node"},
    ),
    "a result from its own address": (lambda s, f: spoken(s.answer(**f)), ANSWER),
    "a result from the server's address": (
        lambda s, f: spoken(s.answer(**f), s.address("s0"), PORT),
        {Outcome.SPOOFED_SOURCE},
    ),
    "a result for a switch in another rack": (
        lambda s, f: spoken(
            s.to(s.answer(**f | {"node": s.forged().headers["node"][0]}), "tor0", PORT), None, PORT
        ),
        {Outcome.RESULT_REJECTED},
    ),
    "a DIRECT answer from its own address": (
        lambda s, f: spoken(s.answer(**f | {"flags": Flag.DIRECT | Flag.OVERFLOW})),
        ANSWER,
    ),
    "a DIRECT answer from the server's address": (
        lambda s, f: spoken(s.answer(**f | {"flags": Flag.DIRECT}), s.address("s0"), PORT),
        {Outcome.SPOOFED_SOURCE},
    ),
    "a DIRECT contribution in another's name": (
        lambda s, f: spoken(s.forged(**f | {"flags": Flag.DIRECT, "node": 0})),
        {"wrong_source"},
    ),
    "a STATE that says all is lost": (
        lambda s, f: spoken(s.answer(**f | {"op": Op.STATE, "children": 0, "lanes": LANES})),
        ANSWER,
    ),
}


def neighbour(scene: Scene) -> dict[str, int]:
    """Node and sender of a worker of the job at the hostile host's own switch."""
    header = contribution(scene.job, 2, WORDS).headers[0]
    return {"node": int(header["node"]), "sender": int(header["sender"])}


def refusals(scene: Scene) -> Counter[Outcome | str]:
    """Everything that switches, servers and the victim have counted."""
    counted: Counter[Outcome | str] = Counter(scene.network.outcomes())
    for server in scene.network.servers.values():
        counted["foreign"] += server.foreign
        for job in server.jobs:
            counted.update(server.counters(job))
    counted.update(scene.job.transport(VICTIM).statistics.dropped)
    return counted


@pytest.mark.parametrize(
    "kind", [TreeKind.TWO_LEVEL, TreeKind.TOR], ids=lambda kind: kind.name.lower()
)
@pytest.mark.parametrize("what", FORGED)
def test_host_that_speaks_for_others_is_refused(what: str, kind: TreeKind) -> None:
    """Also where the core between the two racks (TOR) only forwards."""
    forge, causes = FORGED[what]
    network = network_of("two racks", 3, Impairments(jitter=0.01))
    try:
        workers, servers = ["w0", "w1", "w2", "w3"], ["s0", "s1"]
        streams = 2 if kind is TreeKind.TOR else 1
        job = StartedJob(network, "job", workers, servers, kind, 8, window=2, streams=streams)
        own = StartedJob(network, "own", [HOSTILE], ["s1"], TreeKind.TWO_LEVEL, 8, window=2)
        scene = Scene(network, job, own)
        run, other = Run(job, 2, 31, odd=True), Run(own, 2, 32, odd=True)
        forged = 0

        def tamper(node: str, port: int, frame: bytes) -> bytes:
            nonlocal forged
            header = decode([frame[OVERHEAD:]], [(0, 0)], LANES)[0].headers[0]
            mine = int(header["job"]) == job.job.number
            mine &= int(header["version_op"]) & 15 in (Op.CONTRIBUTE, Op.QUERY)
            link = network.addressing.host_interfaces("w0")[0]
            if mine and (node, port) == (link.switch, link.switch_port):
                fields = {name: int(header[name]) for name in ("seq", "chunk", "exponent")}
                batch, source, udp = forge(scene, fields)
                forged += 1
                network.at(network.now, lambda: send(network, HOSTILE, udp, batch, source))
            return frame

        network.tamper = tamper
        run.submit(0.1, seed=3)
        other.submit(0.1, seed=4)
        assert network.run(lambda: run.done & other.done, LIMIT), run.waiting()
        run.check()
        other.check()
        assert job.reported == own.reported == 0
        network.run_for(1.0)  # what is still under way is refused, too
        counted = refusals(scene)
        assert forged > 16
        assert sum(counted[cause] for cause in causes) == forged, counted
    finally:
        network.close()
