# SPDX-License-Identifier: Apache-2.0
"""Forged packets of a running job."""

from __future__ import annotations

import numpy as np

from protocol.frames import Interface, to_frames
from protocol.header import PEER, Batch, Op, blank
from protocol.payloads import header_hashes, word_sums
from tests.packet.jobs.switched_job import LANES, StartedJob
from tests.packet.jobs.switched_network import SwitchedNetwork, octets


def interface(network: SwitchedNetwork, node: str, source: int | None = None) -> Interface:
    """Returns the interface that a host's frames leave from. source: a forged address."""
    link = network.addressing.host_interfaces(node)[0]
    ipv4 = int(link.ipv4) if source is None else source
    return Interface(octets(link.mac), octets(link.gateway_mac), ipv4)


def contribution(
    started: StartedJob, rank: int, words: np.ndarray | None = None, **fields: int
) -> Batch:
    """A packet of a worker's first stream as its plan has it, for (LANES,) int32 `words` (None: no
    payload), with other `fields` than those; its checksum is right."""
    plan = started.transport(rank).plan
    stream = plan.streams[0]
    headers = blank(1, Op.CONTRIBUTE)
    result = {
        "job": plan.job,
        "epoch": plan.epoch,
        "stream": stream.stream,
        "sender": stream.sender,
        "node": stream.node,
        "workers": 1,
        "children": 1 << stream.sender,
        "lanes": 0 if words is None else LANES,
    } | fields
    for name, value in result.items():
        headers[name] = value
    payloads = np.zeros((1, LANES), ">i4")
    if words is not None:
        payloads[0] = words
    headers["checksum"] = word_sums(payloads) + header_hashes(headers)
    server = plan.servers[int(plan.server_of(int(headers["chunk"][0])))]
    peers = np.array([server.pair()], PEER)
    return Batch(headers, payloads, np.full(1, words is not None), peers)


def send(network: SwitchedNetwork, node: str, port: int, batch: Batch, source: int | None = None):
    """Sends packets from a UDP port of a host's interface."""
    link = network.addressing.host_interfaces(node)[0]
    for frame in to_frames(batch, interface(network, node, source), port):
        network.carry(link.switch, link.switch_port, frame)
