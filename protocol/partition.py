# SPDX-License-Identifier: Apache-2.0
"""Assigns slices to bins (servers, their interfaces or cores) of nearly equal load.

The longest-processing-time rule (Graham, "Bounds on multiprocessing timing anomalies", SIAM J.
Applied Mathematics 17(2), 1969; PHub, SoCC'18, section 3.2.4, balances its 32 KiB pieces of keys
like this): the largest remaining slice goes to the least loaded bin. It is within 4/3 - 1/(3 bins)
of the optimum, and far closer where slices are small compared to a bin.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def slices(counts: Sequence[int], most: int) -> Indices:
    """Returns (n, 3): key, first chunk and number of chunks of each slice, in order of chunks.

    counts: chunks of each key, whose chunks follow one another; a slice has at most `most` of them
    and never spans two keys. Raises ValueError for a count or `most` below 1.
    """
    if most < 1 or any(count < 1 for count in counts):
        raise ValueError(f"keys of {list(counts)} chunks cannot be cut into slices of {most}")
    pieces = []
    first = 0
    for key, count in enumerate(counts):
        starts = np.arange(0, count, most)
        lengths = np.minimum(most, count - starts)
        pieces.append(np.column_stack([np.full(len(starts), key), first + starts, lengths]))
        first += count
    return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros((0, 3), np.int64)


def partition(loads: Sequence[int] | Indices, bins: int) -> Indices:
    """Returns the bin (n,) of each load, 0 .. bins - 1; deterministic.

    loads: integers (chunks, bytes), so that rounding cannot differ; of equal ones the first goes
    first, and of bins with equal loads the lowest takes it. Raises ValueError without bins.
    """
    if bins < 1:
        raise ValueError(f"loads cannot be spread over {bins} bins")
    sizes = np.asarray(loads, np.int64)
    result = np.zeros(len(sizes), np.int64)
    order = np.argsort(-sizes, kind="stable")
    # The largest equal loads, most of a tensor's slices, go to all bins in turn.
    largest = int(sizes.max(initial=0))
    turns = int(np.count_nonzero(sizes == largest)) // bins if largest else 0
    result[order[: turns * bins]] = np.tile(np.arange(bins), turns)
    heap = [(turns * largest, number) for number in range(bins)]
    for index in order[turns * bins :].tolist():
        load, number = heap[0]
        result[index] = number
        heapq.heapreplace(heap, (load + int(sizes[index]), number))
    return result


class ChunkAssignment:
    """The server and the stream of each chunk of a job."""

    def __init__(self, counts: Sequence[int], most: int, servers: int, streams: int) -> None:
        pieces = slices(counts, most)
        lengths = pieces[:, 2]
        owners = partition(lengths, servers)
        # The slices of one server take turns in the streams that lead to it.
        turns = np.zeros(len(pieces), np.int64)
        for server in range(servers):
            mine = owners == server
            turns[mine] = np.arange(np.count_nonzero(mine))
        self._slices = owners, _stream(owners, turns, servers, streams), lengths
        self._bins = servers, streams

    # The last element stands for all chunks that do not exist.
    @cached_property
    def servers(self) -> Indices:
        """Returns the server of each chunk, and -1 (chunks + 1,)."""
        owners, _, lengths = self._slices
        return np.append(np.repeat(owners, lengths), -1)

    @cached_property
    def _streams(self) -> Indices:
        _, streams, lengths = self._slices
        return np.append(np.repeat(streams, lengths), -1)

    def together(self) -> Indices:
        """Returns the number of chunks of each server in each stream (servers, streams)."""
        owners, streams, lengths = self._slices
        found = np.zeros(self._bins, np.int64)
        np.add.at(found, (owners, streams), lengths)
        return found

    def server_of(self, chunk: Any) -> Any:
        """Returns the rank of the server of a chunk (of each of an array); -1 if the job has no
        such chunk."""
        return self.servers.take(chunk, mode="clip")

    def stream_of(self, chunk: Any) -> Any:
        """Returns the index of the stream of a chunk (of each of an array); -1 if the job has no
        such chunk."""
        return self._streams.take(chunk, mode="clip")


@lru_cache(maxsize=64)
def shares(counts: tuple[int, ...], most: int, servers: int, streams: int) -> ChunkAssignment:
    """Returns the assignment of chunks, which is the same on every node of a job.

    counts: chunks of each key, in order. most: chunks of a slice. Raises ValueError.
    """
    return ChunkAssignment(counts, most, servers, streams)


def servers_of(stream: int, streams: int, servers: int) -> tuple[int, ...]:
    """Returns the ranks of the servers that a stream leads to: one if there are as many streams as
    servers, else every `streams`-th from the stream's index on."""
    return tuple(range(stream, servers, streams)) if stream < servers else (stream % servers,)


def _stream(owners: Indices, turns: Indices, servers: int, streams: int) -> Indices:
    """Inverts `servers_of`, for each slice's owner and its turn among the owner's."""
    if streams <= servers:
        return owners % streams
    own = (streams - owners - 1) // servers + 1
    return owners + servers * (turns % own)
