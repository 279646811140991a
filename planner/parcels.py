# SPDX-License-Identifier: Apache-2.0
"""Cuts the gradients of an iteration into parcels, runs of chunks that are simulated as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.partition import shares
from protocol.propagation import FIFO, Propagation

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layers:
    """The computation of an iteration, and which tensors each layer has.

    forward, backward: seconds of each layer, in the order of the forward pass.
    of_tensor: the layer of each tensor, in the order of tensors.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    of_tensor: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Total of both passes."""
        return sum(self.forward) + sum(self.backward)

    def end(self, arrivals: Sequence[float]) -> float:
        """Computes when the forward pass ends after a backward pass that begins at 0.

        arrivals: when each layer has its sums.
        """
        now = sum(self.backward)
        for arrival, seconds in zip(arrivals, self.forward, strict=True):
            now = max(now, arrival) + seconds
        return now


@dataclass(frozen=True)
class Exchange:
    """An iteration's exchange.

    counts: chunks of each tensor.
    slice: chunks of a full slice.
    window: chunks of a stream in flight.
    streams: streams of a class of urgency.
    frame, payload: bytes of a chunk.
    """

    layers: Layers
    counts: tuple[int, ...]
    slice: int
    propagation: Propagation
    window: int
    streams: int
    frame: int
    payload: int


class Parcels:
    """The parcels of an iteration, in the order in which workers push them.

    A parcel is of one slice and has up to `most` chunks.

    chunks, server, stream: of each.
    piece: the part of a slice that a server releases together (``hosts.server.slice_release``).
    rank: by which queues with priorities serve it, the lowest first.
    streams: the parcels of each stream.
    opens: how many parcels of its stream need their results before a parcel may be sent.
    layers: the first parcel of each layer, and the first that is not of it.
    """

    def __init__(self, exchange: Exchange, servers: int, most: int) -> None:
        counts, propagation = exchange.counts, exchange.propagation
        # Slices shorter than a parcel have no effect that parcels show.
        slice_ = max(exchange.slice, most)
        where = shares(counts, slice_, servers, exchange.streams * propagation.classes, propagation)
        total = sum(counts)
        numbers = np.arange(total)
        tensor = np.repeat(np.arange(len(counts)), counts)
        layer = np.array(exchange.layers.of_tensor, np.int64)[tensor]
        slices = where.slice_of
        starts = np.append(True, slices[1:] != slices[:-1])
        place = numbers - np.maximum.accumulate(np.where(starts, numbers, 0))
        released = place % max(1, exchange.window // (2 * where.most_at_once)) == 0
        pieces = np.cumsum(released)
        begins = np.maximum.accumulate(np.where(released, numbers, 0))
        first = np.flatnonzero((numbers - begins) % most == 0)
        length = np.diff(np.append(first, total))
        # The backward pass goes from the last layer to the first.
        turns = first
        if propagation.parts and propagation.order == FIFO:
            turns = _turns(layer[first], where.servers[first], length)
        order = np.lexsort((turns, -layer[first]))
        first, length = first[order], length[order]
        self.chunks: list[int] = length.tolist()
        self.server: list[int] = where.servers[first].tolist()
        self.piece: list[int] = pieces[first].tolist()
        self.rank: list[int] = (propagation.classes - 1 - where.classes[tensor[first]]).tolist()
        window = max(exchange.window, 2 * most)
        streams = where.stream_of(first)
        self.stream: list[int] = streams.tolist()
        self.streams: list[list[int]] = []
        self.opens = [0] * len(first)
        for stream in range(exchange.streams * propagation.classes):
            mine = np.flatnonzero(streams == stream)
            ends = np.cumsum(length[mine])
            # The last chunk may be sent if all those a window before it are complete.
            opens = np.searchsorted(ends, ends - window, side="right")
            for parcel, needed in zip(mine.tolist(), opens.tolist(), strict=True):
                self.opens[parcel] = needed
            self.streams.append(mine.tolist())
        backwards, each = -layer[first], -np.arange(len(exchange.layers.forward))
        begins, ends = (np.searchsorted(backwards, each, side) for side in ("left", "right"))
        self.layers: list[tuple[int, int]] = [*zip(begins.tolist(), ends.tolist(), strict=True)]


def _turns(layer: _Numbers, server: _Numbers, length: _Numbers) -> _Numbers:
    """Returns (n,) chunks of the same layer and server before each parcel, by which workers send
    parts of whole keys (``hosts.worker.scheduling.fifo``)."""
    order = np.lexsort((server, layer))
    ends = np.cumsum(length[order])
    same = (np.diff(layer[order]) == 0) & (np.diff(server[order]) == 0)
    begins = np.append(True, ~same)
    before = ends - length[order]
    turns = np.zeros(len(length), np.int64)
    turns[order] = before - np.maximum.accumulate(np.where(begins, before, 0))
    return turns
