# SPDX-License-Identifier: GPL-2.0-only
"""Tests a switch whose pipeline was pushed again by another client: its output is unchanged.

BMv2 keeps its multicast groups over a push, where P4Runtime shows none of them any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from controller.jobs.job import Job
from controller.jobs.registry import JobTable
from controller.p4rt.fabric import Fabric
from controller.planning.tree_planner import TreeKind
from controller.service.monitor import Monitor
from protocol import jobs_pb2
from protocol.header import PORT, Op
from protocol.scapy_layer import Aggregation
from tests.packet.conftest import TARGETS
from tests.packet.controller.controller_rig import Clock, enter
from tests.packet.node.node_rig import SWITCH_MAC, lanes
from tests.packet.targets import Output, Target, opened
from topologies.model.addressing import Addressing
from topologies.model.spec import parse

TOPOLOGY = parse("name: one-rack\nracks: [{workers: 3, servers: 1}]\n")
WORKERS = ("w0", "w1", "w2")
END = b"nothing comes after this"


class Rack:
    """A switch on interfaces, its controller, and a job whose switch is below the server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.addressing = Addressing(TOPOLOGY)
        self.fabric = Fabric(TOPOLOGY, self.addressing, target.plane, {"tor0": target.connection})
        self.fabric.restore("tor0", keep=False)
        self.table = JobTable(self.fabric, Clock())
        self.monitor = Monitor(self.table)
        self.job: Job = self.table.create("digits", WORKERS, ["s0"], TreeKind.TOR)
        enter(self.table, self.job)

    def push_over(self) -> None:
        """Another client pushes the program; the controller finds out, and the job goes on."""
        plane, epoch = self.target.plane, self.job.epoch
        self.target.connection.push(plane.p4info.message, plane.device_config)
        assert self.monitor.look("tor0")
        assert self.job.epoch == epoch + 1
        for place in self.job.scheme.places:
            request = jobs_pb2.ResyncRequest(epoch=self.job.epoch, report=jobs_pb2.Report())
            self.table.resync(self.job.nonce, place.role, place.rank, request)

    def port(self, host: str) -> int:
        return self.addressing.host_interfaces(host)[0].switch_port

    def packet(self, source: str, sport: int, destination: str, dport: int) -> Packet:
        addresses = [str(self.addressing.address(name)) for name in (source, destination)]
        ip = IP(src=addresses[0], dst=addresses[1])
        return Ether(dst=SWITCH_MAC) / ip / UDP(sport=sport, dport=dport, chksum=0)

    def exchange(self, source: str, *packets: Packet, doubled: str = "") -> Output:
        """What comes out at workers when a host sends packets, one for each worker to end with.

        doubled: a worker whose link makes two of each packet, that one too.
        """
        ends = [self.packet(source, 9, worker, 9) / Raw(END) for worker in WORKERS]
        due = Counter({self.port(worker): 1 + (worker == doubled) for worker in WORKERS})

        def complete(output: Output) -> bool:
            return due <= Counter(port for port, frame in output if frame.endswith(END))

        frames = [bytes(packet) for packet in (*packets, *ends)]
        output = self.target.exchange(self.port(source), frames, complete)
        return [(port, frame) for port, frame in output if port in due and END not in frame]

    def results(self) -> Counter[int]:
        """How often each port got the result of a chunk to which all have contributed."""
        (tree,) = self.job.trees
        (node,) = tree.switches
        assert node.parent is not None
        stream = {"job": self.job.number, "epoch": self.job.epoch, "stream": tree.stream}
        for child in node.children:
            assert child.rank is not None
            member = self.packet(WORKERS[child.rank], 5000 + child.rank, "s0", PORT)
            fields = {**stream, "op": Op.CONTRIBUTE, "node": node.node, "sender": child.sender}
            member /= Aggregation(**fields, workers=1, values=lanes(child.rank))
            assert self.exchange(WORKERS[child.rank], member) == []
        result = self.packet("s0", PORT, "s0", PORT)
        result[IP].dst = str(self.addressing.switch_address("tor0"))
        fields = {**stream, "op": Op.RESULT, "node": node.node, "sender": node.parent.sender}
        result /= Aggregation(**fields, workers=len(WORKERS), values=lanes(9))
        output = self.exchange("s0", result)
        assert {Ether(frame)[Aggregation].op for _, frame in output} == {Op.RESULT}
        return Counter(port for port, _ in output)


@pytest.fixture(params=TARGETS)
def rack(request: pytest.FixtureRequest) -> Iterator[Rack]:
    for target in opened(request.param):
        yield Rack(target)


def test_a_result_still_goes_to_each_child_once(rack: Rack) -> None:
    once = Counter(rack.port(worker) for worker in WORKERS)
    assert rack.results() == once
    for _ in range(2):
        rack.push_over()
        assert rack.results() == once


def test_duplicating_link_still_duplicates(rack: Rack) -> None:
    rack.push_over()
    rack.table.outages.impair({frozenset(("w1", "tor0")): {"duplicate": 1.0}})
    output = rack.exchange("s0", rack.packet("s0", 7, "w1", 7) / Raw(b"payload"), doubled="w1")
    assert [port for port, _ in output] == [rack.port("w1")] * 2
