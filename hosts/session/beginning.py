# SPDX-License-Identifier: Apache-2.0
"""The start of a worker: the keys that it declares, and the transport of its first plan."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hosts.data.keys import Keys, Shapes, Types, declared
from hosts.data.tensors import Tensors
from hosts.errors import UnknownKeyError, WrongTypeError
from hosts.net.driver import Attachment
from hosts.net.environment import HostEnvironment
from hosts.session.checkpointing import Restoration
from hosts.worker.transport import WorkerTransport
from protocol.consistency import Consistency
from protocol.exponents import Exponents
from protocol.header import LANE_BYTES
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import Floats
from protocol.plan import WorkerPlan

_log = logging.getLogger(__name__)


class Joined(NamedTuple):
    """The state from which a worker joins a running job, or a restored job begins.

    Attributes:
        calls: Number of complete rounds.
        arrays: The application's state before the next one, as another worker's `state` returned
            it.
    """

    calls: int
    arrays: dict[str, npt.NDArray[Any]]


class Declaration(NamedTuple):
    """The arguments of `Client.init_service`, checked.

    initial: parameters by name, if the servers optimize.
    restoration: of the checkpoint that the job continues from.
    """

    tensors: Tensors
    optimizer: OptimizerPlan | None
    initial: dict[str, Floats]
    restoration: Restoration | None


def with_consistency(
    optimizer: OptimizerPlan | None, consistency: Consistency | str | Mapping[str, int] | None
) -> OptimizerPlan | None:
    """Returns the optimizer with this consistency (None: its own).

    Raises WrongTypeError for an object that is no optimizer, ValueError for an unknown consistency,
    or one that needs an optimizer where there is none.
    """
    if optimizer is not None and not isinstance(optimizer, OptimizerPlan):
        raise WrongTypeError(
            f"optimizer {optimizer!r:.80} is no protocol.optimizer_plan.OptimizerPlan, such as"
            ' OptimizerPlan("sgd", rate=0.1)'
        )
    if consistency is None:
        return optimizer
    wanted = Consistency.of(consistency)
    if optimizer is None and not wanted.together:
        raise ValueError(
            f"consistency {wanted}: without an optimizer at the servers there are only"
            " sums, which need every worker; pass optimizer="
        )
    return None if optimizer is None else dataclasses.replace(optimizer, consistency=wanted)


def declare(
    keys: Keys | Iterable[str],
    shapes: Shapes | None,
    dtypes: Types | None,
    optimizer: OptimizerPlan | None,
    restore: str | Path | None,
    lanes: int,
    payload: bool,
) -> Declaration:
    """Checks the keys given to `init_service`, in chunks of `lanes` values, with payload or
    without.

    Raises what `declared` raises, WrongTypeError for numbers where parameters are needed,
    UnknownKeyError for optimizer options that fit no key, CheckpointError.
    """
    arrays = keys if isinstance(keys, Mapping) else {}
    keys = declared(keys, shapes, dtypes)
    initial: dict[str, Floats] = {}
    if optimizer is not None:
        for name in keys:
            key = arrays.get(name)
            if not isinstance(key, np.ndarray):
                text = f"{name}: with an optimizer, keys are the initial parameters"
                raise WrongTypeError(text)
            initial[name] = key
    tensors = Tensors(keys, lanes, payload=payload)
    if optimizer is not None:
        try:
            optimizer = optimizer.by_chunk(tensors.names, tensors.layout.counts)
        except ValueError as error:
            raise UnknownKeyError(f"init_service: {error}") from error
    if restore is None:
        return Declaration(tensors, optimizer, initial, None)
    restoration = Restoration(restore, tensors, optimizer)
    given = restoration.checkpoint.parameters
    initial = {name: given[name].reshape(one.shape) for name, one in initial.items()}
    return Declaration(tensors, restoration.optimizer, initial, restoration)


def first_transport(
    plan: WorkerPlan,
    exponents: Exponents,
    endpoint: Attachment,
    environment: HostEnvironment,
    *,
    lanes: int,
    link_rate: int,
    queue_bytes: int | None,
) -> WorkerTransport:
    """Creates the transport of a worker's first plan and configures the endpoint for its packets.

    lanes: of a chunk, as the data plane has them.
    link_rate, queue_bytes: see Client.

    Raises ValueError for a plan with other lanes.
    """
    if plan.lanes != lanes:
        raise ValueError(f"it has {plan.lanes} lanes per chunk, the data plane {lanes}")
    window = sum(stream.window for stream in plan.streams)
    endpoint.configure(plan.lanes, link_rate or plan.link_rate)
    if window > endpoint.capacity():
        _log.warning(
            "the receive buffer of %d bytes holds %d chunks, the job's windows are %d: results "
            "that arrive while this worker computes may be lost and retransmitted; raise "
            "net.core.rmem_max or ask for a smaller window",
            endpoint.receive_buffer,
            endpoint.capacity(),
            window,
        )
    exponents.world, exponents.codec = plan.world, plan.codec
    return WorkerTransport(
        plan,
        exponents,
        link_rate=link_rate or None,
        backlog=environment.backlog(
            link_rate or plan.link_rate,
            queue_bytes,
            LANE_BYTES * plan.lanes,
            classes=plan.propagation.classes > 1,
        ),
        payload=environment.payload,
        header_room=environment.header_room,
        workspace=environment.workspace(),
        host=endpoint.ipv4,
    )
