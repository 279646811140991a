# SPDX-License-Identifier: Apache-2.0
"""The job service over gRPC, on a unix socket: PHub's calls (SoCC'18, section 3.1) and a few more.

A refused call ends with a status whose text says what is wrong; Watch ends with the job, or with
UNAVAILABLE when the service is stopped.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc

from controller.job import Job, JobError, Key, Role, State
from controller.jobs import JobTable
from controller.journal import JournalError
from controller.trees import TreeKind
from protocol import jobs_pb2, jobs_pb2_grpc
from protocol.plan import Address

__all__ = ["JobServer", "JobService", "ServiceError"]

log = logging.getLogger(__name__)

LONGEST_SOCKET_PATH = 107  # sun_path of unix(7) holds 108 bytes with the final zero
MOST_MESSAGE_BYTES = 16 * 1024 * 1024
# Every watcher holds a thread while it waits.
MOST_WATCHERS = 2048
OTHER_CALLS = 32
EXPIRE_SECONDS = 0.5

Call = TypeVar("Call")


class ServiceError(Exception):
    """The service cannot listen there; the text says why and what to do."""


class JobService(jobs_pb2_grpc.JobServiceServicer):
    """gRPC's face of a JobTable. Method names and messages are those of jobs.proto."""

    def __init__(self, table: JobTable) -> None:
        self.table = table
        self._watchers = 0
        self._stopping = False

    def stop(self) -> None:
        """End all watches, so that the server can stop: with UNAVAILABLE, for jobs go on."""
        with self.table.changed:
            self._stopping = True
            self.table.changed.notify_all()

    def CreateService(  # noqa: N802
        self, request: jobs_pb2.CreateServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.CreateServiceReply:
        """See JobTable.create."""
        with _status(context):
            if request.tree not in [kind.value for kind in TreeKind]:
                kinds = ", ".join(kind.name for kind in TreeKind)
                _refuse(context, f"tree {request.tree} is none of {kinds}")
            job = self.table.create(
                request.namespace,
                _by_rank(context, request.workers, "workers"),
                _by_rank(context, request.servers, "servers"),
                TreeKind(request.tree),
                request.window,
                request.streams,
                request.lease,
            )
            return jobs_pb2.CreateServiceReply(nonce=job.nonce, job=job.number)

    def ConnectService(  # noqa: N802
        self, request: jobs_pb2.ConnectServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ConnectServiceReply:
        """See JobTable.connect."""
        with _status(context):
            address = Address(request.address.ipv4, request.address.port)
            role = _role(context, request.role)
            job = self.table.connect(request.nonce, role, request.rank, address, request.process)
            return jobs_pb2.ConnectServiceReply(
                job=job.number,
                world=len(job.workers),
                lanes=self.table.fabric.dataplane.lanes,
            )

    def InitService(  # noqa: N802
        self, request: jobs_pb2.InitServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.InitServiceReply:
        """See JobTable.init."""
        with _status(context):
            keys = [Key(key.key, key.name, key.elements) for key in request.keys]
            self.table.init(request.nonce, request.rank, keys, request.process, request.gives_state)
            return jobs_pb2.InitServiceReply()

    def Watch(  # noqa: N802
        self, request: jobs_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[jobs_pb2.Instruction]:
        """The instruction that holds for a member, then each that replaces it."""
        changed = self.table.changed
        with changed:
            if self._watchers >= MOST_WATCHERS:
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MOST_WATCHERS} members are watching, the limit",
                )
            self._watchers += 1
        try:
            role = _role(context, request.role)
            context.add_callback(self._wake)
            seen: jobs_pb2.Instruction | None = None
            while context.is_active() and not self._stopping:
                with changed, _status(context):
                    now = self.table.instruction(request.nonce, role, request.rank, request.process)
                    if self.table.state(request.nonce) is State.GONE:
                        return
                    if now is None or now is seen:
                        changed.wait()
                        continue
                seen = now
                yield now
            if self._stopping:
                # OK would say that the job is over. A controller may come back.
                context.abort(grpc.StatusCode.UNAVAILABLE, "the job service is being stopped")
        finally:
            with changed:
                self._watchers -= 1

    def Resync(  # noqa: N802
        self, request: jobs_pb2.ResyncRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ResyncReply:
        """See JobTable.resync."""
        with _status(context):
            self.table.resync(request.nonce, _role(context, request.role), request.rank, request)
            return jobs_pb2.ResyncReply()

    def Heartbeat(  # noqa: N802
        self, request: jobs_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.HeartbeatReply:
        """See JobTable.heartbeat."""
        with _status(context):
            role = _role(context, request.role)
            epoch = self.table.heartbeat(
                request.nonce,
                role,
                request.rank,
                request.epoch,
                request.unanswered,
                request.process,
            )
            return jobs_pb2.HeartbeatReply(epoch=epoch)

    def Leave(  # noqa: N802
        self, request: jobs_pb2.LeaveRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.LeaveReply:
        """See JobTable.leave."""
        with _status(context):
            role = _role(context, request.role)
            self.table.leave(
                request.nonce,
                role,
                request.rank,
                request.reason,
                request.results,
                request.levels,
                request.process,
            )
            return jobs_pb2.LeaveReply()

    def Gone(  # noqa: N802
        self, request: jobs_pb2.GoneRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.GoneReply:
        """See JobTable.gone."""
        with _status(context):
            role = _role(context, request.role)
            self.table.gone(request.nonce, role, request.rank, request.reason)
            return jobs_pb2.GoneReply()

    def Status(  # noqa: N802
        self, request: jobs_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.StatusReply:
        """Jobs and slots; needs no nonce and gives none away."""
        with self.table.changed:
            return jobs_pb2.StatusReply(
                jobs=[_job_message(job) for job in self.table.jobs()],
                budgets=[
                    jobs_pb2.Budget(switch=name, slots=budget.total, used=budget.used)
                    for name, budget in self.table.resources.budgets.items()
                ],
            )

    def _wake(self) -> None:
        """A watcher's call has ended: its thread has to notice."""
        with self.table.changed:
            self.table.changed.notify_all()


class JobServer:
    """The service, listening at ``address`` (``unix:/path``). ServiceError if that cannot be."""

    def __init__(self, table: JobTable, address: str) -> None:
        self.table = table
        self.path = _socket_path(address)
        self.service = JobService(table)
        self._stopped = threading.Event()
        self._server = grpc.server(
            ThreadPoolExecutor(MOST_WATCHERS + OTHER_CALLS, thread_name_prefix="jobs"),
            options=[("grpc.max_receive_message_length", MOST_MESSAGE_BYTES)],
            maximum_concurrent_rpcs=MOST_WATCHERS + OTHER_CALLS,
        )
        jobs_pb2_grpc.add_JobServiceServicer_to_server(  # type: ignore[no-untyped-call]
            self.service, self._server
        )
        try:
            listening = self._server.add_insecure_port(address)
        except RuntimeError as error:  # what grpcio raises; before 1.60 it returned 0
            raise ServiceError(f"cannot listen at {address}: {error}") from error
        if not listening:
            raise ServiceError(f"cannot listen at {address}")
        self.path.chmod(0o600)
        self._server.start()
        self._expiry = threading.Thread(target=self._expire, name="jobs-expiry")
        self._expiry.start()

    def stop(self) -> None:
        """End all calls and free the socket. Jobs keep their entries."""
        self._stopped.set()
        self.service.stop()
        self._server.stop(grace=1.0).wait()
        self._expiry.join()
        self.path.unlink(missing_ok=True)

    def _expire(self) -> None:
        while not self._stopped.wait(EXPIRE_SECONDS):
            try:
                self.table.expire()
            except Exception:
                log.exception("looking after the jobs failed; it goes on")


def _socket_path(address: str) -> Path:
    """The path of a unix socket that nobody listens at; one left by a dead process is removed."""
    if not address.startswith("unix:"):
        raise ServiceError(f"{address}: the job service listens on unix sockets: unix:/path")
    path = Path(address.removeprefix("unix:"))
    if len(bytes(path)) > LONGEST_SOCKET_PATH:
        raise ServiceError(
            f"{path} has {len(bytes(path))} bytes, sockets allow {LONGEST_SOCKET_PATH};"
            " use a shorter directory"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        code = probe.connect_ex(str(path))
    if code == 0:
        raise ServiceError(f"{path}: a process is listening there already")
    if code == errno.ECONNREFUSED and path.is_socket():
        path.unlink()
    elif path.exists():
        raise ServiceError(f"{path} is in the way: {errno.errorcode.get(code, code)}")
    return path


@contextmanager
def _status(context: grpc.ServicerContext) -> Iterator[None]:
    """Ends the call with the status of a JobError; INTERNAL if nothing can be noted."""
    try:
        yield
    except JobError as error:
        context.abort(grpc.StatusCode[error.refusal.name], str(error))
    except JournalError as error:
        log.error("%s", error)
        context.abort(grpc.StatusCode.INTERNAL, str(error))


def _refuse(context: grpc.ServicerContext, text: str) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    raise AssertionError("abort returned")


def _role(context: grpc.ServicerContext, role: int) -> Role:
    if role not in [known.value for known in Role]:
        _refuse(context, f"role {role} is neither WORKER nor SERVER")
    return Role(role)


def _by_rank(context: grpc.ServicerContext, members: object, what: str) -> list[str]:
    """Hosts in the order of their ranks, which must be 0 to n-1."""
    ordered = sorted(members, key=lambda member: member.rank)  # type: ignore[call-overload]
    ranks = [member.rank for member in ordered]
    if ranks != list(range(len(ranks))):
        _refuse(context, f"ranks of {what} are {ranks}; they must be 0 to {len(ranks) - 1}")
    return [member.host for member in ordered]


def _job_message(job: Job) -> jobs_pb2.Job:
    return jobs_pb2.Job(
        job=job.number,
        namespace=job.namespace,
        state=job.state.value,
        epoch=job.epoch,
        world=len(job.scheme.workers),
        connected=len(job.members),
        tree=job.kind.name,
        slots=job.slots,
        reason=job.status,
        window=job.reservation.window if job.reservation else 0,
    )
