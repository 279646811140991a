# SPDX-License-Identifier: Apache-2.0
"""What a server holds of a job whose optimizer it runs: parameters and optimizer state, by chunk.

A chunk's level is that of its last result, as at workers: 0 not held, 2 its initial parameters
(1 is the exponent round's), then one more with each step. So it also tells which step comes next,
which a learning rate may depend on: whoever holds the chunk after a fault knows it. A primary
steps; its backup takes what came of it. Both hold the same: also the header of the last result, so
that either can hand the result to workers that lack it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hosts.optimizers import at_step, rule_of
from protocol.fixed_point import Floats
from protocol.header import HEADER, Array
from protocol.optimizer import OptimizerPlan

Chunks = npt.NDArray[np.int64]
Levels = npt.NDArray[np.uint32]

STARTED = 2
"""The level of initial parameters."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """n chunks as they are held.

    chunks, levels (n,); headers (n,) HEADER of their last results; parameters (n, lanes); state
    (arrays of the rule, n, lanes).
    """

    chunks: Chunks
    levels: Levels
    headers: Array
    parameters: Floats
    state: Floats

    def __len__(self) -> int:
        return len(self.chunks)

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Snapshot:
        """Some of the chunks."""
        return Snapshot(
            self.chunks[rows],
            self.levels[rows],
            self.headers[rows],
            self.parameters[rows],
            self.state[:, rows],
        )

    @staticmethod
    def concatenate(parts: Sequence[Snapshot]) -> Snapshot:
        """All of `parts`, of which there must be one."""
        if len(parts) == 1:
            return parts[0]
        return Snapshot(
            np.concatenate([part.chunks for part in parts]),
            np.concatenate([part.levels for part in parts]),
            np.concatenate([part.headers for part in parts], dtype=HEADER),
            np.concatenate([part.parameters for part in parts]),
            np.concatenate([part.state for part in parts], axis=1),
        )


class Shards:
    """The store of one job. `levels`: (chunks,), 0 for what is not held."""

    def __init__(self, optimizer: OptimizerPlan, chunks: int, lanes: int) -> None:
        self._plan = optimizer
        self._rule = rule_of(optimizer)
        self._rates, self._decays = optimizer.of_chunks(chunks)
        self.lanes = lanes
        self.levels: Levels = np.zeros(chunks, np.uint32)
        # The operating system backs only the pages of chunks that are held.
        self._headers: Array = np.zeros(chunks, HEADER)
        self._parameters = np.zeros((chunks, lanes), np.float32)
        self._state = np.zeros((self._rule.arrays, chunks, lanes), np.float32)

    def start(self, chunks: Chunks, parameters: Floats) -> None:
        """Initial parameters (n, lanes) of chunks that are not held."""
        self.levels[chunks] = STARTED
        self._parameters[chunks] = parameters
        self._state[:, chunks] = 0

    def step(self, chunks: Chunks, means: Floats) -> Floats:
        """One step of distinct chunks that are held; returns their parameters (n, lanes)."""
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
        """Distinct chunks that are held go on without a step; returns their parameters."""
        self.levels[chunks] += 1
        return self._parameters[chunks]

    def note(self, chunks: Chunks, headers: Array) -> None:
        """The headers (n,) of the results that the chunks' parameters go out in."""
        self._headers[chunks] = headers

    def snapshot(self, chunks: Chunks) -> Snapshot:
        """These chunks as they are held, copied. Raises KeyError for one that is not."""
        missing = chunks[self.levels[chunks] == 0]
        if len(missing):
            raise KeyError(f"chunk {missing[0]} is not held here")
        return Snapshot(
            chunks,
            self.levels[chunks],
            self._headers[chunks],
            self._parameters[chunks],
            self._state[:, chunks],
        )

    def take(self, snapshot: Snapshot) -> None:
        """Holds what is newer than what is held: a copy that comes twice changes nothing.

        Raises ValueError for what cannot be of this job.
        """
        self._check(snapshot)
        news = snapshot.select(snapshot.levels > self.levels[snapshot.chunks])
        chunks = news.chunks
        self.levels[chunks] = news.levels
        self._headers[chunks] = news.headers
        self._parameters[chunks] = news.parameters
        self._state[:, chunks] = news.state

    def resume(self, snapshot: Snapshot) -> None:
        """Chunks that have only begun have this state: a checkpoint's, with whose parameters they
        began. Where steps were taken since, nothing changes.

        Raises KeyError for a chunk that is not held, ValueError for one that began with other
        parameters, or what cannot be of this job.
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
            or (n and not 0 <= int(snapshot.chunks.min()) <= int(snapshot.chunks.max()))
            or (n and int(snapshot.chunks.max()) >= len(self.levels))
        ):
            raise ValueError(
                f"{n} chunks with parameters {snapshot.parameters.shape} and state"
                f" {snapshot.state.shape} are none of a job of {len(self.levels)} chunks, {lanes}"
                f" lanes and {arrays} arrays of state"
            )

    def restart(self, chunks: Chunks, levels: Levels, headers: Array, parameters: Floats) -> None:
        """Parameters (n, lanes) of results of these levels, where no server has the state any more,
        which begins with zeros. ValueError for an unknown chunk."""
        if len(chunks) and int(chunks.max()) >= len(self.levels):
            raise ValueError(f"chunk {chunks.max()}: this job has 0..{len(self.levels) - 1}")
        self.levels[chunks] = levels
        self._headers[chunks] = headers
        self._parameters[chunks] = parameters
        self._state[:, chunks] = 0

    def forget(self, chunks: npt.NDArray[np.bool_]) -> None:
        """(chunks,) what others hold from now on."""
        self.levels[chunks] = 0
