# SPDX-License-Identifier: Apache-2.0
"""Cuts keys into slices, and says which server and stream each chunk goes to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.assignment.classes import classes_of
from protocol.assignment.registry import ASSIGNMENTS
from protocol.propagation import USUAL, Propagation

Indices = npt.NDArray[np.int64]
# Slices by number, and their servers.
Moved = tuple[tuple[int, int], ...]


def slices(counts: Sequence[int], most: int) -> Indices:
    """Returns (n, 3): key, first chunk and number of chunks of each slice, in order of chunks.

    counts: chunks of each key, whose chunks follow one another; a slice has at most `most` of them
    and never spans two keys. Raises ValueError for a count or `most` below 1.
    """
    return _slices(counts, [most] * len(counts))


def parts(counts: Sequence[int], most: int, servers: int) -> Indices:
    """Returns whole keys as `slices` does, those of more than `most` chunks cut into one part for
    each server, as equal as possible."""
    return _slices(counts, [n if n <= most else -(-n // servers) for n in counts])


def _slices(counts: Sequence[int], lengths: Sequence[int]) -> Indices:
    """Cuts each key into slices of a length of its own."""
    if any(number < 1 for number in (*counts, *lengths)):
        raise ValueError(f"keys of {list(counts)} chunks cannot be cut into slices of {lengths}")
    pieces = []
    first = 0
    for key, (count, most) in enumerate(zip(counts, lengths, strict=True)):
        starts = np.arange(0, count, most)
        each = np.minimum(most, count - starts)
        pieces.append(np.column_stack([np.full(len(starts), key), first + starts, each]))
        first += count
    return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros((0, 3), np.int64)


class ChunkAssignment:
    """The server and the stream of each chunk of a job.

    classes: (keys,) class of each key, the higher the more urgent.
    most_at_once: slices that a worker with order fifo sends at a time in a stream.
    owners, lengths: (slices,) server, and number of chunks, of each slice.
    """

    def __init__(
        self,
        counts: Sequence[int],
        most: int,
        servers: int,
        streams: int,
        propagation: Propagation,
        moved: Moved,
    ) -> None:
        cut = parts(counts, most, servers) if propagation.parts else slices(counts, most)
        keys, lengths = cut[:, 0], cut[:, 2]
        owners = ASSIGNMENTS[propagation.assign](cut, servers)
        # A class has as many streams as any other; the slices of one server take turns in those
        # of their class that lead to it.
        own = streams // propagation.classes
        self.classes = classes_of(counts, propagation.classes)
        urgency = self.classes[keys]
        turns = np.zeros(len(cut), np.int64)
        for group in np.unique(owners * propagation.classes + urgency).tolist():
            mine = owners * propagation.classes + urgency == group
            turns[mine] = np.arange(np.count_nonzero(mine))
        for one, server in moved:
            if one >= len(owners) or server >= servers:
                text = f"of {len(owners)} slices and {servers} servers"
                raise ValueError(f"slice {one} moved to server {server} {text}")
            owners[one] = server
        self.owners = owners
        self.lengths = lengths
        self._slices = owners, urgency * own + _stream(owners, turns, servers, own), lengths
        self._bins = servers, streams
        # Of whole keys, the parts for all servers of a stream.
        self.most_at_once = -(-servers // min(own, servers)) if propagation.parts else 1

    @cached_property
    def slice_of(self) -> Indices:
        """Returns the slice (chunks,) of each chunk."""
        lengths = self._slices[2]
        return np.repeat(np.arange(len(lengths)), lengths)

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
def shares(
    counts: tuple[int, ...],
    most: int,
    servers: int,
    streams: int,
    propagation: Propagation = USUAL,
    moved: Moved = (),
) -> ChunkAssignment:
    """Returns the assignment of chunks, which is the same on every node of a job.

    counts: chunks of each key, in order. most: chunks of a slice. streams: of all classes. moved:
    slices that are at other servers than the job's rule says. Raises ValueError.
    """
    return ChunkAssignment(counts, most, servers, streams, propagation, moved)


def ranked(moved: Moved, servers: Sequence[int]) -> Moved:
    """Converts a chunk map by numbers of servers to their ranks in `servers`, without those that
    are not there."""
    ranks = {server: rank for rank, server in enumerate(servers)}
    return tuple(sorted((one, ranks[server]) for one, server in moved if server in ranks))


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
