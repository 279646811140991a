# SPDX-License-Identifier: Apache-2.0
"""Packets that wait for a host's link, the most urgent first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

import numpy as np

from hosts.net.broadcast_batch import BroadcastBatch
from protocol.header import Batch
from protocol.priorities import PRIORITIES, STREAM_BYTE, priority_of

Item = TypeVar("Item")


class PriorityQueue(Generic[Item]):
    """Implements what senders use of a deque: of the most urgent items, the first is at the left.

    stream_of: returns the stream of an item, which says its priority.
    """

    def __init__(self, stream_of: Callable[[Item], int]) -> None:
        self._stream_of = stream_of
        self._queues: list[deque[Item]] = [deque() for _ in range(PRIORITIES)]
        self._waiting = 0  # bit p: items of priority p wait

    def __bool__(self) -> bool:
        return self._waiting != 0

    def __getitem__(self, place: int) -> Item:
        return self._queues[self._waiting.bit_length() - 1][place]

    def __iter__(self) -> Iterator[Item]:
        """Iterates over all items, the most urgent first."""
        return chain.from_iterable(reversed(self._queues))

    def append(self, item: Item) -> None:
        """Adds an item behind those of its priority."""
        priority = priority_of(self._stream_of(item))
        self._queues[priority].append(item)
        self._waiting |= 1 << priority

    def extend(self, items: Iterable[Item]) -> None:
        """Adds items in order."""
        for item in items:
            self.append(item)

    def appendleft(self, item: Item) -> None:
        """Puts an item before those of its priority."""
        priority = priority_of(self._stream_of(item))
        self._queues[priority].appendleft(item)
        self._waiting |= 1 << priority

    def extendleft(self, items: Iterable[Item]) -> None:
        """Puts items before those of their priorities, one after the other."""
        for item in items:
            self.appendleft(item)

    def popleft(self) -> Item:
        """Takes the first of the most urgent items. Raises IndexError if none waits."""
        priority = self._waiting.bit_length() - 1
        item = self._queues[priority].popleft()
        if not self._queues[priority]:
            self._waiting &= ~(1 << priority)
        return item

    def clear(self) -> None:
        """Drops all items."""
        for queue in self._queues:
            queue.clear()
        self._waiting = 0


def split_by_priority(batch: Batch) -> list[Batch]:
    """Splits a batch by the priority of its packets, the highest first; keeps their order within
    each."""
    if isinstance(batch, BroadcastBatch):
        streams = batch.packets[:, STREAM_BYTE]  # without writing the batch out
    else:
        streams = batch.headers["stream"]
    priorities = priority_of(streams)
    if len(priorities) < 2 or (priorities == priorities[0]).all():
        return [batch]
    found = np.unique(priorities)[::-1].tolist()
    if isinstance(batch, BroadcastBatch):
        priorities = priority_of(batch.headers["stream"])
    return [batch.select(np.flatnonzero(priorities == priority)) for priority in found]
