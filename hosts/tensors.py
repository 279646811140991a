# SPDX-License-Identifier: Apache-2.0
"""A job's tensors by name: what may be given for them, as chunks, and back as sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.chunks import Indices, Layout
from hosts.errors import UnknownKeyError, WrongShapeError, WrongTypeError
from protocol import jobs_pb2
from protocol.fixed_point import Floats


class Sums(dict[str, Floats]):
    """Arrays by name; `workers` has, for each, how many workers are in each of its chunks, and
    `members` who they are, by how many: their ranks when the job was created."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, npt.NDArray[np.int64]] = {}
        self.members: dict[int, tuple[int, ...]] = {}


class Tensors:
    """The keys as declared, float32 arrays or numbers of elements. Raises WrongTypeError."""

    def __init__(self, keys: Mapping[str, int | Floats], lanes: int) -> None:
        self._shapes = [_shape(name, key) for name, key in keys.items()]
        self._keys = {name: number for number, name in enumerate(keys)}
        self.layout = Layout([math.prod(shape) for shape in self._shapes], max(1, lanes))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> list[str]:
        """In the order declared."""
        return list(self._keys)

    def messages(self) -> list[jobs_pb2.Key]:
        """As they are declared to the job service."""
        sizes = self.layout.sizes
        return [jobs_pb2.Key(key=k, name=name, elements=sizes[k]) for name, k in self._keys.items()]

    def number(self, name: str) -> int:
        """A key's place in the order declared. Raises UnknownKeyError."""
        if name not in self._keys:
            known = ", ".join(self._keys)
            raise UnknownKeyError(f"{name!r} is not a key of this job, those are {known}")
        return self._keys[name]

    def pack(self, values: Mapping[str, Floats]) -> tuple[list[str], Indices, Floats]:
        """Names in the order declared, their chunks (n,) and the values in them (n, lanes).

        Raises UnknownKeyError, WrongShapeError, WrongTypeError.
        """
        for name, value in values.items():
            self._check(name, value)
        names = sorted(values, key=self._keys.__getitem__)
        numbers = [self._keys[name] for name in names]
        if not numbers:
            return [], np.zeros(0, np.int64), np.zeros((0, self.layout.lanes), np.float32)
        return (
            names,
            np.concatenate([self.layout.chunks_of(number) for number in numbers]),
            np.concatenate(
                [self.layout.pack(k, values[n]) for k, n in zip(numbers, names, strict=True)]
            ),
        )

    def unpack(
        self,
        names: Sequence[str],
        values: Mapping[str, Floats],
        sums: Floats,
        workers: npt.NDArray[np.int64],
    ) -> Sums:
        """Sums of chunks, as `pack` arranged them, in the shapes of the `values` given."""
        result = Sums()
        at = 0
        for name in names:
            number = self._keys[name]
            here = slice(at, at + self.layout.counts[number])
            result[name] = self.layout.unpack(number, sums[here], np.shape(values[name]))
            result.workers[name] = workers[here]
            at = here.stop
        return result

    def _check(self, name: str, value: Any) -> None:
        number = self.number(name)
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            what = getattr(value, "dtype", type(value).__name__)
            raise WrongTypeError(f"{name}: a float32 array is needed, this is {what}")
        shape = self._shapes[number]
        # A key declared by its number of elements takes any shape of that many.
        if value.shape != shape and (len(shape) != 1 or value.size != shape[0]):
            raise WrongShapeError(f"{name}: declared with shape {shape}, given {value.shape}")


def _shape(name: str, key: int | Floats) -> tuple[int, ...]:
    """Shape of a key as it was declared."""
    if isinstance(key, np.ndarray):
        if key.dtype != np.float32:
            raise WrongTypeError(f"{name}: keys are float32, this array is {key.dtype}")
        return key.shape
    return (int(key),)
