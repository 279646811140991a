# SPDX-License-Identifier: Apache-2.0
"""A job's tensors by name: types, conversion to chunks, and conversion of sums back."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.data.array_pool import ArrayPool
from hosts.data.chunks import Layout, Selected
from hosts.data.submissions import Scattered
from hosts.errors import TooLargeError, UnknownKeyError, WrongShapeError, WrongTypeError
from protocol import jobs_pb2
from protocol.payloads import Floats

# Types of gradients. bfloat16 is that of ml_dtypes.
DTYPES = ("float32", "float16", "bfloat16", "float64")


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns one of DTYPES by name."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def as_float32(name: str, value: Any) -> Floats:
    """Returns an array of any of DTYPES as float32, to which float64 is rounded; itself if it is
    one.

    Raises, naming the key, WrongTypeError for anything else, and TooLargeError for finite values
    that float32 does not have.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value
    _check_type(name, value)
    # Signalling NaNs become quiet ones, which is not worth a warning.
    with np.errstate(invalid="ignore", over="raise", under="ignore"):
        try:
            array: Floats = value.astype(np.float32, copy=False)
        except FloatingPointError:
            largest = np.abs(value[np.isfinite(value)]).max()
            raise TooLargeError(
                f"{name}: {largest:.3g} is beyond float32, in which sums are made; its largest"
                f" value is {np.finfo(np.float32).max:.3g}"
            ) from None
    return array


def _check_type(name: str, value: Any) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.name not in DTYPES:
        what = getattr(value, "dtype", type(value).__name__)
        raise WrongTypeError(f"{name}: an array of {', '.join(DTYPES)} is needed, this is {what}")


def _outside() -> int:
    """Returns the `stacklevel` of a warning that names the line which called this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("hosts."):
        level, frame = level + 1, frame.f_back
    return level


class Sums(dict[str, Floats]):
    """Arrays by name, as calls return them.

    Attributes:
        workers: For each, the number of workers in each of its chunks.
        members: By that number, their ranks when the job was created.
    """

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, npt.NDArray[np.int64]] = {}
        self.members: dict[int, tuple[int, ...]] = {}

    def put(self, out: Mapping[str, Floats]) -> None:
        """Copies the arrays of these keys into those given, and has these instead."""
        for name, array in out.items():
            np.copyto(array, self[name])
            self[name] = array


def check_out(out: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Checks arrays for the sums of values: float32 of the same shapes, contiguous, writeable.

    Raises UnknownKeyError (for a key without values), WrongShapeError, WrongTypeError.
    """
    for name, array in out.items():
        if name not in values:
            there = ", ".join(values)
            raise UnknownKeyError(f"out: {name!r} is not among the keys of this call: {there}")
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            what = getattr(array, "dtype", type(array).__name__)
            raise WrongTypeError(f"out of {name}: a float32 array is needed, this is {what}")
        if array.shape != np.shape(values[name]):
            given = np.shape(values[name])
            raise WrongShapeError(f"out of {name}: shape {given} is needed, given {array.shape}")
        if not (array.flags.c_contiguous and array.flags.writeable):
            what = "read-only" if array.flags.c_contiguous else "not C-contiguous"
            raise WrongTypeError(
                f"out of {name}: a contiguous, writeable array is needed, this is {what}"
            )


@functools.lru_cache(maxsize=4)
def _layout(sizes: tuple[int, ...], lanes: int) -> Layout:
    """Makes the layout that all workers of a job in this process share."""
    return Layout(sizes, lanes)


