# SPDX-License-Identifier: Apache-2.0
"""The state that a worker needs to join a running job, from another worker, and its transfer in
pages.

It has the application's arrays, the chunks' exponents, the number of complete calls, and, where
servers optimize, each chunk's last result. Its encoding is a `State` of jobs.proto. Pages go
through the job service, one at a time.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from protocol import jobs_pb2

PAGE_BYTES = 3 << 20
MOST_STATE_BYTES = 1 << 30
HASH_BYTES = 32
# Names of numpy's numeric types: <f4, |b1.
_TYPE = re.compile(r"[<>|][biufc][0-9]{1,2}")
_MOST_DIMENSIONS = 32  # numpy's limit
_QUOTED = 80  # characters

Arrays = Mapping[str, npt.NDArray[Any]]


class StateError(ValueError):
    """A state that cannot be encoded or decoded; the text says why."""


class State(NamedTuple):
    """The state of a worker between two rounds.

    calls: complete rounds.
    exponents: see Exponents.export.
    arrays: the application's, by name.
    headers, payloads: each chunk's last result, concatenated, where servers optimize.
    keys: pushed in those rounds.
    """

    calls: int
    exponents: bytes
    arrays: dict[str, npt.NDArray[Any]]
    headers: bytes = b""
    payloads: bytes = b""
    keys: int = 0


def encode(state: State) -> bytes:
    """Encodes a state. Raises StateError for arrays of other than numbers, or a state that is too
    large."""
    size = sum(array.nbytes for array in state.arrays.values()) + len(state.exponents)
    size += len(state.headers) + len(state.payloads)
    if size > MOST_STATE_BYTES:
        raise _too_large(size)
    message = jobs_pb2.State(
        calls=state.calls,
        exponents=state.exponents,
        headers=state.headers,
        payloads=state.payloads,
        keys=state.keys,
    )
    for name, array in state.arrays.items():
        if not _TYPE.fullmatch(array.dtype.str):
            raise StateError(f"{name} is an array of {array.dtype}; only numbers can be sent")
        message.arrays.add(
            name=name,
            type=array.dtype.str,
            shape=array.shape,
            data=np.ascontiguousarray(array).tobytes(),
        )
    data = message.SerializeToString()
    if len(data) > MOST_STATE_BYTES:
        raise _too_large(len(data))
    return data


def _too_large(size: int) -> StateError:
    return StateError(f"a state of {size} B; at most {MOST_STATE_BYTES} B can be sent")


def decode(data: bytes) -> State:
    """Decodes a state. Raises StateError."""
    try:
        message = jobs_pb2.State.FromString(data)
    except DecodeError as error:
        raise StateError(f"{len(data)} B that are no state: {error}") from error
    arrays = {}
    for one in message.arrays:
        shape = tuple(one.shape)
        try:
            if not _TYPE.fullmatch(one.type):
                raise ValueError("no type of numbers")
            kind = np.dtype(one.type)
            if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * kind.itemsize != len(one.data):
                raise ValueError(f"{len(one.data)} B are no array of {len(shape)} dimensions so")
            array = np.frombuffer(one.data, kind).reshape(shape)
        except (OverflowError, TypeError, ValueError) as error:
            text = f"array {one.name[:_QUOTED]!r} ({one.type[:_QUOTED]!r}): {error}"
            raise StateError(text) from error
        arrays[one.name] = array.copy()  # writable
    last = message.headers, message.payloads
    return State(message.calls, message.exponents, arrays, *last, message.keys)


class Pages:
    """Splits bytes into pages, all but the last of `PAGE_BYTES`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._hash = hashlib.sha256(data).digest()

    def page(self, number: int) -> jobs_pb2.Page:
        """Returns one page. Raises StateError if there is no such page."""
        start = number * PAGE_BYTES
        if start >= len(self._data):
            raise StateError(f"{len(self._data)} B have no page {number}")
        part = self._data[start : start + PAGE_BYTES]
        return jobs_pb2.Page(page=number, size=len(self._data), sha256=self._hash, data=part)


class Collector:
    """Joins pages, in order from the first."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._whole = (0, b"")
        self._next = 0

    def take(self, page: jobs_pb2.Page) -> bytes | None:
        """Takes the next page, or the previous one again; returns all bytes with the last one.

        Raises StateError for a page out of order, or of other bytes, or a wrong hash.
        """
        whole = page.size, page.sha256
        if page.page == 0:
            self._data, self._whole, self._next = bytearray(), whole, 0
        if page.page == self._next - 1 and whole == self._whole:
            return bytes(self._data) if len(self._data) == page.size else None
        if page.page != self._next or whole != self._whole:
            raise StateError(f"page {page.page} of {page.size} B where {self._next} was to come")
        if not 0 < page.size <= MOST_STATE_BYTES:
            raise StateError(f"a state of {page.size} B; allowed are 1 to {MOST_STATE_BYTES}")
        if len(page.data) != min(PAGE_BYTES, page.size - len(self._data)):
            raise StateError(f"page {page.page} of {page.size} B has {len(page.data)} B")
        self._data += page.data
        self._next += 1
        if len(self._data) < page.size:
            return None
        if hashlib.sha256(self._data).digest() != page.sha256:
            raise StateError(f"{page.size} B whose hash is not the one they were sent with")
        return bytes(self._data)
