# SPDX-License-Identifier: Apache-2.0
"""The job service over gRPC on a unix socket: PHub's calls (SoCC'18, section 3.1) and a few more.

A refused call ends with a status whose text says what is wrong. Watch ends with the job, or with
UNAVAILABLE when the service is stopped.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc

from controller.jobs.job import Job, JobError, Key, Role, State
from controller.jobs.journal import JournalError
from controller.jobs.registry import JobTable
from controller.planning.admission import Admission
from controller.planning.tree_planner import TreeKind
from protocol import call_status, jobs_pb2, jobs_pb2_grpc
from protocol.balance import Balance
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address, moved_message
from protocol.propagation import Propagation
from protocol.runtime import Event
from protocol.server_pipelines import Pipeline

log = logging.getLogger(__name__)

LONGEST_SOCKET_PATH = 107  # sun_path of unix(7) holds 108 bytes with the final zero
MOST_MESSAGE_BYTES = 16 * 1024 * 1024
# Every watcher holds a thread while it waits.
MOST_WATCHERS = 2048
OTHER_CALLS = 32
# A status goes in a header, of which clients take 8 KiB; bytes beyond ASCII take three each there.
LONGEST_STATUS = 2000
EXPIRE_SECONDS = 0.5
# For calls under way when the service is stopped.
STOP_SECONDS = 1.0

Call = TypeVar("Call")


class ServiceError(Exception):
    """The service cannot listen there; the text says why and what to do."""


class JobService(jobs_pb2_grpc.JobServiceServicer):
    """Serves a JobTable over gRPC. Method names and messages are those of jobs.proto.

    most_watchers: calls that may wait at once; further ones are refused.
    """

    def __init__(self, table: JobTable, most_watchers: float = MOST_WATCHERS) -> None:
        self.table = table
        self._most_waiting = most_watchers
        self._waiting = 0  # calls that hold a thread
        # The newest watch of each member: one that lost its connection may come again before the
        # end of the old one is noticed.
        self._newest: dict[tuple[str, Role, int], object] = {}
        self._stopping = False

    def stop(self) -> None:
        """Ends all watches with UNAVAILABLE, as jobs continue, so that the server can stop."""
        with self.table.changed:
            self._stopping = True
            self.table.changed.notify_all()

    def CreateService(  # noqa: N802
        self, request: jobs_pb2.CreateServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.CreateServiceReply:
        """Calls JobTable.create."""
        with _status(context):
            if request.tree not in [kind.value for kind in TreeKind]:
                kinds = ", ".join(kind.name for kind in TreeKind)
                _refuse(context, f"tree {request.tree} is none of {kinds}")
            if request.admission not in [admission.value for admission in Admission]:
                ways = ", ".join(admission.name for admission in Admission)
                _refuse(context, f"admission {request.admission} is none of {ways}")
            try:
                pipeline = Pipeline.from_message(request.pipeline)
                propagation = Propagation.from_message(request.propagation)
                balance = Balance.from_message(request.balance)
            except ValueError as error:
                _refuse(context, str(error))
            hosts = len(self.table.fabric.topology.hosts)
            if any(one.spare for one in request.workers):
                _refuse(context, "a worker is spare; only servers can be")
            job = self.table.create(
                request.namespace,
                _by_rank(context, request.workers, hosts, "workers"),
                _by_rank(context, request.servers, hosts, "servers"),
                TreeKind(request.tree),
                request.window,
                request.streams,
                request.lease,
                Admission(request.admission),
                request.slice_bytes,
                pipeline,
                propagation,
                balance,
                {one.host for one in request.servers if one.spare},
            )
            servers = [jobs_pb2.Member(host=s, rank=rank) for rank, s in enumerate(job.servers)]
            return jobs_pb2.CreateServiceReply(
                nonce=job.nonce, job=job.number, tree=job.kind.name, servers=servers
            )

    def ConnectService(  # noqa: N802
        self, request: jobs_pb2.ConnectServiceRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ConnectServiceReply:
        """Calls JobTable.connect."""
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
        """Calls JobTable.init."""
        with _status(context):
            keys = [Key(key.key, key.name, key.elements) for key in request.keys]
            optimizer = None
            if request.HasField("optimizer"):
                try:
                    optimizer = OptimizerPlan.from_message(request.optimizer)
                except ValueError as error:
                    _refuse(context, str(error))
            self.table.init(
                request.nonce,
                request.rank,
                keys,
                request.process,
                request.gives_state,
                optimizer,
            )
            return jobs_pb2.InitServiceReply()

    def Watch(  # noqa: N802
        self, request: jobs_pb2.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[jobs_pb2.Instruction]:
        """Streams a member's instruction, then each that replaces it.

        A member has one watch: a newer one ends it.
        """
        changed = self.table.changed
        mine = object()
        place: tuple[str, Role, int] | None = None
        self._begin_to_wait(context)
        try:
            role = _role(context, request.role)
            seen: jobs_pb2.Instruction | None = None
            with changed, _status(context):
                # Is there such a one?
                self.table.instruction(request.nonce, role, request.rank, request.process)
                place = (request.nonce, role, request.rank)
                self._newest[place] = mine
                changed.notify_all()
            while context.is_active() and not self._stopping:
                with changed, _status(context):
                    if self._newest.get(place) is not mine:
                        text = f"{role} {request.rank} has begun another watch"
                        _abort(context, grpc.StatusCode.ABORTED, text)
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
                _abort(context, grpc.StatusCode.UNAVAILABLE, "the job service is being stopped")
        finally:
            with changed:
                self._waiting -= 1
                if place is not None and self._newest.get(place) is mine:
                    del self._newest[place]

    def Resync(  # noqa: N802
        self, request: jobs_pb2.ResyncRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ResyncReply:
        """Calls JobTable.resync."""
        with _status(context):
            self.table.resync(request.nonce, _role(context, request.role), request.rank, request)
            return jobs_pb2.ResyncReply()

    def Heartbeat(  # noqa: N802
        self, request: jobs_pb2.HeartbeatRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.HeartbeatReply:
        """Calls JobTable.heartbeat."""
        with _status(context):
            role = _role(context, request.role)
            epoch = self.table.heartbeat(
                request.nonce,
                role,
                request.rank,
                request.epoch,
                request.unanswered,
                request.process,
                (request.awaited, request.awaited_key),
            )
            return jobs_pb2.HeartbeatReply(epoch=epoch)

    def Leave(  # noqa: N802
        self, request: jobs_pb2.LeaveRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.LeaveReply:
        """Calls JobTable.leave."""
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
                request.others_go_on,
            )
            return jobs_pb2.LeaveReply()

    def Gone(  # noqa: N802
        self, request: jobs_pb2.GoneRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.GoneReply:
        """Calls JobTable.gone."""
        with _status(context):
            role = _role(context, request.role)
            self.table.gone(request.nonce, role, request.rank, request.reason)
            return jobs_pb2.GoneReply()

    def Scale(  # noqa: N802
        self, request: jobs_pb2.ScaleRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.ScaleReply:
        """Calls Scaling.scale."""
        self._begin_to_wait(context)
        try:
            with _status(context):
                done = self.table.scaling.scale(
                    *(request.nonce, request.added, request.removed),
                    lambda: context.is_active() and not self._stopping,
                )
        finally:
            with self.table.changed:
                self._waiting -= 1
        if done is None:
            _abort(context, grpc.StatusCode.UNAVAILABLE, "the job service is being stopped")
        return jobs_pb2.ScaleReply(**done._asdict())

    def Enrol(  # noqa: N802
        self, request: jobs_pb2.EnrolRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.EnrolReply:
        """Calls JobTable.enrol."""
        with _status(context):
            return jobs_pb2.EnrolReply(rank=self.table.enrol(request.nonce, request.host))

    def Status(  # noqa: N802
        self, request: jobs_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> jobs_pb2.StatusReply:
        """Lists jobs and slots; needs no nonce and reveals none."""
        with self.table.changed:
            return jobs_pb2.StatusReply(
                jobs=[_job_message(job) for job in self.table.jobs()],
                budgets=[
                    jobs_pb2.Budget(switch=name, slots=budget.total, used=budget.used)
                    for name, budget in self.table.resources.budgets.items()
                ],
            )

    def _begin_to_wait(self, context: grpc.ServicerContext) -> None:
        """Counts a call that holds a thread while it waits, until `_waiting` is decremented."""
        with self.table.changed:
            if self._waiting >= self._most_waiting:
                text = f"{self._most_waiting} calls are waiting, the limit"
                _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            self._waiting += 1
        context.add_callback(self._wake)

    def _wake(self) -> None:
        """Wakes the thread of a watch whose call has ended."""
        with self.table.changed:
            self.table.changed.notify_all()


class JobServer:
    """The service, listening at ``address`` (``unix:/path``). Raises ServiceError."""

    def __init__(self, table: JobTable, address: str) -> None:
        self.table = table
        self.path = _socket_path(address)
        self.service = JobService(table)
        runtime = table.runtime
        self._stopped = runtime.event()
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
        self._expiry = runtime.thread(look_after, "jobs-expiry", (table, self._stopped))
        self._expiry.start()

    def stop(self) -> None:
        """Ends all calls and frees the socket. Jobs keep their entries."""
        self._stopped.set()
        self.service.stop()
        # gRPC's own stop never ends after certain malformed requests.
        self._server.stop(STOP_SECONDS).wait(2 * STOP_SECONDS)
        self._expiry.join()
        self.path.unlink(missing_ok=True)


def look_after(table: JobTable, stopped: Event) -> None:
    """Expires members and jobs periodically until it is stopped."""
    while not stopped.wait(EXPIRE_SECONDS):
        try:
            table.expire(EXPIRE_SECONDS)
        except Exception:
            log.exception("looking after the jobs failed; it goes on")


def _socket_path(address: str) -> Path:
    """Returns the path of an unused unix socket; removes one that a dead process has left."""
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
    """Ends the call with the status of a JobError, or with UNAVAILABLE after a JournalError.

    The process ends then, and a restarted controller may serve the call.
    """
    try:
        yield
    except JobError as error:
        if error.left_behind:
            context.set_trailing_metadata(((call_status.KEY, error.left_behind),))
        _abort(context, grpc.StatusCode[error.refusal.name], str(error))
    except JournalError as error:
        log.error("%s", error)
        _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))


def _refuse(context: grpc.ServicerContext, text: str) -> NoReturn:
    _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text.encode()[:LONGEST_STATUS].decode(errors="ignore"))
    raise AssertionError("abort returned")


def _role(context: grpc.ServicerContext, role: int) -> Role:
    try:
        return Role(role)
    except ValueError:
        _refuse(context, f"role {role} is neither WORKER nor SERVER")


def _by_rank(
    context: grpc.ServicerContext, members: Sequence[jobs_pb2.Member], most: int, what: str
) -> list[str]:
    """Returns hosts by rank; ranks must be 0 to n - 1 with n at most ``most``."""
    if len(members) > most:
        _refuse(context, f"{len(members)} {what}, each on a host of its own; there are {most}")
    hosts = {member.rank: member.host for member in members}
    lacking = next((rank for rank in range(len(members)) if rank not in hosts), None)
    if lacking is not None:
        last = len(members) - 1
        _refuse(context, f"ranks of {what} must be 0 to {last}, each once; {lacking} is not there")
    return [hosts[rank] for rank in range(len(members))]


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
        restored=[jobs_pb2.RestoredChunks(**one._asdict()) for one in job.restored],
        servers=[job.servers[rank] for rank in job.scheme.servers],
        moved=moved_message(job.scheme.ranked(job.moved)),
        moves=[one.to_message() for one in job.moves],
        times=job.rounds.times(job.scheme.servers, job.servers) if job.balance.measures else (),
    )
