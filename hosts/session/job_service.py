# SPDX-License-Identifier: Apache-2.0
"""Access to the job service: connection, calls, errors, and the calls of non-members."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import grpc

from hosts.errors import (
    ClientError,
    JobRefusedError,
    LeftBehindError,
    NamespaceTakenError,
    NoRoomError,
    PlanWithdrawnError,
    ServiceUnavailableError,
    WrongNonceError,
)
from hosts.net.environment import HERE, HostEnvironment
from hosts.session import testbed_environment
from hosts.worker.scheduling.registry import SCHEDULERS
from protocol import jobs_pb2
from protocol.balance import Balance
from protocol.call_status import left_behind
from protocol.propagation import USUAL, Propagation
from protocol.runtime import REAL, Runtime
from protocol.server_pipelines import TALL, Pipeline
from protocol.trees import TREE_NAMES, TREE_NUMBERS

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 10.0
RETRY_SECONDS = (0.1, 0.5)  # after the first failure, and at most; doubling

ADMISSIONS: Mapping[str, jobs_pb2.Admission] = {
    "network": jobs_pb2.NETWORK,
    "servers": jobs_pb2.SERVERS,
}


class Service(NamedTuple):
    """The result of CreateService.

    Attributes:
        nonce: The secret that admits members, who can also end the job with it.
        job: The job's number.
        tree: The tree that it was admitted with.
        servers: Names of its server processes by rank (the host's, or s0.0, s0.1.. if it has
            several).
    """

    nonce: str
    job: int
    tree: str
    servers: tuple[str, ...]


class Scaled(NamedTuple):
    """The change that `scale` made.

    Attributes:
        from_round: The first round with the new chunk map; 0 if workers are in rounds of their own.
        slices: How many moved.
        bytes: Of their parameters, in whole chunks.
        servers: Server processes that have slices now.
        spares: Those that have none.
    """

    from_round: int
    slices: int
    bytes: int
    servers: tuple[str, ...]
    spares: tuple[str, ...]


_REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.NOT_FOUND,
}


def create_service(
    service: str | None,
    namespace: str,
    workers: Iterable[str],
    servers: Iterable[str],
    *,
    tree: str = "two-level",
    window: int = 0,
    streams: int = 0,
    lease: float = 0.0,
    admission: str = "network",
    slice_bytes: int = 0,
    pipeline: str = TALL,
    ablate: Iterable[str] = (),
    propagation: Propagation = USUAL,
    balance: Balance | None = None,
    spares: Collection[str] = (),
    outage: float = 10.0,
    environment: HostEnvironment = HERE,
) -> Service:
    """Reserves `namespace` for a job of these hosts (CreateService).

    Args:
        service: The job service's unix socket; None: from the environment, which `rackhub exec`
            sets.
        namespace: The job's name; one job at a time has it.
        workers: Hosts in rank order.
        servers: Hosts in rank order; each takes part with all its processes.
        tree: One of `two-level`, `tor`, `core`, `none`, `two-level-server`, `core-server`.
        window: Chunks in flight per stream, a power of two; 0: chosen by the controller.
        streams: Trees side by side; 0: one.
        lease: Seconds without a heartbeat after which a member counts as dead; 0: the default.
        admission: For a job for which switches have no slots: `network` refuses it, `servers` runs
            it with tree `none`.
        slice_bytes: Size of a key's slices, each with a server and a stream of its own; 0: 32 KiB.
        pipeline: The servers' pipeline, `tall` or `wide`.
        ablate: Parts of their work to leave out, for comparison.
        propagation: Order and units in which gradients are sent.
        balance: The load balancer of its servers; None: none.
        spares: Those of `servers` that have no slices of keys until `scale` gives them some.
        outage: Seconds to wait for a service that is away.
        environment: The host's sockets, clock and threads; simulated in virtual time.

    Raises:
        NamespaceTakenError: A job of that name is alive.
        NoRoomError: Switches have no slots; the text says what would fit.
        ClientError: The service refuses the job or is away.
        ValueError: An unknown tree, admission, pipeline, ablation or order, or a spare server that
            is none of `servers`.
    """
    for what, given, known in (("tree", tree, TREE_NUMBERS), ("admission", admission, ADMISSIONS)):
        if given not in known:
            raise ValueError(f"{what} {given!r} is none of {', '.join(known)}")
    if propagation.order not in SCHEDULERS:
        raise ValueError(f"order {propagation.order!r} is none of {', '.join(SCHEDULERS)}")
    servers = list(servers)
    for name in spares:
        if name not in servers:
            raise ValueError(f"spare server {name!r} is none of {', '.join(servers)}")
    work = Pipeline(pipeline, tuple(ablate))
    with environment.service(_address(service)) as stub:
        reply = call(
            stub.CreateService,
            jobs_pb2.CreateServiceRequest(
                namespace=namespace,
                workers=[jobs_pb2.Member(host=h, rank=i) for i, h in enumerate(workers)],
                servers=[
                    jobs_pb2.Member(host=h, rank=i, spare=h in spares)
                    for i, h in enumerate(servers)
                ],
                tree=TREE_NUMBERS[tree],
                window=window,
                streams=streams,
                lease=lease,
                admission=ADMISSIONS[admission],
                slice_bytes=slice_bytes,
                pipeline=work.to_message(),
                propagation=propagation.to_message(),
                balance=None if balance is None else balance.to_message(),
            ),
            outage + _ANSWER_SECONDS,
            # No retry after it was sent: the job may exist.
            wait_for_ready=True,
            taken=NamespaceTakenError,
        )
    ranked = sorted(reply.servers, key=lambda server: int(server.rank))
    names = tuple(server.host for server in ranked)
    return Service(reply.nonce, reply.job, TREE_NAMES.get(reply.tree, tree), names)


def _address(service: str | None) -> str:
    return testbed_environment.service() if service is None else service


def scale(
    service: str | None,
    nonce: str,
    added: Iterable[str],
    removed: Iterable[str],
    environment: HostEnvironment = HERE,
) -> Scaled:
    """Gives slices to some servers of a running job and takes all from others (Scale); returns once
    that holds. The job goes on meanwhile.

    Args:
        service: As of `create_service`.
        nonce: The job's.
        added: Spare server processes, or hosts with all of theirs.
        removed: Likewise, which become spare.
        environment: As of `create_service`.

    Raises:
        ClientError: The job cannot change so, or not now.
    """
    request = jobs_pb2.ScaleRequest(nonce=nonce, added=added, removed=removed)
    with environment.service(_address(service)) as stub:
        reply = call(stub.Scale, request, None)
    return Scaled(
        *(reply.from_round, reply.slices, reply.bytes),
        *(tuple(reply.servers), tuple(reply.spares)),
    )


def enrol(service: str | None, nonce: str, host: str, environment: HostEnvironment = HERE) -> int:
    """Makes room in a running job for a further worker at a host (Enrol); returns its rank, with
    which it connects. It joins between two rounds.

    Args:
        service: As of `create_service`.
        nonce: The job's.
        host: Where no worker of the job has been yet.
        environment: As of `create_service`.

    Raises:
        ClientError: The job cannot have it.
    """
    with environment.service(_address(service)) as stub:
        return int(call(stub.Enrol, jobs_pb2.EnrolRequest(nonce=nonce, host=host)).rank)


def report_gone(
    service: str,
    nonce: str,
    role: jobs_pb2.Role,
    rank: int,
    reason: str,
    outage: float = 10.0,
    environment: HostEnvironment = HERE,
) -> None:
    """Reports that a member's process is dead, and how it ended ("was killed by SIGKILL"), so that
    the job need not wait for its lease to expire.

    For the parent of that process. outage: seconds to wait for a service that is away. Raises
    ClientError.
    """
    request = jobs_pb2.GoneRequest(nonce=nonce, role=role, rank=rank, reason=reason)

    def tell() -> None:
        with environment.service(service) as stub:
            call(stub.Gone, request)

    patiently(tell, outage, environment.runtime)


def patiently(attempt: Callable[[], Any], outage: float, runtime: Runtime = REAL) -> Any:
    """Retries a call while the service is away, up to `outage` seconds; raises ClientError."""
    began = runtime.now()
    wait, longest = RETRY_SECONDS
    while True:
        try:
            return attempt()
        except ServiceUnavailableError as error:
            if runtime.now() - began > outage:
                raise
            _log.info("%s; retrying", error)
        runtime.sleep(wait)  # nothing but the service's return can end this wait
        wait = min(2 * wait, longest)


def call(
    method: Any,
    request: Any,
    timeout: float | None = _ANSWER_SECONDS,
    *,
    wait_for_ready: bool = False,
    taken: type[JobRefusedError] = JobRefusedError,
) -> Any:
    """Makes one unary call; raises the ClientError that matches the service's answer.

    wait_for_ready: waits within the timeout for a service that does not listen. taken: the error
    for ALREADY_EXISTS.
    """
    try:
        return method(request, timeout=timeout, wait_for_ready=wait_for_ready)
    except grpc.RpcError as error:
        # It has all that gRPC's error says; the traceback of gRPC helps no user.
        raise explained(error, taken) from None


def explained(error: Any, taken: type[JobRefusedError] = JobRefusedError) -> ClientError:
    """Converts a gRPC error (`grpc.RpcError` that is also a `grpc.Call`) to a ClientError."""
    code, details = error.code(), error.details() or "no reason given"
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return taken(details)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return NoRoomError(details)
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServiceUnavailableError(f"the job service is not available: {details}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceUnavailableError(f"the job service does not answer: {details}")
    if code == grpc.StatusCode.CANCELLED:  # by a service that stops
        return ServiceUnavailableError(f"the job service cut the call off: {details}")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return WrongNonceError(details)
    if code in _REFUSALS:
        return JobRefusedError(details)
    if code == grpc.StatusCode.ABORTED:
        mark = left_behind(error.trailing_metadata())
        return LeftBehindError(details, mark) if mark else PlanWithdrawnError(details)
    return ClientError(f"the job service failed ({code.name}): {details}")
