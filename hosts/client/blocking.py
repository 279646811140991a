# SPDX-License-Identifier: Apache-2.0
"""The blocking client: PHub's calls (SoCC'18, section 3.1).

    from hosts.client import Client

    # Once, to start the job; its workers and servers need the nonce. (On a testbed `rackhub exec`
    # sets service and address: use None and Client(). `rackhub launch` starts the job, too: use
    # Client() and connect_service().)
    nonce = Client.create_service("unix:/run/jobs.sock", "digits", ["w0", "w1"], ["s0"]).nonce

    # In each worker:
    with Client("unix:/run/jobs.sock", address="10.0.0.1") as client:
        client.connect_service(nonce, rank=0)
        client.init_service({"weights": 784 * 10, "bias": 10})
        for step in range(100):
            gradients = {"weights": gradient_w, "bias": gradient_b}
            means = client.push_pull(gradients, average=True)
            weights -= rate * means["weights"]

docs/howto/use-the-api.md has an example of each call.

**All workers must make the same calls in the same order.** Otherwise no sum would ever arrive; the
job service compares the keys that workers wait for, and ends the job, naming two that differ.

A job's plan may change while it runs: trees, windows, and workers that die, leave or come back.
Calls only take longer then. Sums include the members at the time of summing; all workers get the
same ones.

A worker whose process died may be restarted, with the job's nonce and its rank. It joins between
two *rounds* (a round is the calls until a key is repeated, so an iteration) if the applications of
other workers provide their state, see `init_service`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from hosts.client.exchange import Exchange
from hosts.client.job_view import JobView
from hosts.data.keys import Keys, Shapes, Types
from hosts.data.tensors import Sums
from hosts.errors import (
    CallOrderError,
    ClientError,
    DoubleInitError,
    JobRefusedError,
    WrongShapeError,
)
from hosts.net.environment import HERE, HostEnvironment
from hosts.session import testbed_environment
from hosts.session.beginning import Joined, declare, first_transport, with_consistency
from hosts.session.calls import result_of
from hosts.session.checkpointing import check_whole, save
from hosts.session.job_service import Service, create_service, enrol, scale
from hosts.session.membership import OUTAGE_SECONDS
from hosts.session.participation import Participation
from hosts.session.stall_timeout import Stall, StallTimeout
from hosts.worker.epoch_change import WorkerEpochs
from hosts.worker.transport import WorkerTransport
from protocol.consistency import Consistency
from protocol.exponents import Exponents
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import Floats
from protocol.plan import WorkerPlan
from protocol.state import Arrays

__all__ = ["Client", "Joined", "Service", "Stall", "Sums"]

_log = logging.getLogger(__name__)
_LARGEST_RANK = 2**32 - 1  # that a request can name


class Client(JobView):
    """One worker of one job.

    Leaving the `with` block leaves the job, with the error as the reason if there is one.

    Make calls from one thread. Any thread may wait for futures; their callbacks run in the client's
    own thread, which must not block and can make no calls (CallOrderError).

    Args:
        service: The job service's unix socket, `unix:PATH` or the path; None: from the environment,
            which `rackhub exec` sets.
        address: This host's IPv4 address; None: from the environment if `service` is None, else the
            one that its default route sends from.
        queue_bytes: Limit of the queue of this host's interface; None: like `address`.
        link_rate: Rate of this host's link in bit/s; 0: the plan's.
        headroom: Binary digits by which a chunk may grow from one round to the next before it goes
            through the server in float32.
        outage: Seconds for which the job service may be away before a call gives up; by default 60.
        patience: Seconds without any sum after which calls fail with StalledError. A straggler is
            no fault, so this should be far longer than a worker may compute.
        on_stall: Called repeatedly during such a wait, after some seconds, by another thread.
        environment: The host's sockets, clock and threads; simulated in virtual time.

    Raises:
        ClientError: There is no such service.
    """

    create_service = staticmethod(create_service)
    enrol = staticmethod(enrol)
    scale = staticmethod(scale)

    def __init__(
        self,
        service: str | None = None,
        *,
        address: str | None = None,
        queue_bytes: int | None = None,
        link_rate: int = 0,
        headroom: int = 2,
        outage: float = OUTAGE_SECONDS,
        patience: float = math.inf,
        on_stall: Callable[[Stall], None] | None = None,
        environment: HostEnvironment = HERE,
    ) -> None:
        if service is None:
            service, here = testbed_environment.service(), testbed_environment.interface()
            address = address or here.address
            queue_bytes = here.queue_bytes if queue_bytes is None else queue_bytes
        super().__init__(environment.runtime)
        self._environment = environment
        self._service = service
        self._patience = patience
        self._on_stall = on_stall
        self._link_rate, self._queue_bytes = link_rate, queue_bytes
        self._exponent_headroom = headroom
        self._outage = outage
        self._exchange: Exchange | None = None
        self._state: Callable[[], Arrays] | None = None
        environment.check_service(service)
        self._endpoint = environment.endpoint(
            address or testbed_environment.own_address(),
            link_rate=link_rate,
            queue_bytes=queue_bytes,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.leave()
            return
        # The reason for ending a process is not this worker's failure.
        ended = isinstance(error, SystemExit | KeyboardInterrupt)
        try:
            self.leave("it was ended" if ended else f"{type(error).__name__}: {error}")
        except ClientError as second:
            _log.warning("the job service could not be notified: %s", second)

    # -- PHub's calls -----------------------------------------------------------------------------

    def connect_service(self, nonce: str | None = None, rank: int | None = None) -> None:
        """Joins the job as its worker `rank`.

        Args:
            nonce: Of the job; None: from the environment, which `rackhub launch` sets.
            rank: Likewise.

        Raises:
            WrongNonceError: The nonce is no job's, or not for this rank; or there is none.
            JobRefusedError: The job has no such rank, or there is none in the environment.
            DoubleInitError: This client is in a job already.
            UseAfterLeaveError: This client has left its job.
        """
        self._not_left()
        if self._part is not None:
            raise DoubleInitError("connect_service was called before; a Client is in one job")
        nonce = testbed_environment.nonce() if nonce is None else nonce
        rank = testbed_environment.rank() if rank is None else rank
        if not 0 <= rank <= _LARGEST_RANK:
            raise JobRefusedError(f"a job of n workers has workers 0 to n - 1, not {rank}")
        self._part = Participation(
            self._service, nonce, rank, self._endpoint, self._outage, self._environment
        )

    def init_service(
        self,
        keys: Keys | Iterable[str],
        shapes: Shapes | None = None,
        dtypes: Types | None = None,
        *,
        optimizer: OptimizerPlan | None = None,
        state: Callable[[], Arrays] | None = None,
        restore: str | Path | None = None,
        consistency: Consistency | str | Mapping[str, int] | None = None,
        timeout: float | None = None,
    ) -> Sums:
        """Declares the keys, the same at every worker, and waits for the job's plan.

        Blocks until every worker and server of the job has connected and it has a plan; in a
        running job, until this worker has joined it: `joined` then has the state it starts from,
        and the parameters returned are the current ones.

        Args:
            keys: By name with arrays (for their shapes) or numbers of elements, or names alone with
                their shapes. Arrays here and in calls may be float32, float16, bfloat16 (of
                ml_dtypes) or float64, which is rounded to float32, with a warning the first time;
                results are float32.
            shapes: By name, or in the keys' order.
            dtypes: Likewise; one dtype applies to all, and None is float32.
            optimizer: Run by the job's servers, the same at every worker. Keys must then be arrays,
                the initial parameters. All workers should give the same; those of the first worker
                count (the first remaining one, should it die meanwhile). From then on `push_pull`
                takes gradients and returns parameters.
            state: Returns the arrays that a later joining worker needs, as they are before the next
                round; called when a worker joins (with an optimizer perhaps by this call). None:
                this worker cannot help others to join.
            restore: A checkpoint's file, the same at every worker, from which the job continues
                bit-identically to the job that wrote it. `restored` then has the application's
                state; with an optimizer, initial parameters are the checkpoint's.
            consistency: The gradients of an optimizer's step: `synchronous`, the mean of all
                workers' (None: as the optimizer says, which defaults to that); `asynchronous`, each
                worker's as it arrives; `{"staleness": N}`, likewise, but a result waits until no
                worker is more than N gradients behind. The last two need tree none.
            timeout: Seconds; None: no limit.

        Returns:
            The initial parameters; nothing without an optimizer.

        Raises:
            DoubleInitError: A second call.
            WrongShapeError: A shape that does not fit.
            WrongTypeError: A dtype that does not fit, a number where parameters are needed, or an
                object that is no optimizer.
            UnknownKeyError: Optimizer options that fit no key.
            CheckpointError: A checkpoint that cannot be used.
            ClientError: The job has ended, or the service is away.
            TimeoutError: `timeout` is over.
            ValueError: An unknown consistency, or one that needs an optimizer where there is none.
        """
        part = self._connected()
        if part.follower is not None:
            raise DoubleInitError("init_service was called before; a job's keys do not change")
        optimizer = with_consistency(optimizer, consistency)
        membership = part.membership
        tensors, optimizer, initial, self._restoration = declare(
            keys, shapes, dtypes, optimizer, restore, membership.lanes, self._environment.payload
        )
        exchange = self._exchange = Exchange(tensors, optimizer is not None, self._runtime)
        self._state, self._optimizer = state, optimizer
        exponents = Exponents(
            tensors.layout.chunks, max(1, membership.world), self._exponent_headroom
        )
        if self._restoration is not None and optimizer is None:
            self._restoration.scale(exponents)

        def start(plan: WorkerPlan) -> WorkerTransport:
            return first_transport(
                plan,
                exponents,
                self._endpoint,
                self._environment,
                lanes=membership.lanes,
                link_rate=self._link_rate,
                queue_bytes=self._queue_bytes,
            )

        part.begin(WorkerEpochs(exponents, start), tensors.names)
        began = self._runtime.now()
        # The last worker's call also installs the job, which takes as long as the switches do.
        membership.init(
            tensors.messages(), timeout, gives_state=state is not None, optimizer=optimizer
        )
        left = None if timeout is None else max(0.0, began + timeout - self._runtime.now())
        part.wait_for_plan(left)
        classes = self._transport.plan.propagation.classes
        if optimizer is None:
            exchange.classes = classes
            return Sums()
        if (
            part.follower is not None and part.follower.barrier.completed
        ):  # it joined after initialisation
            exchange.classes = classes
            with part.turn:
                return exchange.parameters(initial, self._transport)
        left = None if timeout is None else max(0.0, began + timeout - self._runtime.now())
        begun = self.push_pull(initial, timeout=left)
        exchange.classes = classes
        if self._restoration is not None:
            self._restoration.bring(part, self._patience)
            with part.turn:
                self._restoration.scale(exponents)
        return begun

    def push(
        self,
        values: Mapping[str, Floats],
        *,
        average: bool = False,
        priority: int | None = None,
        out: Mapping[str, Floats] | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> Future[Sums]:
        """Begins to add each named array over all workers.

        Any number of pushes may be under way, also of one key. They are sent in the order of the
        calls, and within a call in the order of declaration. A push waits only for a worker that is
        about to join; it cannot be cancelled.

        Args:
            values: Arrays by key, as for `push_pull`.
            average: As there.
            priority: The class of these keys in a job that has several: 0 to its number of classes
                less 1. Keys of a higher class are sent first, also before earlier pushes. All
                pushes of a key, of all workers, must have the same. None: by the key's place in
                the declaration, which is the order of the forward pass, as P3 has it.
            out: As there.
            copy: False: the values are read until the future is done, with a result or an error,
                and must not change before.
            timeout: As there.

        Returns:
            A future of the result of `push_pull`, which also has the errors of the transfer. In
            asyncio use `asyncio.wrap_future`, or AsyncClient.

        Raises:
            ClientError: As `push_pull` does for its arguments.
        """
        part, exchange = self._running()
        if average and exchange.optimized:
            raise ValueError("parameters come back from the servers' optimizer: no average of them")
        if not values:
            none: Future[Sums] = self._runtime.future()
            none.set_result(Sums())
            return none

        def patience(chunks: int) -> StallTimeout:
            look = part.running_transport
            return StallTimeout(
                chunks, timeout, self._patience, self._on_stall, look, self._runtime.now
            )

        call, submit = exchange.call(values, average, out, patience, priority, copy=copy)
        part.enter(call, submit, self._provide)
        return call.future

    def pull(
        self,
        keys: Iterable[str] | None = None,
        *,
        out: Mapping[str, Floats] | None = None,
        timeout: float | None = None,
    ) -> Sums:
        """Returns the last complete values of keys: results of their last push, which are
        parameters with an optimizer.

        Waits for pushes of them under way. It sends no request: servers and switches push results
        to every worker. The arrays are those that `push_pull` returned, not copies.

        Args:
            keys: Names; None: all keys that were pushed.
            out: Arrays by key that the values are copied into, as for `push_pull`.
            timeout: Seconds; None: no limit.

        Raises:
            UnknownKeyError: No key of the job.
            NoValueError: A key that was never pushed.
            WrongShapeError, WrongTypeError: An array of `out` that does not fit.
            TimeoutError: `timeout` is over; the pushes go on.
            ClientError: The error of a push that it waits for.
        """
        part, exchange = self._running()
        names = list(keys) if keys is not None else None
        numbers = None if names is None else {exchange.tensors.number(name) for name in names}
        began = self._runtime.now()
        for call in part.under_way(numbers):
            left = None if timeout is None else max(0.0, began + timeout - self._runtime.now())
            result_of(call.future, left)
        return exchange.last(names, out)

    def push_pull(
        self,
        values: Mapping[str, Floats],
        *,
        average: bool = False,
        priority: int | None = None,
        out: Mapping[str, Floats] | None = None,
        timeout: float | None = None,
    ) -> Sums:
        """Adds each named array over all workers, and waits for the sums.

        Keys are sent in the order of declaration; keys left out must be left out by every worker.

        Args:
            values: Arrays by key.
            priority: As for `push`.
            average: Return the mean over the workers in each sum instead, float32(float64(sum) /
                workers), element by element. Refused in a job with an optimizer.
            out: Arrays that results are written to, for some keys or all: float32 of the values'
                shapes, C-contiguous; the values' own, too. They hold results once the call is done.
            timeout: Seconds; None: no limit.

        Returns:
            The sums in the shapes given, in the arrays of `out` where it has some; with an
            optimizer the parameters after the step, which the servers take with the mean.

        Raises:
            UnknownKeyError: No key of the job, or one in `out` that has no values.
            WrongShapeError: A shape other than the key's, or in `out` than the values'.
            WrongTypeError: No array, or one of another dtype; an array of `out` that does not fit.
            TooLargeError: Finite values of float64 that float32 does not have.
            PriorityError: A priority that the job does not have, or not that of the key.
            ValueError: `average` in a job with an optimizer.
            ClientError: The job has ended.
            StalledError: No sum arrived within the patience; this worker can only leave.
            TimeoutError: `timeout` is over; this worker can only leave.
        """
        pushed = self.push(
            values, average=average, priority=priority, out=out, copy=False, timeout=timeout
        )
        try:
            return pushed.result()
        except (KeyboardInterrupt, SystemExit):  # which do not end the push
            part, _ = self._running()
            with part.turn:
                part.own_values()
            raise

    def all_reduce(
        self,
        arrays: Iterable[Floats],
        *,
        average: bool = False,
        out: Iterable[Floats] | None = None,
        timeout: float | None = None,
    ) -> list[Floats]:
        """Returns the sums (or means) of arrays over all workers, one for each key in the order
        declared; in the arrays of `out`, of which there are as many.

        Raises:
            WrongShapeError: Another number of arrays.
            ClientError: As `push_pull`.
        """
        named, into = self.named(arrays), None if out is None else self.named(out)
        sums = self.push_pull(named, average=average, out=into, timeout=timeout)
        return [sums[name] for name in named]

    def named(self, arrays: Iterable[Floats]) -> dict[str, Floats]:
        """Returns arrays, one for each key in the order declared, by name.

        Raises:
            WrongShapeError: Another number of arrays.
        """
        names, given = self._running()[1].tensors.names, list(arrays)
        if len(given) != len(names):
            raise WrongShapeError(f"{len(given)} arrays for the {len(names)} keys declared")
        return dict(zip(names, given, strict=True))

    def checkpoint(self, path: str | Path) -> None:
        """Writes a checkpoint, from which `init_service` with `restore` continues the job,
        atomically.

        It has optimizer state and parameters of the servers, if they run one; the arrays that the
        `state` of `init_service` returns; and the scales of gradients. One worker of the job is
        enough. Call it between two rounds; it waits for pushes under way. The file is complete or
        absent.

        Raises:
            CheckpointError: It cannot be written, or the job is asynchronous.
            ClientError: The error of a push that it waits for.
        """
        part, exchange = self._running()
        check_whole(path, self._optimizer)
        for call in part.under_way():
            call.future.result()
        with part.turn:
            part.check()
            assert part.follower is not None
            # All begun rounds are complete, except that keys left out so far may still come.
            calls = self._calls(part.follower.barrier.begun)
        provide, tensors = self._state or dict, exchange.tensors
        save(path, part, tensors, calls, provide, self._optimizer, self._patience)

    def leave(self, reason: str = "", *, finished: bool = True) -> None:
        """Leaves the job; a second call does nothing.

        Args:
            reason: Why the worker gives up, which ends the job; pushes under way fail with
                UseAfterLeaveError. Without a reason it waits for them, and an error of theirs
                becomes the reason.
            finished: False: the other workers have further rounds, and go on without this one at
                once; another process may join in its place later.

        Raises:
            ClientError: The job service cannot be reached.
        """
        if self._left:
            return
        part = self._part
        if part is not None:
            part.check_thread()
        if part is not None and not reason:
            for call in part.under_way():
                error = call.future.exception()
                reason = reason or (f"{type(error).__name__}: {error}" if error else "")
        self._left = True
        try:
            if part is not None:
                part.leave(reason, others_go_on=not finished and not reason)
        finally:
            self._endpoint.close()

    def _provide(self) -> Arrays:
        if self._state is None:
            raise RuntimeError("init_service was called without `state`")
        return self._state()

    def _running(self) -> tuple[Participation, Exchange]:
        part = self._connected()
        part.check_thread()
        if part.transport is None or self._exchange is None:
            raise CallOrderError("call init_service first")
        return part, self._exchange
