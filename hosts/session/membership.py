# SPDX-License-Identifier: Apache-2.0
"""A worker's or server's membership of a job: its calls of the job service, and their answers.

`Membership` holds the gRPC channel and two threads: one receives instructions (`Watch`), so the end
of the job is known at once; one sends heartbeats and the answers to instructions. Neither touches
the state machines: they queue instructions or set `failure`, and call `on_change`.

Members wait for a job service that is away for a while (its controller restarts), and keep their
plan.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from hosts.errors import ClientError, JobRefusedError, PlanWithdrawnError, ServiceUnavailableError
from hosts.net.environment import HERE, HostEnvironment
from hosts.session.job_service import RETRY_SECONDS, call, explained, patiently
from protocol import jobs_pb2
from protocol.optimizer_plan import OptimizerPlan
from protocol.plan import Address

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
OUTAGE_SECONDS = 60.0


class Membership:
    """One member (role, rank) of one job, from ConnectService to Leave.

    on_change: called from other threads when there is an instruction or `failure` is set.
    unanswered, awaited: seconds, and position and name of a key, for heartbeats (HeartbeatRequest);
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
        environment: HostEnvironment = HERE,
    ) -> None:
        self._runtime = runtime = environment.runtime
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
        self._lock = runtime.lock()  # of the failure
        self._left = runtime.event()
        self._over = runtime.event()  # it has left, or failed
        self._beat_now = runtime.event()
        self._epoch = 0  # of the plan that this member runs
        self._connection = environment.service(service)
        self._stub = self._connection.stub
        request = jobs_pb2.ConnectServiceRequest(
            nonce=nonce,
            role=role,
            rank=rank,
            address=jobs_pb2.Address(ipv4=address.ipv4, port=address.port),
            process=self._process,
        )
        try:
            # The service recognises a repeated request by the process number.
            reply = patiently(lambda: call(self._stub.ConnectService, request), outage, runtime)
        except BaseException:
            self._connection.close()
            raise
        self.job: int = reply.job
        self.world: int = reply.world
        self.lanes: int = reply.lanes
        self._heard = self._runtime.now()  # when a call last succeeded
        self._watching: Any = None
        who = "server" if role == jobs_pb2.SERVER else "worker"
        name = f"job-{self.job}-{who}-{rank}"
        self._threads = [
            runtime.thread(self._watch, name=f"{name}-watch", daemon=True),
            runtime.thread(self._beat, name=f"{name}-heartbeat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> ClientError | None:
        """The reason for the end of this membership; None before it, and after `leave`."""
        return self._failure

    @property
    def pending(self) -> bool:
        """True if `take_instruction` would return one."""
        return bool(self._instructions)

    def take_instruction(self) -> jobs_pb2.Instruction | None:
        """Returns the next instruction to carry out, in order; None if there is none."""
        try:
            return self._instructions.popleft()
        except IndexError:
            return None

    def answer(self, answers: Sequence[jobs_pb2.ResyncRequest]) -> None:
        """Queues answers, complete but for the sender; another thread sends them in order."""
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
        """Calls InitService with keys and optimizer, the same at every worker. Raises ClientError.

        gives_state: this worker can give its application's state to one that joins later.
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
        """Reports, soon and from another thread, the epoch of this member's plan."""
        self._epoch = epoch
        self._beat_now.set()

    def fail(self, failure: ClientError) -> None:
        """Ends the membership as if the job service had; the first failure counts."""
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
        *,
        others_go_on: bool = False,
    ) -> None:
        """Calls Leave, once: an empty `reason` means finished. Frees channel and threads in any
        case.

        results, levels, others_go_on: given by a worker that finished, see LeaveRequest. outage:
        seconds to wait for a service that is away, None: the usual. Raises ClientError if the
        service cannot be reached, unless the job is over.
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
            others_go_on=others_go_on,
            process=self._process,
        )
        try:
            if self._failure is None:
                self._insist(self._stub.Leave, request, None, outage)
        finally:
            self._connection.close()
            for thread in self._threads:
                if thread is not self._runtime.current():
                    thread.join()

    # -- inside -----------------------------------------------------------------------------------

    def _insist(
        self, method: Any, request: Any, timeout: float | None, outage: float | None = None
    ) -> None:
        """Makes a unary call, retried while the service is away. Raises ClientError."""
        most = self._outage if outage is None else outage
        wait, longest = RETRY_SECONDS
        began = self._runtime.now()
        while True:
            try:
                call(method, request, timeout)
                self._heard = self._runtime.now()
                return
            except ServiceUnavailableError as error:
                late = timeout is not None and self._runtime.now() - began > timeout
                if late or self._failure or self._runtime.now() - began > most:
                    raise
                _log.info("job %d: %s; retrying", self.job, error)
            if self._left.is_set():
                self._runtime.sleep(wait)  # nothing but the service's return can end this wait
            else:
                self._over.wait(wait)
            wait = min(2 * wait, longest)

    def _away(self, error: ClientError) -> ClientError:
        return ServiceUnavailableError(f"{error}; waited {self._outage:g} s for it")

    def _watch(self) -> None:
        wait, most = RETRY_SECONDS
        request = jobs_pb2.WatchRequest(
            nonce=self._nonce, role=self.role, rank=self.rank, process=self._process
        )
        while not self._over.is_set():
            try:
                for instruction in self._stub.Watch(request):
                    self._heard = self._runtime.now()
                    wait = RETRY_SECONDS[0]
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
        wait, most = RETRY_SECONDS
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
            except ValueError:  # raised by grpc for a closed channel
                return
            else:
                self._heard = self._runtime.now()
                wait = RETRY_SECONDS[0]

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
        """Handles a failed call: the service may be away only for a while."""
        if isinstance(failure, ServiceUnavailableError):
            if self._runtime.now() - self._heard <= self._outage:
                return
            failure = self._away(failure)
        elif self._epoch and isinstance(failure, JobRefusedError):
            failure = PlanWithdrawnError(str(failure))
        self.fail(failure)
