# SPDX-License-Identifier: Apache-2.0
"""Predicts queue overflow by incast: windows that exceed the queue where they meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ipaddress import IPv4Address

from controller.planning.tree_planner import Tree
from controller.planning.windows import TreeLink, tree_links
from topologies.model.addressing import Addressing


def queue_frames(queue_bytes: float, frame_bytes: int) -> float:
    """Computes the number of frames that a queue and the link behind it hold."""
    return queue_bytes / frame_bytes + 1


def describe_overflow(queue: str, held: float, meeting: int) -> str:
    """Describes the overflow of a queue of `held` frames where `meeting` may arrive; "" if none."""
    if meeting <= held:
        return ""
    return (
        f"{queue} has room for {int(held):,} of the {meeting:,} frames that can meet there, and"
        " retransmitting what it drops can take many times as long"
    )


def describe_incast(
    addressing: Addressing,
    trees: Sequence[Tree],
    servers: Sequence[IPv4Address],
    window: int,
    chunks: int,
    frame_bytes: int,
    queue_packets: int | None = None,
) -> str:
    """Describes the queue that a job's windows overflow most, and a remedy; "" if there is none.

    Where several senders meet, or one sender's contributions meet results, whole windows may be
    queued at once; behind a single sender, only what a slower link accumulates.

    servers: addresses by rank.
    window: chunks of each stream in flight.
    chunks: chunks of an iteration.
    queue_packets: capacity of a switch port's queue where the target counts packets.
    """
    hosts = {node.name for node in addressing.topology.hosts}
    every = list(tree_links(addressing, trees, servers))
    # Results arrive no faster than the slowest contributions and than on the link before.
    contributed = min(one.quality.rate for one in every if one.up)
    pace: dict[tuple[str, bool], float] = {}
    for one in every:
        key = one.peer, one.up
        pace[key] = min(pace.get(key, math.inf), one.quality.rate)
    # Below a child of the root, a server's results share links with that child's contributions.
    ways = {up: {(one.node, one.peer) for one in every if one.up is up} for up in (True, False)}
    shared = ways[True] & ways[False]

    def held(one: TreeLink) -> float:
        frames = queue_frames(one.quality.queue_bytes, frame_bytes)
        if queue_packets is None or one.node in hosts:
            return frames
        return min(frames, queue_packets + 1)

    def waiting(one: TreeLink) -> float:
        """Returns the fraction of the windows that may be in its queue at once."""
        if len(one.senders) > 1 or (one.node, one.peer) in shared:
            return 1.0
        comes = pace.get((one.node, one.up), 0.0)
        if not one.up:
            comes = min(comes, contributed)
        return max(0.0, 1 - one.quality.rate / comes) if comes else 0.0

    def meeting(one: TreeLink) -> int:
        frames = sum(min(streams * window, chunks) for streams in one.senders.values())
        return math.ceil(frames * waiting(one))

    def order(one: TreeLink) -> tuple[float, bool, str, str]:
        """The least room first; of equal ones, those that contributions meet at, by name."""
        return held(one) / max(1, meeting(one)), not one.up, one.node, one.peer

    worst = min(every, key=order)
    queue = f"the queue from {worst.node} to {worst.peer}"
    text = describe_overflow(queue, held(worst), meeting(worst))
    if not text:
        return ""
    fitting = min(held(one) / (one.senders.total() * waiting(one)) for one in every if waiting(one))
    if fitting < 1:
        return f"{text}; use fewer workers, or a larger queue_bytes"
    smaller = 1 << (math.floor(fitting).bit_length() - 1)
    return f"{text}; a window of {smaller} fits, or a larger queue_bytes"
