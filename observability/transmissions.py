# SPDX-License-Identifier: Apache-2.0
"""What each link direction carried for the first time, and what was sent again, from captures.

A sender counts what it sends again, and a lost packet is not on the links behind the loss; so only
captures tell link by link. A contribution or a result that passes a link direction is *first* if
nothing with the same sender, receiver, op, job, epoch, stream, number, chunk and tree node has
passed there before. All others are *again*, and so are questions and their answers (QUERY, STATE),
which nobody sends unless something is late. What is no packet of the protocol is neither.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from observability.pcap import heads
from observability.record import RunDirectory
from planner.expected import Direction
from protocol.frames import ETHERTYPE_IPV4, OVERHEAD
from protocol.header import HEADER, HEADER_BYTES, SERVER_PORTS, VERSION, Flag, Op
from topologies.model.addressing import Addressing

__all__ = ["Transmissions", "note", "of_captures", "of_heads"]

_HEAD = np.dtype(
    [
        ("macs", "V12"), ("ethertype", ">u2"), ("ip", "V9"), ("protocol", "u1"), ("sum", "V2"),
        ("source", ">u4"), ("destination", ">u4"), ("from", ">u2"), ("to", ">u2"), ("udp", "V4"),
        ("own", HEADER),
    ]
)  # fmt: skip
assert _HEAD.itemsize == OVERHEAD + HEADER_BYTES
# Of the protocol's header; of its flags DIRECT alone: a chunk in float32 keeps its number.
_SAME = ("job", "epoch", "stream", "sender", "seq", "chunk", "node")
_UDP = 17


@dataclass(frozen=True)
class Transmissions:
    """Of one link direction; bytes of frames without FCS."""

    first_packets: int = 0
    first_bytes: int = 0
    again_packets: int = 0
    again_bytes: int = 0


def of_heads(frames: bytes, lengths: list[int]) -> Transmissions:
    """Of packets in order. frames: the first OVERHEAD + HEADER_BYTES of each, one behind the other,
    filled up with zeros; lengths: of the whole frames."""
    rows = np.frombuffer(frames, _HEAD)
    own, sizes = rows["own"], np.array(lengths, np.int64)
    ours = (rows["ethertype"] == ETHERTYPE_IPV4) & (rows["protocol"] == _UDP)
    ours &= (sizes >= _HEAD.itemsize) & (own["version_op"] >> 4 == VERSION)
    ours &= np.isin(rows["from"], SERVER_PORTS) | np.isin(rows["to"], SERVER_PORTS)
    rows, own, sizes = rows[ours], own[ours], sizes[ours]
    ops = own["version_op"] & 15
    columns = [rows["source"], rows["from"], rows["destination"], rows["to"], ops]
    columns += [own["flags"] & Flag.DIRECT, *(own[name] for name in _SAME)]
    keys = np.stack([one.astype(np.int64) for one in columns], axis=1)
    first = np.zeros(len(keys), np.bool_)
    if len(keys):
        first[np.unique(keys, axis=0, return_index=True)[1]] = True
    first &= (ops == Op.CONTRIBUTE) | (ops == Op.RESULT)
    return Transmissions(
        int(first.sum()), int(sizes[first].sum()), int((~first).sum()), int(sizes[~first].sum())
    )


def of_captures(folder: Path, addressing: Addressing) -> dict[Direction, Transmissions]:
    """Of every link direction: as its sender's port captured it, a host's as the switch's that
    hears it. A port without a file carried nothing. Raises CaptureError."""
    found = {}
    for node in addressing.topology.switches:
        for port in addressing.ports(node.name):
            way = Direction(port.switch, port.interface)
            found[way] = _read(folder, f"{port.interface}_out.pcap")
            if port.peer_is_host:
                way = Direction(port.peer, port.peer_interface)
                found[way] = _read(folder, f"{port.interface}_in.pcap")
    return found


def _read(folder: Path, name: str) -> Transmissions:
    """From all files of a port: a switch that is started again begins another one."""
    frames, lengths = bytearray(), []
    for path in sorted(folder.rglob(name), key=lambda one: one.stat().st_ctime_ns):
        for head, length in heads(path, _HEAD.itemsize):
            frames += head.ljust(_HEAD.itemsize, b"\0")
            lengths.append(length)
    return of_heads(bytes(frames), lengths)


def note(run: RunDirectory, addressing: Addressing) -> None:
    """Adds to the links of a run's summary, which is over, what its captures tell of them."""
    summary: dict[str, Any] = json.loads(run.summary.read_text())
    found = of_captures(run.pcap, addressing)
    for row in summary["links"]:
        told = found[Direction(row["from"], row["interface"])]
        row["first_bytes"] = told.first_bytes
        row["again_packets"] = told.again_packets
        row["again_bytes"] = told.again_bytes
    run.write_summary(summary)
