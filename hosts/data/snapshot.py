# SPDX-License-Identifier: Apache-2.0
"""Snapshots of chunks whose optimizer runs at servers, for transfer between holders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol import shards_pb2
from protocol.header import (
    HEADER,
    Array,
    joined,
    picked,
)
from protocol.payloads import Floats

Chunks = npt.NDArray[np.int64]
Levels = npt.NDArray[np.uint32]
Ledger = npt.NDArray[np.uint32]

STARTED = 2
"""The level of initial parameters."""
_PAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """n chunks of a job.

    chunks, levels: (n,).
    headers: (n,) HEADER of their last results.
    parameters: (n, lanes).
    state: (arrays of the rule, n, lanes).
    ledger: (n, 1 + the job's workers), see Shards; (n, 0) if there is none.
    """

    chunks: Chunks
    levels: Levels
    headers: Array
    parameters: Floats
    state: Floats
    ledger: Ledger | None = None

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and state."""
        return self.parameters.nbytes + self.state.nbytes

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Snapshot:
        """Returns some of the chunks."""
        return Snapshot(
            self.chunks[rows],
            self.levels[rows],
            picked(self.headers, rows),
            self.parameters[rows],
            self.state[:, rows],
            None if self.ledger is None else self.ledger[rows],
        )

    @staticmethod
    def concatenate(parts: Sequence[Snapshot]) -> Snapshot:
        """Joins `parts`, of which there must be at least one."""
        if len(parts) == 1:
            return parts[0]
        return Snapshot(
            np.concatenate([part.chunks for part in parts]),
            np.concatenate([part.levels for part in parts]),
            joined([part.headers for part in parts]),
            np.concatenate([part.parameters for part in parts]),
            np.concatenate([part.state for part in parts], axis=1),
            np.concatenate([part.rows for part in parts]),
        )

    @property
    def rows(self) -> Ledger:
        """Returns the ledger, with no columns if there is none."""
        return np.zeros((len(self), 0), np.uint32) if self.ledger is None else self.ledger


def to_message(job: int, epoch: int, snapshot: Snapshot, replica: bool = False) -> shards_pb2.Shard:
    """Converts a snapshot to a message for servers. replica: see Shard in shards.proto."""
    return shards_pb2.Shard(
        job=job,
        epoch=epoch,
        chunks=snapshot.chunks.astype("<u4").tobytes(),
        levels=snapshot.levels.astype("<u4").tobytes(),
        headers=np.ascontiguousarray(snapshot.headers, HEADER).tobytes(),
        parameters=snapshot.parameters.astype("<f4").tobytes(),
        state=snapshot.state.astype("<f4").tobytes(),
        ledger=snapshot.rows.astype("<u4").tobytes(),
        replica=replica,
    )


def from_message(message: shards_pb2.Shard) -> Snapshot:
    """Converts a message to a snapshot. Raises ValueError for differing numbers of rows."""
    chunks = np.frombuffer(message.chunks, "<u4").astype(np.int64)
    levels = np.frombuffer(message.levels, "<u4").astype(np.uint32)
    headers = np.frombuffer(message.headers, HEADER)
    n = len(chunks)
    if not n or len(levels) != n or len(headers) != n or len(np.unique(chunks)) != n:
        raise ValueError(f"{n} chunks with {len(levels)} levels and {len(headers)} headers")
    parameters = np.frombuffer(message.parameters, "<f4").astype(np.float32).reshape(n, -1)
    lanes = parameters.shape[1]
    arrays = len(message.state) // (4 * n * lanes) if lanes else 0
    state = np.frombuffer(message.state, "<f4").astype(np.float32).reshape(arrays, n, lanes)
    ledger = np.frombuffer(message.ledger, "<u4").astype(np.uint32).reshape(n, -1)
    return Snapshot(chunks, levels, headers, parameters, state, ledger)


def pages(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Splits a snapshot into parts of limited message size."""
    room = 4 * snapshot.parameters.shape[1] * (1 + len(snapshot.state)) + 64
    rows = max(1, _PAGE_BYTES // room)
    for first in range(0, len(snapshot), rows):
        yield snapshot.select(np.arange(first, min(first + rows, len(snapshot))))
