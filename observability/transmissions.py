# SPDX-License-Identifier: Apache-2.0
"""Counts first transmissions and retransmissions on each link direction, from captures.

Senders count retransmissions in total only, and a lost packet does not pass the links behind the
loss. A contribution or result on a link direction is *first* if none with the same sender,
receiver, op, job, epoch, stream, number, chunk and tree node has passed before. All others are
*again*, and so are queries and their replies (QUERY, STATE), which are sent only when something is
late. Packets of other protocols are neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from observability.pcap import heads
from observability.record import RunDirectory
from planner.link_loads import Direction
from protocol.frames import ETHERTYPE_IPV4, OVERHEAD
from protocol.header import HEADER, HEADER_BYTES, SERVER_PORTS, VERSION, Flag, Op
from topologies.model.addressing import Addressing

_HEAD = np.dtype(
    [
        ("macs", "V12"), ("ethertype", ">u2"), ("ip", "V9"), ("protocol", "u1"), ("sum", "V2"),
        ("source", ">u4"), ("destination", ">u4"), ("from", ">u2"), ("to", ">u2"), ("udp", "V4"),
        ("own", HEADER),
    ]
)  # fmt: skip
assert _HEAD.itemsize == OVERHEAD + HEADER_BYTES
# Header fields that identify a packet, with the flag DIRECT: a chunk in float32 keeps its number.
_SAME = ("job", "epoch", "stream", "sender", "seq", "chunk", "node")
_UDP = 17


@dataclass(frozen=True)
class Transmissions:
    """Packets and bytes (frames without FCS) of one link direction."""

    first_packets: int = 0
    first_bytes: int = 0
    again_packets: int = 0
    again_bytes: int = 0


def of_heads(frames: bytes, lengths: list[int]) -> Transmissions:
    """Counts the packets of a link direction, given in order.

    frames: the first OVERHEAD + HEADER_BYTES bytes of each, zero-padded and concatenated.
    lengths: bytes of the whole frames.
    """
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
    """Counts every link direction, by the capture at its sender, or for a host's at the switch.

    A port without a file carried nothing. Raises ``CaptureError``.
    """
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
    """Counts all files of a port: a restarted switch begins a new one."""
    frames, lengths = bytearray(), []
    for path in sorted(folder.rglob(name), key=lambda one: one.stat().st_ctime_ns):
        for head, length in heads(path, _HEAD.itemsize):
            frames += head.ljust(_HEAD.itemsize, b"\0")
            lengths.append(length)
    return of_heads(bytes(frames), lengths)


def note(run: RunDirectory, addressing: Addressing) -> None:
    """Adds the counts to the links in the summary of a run that is over.

    Captures have the packets of all jobs, so the links of a job have them only if it was alone.
    """
    summary = run.read_summary()
    found = of_captures(run.pcap, addressing)
    alone = len(summary["jobs"]) == 1 and not summary.get("others")
    for row in [*summary["links"], *(summary["jobs"][0]["links"] if alone else ())]:
        counts = found[Direction(row["from"], row["interface"])]
        row["first_bytes"] = counts.first_bytes
        row["again_packets"] = counts.again_packets
        row["again_bytes"] = counts.again_bytes
    run.write_summary(summary)
