# SPDX-License-Identifier: Apache-2.0
"""Converts tensors to chunks and back.

Keys (tensors) are laid out one after the other, each starting a chunk of its own; a chunk never
spans two keys. The last chunk of a key is padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.data.submissions import Scattered
from protocol.payloads import Floats
from switch.ports.paced_line import address

Indices = npt.NDArray[np.int64]
_MOST_SELECTED = 1024


class Selected(NamedTuple):
    """The chunks of some keys, one key after the other.

    chunks, lanes: (n,) indices, and valid lanes.
    ends: (keys,) where those of each key end.
    """

    chunks: Indices
    lanes: Indices
    ends: Indices


class Layout:
    """The chunks of a job's keys.

    sizes: number of elements of each key.
    lanes: float32 values per chunk.
    chunks: number of chunks of all keys.
    first, counts: (keys,) first chunk and number of chunks of each key.
    lanes_of: (chunks,) valid lanes of each chunk.
    """

    def __init__(self, sizes: Sequence[int], lanes: int) -> None:
        if lanes < 1:
            raise ValueError(f"a chunk has at least one lane, got {lanes}")
        if any(size < 1 for size in sizes):
            raise ValueError(f"every key has at least one element, got sizes {list(sizes)}")
        self.sizes = tuple(sizes)
        self.lanes = lanes
        counts = [-(-size // lanes) for size in sizes]
        self.first = tuple(np.concatenate(([0], np.cumsum(counts)))[:-1].astype(int).tolist())
        self.counts = tuple(counts)
        self.chunks = sum(counts)
        self._selected: dict[tuple[int, ...], Selected] = {}
        self.lanes_of = np.full(self.chunks, lanes, np.int64)
        for first, count, size in zip(self.first, counts, sizes, strict=True):
            self.lanes_of[first + count - 1] = size - (count - 1) * lanes

    def chunks_of(self, key: int) -> Indices:
        """Returns the indices of a key's chunks."""
        return np.arange(self.first[key], self.first[key] + self.counts[key])

    def select(self, keys: tuple[int, ...]) -> Selected:
        """Returns the chunks of at least one key, in arrays that are not writeable: mostly the same
        for the same keys, as calls of the same keys come again and again."""
        found = self._selected.get(keys)
        if found is None:
            chunks = np.concatenate([self.chunks_of(key) for key in keys])
            ends = np.cumsum([self.counts[key] for key in keys])
            found = Selected(chunks, self.lanes_of[chunks], ends)
            for array in found:
                array.flags.writeable = False
            if len(self._selected) == _MOST_SELECTED:
                self._selected.clear()
            self._selected[keys] = found
        return found

    def pack(self, key: int, tensor: npt.ArrayLike, out: Floats | None = None) -> Floats:
        """Returns a copy of a key's values as (its chunks, lanes) float32, zero padded; in `out` if
        given.

        Raises ValueError if the tensor is not float32 or has another number of elements.
        """
        flat = np.asarray(tensor)
        if flat.dtype != np.float32 or flat.size != self.sizes[key]:
            raise ValueError(
                f"key {key} is {self.sizes[key]} float32 elements, got {flat.size} of {flat.dtype}"
            )
        packed = np.empty((self.counts[key], self.lanes), np.float32) if out is None else out
        lanes = packed.reshape(-1)
        lanes[: flat.size] = flat.reshape(-1)
        lanes[flat.size :] = 0
        return packed

    def scatter(self, keys: Sequence[int], tensors: Sequence[Floats]) -> Scattered:
        """Returns where the chunks of the keys are in these contiguous float32 tensors; of chunks
        that need padding, copies."""
        width = self.lanes * 4
        rows, partial = [], [key for key in keys if self.sizes[key] % self.lanes]
        padded = np.zeros((len(partial), self.lanes), np.float32)
        copies = iter(padded)
        for key, tensor in zip(keys, tensors, strict=True):
            at = address(tensor) + np.arange(self.counts[key], dtype=np.uint64) * np.uint64(width)
            used = self.sizes[key] % self.lanes
            if used:
                copy = next(copies)
                copy[:used] = tensor.reshape(-1)[-used:]
                at[-1] = address(copy)
            rows.append(at)
        return Scattered(np.concatenate(rows), (*tensors, padded))

    def unpack(self, key: int, chunks: Floats, shape: Sequence[int] | None = None) -> Floats:
        """Inverts `pack`: returns (its chunks, lanes) float32 as the key's tensor, flat by default.

        Raises ValueError if shapes do not fit.
        """
        if chunks.shape != (self.counts[key], self.lanes):
            raise ValueError(
                f"key {key} has {self.counts[key]} chunks of {self.lanes} lanes, got {chunks.shape}"
            )
        flat = chunks.reshape(-1)[: self.sizes[key]]
        return flat if shape is None else flat.reshape(shape)