class Tensors:
    """The declared keys, arrays of DTYPES or numbers of elements. Raises WrongTypeError.

    Gradients of any type are summed, and returned, as float32, of which the first in float64 gets a
    warning. Without payload only their sizes are used, and results are zero.
    """

    def __init__(
        self, keys: Mapping[str, int | Floats], lanes: int, *, payload: bool = True
    ) -> None:
        self._shapes = [_shape(name, key) for name, key in keys.items()]
        self._memory = ArrayPool()
        self._keys = {name: number for number, name in enumerate(keys)}
        self.layout = _layout(tuple(math.prod(shape) for shape in self._shapes), max(1, lanes))
        self._payload = payload
        self._warned = False

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> list[str]:
        """Returns the names in the order declared."""
        return list(self._keys)

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the elements of each key, by name, in the order declared."""
        return dict(zip(self._keys, self.layout.sizes, strict=True))

    def named(self, chunks: Floats) -> dict[str, Floats]:
        """Returns the values of all chunks (chunks, lanes) by key, flat."""
        parts = np.split(chunks, self.layout.first[1:])
        return {
            name: self.layout.unpack(key, part)
            for (name, key), part in zip(self._keys.items(), parts, strict=True)
        }

    def packed(self, named: Mapping[str, Floats]) -> Floats:
        """Inverts `named`. Raises ValueError for another size."""
        return np.concatenate([self.layout.pack(key, named[n]) for n, key in self._keys.items()])

    def messages(self) -> list[jobs_pb2.Key]:
        """Returns the keys as messages for the job service."""
        sizes = self.layout.sizes
        return [jobs_pb2.Key(key=k, name=name, elements=sizes[k]) for name, k in self._keys.items()]

    def number(self, name: str) -> int:
        """Returns a key's index in the order declared. Raises UnknownKeyError."""
        if name not in self._keys:
            known = ", ".join(self._keys)
            raise UnknownKeyError(f"{name!r} is not a key of this job, those are {known}")
        return self._keys[name]

    def pack(
        self, values: Mapping[str, Floats], *, copy: bool = True
    ) -> tuple[list[str], Selected, Floats | Scattered, Floats]:
        """Returns the names, of at least one key, in the order declared, their chunks, the values
        in them, and memory for their sums (n, lanes).

        copy: the values are in that memory, too; else where they are, which must not change.
        Raises UnknownKeyError, WrongShapeError, WrongTypeError, TooLargeError.
        """
        given = {name: self._checked(name, value) for name, value in values.items()}
        names = sorted(values, key=self._keys.__getitem__)
        numbers = tuple(self._keys[name] for name in names)
        selected = self.layout.select(numbers)
        n, width = len(selected.chunks), self.layout.lanes if self._payload else 0
        sums = self._memory.empty((n, width), np.float32)
        if not width:
            return names, selected, sums, sums
        arrays = [np.require(np.asarray(given[name]), requirements=("C", "A")) for name in names]
        if not copy:
            return names, selected, self.layout.scatter(numbers, arrays), sums
        begin = 0
        for array, number, end in zip(arrays, numbers, selected.ends.tolist(), strict=True):
            self.layout.pack(number, array, sums[begin:end])
            begin = end
        return names, selected, sums, sums

    def unpack(
        self,
        names: Sequence[str],
        values: Mapping[str, Floats],
        sums: Floats,
        workers: npt.NDArray[np.int64],
    ) -> Sums:
        """Returns sums of chunks, as `pack` arranged them, in the shapes of the `values` given."""
        result = Sums()
        at = 0
        for name in names:
            number = self._keys[name]
            here = slice(at, at + self.layout.counts[number])
            shape = np.shape(values[name])
            if self._payload:
                result[name] = self.layout.unpack(number, sums[here], shape)
            else:
                result[name] = np.broadcast_to(np.float32(0), shape)  # which takes no memory
            result.workers[name] = workers[here]
            at = here.stop
        return result

    def _checked(self, name: str, value: Any) -> Floats:
        number = self.number(name)
        array = as_float32(name, value)
        if value.dtype == np.float64 and not self._warned:
            self._warned = True
            text = (
                f"{name}: float64 is summed as float32, and so it comes back (said once per Client)"
            )
            warnings.warn(text, stacklevel=_outside())
        shape = self._shapes[number]
        # A key declared by its number of elements takes any shape of that many.
        if array.shape != shape and (len(shape) != 1 or array.size != shape[0]):
            raise WrongShapeError(f"{name}: declared with shape {shape}, given {array.shape}")
        return array


def _shape(name: str, key: int | Floats) -> tuple[int, ...]:
    """Returns the declared shape of a key."""
    if isinstance(key, np.ndarray):
        _check_type(name, key)
        return key.shape
    return (int(key),)
