# SPDX-License-Identifier: Apache-2.0
"""A job's checkpoint: collected by a worker between two calls, and restored.

Where servers optimize, a worker asks them for their state. Between two calls of one worker no
server can take a step, as each step needs that worker; so the state is consistent. To restore, a
job starts with the checkpoint's parameters, and every worker gives the servers the optimizer state:
the first step needs all workers, so it finds the state at any server.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np

from hosts.data import checkpoint
from hosts.data.checkpoint import Checkpoint
from hosts.data.snapshot import STARTED, Chunks, Snapshot, from_message, pages, to_message
from hosts.data.tensors import Tensors
from hosts.errors import CheckpointError, ClientError
from hosts.session.participation import Participation
from protocol import shards_pb2
from protocol.exponents import Exponents
from protocol.header import HEADER
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import Floats
from protocol.plan import WorkerPlan, backup_of
from protocol.state import Arrays

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_CALL_SECONDS = 10.0
_AGAIN_SECONDS = 0.2


def check_whole(path: str | Path, optimizer: OptimizerPlan | None) -> None:
    """Raises CheckpointError where chunks of a checkpoint would be of different steps."""
    if optimizer is not None and not optimizer.consistency.together:
        raise CheckpointError(
            f"{path}: not written: a checkpoint is of one step of all chunks, and with"
            f" consistency {optimizer.consistency} other workers' go on meanwhile"
        )


def save(
    path: str | Path,
    part: Participation,
    tensors: Tensors,
    calls: int,
    provide: Callable[[], Arrays],
    optimizer: OptimizerPlan | None,
    patience: float = math.inf,
) -> None:
    """Writes a checkpoint of a job between two calls of this worker.

    calls: number completed, including those before the job. provide: returns the application's
    arrays. Raises CheckpointError; ClientError if the servers' state is not available.
    """
    assert part.follower is not None
    exponents = part.follower.exponents
    with part.turn:
        exported, levels = exponents.export(), exponents.levels()
    parameters: dict[str, Floats] = {}
    state: tuple[dict[str, Floats], ...] = ()
    if optimizer is not None:
        if len(np.unique(levels)) > 1:
            raise CheckpointError(
                f"{path}: not written: some keys were left out of calls, and have taken fewer steps"
            )
        held = _Servers(part, patience).held(levels)
        parameters = tensors.named(held.parameters)
        state = tuple(tensors.named(one) for one in held.state)
    taken = Checkpoint(
        calls,
        tensors.sizes,
        tensors.layout.lanes,
        exported,
        {name: np.asarray(array) for name, array in provide().items()},
        "" if optimizer is None else optimizer.name,
        parameters,
        state,
    )
    checkpoint.write(path, taken)


class Restoration:
    """A checkpoint that a job starts from. `optimizer` continues its step count.

    Raises CheckpointError if the file cannot be used, or belongs to another kind of job.
    """

    def __init__(self, path: str | Path, tensors: Tensors, optimizer: OptimizerPlan | None) -> None:
        self.checkpoint = checkpoint.read(path)
        self.checkpoint.check_keys(path, tensors.sizes)
        name = "" if optimizer is None else optimizer.name
        if self.checkpoint.optimizer != name:
            ran, runs = (
                f"{one} at servers" if one else "no optimizer at servers"
                for one in (self.checkpoint.optimizer, name)
            )
            raise CheckpointError(f"{path}: of a job with {ran}; this one has {runs}")
        self.optimizer = optimizer
        if optimizer is not None:
            self.optimizer = dataclasses.replace(optimizer, first_step=self.checkpoint.calls)
        self._tensors = tensors

    def scale(self, exponents: Exponents) -> None:
        """Rounds gradients as the checkpointed job would have. If the chunk size has changed, the
        scales come from an exponent round, as in a new job."""
        if self.checkpoint.lanes == self._tensors.layout.lanes:
            exponents.resume(self.checkpoint.exponents)

    def bring(self, part: Participation, patience: float = math.inf) -> None:
        """Gives the servers their state, once chunks have initial parameters. Raises
        ClientError."""
        assert self.optimizer is not None
        if not self.checkpoint.state:
            return
        packed = self._tensors.packed
        parameters = packed(self.checkpoint.parameters)
        state = np.stack([packed(one) for one in self.checkpoint.state])
        n = len(parameters)
        levels = np.full(n, STARTED, np.uint32)
        snapshot = Snapshot(np.arange(n), levels, np.zeros(n, HEADER), parameters, state)
        _Servers(part, patience).bring(snapshot)


class _Servers:
    """Calls to a job's servers by a worker, retried as plans may change meanwhile."""

    def __init__(self, part: Participation, patience: float) -> None:
        self._part = part
        self._environment = part.environment
        self._runtime = part.environment.runtime
        self._until = self._runtime.now() + patience

    def held(self, levels: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Snapshot:
        """Returns all chunks, in order."""
        every = np.arange(len(levels))

        def ask(plan: WorkerPlan) -> Snapshot:
            primary = plan.server_of(every)
            parts = []
            for rank in range(len(plan.servers)):
                chunks = every[primary == rank]
                if len(chunks):
                    parts += self._save(plan, rank, chunks)
            whole = Snapshot.concatenate(parts)
            return whole.select(np.argsort(whole.chunks))

        whole = self._insist(ask)
        if not np.array_equal(whole.chunks, every) or not np.array_equal(whole.levels, levels):
            raise ClientError("servers gave parameters of other steps than this worker's last")
        return whole

    def bring(self, snapshot: Snapshot) -> None:
        """Sends each chunk to its primary, then to its backup, if there is one.

        A primary may have given chunks away by a map that is not known here yet, and is asked until
        it is: `_insist` takes the newest.
        """

        def give(plan: WorkerPlan) -> None:
            primary, count = plan.server_of(snapshot.chunks), len(plan.servers)
            for replica in (False, True)[:count]:
                owners = backup_of(primary, count) if replica else primary
                for rank, address in enumerate(plan.servers):
                    with self._environment.peer(address) as stub:
                        for page in pages(snapshot.select(owners == rank)):
                            message = to_message(plan.job, plan.epoch, page, replica)
                            stub.Load(message, timeout=_CALL_SECONDS)

        self._insist(give)

    def _save(self, plan: WorkerPlan, rank: int, chunks: Chunks) -> list[Snapshot]:
        request = shards_pb2.FetchRequest(
            job=plan.job, epoch=plan.epoch, chunks=chunks.astype("<u4").tobytes()
        )
        with self._environment.peer(plan.servers[rank]) as stub:
            return [from_message(part) for part in stub.Save(request, timeout=_CALL_SECONDS)]

    def _plan(self) -> WorkerPlan:
        """Returns the current plan, which the driver may replace. Raises ClientError."""
        with self._part.turn:
            self._part.check()
            return self._part.running_transport().plan

    def _insist(self, ask: Callable[[WorkerPlan], Result]) -> Result:
        """Returns what `ask` returns for the current plan, if the plan has not changed meanwhile;
        else retries."""
        while True:
            plan = self._plan()
            said = "the plan was changed"
            try:
                answer = ask(plan)
                if self._plan().epoch == plan.epoch:
                    return answer
            except grpc.RpcError as error:
                said = f"{error.code().name.lower()}, {error.details()}"
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                    raise ClientError(
                        f"servers refuse the checkpoint: {error.details()}"
                    ) from error
                if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                    # Servers identify workers by their source address.
                    raise ClientError(
                        f"servers refuse this worker: {error.details()}; calls to them must come"
                        " from the address that it joined with"
                    ) from error
            _log.info("job %d, epoch %d: servers: %s", plan.job, plan.epoch, said)
            if self._runtime.now() > self._until:
                raise ClientError(f"the servers' part of a checkpoint could not be moved: {said}")
            self._runtime.sleep(_AGAIN_SECONDS)  # servers send no notification
