# SPDX-License-Identifier: Apache-2.0
"""A worker's or server's membership of a job: the calls of the job service, and what they tell.

`Membership` holds the gRPC channel and two threads: one follows the plan (`WatchPlan`), so the
death of the job or of its controller is known at once; one sends heartbeats, so that a controller
that hangs is known too. Neither touches the state machines: they set `failure` or `plan` and call
`on_change`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from protocol import jobs_pb2
from protocol.jobs_pb2_grpc import JobServiceStub
from protocol.plan import Address

HEARTBEAT_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_LONGEST_SOCKET_PATH = 107  # bytes; sun_path of unix(7) less its final zero

TREES: Mapping[str, jobs_pb2.Tree] = {
    "two-level": jobs_pb2.TWO_LEVEL,
    "tor": jobs_pb2.TOR,
    "core": jobs_pb2.CORE,
    "none": jobs_pb2.NONE,
}


class ClientError(Exception):
    """Anything that keeps a member from its job; the subclasses say what."""


class ServiceUnavailableError(ClientError):
    """The job service is not there, went away or does not answer."""


class WrongNonceError(ClientError):
    """The job service does not know the nonce, or not for this rank."""


class JobRefusedError(ClientError):
    """The job service refuses the job or a call; the text gives its reason."""


class PlanWithdrawnError(ClientError):
    """The job ended, or its plan was replaced, while this member was still in it."""


class UseAfterLeaveError(ClientError):
    """A call after `leave`."""


class Service(NamedTuple):
    """What CreateService returns: the secret that admits to the job, and the job's number."""

    nonce: str
    job: int


_REFUSALS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.NOT_FOUND,
}


def socket_path(service: str) -> str:
    """The path of a service given as `unix:PATH` or as the path itself.

    Raises ServiceUnavailableError if no such socket is there, ValueError if its path is longer
    than a unix socket's may be.
    """
    path = service.removeprefix("unix:")
    if len(path.encode()) > _LONGEST_SOCKET_PATH:
        raise ValueError(
            f"the job service's socket {path} has a path of {len(path.encode())} bytes, and a "
            f"unix socket's has at most {_LONGEST_SOCKET_PATH}: use a link in a short directory"
        )
    if not Path(path).is_socket():
        raise ServiceUnavailableError(f"no job service at {path}: there is no such socket")
    return path


def create_service(
    service: str,
    namespace: str,
    workers: Iterable[str],
    servers: Iterable[str],
    *,
    tree: str = "two-level",
    window: int = 0,
    streams: int = 0,
) -> Service:
    """Reserves `namespace` for a job of these hosts (ranks in the order given): CreateService.

    tree: two-level, tor, core or none. window: chunks in flight per stream, a power of two; 0:
    the controller chooses. streams: 0 for one. Raises ClientError, ValueError for another tree.
    """
    if tree not in TREES:
        raise ValueError(f"tree {tree!r} is none of {', '.join(TREES)}")
    with _open(service) as channel:
        reply = call(
            _stub(channel).CreateService,
            jobs_pb2.CreateServiceRequest(
                namespace=namespace,
                workers=[jobs_pb2.Member(host=h, rank=i) for i, h in enumerate(workers)],
                servers=[jobs_pb2.Member(host=h, rank=i) for i, h in enumerate(servers)],
                tree=TREES[tree],
                window=window,
                streams=streams,
            ),
        )
    return Service(reply.nonce, reply.job)


def call(method: Any, request: Any, timeout: float | None = _ANSWER_SECONDS) -> Any:
    """One unary call; raises the ClientError that fits what the service answers."""
    try:
        return method(request, timeout=timeout)
    except grpc.RpcError as error:
        raise explained(error) from error


