# SPDX-License-Identifier: Apache-2.0
"""A job's checkpoint as a file: what training goes on from as if it had never stopped.

    8 B   magic                     "\\x89rackhub"
    4 B   version                   1; numbers are little endian
    4 B   size of the header
    8 B   size of the file
    header                          JSON: what is below, and each array's name, type and shape
    arrays                          one after the other, little endian, in C order
    32 B  SHA-256 of all before

A file appears under its name when all of it is on the disk, or not at all. Whatever happened to it
since is found when it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.errors import CheckpointError
from protocol.payloads import Floats
from protocol.state import Arrays

MAGIC = b"\x89rackhub"
VERSION = 1
_START = struct.Struct("<8sIIQ")
_HASH_BYTES = 32
# Names of numpy's numeric types, little endian: <f4, |b1.
_TYPE = re.compile(r"[<|][biufc][0-9]{1,2}")
_MOST_DIMENSIONS = 32  # numpy's limit


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint.

    calls: completed push_pulls, each of which was a step.
    keys: elements by name, in order.
    lanes: of a chunk.
    exponents: see Exponents.export.
    arrays: the application's.
    optimizer: its name, where servers optimize; empty otherwise, as are the following.
    parameters: by key, flat.
    state: likewise, once for each of the optimizer's arrays.
    """

    calls: int
    keys: dict[str, int]
    lanes: int
    exponents: bytes
    arrays: dict[str, npt.NDArray[Any]]
    optimizer: str = ""
    parameters: dict[str, Floats] = field(default_factory=dict)
    state: tuple[dict[str, Floats], ...] = ()

    def check_keys(self, path: str | Path, keys: Mapping[str, int]) -> None:
        """Raises CheckpointError unless the checkpoint is of a job with these keys."""
        if list(self.keys.items()) == list(keys.items()):
            return
        for name in [*self.keys, *keys]:
            theirs, mine = self.keys.get(name), keys.get(name)
            if theirs != mine:
                had, has = (_elements(n) for n in (theirs, mine))
                raise CheckpointError(f"{path}: of another job: {name} {had} there, {has} here")
        raise CheckpointError(f"{path}: of another job: its keys are in another order")


def _elements(number: int | None) -> str:
    return "is not" if number is None else f"has {number} elements"


def write(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint atomically, replacing an older one. Raises CheckpointError."""
    target = Path(path)
    data = _encode(target, checkpoint)
    # In the same folder: a file can be renamed only within a file system.
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                for part in data:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # makes the rename durable
        finally:
            os.close(folder)
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written: {error.strerror}") from error


def read(path: str | Path) -> Checkpoint:
    """Reads a checkpoint.

    Raises CheckpointError for a file that cannot be read, is truncated, damaged, or no checkpoint.
    """
    try:
        # Opening a pipe would block until it has a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CheckpointError(f"{path}: no checkpoint: it is no regular file")
            begin = file.read(_START.size)
            if begin[: len(MAGIC)] != MAGIC[: len(begin)] or not begin:
                raise CheckpointError(f"{path}: no checkpoint: it begins with other bytes")
            data = memoryview(begin + file.read())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) < _START.size:
        raise CheckpointError(f"{path}: cut off after {len(data)} B, within its first line")
    _, version, header_size, size = _START.unpack_from(data)
    if len(data) < size:
        said = f"it says that it has {size} B, and has {len(data)} B"
        raise CheckpointError(f"{path}: cut off, or damaged: {said}")
    if hashlib.sha256(data[:-_HASH_BYTES]).digest() != bytes(data[-_HASH_BYTES:]):
        raise CheckpointError(
            f"{path}: damaged: its SHA-256 is not the one that it was written with"
        )
    # From here on the contents are known to be intact.
    if version != VERSION:
        raise CheckpointError(f"{path}: version {version}; this is for version {VERSION}")
    try:
        return _decode(data[_START.size : size - _HASH_BYTES], header_size)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: says what no checkpoint can: {error}") from error


def _encode(path: Path, checkpoint: Checkpoint) -> Sequence[bytes]:
    named = _named(checkpoint)
    arrays = {}
    for name, array in named.items():
        one = np.ascontiguousarray(array).reshape(np.shape(array))
        arrays[name] = one.astype(one.dtype.newbyteorder("<"))
        if not _TYPE.fullmatch(arrays[name].dtype.str):
            raise CheckpointError(f"{path}: {name} is {one.dtype}, which is no type of numbers")
    header = json.dumps(
        {
            "calls": checkpoint.calls,
            "keys": list(checkpoint.keys.items()),
            "lanes": checkpoint.lanes,
            "optimizer": checkpoint.optimizer,
            "arrays": [[n, one.dtype.str, list(one.shape)] for n, one in arrays.items()],
        }
    ).encode()
    parts = [header, *(one.tobytes() for one in arrays.values())]
    size = _START.size + sum(len(part) for part in parts) + _HASH_BYTES
    parts.insert(0, _START.pack(MAGIC, VERSION, len(header), size))
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return [*parts, total.digest()]


def _named(checkpoint: Checkpoint) -> Arrays:
    """Returns all its arrays, under distinct names."""
    return {
        "exponents": np.frombuffer(checkpoint.exponents, np.uint8),
        **{f"application {name}": one for name, one in checkpoint.arrays.items()},
        **{f"parameter {name}": one for name, one in checkpoint.parameters.items()},
        **{
            f"state {number} {name}": one
            for number, part in enumerate(checkpoint.state)
            for name, one in part.items()
        },
    }


def _decode(data: memoryview, header_size: int) -> Checkpoint:
    header = json.loads(bytes(data[:header_size]))
    at = header_size
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, kind, shape in header["arrays"]:
        if not _TYPE.fullmatch(kind) or len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"an array of type {kind!r} with {len(shape)} dimensions")
        end = at + np.dtype(kind).itemsize * math.prod(shape)
        if end > len(data) or any(n < 0 for n in shape):
            raise ValueError(f"an array {name!r} of shape {shape} in {len(data)} B")
        array = np.frombuffer(bytes(data[at:end]), kind).reshape(shape)
        at = end
        group, _, rest = name.partition(" ")
        if group == "state":
            number, _, rest = rest.partition(" ")
            group = f"state {int(number)}"
        found.setdefault(group, {})[rest] = array.astype(array.dtype.newbyteorder("="))
    if at != len(data):
        raise ValueError(f"{len(data) - at} B that belong to no array")
    keys = {str(name): int(elements) for name, elements in header["keys"]}
    states = [found[f"state {n}"] for n in range(len(found)) if f"state {n}" in found]
    parameters = found.get("parameter", {})
    for part in (*states, parameters):
        sizes = {name: one.size for name, one in part.items()}
        if part and (sizes != keys or any(one.dtype != np.float32 for one in part.values())):
            raise ValueError("parameters or state that are not those of its keys")
    return Checkpoint(
        int(header["calls"]),
        keys,
        int(header["lanes"]),
        found["exponents"][""].tobytes(),
        found.get("application", {}),
        str(header["optimizer"]),
        parameters,
        tuple(states),
    )
