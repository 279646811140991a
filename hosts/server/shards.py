# SPDX-License-Identifier: Apache-2.0
"""The shards that a server holds of a job whose optimizer it runs: parameters and optimizer state.

A chunk's level is that of its last result, as at workers: 0 not held, 2 its initial parameters (1
is the exponent round's), then one more with each step. So it also gives the number of the next
step, on which a learning rate may depend, to any server that holds the chunk after a fault. A
primary takes steps; its backup takes the resulting state. Both hold the header of the last result,
so that either can hand the result to workers that lack it.

Where each step has one worker's gradient (`protocol.consistency`), each chunk also has a row of the
ledger: the number of each worker's contributions that are applied, initial parameters included. It
moves with the parameters, so their holder knows which gradients they include.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hosts.data.snapshot import STARTED, Chunks, Ledger, Levels, Snapshot
from hosts.optimizers import at_step, rule_of
from protocol.header import (
    HEADER,
    Array,
    opaque,
    picked,
)
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import Floats

# In a ledger's first column instead of an epoch: the counts hold in any epoch.
_ANY_MEETING = (1 << 32) - 1


class Shards:
    """The store of one job.

    levels: (chunks,), 0 for chunks that are not held.
    workers: number of workers that the job was created with.
    ledger: (chunks, 1 + workers) uint32, the epoch of the boundary that it counts from (see
        `meet`), then contributions of each worker; in a synchronous job (chunks, 0).
    """

    def __init__(self, optimizer: OptimizerPlan, chunks: int, lanes: int, workers: int = 0) -> None:
        self._plan = optimizer
        self._rule = rule_of(optimizer)
        self._rates, self._decays = optimizer.of_chunks(chunks)
        self.lanes = lanes
        self.levels: Levels = np.zeros(chunks, np.uint32)
        # The operating system backs only the pages of chunks that are held.
        self._headers: Array = np.zeros(chunks, HEADER)
        self._parameters = np.zeros((chunks, lanes), np.float32)
        self._state = np.zeros((self._rule.arrays, chunks, lanes), np.float32)
        columns = 0 if optimizer.consistency.together else 1 + workers
        self.ledger: Ledger = np.zeros((chunks, columns), np.uint32)
        self._met = 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk's parameters and state."""
        return self._parameters.itemsize * self.lanes * (1 + len(self._state))

    def start(self, chunks: Chunks, parameters: Floats) -> None:
        """Stores initial parameters (n, lanes) of chunks that are not held."""
        self.levels[chunks] = STARTED
        self._parameters[chunks] = parameters
        self._state[:, chunks] = 0
        # Initial parameters of other workers are ignored from now on.
        self.ledger[chunks, :1] = self._met
        self.ledger[chunks, 1:] = 1

    def step(self, chunks: Chunks, means: Floats) -> Floats:
        """Takes one step of distinct chunks that are held; returns their parameters (n, lanes)."""
        parameters, state = self._parameters[chunks], self._state[:, chunks]
        plan, steps = self._plan, self.levels[chunks, None] - STARTED
        if plan.spans:
            at = at_step(plan, self._rates[chunks, None], self._decays[chunks, None], steps)
        else:
            at = at_step(plan, plan.rate, plan.weight_decay, steps)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._rule.update(parameters, means, list(state), at)
        self._parameters[chunks], self._state[:, chunks] = parameters, state
        self.levels[chunks] += 1
        return parameters

    def skip(self, chunks: Chunks) -> Floats:
        """Advances distinct chunks that are held without a step; returns their parameters."""
        self.levels[chunks] += 1
        return self._parameters[chunks]

    def note(self, chunks: Chunks, headers: Array) -> None:
        """Stores the headers (n,) of the results that the chunks' parameters go out in."""
        opaque(self._headers)[chunks] = opaque(headers)

    def snapshot(self, chunks: Chunks) -> Snapshot:
        """Copies these chunks. Raises KeyError for one that is not held."""
        missing = chunks[self.levels[chunks] == 0]
        if len(missing):
            raise KeyError(f"chunk {missing[0]} is not held here")
        return self.copy(chunks)

    def copy(self, chunks: Chunks) -> Snapshot:
        """Copies these chunks, of level 0 if they are not held."""
        return Snapshot(
            chunks,
            self.levels[chunks],
            picked(self._headers, chunks),
            self._parameters[chunks],
            self._state[:, chunks],
            self.ledger[chunks],
        )

    def parameters(self, chunks: Chunks) -> Floats:
        """Copies the parameters (n, lanes)."""
        return np.asarray(self._parameters[chunks], np.float32)

    def take(self, snapshot: Snapshot) -> None:
        """Takes chunks that are newer than those held; a repeated copy changes nothing.

        Before its first step, a chunk with the state of a checkpoint is newer than one without.
        Raises ValueError for chunks that cannot be of this job.
        """
        self._check(snapshot)
        if snapshot.rows.shape[1] != self.ledger.shape[1]:
            raise ValueError("chunks without a ledger of their gradients")
        held, levels = self.levels[snapshot.chunks], snapshot.levels
        newer = levels > held
        same = np.flatnonzero((levels == STARTED) & (held == STARTED))
        newer[same] = snapshot.state[:, same].any(axis=(0, 2))
        news = snapshot.select(newer)
        chunks = news.chunks
        self.levels[chunks] = news.levels
        opaque(self._headers)[chunks] = opaque(news.headers)
        self._parameters[chunks] = news.parameters
        self._state[:, chunks] = news.state
        self.ledger[chunks] = news.rows

    def resume(self, snapshot: Snapshot) -> None:
        """Gives chunks at their initial parameters the state of a checkpoint with the same
        parameters.

        Chunks that have taken steps since do not change. Raises KeyError for a chunk that is not
        held, ValueError for one with other initial parameters, or that cannot be of this job.
        """
        self._check(snapshot)
        held = self.snapshot(snapshot.chunks)
        fresh = held.levels == STARTED
        news = snapshot.select(fresh)
        same = news.parameters.view(np.uint32) == held.parameters[fresh].view(np.uint32)
        if not same.all():
            chunk = news.chunks[~same.all(axis=1)][0]
            raise ValueError(f"chunk {chunk} began with parameters of another checkpoint")
        self._state[:, news.chunks] = news.state

    def _check(self, snapshot: Snapshot) -> None:
        lanes, arrays = self._parameters.shape[1], self._rule.arrays
        n = len(snapshot)
        if (
            snapshot.parameters.shape != (n, lanes)
            or snapshot.state.shape != (arrays, n, lanes)
            or snapshot.rows.shape[1] not in (0, self.ledger.shape[1])
            or (n and not 0 <= int(snapshot.chunks.min()) <= int(snapshot.chunks.max()))
            or (n and int(snapshot.chunks.max()) >= len(self.levels))
        ):
            raise ValueError(
                f"{n} chunks with parameters {snapshot.parameters.shape} and state"
                f" {snapshot.state.shape} are none of a job of {len(self.levels)} chunks, {lanes}"
                f" lanes and {arrays} arrays of state"
            )

    def restart(
        self,
        chunks: Chunks,
        levels: Levels,
        headers: Array,
        parameters: Floats,
        applied: Ledger | None = None,
    ) -> None:
        """Stores parameters (n, lanes) of results of these levels after all servers lost them;
        optimizer state restarts with zeros.

        applied: (n, workers) of an asynchronous job: contributions of each worker that count as
        applied; levels follow from them. Raises ValueError for an unknown chunk, or workers.
        """
        if len(chunks) and int(chunks.max()) >= len(self.levels):
            raise ValueError(f"chunk {chunks.max()}: this job has 0..{len(self.levels) - 1}")
        if self.ledger.shape[1]:
            if applied is None or applied.shape != (len(chunks), self.ledger.shape[1] - 1):
                raise ValueError(
                    f"{len(chunks)} chunks without what is in them of each of"
                    f" {self.ledger.shape[1] - 1} workers"
                )
            applied = np.maximum(applied, 1)
            levels = STARTED + (applied - 1).sum(axis=1, dtype=np.uint32)
            self.ledger[chunks, 0] = _ANY_MEETING
            self.ledger[chunks, 1:] = applied
        self.levels[chunks] = levels
        opaque(self._headers)[chunks] = opaque(headers)
        self._parameters[chunks] = parameters
        self._state[:, chunks] = 0

    def meet(self, epoch: int, worker: int) -> None:
        """Aligns the ledger at a boundary before this epoch, at which workers joined and `worker`
        was present.

        Nothing was in flight at the boundary, and no contribution has arrived since, so all workers
        have the count of `worker`. The count of a dead process says nothing of the one that joined
        in its place. Idempotent.
        """
        self._met = epoch
        ledger = self.ledger
        if ledger.shape[1]:
            before = (self.levels > 0) & (ledger[:, 0] != epoch)
            moved = np.flatnonzero(before & (ledger[:, 0] != _ANY_MEETING))
            ledger[moved, 1:] = ledger[moved, 1 + worker][:, None]
            ledger[before, 0] = epoch

    def forget(self, chunks: npt.NDArray[np.bool_]) -> None:
        """Drops chunks (chunks,) that other servers hold from now on."""
        self.levels[chunks] = 0