def explained(error: Any) -> ClientError:
    """The ClientError for a gRPC error (`grpc.RpcError` that is also a `grpc.Call`)."""
    code, details = error.code(), error.details() or "no reason given"
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServiceUnavailableError(f"the job service is not available: {details}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceUnavailableError(f"the job service does not answer: {details}")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return WrongNonceError(details)
    if code in _REFUSALS:
        return JobRefusedError(details)
    if code in (grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED):
        return PlanWithdrawnError(details)
    return ClientError(f"the job service failed ({code.name}): {details}")


class Membership:
    """One member (role, rank) of one job, from ConnectService to Leave.

    on_change: called, from other threads, whenever `plan` or `failure` may have changed.
    Raises ClientError if there is no service at `service` or it refuses.
    """

    def __init__(
        self,
        service: str,
        nonce: str,
        role: jobs_pb2.Role,
        rank: int,
        address: Address,
        on_change: Callable[[], None],
    ) -> None:
        self.role, self.rank = role, rank
        self._nonce = nonce
        self._on_change = on_change
        self._changed = threading.Condition()
        self._plan: jobs_pb2.Plan | None = None
        self._failure: ClientError | None = None
        self._left = threading.Event()
        self._beat_now = threading.Event()
        self._epoch = 0  # of the plan that this member runs
        self._channel = _open(service)
        self._stub = _stub(self._channel)
        try:
            reply = call(
                self._stub.ConnectService,
                jobs_pb2.ConnectServiceRequest(
                    nonce=nonce,
                    role=role,
                    rank=rank,
                    address=jobs_pb2.Address(ipv4=address.ipv4, port=address.port),
                ),
            )
        except BaseException:
            self._channel.close()
            raise
        self.job: int = reply.job
        self.world: int = reply.world
        self.lanes: int = reply.lanes
        self._plans = self._stub.WatchPlan(
            jobs_pb2.WatchPlanRequest(nonce=nonce, role=role, rank=rank)
        )
        who = "server" if role == jobs_pb2.SERVER else "worker"
        name = f"job-{self.job}-{who}-{rank}"
        self._threads = [
            threading.Thread(target=self._watch, name=f"{name}-plan", daemon=True),
            threading.Thread(target=self._beat, name=f"{name}-heartbeat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def plan(self) -> jobs_pb2.Plan | None:
        """The newest plan; None before the first."""
        return self._plan

    @property
    def failure(self) -> ClientError | None:
        """Why this membership is over; None while it is not, and after `leave`."""
        return self._failure

    def init(self, keys: Iterable[jobs_pb2.Key], timeout: float | None = None) -> None:
        """InitService: the keys, in the same order at every worker. Raises ClientError."""
        request = jobs_pb2.InitServiceRequest(nonce=self._nonce, rank=self.rank, keys=keys)
        call(self._stub.InitService, request, timeout)

    def wait_for_plan(self, timeout: float | None = None) -> jobs_pb2.Plan:
        """Blocks until the first plan. Raises ClientError, or TimeoutError after `timeout` s."""
        with self._changed:
            self._changed.wait_for(lambda: self._plan or self._failure, timeout)
            if self._failure is not None:
                raise self._failure
            if self._plan is None:
                raise TimeoutError(
                    f"job {self.job} has no plan after {timeout} s: not every worker and server "
                    "has connected and named its keys"
                )
            return self._plan

    def runs(self, epoch: int) -> None:
        """Tells the service, soon and from another thread, which epoch's plan this member runs."""
        self._epoch = epoch
        self._beat_now.set()

    def leave(self, reason: str = "") -> None:
        """Leave, once: `reason` empty means finished. Frees channel and threads in any case.

        Raises ClientError if the service cannot be told; a job that is over needs no telling.
        """
        if self._left.is_set():
            return
        self._left.set()
        self._beat_now.set()
        try:
            if self._failure is None:
                call(
                    self._stub.Leave,
                    jobs_pb2.LeaveRequest(
                        nonce=self._nonce, role=self.role, rank=self.rank, reason=reason
                    ),
                )
        finally:
            self._plans.cancel()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
            self._channel.close()

    def _watch(self) -> None:
        try:
            for plan in self._plans:
                self._take(plan)
            self._fail(PlanWithdrawnError(f"job {self.job} has ended"))
        except grpc.RpcError as error:
            self._fail(explained(error))

    def _take(self, plan: jobs_pb2.Plan) -> None:
        with self._changed:
            self._plan = plan
            self._changed.notify_all()
        self._on_change()

    def _fail(self, failure: ClientError) -> None:
        if self._plan is not None and isinstance(failure, JobRefusedError):
            failure = PlanWithdrawnError(str(failure))
        with self._changed:
            # The first failure is the cause; after a leave the end of the plan is no failure.
            if self._failure is not None or self._left.is_set():
                return
            self._failure = failure
            self._changed.notify_all()
        self._on_change()

    def _beat(self) -> None:
        while self._failure is None:
            self._beat_now.wait(HEARTBEAT_SECONDS)
            self._beat_now.clear()
            if self._left.is_set():
                return
            request = jobs_pb2.HeartbeatRequest(
                nonce=self._nonce, role=self.role, rank=self.rank, epoch=self._epoch
            )
            try:
                call(self._stub.Heartbeat, request)
            except ClientError as error:
                self._fail(error)


def _open(service: str) -> grpc.Channel:
    path = socket_path(service)
    return grpc.insecure_channel(f"unix:{path}", options=[("grpc.enable_http_proxy", 0)])


def _stub(channel: grpc.Channel) -> JobServiceStub:
    return JobServiceStub(channel)  # type: ignore[no-untyped-call]  # generated without types
