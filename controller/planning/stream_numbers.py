# SPDX-License-Identifier: Apache-2.0
"""Numbers the streams of a job, which says their network priority (protocol/priorities.py)."""

from __future__ import annotations

from protocol.balance import STATIC, Balance
from protocol.priorities import CLASSED, PRIORITIES, STREAMS_OF_A_PRIORITY, stream_number
from protocol.propagation import Propagation


def most_streams(propagation: Propagation) -> int:
    """Returns how many streams each class may have."""
    if propagation.in_network:
        return STREAMS_OF_A_PRIORITY // -(-propagation.classes // PRIORITIES)
    return CLASSED // propagation.classes


def wanted_streams(streams: int, balance: Balance, servers: int, propagation: Propagation) -> int:
    """Returns the number of streams of each class to plan; 0: as few as the trees allow.

    A server whose load may move has a stream of its own, as far as there are enough: a slow one
    must not hold the windows of others.

    streams: what the job asks for, 0: any. servers: how many it has.
    """
    if streams or balance.policy == STATIC:
        return streams
    return min(servers, most_streams(propagation))


def stream_numbers(propagation: Propagation, streams: int) -> list[int]:
    """Returns the numbers of all streams of a job with so many of each class, in ascending order:
    class by class, the most urgent last.

    More classes than network priorities share them, in order.
    """
    classes = propagation.classes
    if not propagation.in_network:
        return list(range(classes * streams))
    numbers: list[int] = []
    used = [0] * PRIORITIES
    for urgency in range(classes):
        priority = urgency * PRIORITIES // classes
        for _ in range(streams):
            numbers.append(stream_number(priority, used[priority]))
            used[priority] += 1
    return numbers
