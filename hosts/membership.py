# SPDX-License-Identifier: Apache-2.0
"""A worker's or server's membership of a job: the calls of the job service, and what they tell.

`Membership` holds the gRPC channel and two threads: one gets instructions (`Watch`), so the end of
the job is known at once; one sends heartbeats and the answers to instructions. Neither touches the
state machines: they queue instructions or set `failure`, and call `on_change`.

A job service that is away for a while (its controller is restarted) is waited for; members go on
with the plan that they have.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from hosts import surroundings
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
from protocol import jobs_pb2
from protocol.jobs_pb2_grpc import JobServiceStub
from protocol.optimizer import OptimizerPlan
from protocol.pipeline import TALL, Pipeline
from protocol.plan import Address

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
OUTAGE_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = (0.1, 0.5)  # after the first failure, and at most; doubling
_LONGEST_SOCKET_PATH = 107  # bytes; sun_path of unix(7) less its final zero

TREES: Mapping[str, jobs_pb2.Tree] = {
    "two-level": jobs_pb2.TWO_LEVEL,
    "tor": jobs_pb2.TOR,
    "core": jobs_pb2.CORE,
    "none": jobs_pb2.NONE,
    "two-level-server": jobs_pb2.TWO_LEVEL_SERVER,
    "core-server": jobs_pb2.CORE_SERVER,
}


_TREE_NAMES = {number: name for name, number in TREES.items()}
ADMISSIONS: Mapping[str, jobs_pb2.Admission] = {
    "network": jobs_pb2.NETWORK,
    "servers": jobs_pb2.SERVERS,
}


class Service(NamedTuple):
    """What CreateService returns: the secret that admits to the job, the job's number, the tree
    that it was admitted with, and the names of its server processes by rank (the hosts', or s0.0,
    s0.1.. of those that have several)."""

    nonce: str
    job: int
    tree: str
    servers: tuple[str, ...]


_REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
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
    outage: float = 10.0,
) -> Service:
    """Reserves `namespace` for a job of these hosts (workers' ranks in the order given; a server's
    host is in it with all its processes): CreateService.

    service: the job service's unix socket; None: as the environment says (`hosts.surroundings`).
    tree: one of TREES. window: chunks in flight per stream, a power of two; 0:
    the controller chooses. streams: 0 for one. lease: seconds without a sign of life after which
    a member counts as dead; 0: the controller's default. admission: of a job that switches have no
    slots for: `network` refuses it, `servers` lets it run with tree none. slice_bytes: of a key,
    which have a server and a stream to themselves; 0: 32 KiB. pipeline, ablate: how servers work
    and what they leave out, for comparison (protocol.pipeline). outage: seconds to wait for a
    service that is away.

    Raises NamespaceTakenError if a job of that name is alive, NoRoomError with what would fit,
    ClientError; ValueError for another tree, admission, pipeline or ablation.
    """
    for what, given, known in (("tree", tree, TREES), ("admission", admission, ADMISSIONS)):
        if given not in known:
            raise ValueError(f"{what} {given!r} is none of {', '.join(known)}")
    work = Pipeline(pipeline, tuple(ablate))
    with _open(surroundings.service() if service is None else service) as channel:
        reply = call(
            _stub(channel).CreateService,
            jobs_pb2.CreateServiceRequest(
                namespace=namespace,
                workers=[jobs_pb2.Member(host=h, rank=i) for i, h in enumerate(workers)],
                servers=[jobs_pb2.Member(host=h, rank=i) for i, h in enumerate(servers)],
                tree=TREES[tree],
                window=window,
                streams=streams,
                lease=lease,
                admission=ADMISSIONS[admission],
                slice_bytes=slice_bytes,
                pipeline=work.to_message(),
            ),
            outage + _ANSWER_SECONDS,
            # Not asked again once it was: the job may be there.
            wait_for_ready=True,
            taken=NamespaceTakenError,
        )
    ranked = sorted(reply.servers, key=lambda server: int(server.rank))
    names = tuple(server.host for server in ranked)
    return Service(reply.nonce, reply.job, _TREE_NAMES.get(reply.tree, tree), names)


def report_gone(
    service: str, nonce: str, role: jobs_pb2.Role, rank: int, reason: str, outage: float = 10.0
) -> None:
    """Tells the job service that a member's process is dead, and how it ended ("was killed by
    SIGKILL"), so that the others need not wait for its lease to end.

    For whoever has started it. outage: seconds to wait for a service that is away. Raises
    ClientError.
    """
    request = jobs_pb2.GoneRequest(nonce=nonce, role=role, rank=rank, reason=reason)

    def tell() -> None:
        with _open(service) as channel:
            call(_stub(channel).Gone, request)

    _patiently(tell, outage)


def _patiently(attempt: Callable[[], Any], outage: float) -> Any:
    """Calls a service that may be away for so many seconds; raises ClientError."""
    began = time.monotonic()
    wait, longest = _RETRY_SECONDS
    while True:
        try:
            return attempt()
        except ServiceUnavailableError as error:
            if time.monotonic() - began > outage:
                raise
            _log.info("%s; it is asked again", error)
        time.sleep(wait)
        wait = min(2 * wait, longest)


def call(
    method: Any,
    request: Any,
    timeout: float | None = _ANSWER_SECONDS,
    *,
    wait_for_ready: bool = False,
    taken: type[JobRefusedError] = JobRefusedError,
) -> Any:
    """One unary call; raises the ClientError that fits what the service answers.

    wait_for_ready: a service that does not listen is waited for, within the timeout. taken: raised
    for what somebody else has.
    """
    try:
        return method(request, timeout=timeout, wait_for_ready=wait_for_ready)
    except grpc.RpcError as error:
        raise explained(error, taken) from error


def explained(error: Any, taken: type[JobRefusedError] = JobRefusedError) -> ClientError:
    """The ClientError for a gRPC error (`grpc.RpcError` that is also a `grpc.Call`)."""
    code, details = error.code(), error.details() or "no reason given"
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return taken(details)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return NoRoomError(details)
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServiceUnavailableError(f"the job service is not available: {details}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceUnavailableError(f"the job service does not answer: {details}")
    if code == grpc.StatusCode.CANCELLED:  # not by us: a service that stops cuts its calls off
        return ServiceUnavailableError(f"the job service cut the call off: {details}")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return WrongNonceError(details)
    if code in _REFUSALS:
        return JobRefusedError(details)
    if code == grpc.StatusCode.ABORTED:
        # (Not where another process is in its place.)
        left_behind = "goes on without" in details and ", which " in details
        return LeftBehindError(details) if left_behind else PlanWithdrawnError(details)
    return ClientError(f"the job service failed ({code.name}): {details}")


class Membership:
    """One member (role, rank) of one job, from ConnectService to Leave.

    on_change: called, from other threads, whenever there is an instruction or `failure` is set.
    unanswered: seconds, awaited: place and name of a key, for heartbeats, see HeartbeatRequest;
    called from another thread.
    outage: seconds for which the job service may be away, from the first call on.
    Raises ClientError if there is no service at `service`, not even a socket, or it refuses.
    """

    def __init__(
        self,
        service: str,
        nonce: str,
        role: jobs_pb2.Role,
        rank: int,
        address: Address,
        on_change: Callable[[], None],
        *,
        unanswered: Callable[[], float] = lambda: 0.0,
        awaited: Callable[[], tuple[int, str]] = lambda: (0, ""),
        outage: float = OUTAGE_SECONDS,
    ) -> None:
        self.role, self.rank = role, rank
        self._nonce = nonce
        self._process = 1 + secrets.randbits(62)  # see ConnectServiceRequest
        self._on_change = on_change
        self._unanswered = unanswered
        self._awaited = awaited
        self._outage = outage
        self._instructions: deque[jobs_pb2.Instruction] = deque()
        self._answers: deque[jobs_pb2.ResyncRequest] = deque()
        self._failure: ClientError | None = None
        self._lock = threading.Lock()  # of the failure
        self._left = threading.Event()
        self._over = threading.Event()  # it has left, or failed
        self._beat_now = threading.Event()
        self._epoch = 0  # of the plan that this member runs
        self._channel = _open(service)
        self._stub = _stub(self._channel)
        request = jobs_pb2.ConnectServiceRequest(
            nonce=nonce,
            role=role,
            rank=rank,
            address=jobs_pb2.Address(ipv4=address.ipv4, port=address.port),
            process=self._process,
        )
        try:
            # Whoever asks again with the same number of its own is known already.
            reply = _patiently(lambda: call(self._stub.ConnectService, request), outage)
        except BaseException:
            self._channel.close()
            raise
        self.job: int = reply.job
        self.world: int = reply.world
        self.lanes: int = reply.lanes
        self._heard = time.monotonic()  # when a call last succeeded
        self._watching: Any = None
        who = "server" if role == jobs_pb2.SERVER else "worker"
        name = f"job-{self.job}-{who}-{rank}"
        self._threads = [
            threading.Thread(target=self._watch, name=f"{name}-watch", daemon=True),
            threading.Thread(target=self._beat, name=f"{name}-heartbeat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> ClientError | None:
        """Why this membership is over; None while it is not, and after `leave`."""
        return self._failure

    @property
    def pending(self) -> bool:
        """Whether `take_instruction` would give one."""
        return bool(self._instructions)

    def take_instruction(self) -> jobs_pb2.Instruction | None:
        """The next instruction to carry out, in order; None: none for now."""
        try:
            return self._instructions.popleft()
        except IndexError:
            return None

    def answer(self, answers: Sequence[jobs_pb2.ResyncRequest]) -> None:
        """Gives answers (that lack only who gives them) in order, from another thread."""
        if not answers:
            return
        for answer in answers:
            answer.nonce, answer.role, answer.rank = self._nonce, self.role, self.rank
            answer.process = self._process
        self._answers.extend(answers)
        self._beat_now.set()

    def init(
        self,
        keys: Iterable[jobs_pb2.Key],
        timeout: float | None = None,
        gives_state: bool = False,
        optimizer: OptimizerPlan | None = None,
    ) -> None:
        """InitService: keys (in the same order) and optimizer of every worker. ClientError.

        gives_state: this worker can tell one that joins later what its application has to know.
        """
        request = jobs_pb2.InitServiceRequest(
            nonce=self._nonce,
            rank=self.rank,
            keys=keys,
            process=self._process,
            gives_state=gives_state,
        )
        if optimizer is not None:
            request.optimizer.CopyFrom(optimizer.to_message())
        self._insist(self._stub.InitService, request, timeout)

    def runs(self, epoch: int) -> None:
        """Tells the service, soon and from another thread, which epoch's plan this member runs."""
        self._epoch = epoch
        self._beat_now.set()

    def fail(self, failure: ClientError) -> None:
        """Ends the membership, as if the job service had; the first failure counts."""
        # After a leave the end of the job is no failure.
        with self._lock:
            if self._failure is not None or self._left.is_set():
                return
            self._failure = failure
        self._over.set()
        self._beat_now.set()
        self._on_change()

    def leave(
        self,
        reason: str = "",
        results: Sequence[jobs_pb2.Result] = (),
        levels: bytes = b"",
        outage: float | None = None,
    ) -> None:
        """Leave, once: `reason` empty means finished. Frees channel and threads in any case.

        results, levels: what a worker that finished hands over, see LeaveRequest. outage: seconds
        to wait for a service that is away, None: as always. Raises ClientError if the service
        cannot be told; a job that is over needs no telling.
        """
        if self._left.is_set():
            return
        self._left.set()
        self._over.set()
        self._beat_now.set()
        request = jobs_pb2.LeaveRequest(
            nonce=self._nonce,
            role=self.role,
            rank=self.rank,
            reason=reason,
            results=results,
            levels=levels,
            process=self._process,
        )
        try:
            if self._failure is None:
                self._insist(self._stub.Leave, request, None, outage)
        finally:
            self._channel.close()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    # -- inside -----------------------------------------------------------------------------------

    def _insist(
        self, method: Any, request: Any, timeout: float | None, outage: float | None = None
    ) -> None:
        """A unary call, made again while the service is away. Raises ClientError."""
        most = self._outage if outage is None else outage
        wait, longest = _RETRY_SECONDS
        began = time.monotonic()
        while True:
            try:
                call(method, request, timeout)
                self._heard = time.monotonic()
                return
            except ServiceUnavailableError as error:
                late = timeout is not None and time.monotonic() - began > timeout
                if late or self._failure or time.monotonic() - began > most:
                    raise
                _log.info("job %d: %s; it is asked again", self.job, error)
            if self._left.is_set():
                time.sleep(wait)  # nothing but the service's return can end this wait
            else:
                self._over.wait(wait)
            wait = min(2 * wait, longest)

    def _away(self, error: ClientError) -> ClientError:
        return ServiceUnavailableError(f"{error}; waited {self._outage:g} s for it")

    def _watch(self) -> None:
        wait, most = _RETRY_SECONDS
        request = jobs_pb2.WatchRequest(
            nonce=self._nonce, role=self.role, rank=self.rank, process=self._process
        )
        while not self._over.is_set():
            try:
                for instruction in self._stub.Watch(request):
                    self._heard = time.monotonic()
                    wait = _RETRY_SECONDS[0]
                    self._instructions.append(instruction)
                    self._on_change()
                self.fail(PlanWithdrawnError(f"job {self.job} has ended"))
            except grpc.RpcError as error:
                self._lost(explained(error))
            except ValueError as error:
                if not self._over.is_set():  # else the channel is closed, as grpc calls it
                    self.fail(ClientError(f"an instruction could not be carried out: {error}"))
                    raise
            self._over.wait(wait)
            wait = min(2 * wait, most)

    def _beat(self) -> None:
        wait, most = _RETRY_SECONDS
        while not self._over.is_set():
            self._beat_now.wait(HEARTBEAT_SECONDS)
            self._beat_now.clear()
            try:
                while self._answers and not self._over.is_set():
                    call(self._stub.Resync, self._answers[0])
                    self._answers.popleft()
                if not self._over.is_set():
                    call(self._stub.Heartbeat, self._heartbeat())
            except ClientError as error:
                self._lost(error)
                self._over.wait(wait)
                wait = min(2 * wait, most)
                if self._answers:
                    self._beat_now.set()
            except ValueError:  # what grpc raises for a channel that is closed
                return
            else:
                self._heard = time.monotonic()
                wait = _RETRY_SECONDS[0]

    def _heartbeat(self) -> jobs_pb2.HeartbeatRequest:
        awaited, key = self._awaited()
        return jobs_pb2.HeartbeatRequest(
            nonce=self._nonce,
            role=self.role,
            rank=self.rank,
            epoch=self._epoch,
            unanswered=self._unanswered(),
            process=self._process,
            awaited=awaited,
            awaited_key=key,
        )

    def _lost(self, failure: ClientError) -> None:
        """A call failed: the service may only be away for a while."""
        if isinstance(failure, ServiceUnavailableError):
            if time.monotonic() - self._heard <= self._outage:
                return
            failure = self._away(failure)
        elif self._epoch and isinstance(failure, JobRefusedError):
            failure = PlanWithdrawnError(str(failure))
        self.fail(failure)


def _open(service: str) -> grpc.Channel:
    path = socket_path(service)
    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", 16 << 20),
        # A service that was away is to be found soon after it is back.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]
    return grpc.insecure_channel(f"unix:{path}", options=options)


def _stub(channel: grpc.Channel) -> JobServiceStub:
    return JobServiceStub(channel)  # type: ignore[no-untyped-call]  # generated without types
