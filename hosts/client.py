# SPDX-License-Identifier: Apache-2.0
"""A worker's way into a job: PHub's calls (SoCC'18, section 3.1), then sums over all workers.

    from hosts.client import Client

    # Once, by whoever starts the job; the nonce goes to its workers and servers.
    nonce, job = Client.create_service("unix:/run/jobs.sock", "digits", ["w0", "w1"], ["s0"])

    # In each worker:
    with Client("unix:/run/jobs.sock", address="10.0.0.1") as client:
        client.connect_service(nonce, rank=0)
        client.init_service({"weights": 784 * 10, "bias": 10})
        for step in range(100):
            gradients = {"weights": gradient_w, "bias": gradient_b}
            means = client.push_pull(gradients, average=True)
            weights -= rate * means["weights"]

With an optimizer the servers take the steps, and parameters come back instead of means:

        optimizer = OptimizerPlan("sgd", rate=0.1)
        weights = client.init_service({"weights": w, "bias": b}, optimizer=optimizer)
        for step in range(100):
            weights = client.push_pull(gradients)

Leaving the `with` block leaves the job, with the error as the reason if there is one. All workers
must make the same calls in the same order.

A job's plan may change under it: trees, windows, and workers that die or leave. `push_pull` only
takes longer then. Sums are of those who were in the job when they were made; all workers get the
same ones.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.chunks import Layout
from hosts.explanation import Outline, Waiting
from hosts.follower import HopelessError, WorkerFollower
from hosts.membership import (
    OUTAGE_SECONDS,
    ClientError,
    JobRefusedError,
    PlanWithdrawnError,
    Service,
    ServiceUnavailableError,
    UseAfterLeaveError,
    WrongNonceError,
    create_service,
    socket_path,
)
from hosts.optimizers import mean_of
from hosts.participation import Participation
from hosts.transport import WorkerTransport
from hosts.udp import Endpoint, drive
from protocol import jobs_pb2
from protocol.exponents import Exponents
from protocol.fixed_point import Floats
from protocol.optimizer import OptimizerPlan
from protocol.plan import Address, WorkerPlan

__all__ = [
    "Client",
    "ClientError",
    "JobRefusedError",
    "PlanWithdrawnError",
    "Service",
    "ServiceUnavailableError",
    "Stall",
    "StalledError",
    "Sums",
    "UseAfterLeaveError",
    "WrongNonceError",
]

_log = logging.getLogger(__name__)

# Without any sum for that long a call says that it waits, and says it again that often.
_STALL_SECONDS = 5.0
_STALL_AGAIN_SECONDS = 2.0


class StalledError(ClientError):
    """No sum came for longer than this worker's patience."""


@dataclass(frozen=True)
class Stall:
    """A call that waits without any sum arriving.

    seconds: since the last sum, or since the call. missing: chunks without a sum. oldest: the
    first of them in order of submission, None if none is in a window. node: the tree node that
    this worker sends it to.
    """

    seconds: float
    missing: int
    oldest: Waiting | None
    node: int | None

    def __str__(self) -> str:
        text = f"no sum for {self.seconds:.1f} s, {self.missing} chunks wait"
        if self.oldest is None:
            return text
        if self.oldest.node is None:
            return f"{text}; the first, sent to node {self.node}: {self.oldest}"
        return f"{text}; the first: {self.oldest}"


class Sums(dict[str, Floats]):
    """Arrays by name; `workers` has, for each, how many workers are in each of its chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, npt.NDArray[np.int64]] = {}


class Client:
    """One worker of one job.

    service: the job service's unix socket, `unix:PATH` or the path.
    address: this host's IPv4 address; None: the one its default route sends from.
    queue_bytes, link_rate (bit/s; 0: the plan's): of this host's interface, see `Endpoint`.
    headroom: binary digits by which a chunk may grow from one round to the next before it goes
        through the server in float32.
    outage: seconds for which the job service may be away before a call gives up.
    patience: seconds without any sum after which `push_pull` and `all_reduce` raise StalledError.
        A slower worker is no fault, so it should be far longer than a worker may compute.
    on_stall: called now and then during such a wait, from some seconds on.

    Not for use by several threads at once. Raises ClientError if there is no such service.
    """

    create_service = staticmethod(create_service)

    def __init__(
        self,
        service: str,
        *,
        address: str | None = None,
        queue_bytes: int | None = None,
        link_rate: int = 0,
        headroom: int = 2,
        outage: float = OUTAGE_SECONDS,
        patience: float = math.inf,
        on_stall: Callable[[Stall], None] | None = None,
    ) -> None:
        self._service = service
        self._patience = patience
        self._on_stall = on_stall
        self._link_rate = link_rate
        self._headroom = headroom
        self._outage = outage
        self._part: Participation | None = None
        self._layout: Layout | None = None
        self._keys: dict[str, int] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._optimized = False  # the servers run an optimizer
        self._broken: BaseException | None = None
        self._left = False
        socket_path(service)
        self._endpoint = Endpoint(
            (address or _own_address(), 0), link_rate=link_rate, queue_bytes=queue_bytes
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
        try:
            self.leave(f"{type(error).__name__}: {error}")
        except ClientError as second:
            _log.warning("the job service was not told: %s", second)

    # -- PHub's calls -----------------------------------------------------------------------------

    def connect_service(self, nonce: str, rank: int) -> None:
        """Joins the job as its worker `rank`. Raises ClientError, UseAfterLeaveError."""
        self._not_left()
        if self._part is not None:
            raise RuntimeError("connect_service was called before; a Client is in one job")
        address = Address(self._endpoint.ipv4, self._endpoint.port)
        self._part = Participation(
            self._service, nonce, rank, address, self._endpoint.wake, self._outage
        )

    def init_service(
        self,
        keys: Mapping[str, int | Floats],
        *,
        optimizer: OptimizerPlan | None = None,
        timeout: float | None = None,
    ) -> Sums:
        """Declares the keys, by name: float32 arrays (for their shapes) or numbers of elements.

        optimizer: run by the job's servers, the same at every worker. Keys are arrays then, the
        initial parameters. All workers should have the same; those of the first worker count
        (the first that is left, should it die meanwhile), and are returned. From then on
        `push_pull` takes gradients and returns parameters. Without it: returns nothing.

        Blocks until every worker and server of the job is in and it has a plan.
        Raises ClientError, TimeoutError after `timeout` seconds, TypeError for other dtypes, or
        numbers where parameters are needed.
        """
        part = self._connected()
        initial: dict[str, Floats] = {}
        if optimizer is not None:
            for name, key in keys.items():
                if not isinstance(key, np.ndarray):
                    raise TypeError(f"{name}: with an optimizer, keys are the initial parameters")
                initial[name] = key
        membership = part.membership
        if part.follower is not None:
            raise RuntimeError("init_service was called before; a job's keys do not change")
        shapes = [_shape(name, key) for name, key in keys.items()]
        sizes = [math.prod(shape) for shape in shapes]
        layout = Layout(sizes, max(1, membership.lanes))
        messages = [
            jobs_pb2.Key(key=number, name=name, elements=size)
            for number, (name, size) in enumerate(zip(keys, sizes, strict=True))
        ]
        self._layout = layout
        self._keys = {name: number for number, name in enumerate(keys)}
        self._shapes = shapes
        exponents = Exponents(layout.chunks, max(1, membership.world), self._headroom)
        part.begin(WorkerFollower(exponents, lambda plan: self._start(plan, exponents)))
        began = time.monotonic()
        # The last worker's call also installs the job, which takes as long as the switches do.
        membership.init(messages, timeout, optimizer)
        left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
        part.wait_for_plan(left)
        self._optimized = optimizer is not None
        left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
        return self.push_pull(initial, timeout=left) if initial else Sums()

    def push_pull(
        self, values: Mapping[str, Floats], *, average: bool = False, timeout: float | None = None
    ) -> Sums:
        """Adds each named array over all workers; returns the sums in the shapes given.

        average: the mean over the workers that are in each sum instead, float32(float64(sum) /
        workers), element by element, where sum is what would be returned without. In a job with an
        optimizer the servers take the mean, and what is returned are the parameters after its
        step; average is refused there (ValueError).
        Blocks until the sums are there. Keys go in the order in which they were declared; those
        left out stay out of this round, at every worker.
        Raises KeyError for an unknown key, ValueError or TypeError for another size or dtype,
        ClientError when the job ends under it or no sum comes for long, TimeoutError after
        `timeout` seconds (then this worker can only leave).
        """
        layout = self._running()[2]
        if average and self._optimized:
            raise ValueError("parameters come back from the servers' optimizer: no average of them")
        for name, value in values.items():
            self._check(name, value)
        names = sorted(values, key=self._keys.__getitem__)
        numbers = [self._keys[name] for name in names]
        if not numbers:
            return Sums()
        sums, workers = self._sum(
            np.concatenate([layout.chunks_of(number) for number in numbers]),
            np.concatenate(
                [layout.pack(k, values[n]) for k, n in zip(numbers, names, strict=True)]
            ),
            timeout,
        )
        if average:
            sums = mean_of(sums, workers)
        result = Sums()
        at = 0
        for name, number in zip(names, numbers, strict=True):
            here = slice(at, at + layout.counts[number])
            result[name] = layout.unpack(number, sums[here], np.shape(values[name]))
            result.workers[name] = workers[here]
            at = here.stop
        return result

    def all_reduce(
        self, arrays: Iterable[Floats], *, average: bool = False, timeout: float | None = None
    ) -> list[Floats]:
        """The sums (or means) of arrays over all workers, one for each key in the order declared.

        Raises what `push_pull` does, and ValueError for another number of arrays.
        """
        self._running()
        given = list(arrays)
        if len(given) != len(self._keys):
            raise ValueError(f"{len(given)} arrays for the {len(self._keys)} keys declared")
        named = dict(zip(self._keys, given, strict=True))
        sums = self.push_pull(named, average=average, timeout=timeout)
        return [sums[name] for name in self._keys]

    def leave(self, reason: str = "") -> None:
        """Leaves the job; again: nothing. A `reason` says that the worker gave up.

        Raises ClientError if the job service cannot be told.
        """
        if self._left:
            return
        self._left = True
        try:
            if self._part is not None:
                self._part.leave(reason)
        finally:
            self._endpoint.close()

    # -- what it can tell -------------------------------------------------------------------------

    @property
    def job(self) -> int:
        """The job's number."""
        return self._connected().membership.job

    @property
    def world(self) -> int:
        """Number of workers in the job as it is planned now."""
        part = self._connected()
        return part.membership.world if part.transport is None else part.transport.plan.world

    @property
    def epoch(self) -> int:
        """Number of the plan at hand; a job that is planned anew gets the next one."""
        return self._transport.plan.epoch

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts since the start: those of `hosts.reports.Statistics`, and the socket's.

        `completed` chunks were summed as integers in the tree, `completed_direct` ones by the
        server in float32; `retransmitted` packets were sent again; `socket` has the counters of
        `hosts.udp.Counters`.
        """
        statistics = self._transport.statistics
        # asdict would build a Counter from its items, counting those.
        counts = dataclasses.asdict(dataclasses.replace(statistics, dropped=Counter()))
        counts["dropped"] = dict(statistics.dropped)
        return {**counts, "socket": dataclasses.asdict(self._endpoint.counters)}

    def explain(self) -> list[Waiting]:
        """What is known of each chunk that this worker waits for."""
        return self._transport.explain(time.monotonic())

    def inquire(self, tell: Callable[[Outline | None], None], most: int = 8) -> None:
        """Has `tell` called soon, perhaps by another thread, with what this worker waits for.

        At most so many chunks of each stream; None: no plan yet. From any thread, also while
        another is in `push_pull`. Raises UseAfterLeaveError, RuntimeError before connect_service.
        """

        def look(transport: WorkerTransport | None) -> None:
            tell(transport.outline(time.monotonic(), most) if transport is not None else None)

        self._connected().look(look)

    # -- inside -----------------------------------------------------------------------------------

    def _start(self, plan: WorkerPlan, exponents: Exponents) -> WorkerTransport:
        """The transport of the first plan."""
        lanes = self._connected().membership.lanes
        if plan.lanes != lanes:
            raise ValueError(f"it has {plan.lanes} lanes per chunk, the data plane {lanes}")
        window = sum(stream.window for stream in plan.streams)
        self._endpoint.configure(plan.lanes, self._link_rate or plan.link_rate)
        if window > self._endpoint.capacity():
            _log.warning(
                "the receive buffer of %d bytes holds %d chunks, the job's windows are %d: results "
                "that arrive while this worker computes may be lost and asked for again; raise "
                "net.core.rmem_max or ask for a smaller window",
                self._endpoint.receive_buffer,
                self._endpoint.capacity(),
                window,
            )
        exponents.world = plan.world
        return WorkerTransport(plan, exponents, link_rate=self._link_rate or None)

    def _sum(
        self, chunks: Any, values: Floats, timeout: float | None
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        part, follower, layout = self._running()
        if self._broken is not None:
            raise ClientError(
                f"an earlier call failed and this worker can only leave: {self._broken}"
            ) from self._broken
        began = moved = time.monotonic()
        deadline = math.inf if timeout is None else began + timeout
        sums = np.empty_like(values)
        workers = np.zeros(len(chunks), np.int64)
        missing = len(chunks)

        def done() -> bool:
            nonlocal missing, moved
            part.obey()
            completed = self._transport.take_completed()
            if len(completed):
                sums[completed.tickets - first] = completed.sums
                workers[completed.tickets - first] = completed.workers
                missing -= len(completed)
                moved = time.monotonic()
            if missing == 0:
                return True
            if part.membership.failure is not None:
                raise part.membership.failure
            part.report_failures()
            return False

        try:
            with part.turn:
                first = self._transport.submit(chunks, values, layout.lanes_of[chunks])
                # Whoever waits is woken in time for the next notice, and for the end of patience.
                notice = began + _STALL_SECONDS
                while not drive(
                    follower,
                    self._endpoint,
                    done,
                    deadline=min(deadline, notice, moved + self._patience),
                ):
                    now = time.monotonic()
                    if now >= deadline:
                        raise TimeoutError(self._overdue(missing, timeout))
                    if now >= moved + self._patience:
                        stall = self._stall(now - moved, missing)
                        raise StalledError(f"{stall}; given up after {self._patience:g} s")
                    if now < moved + _STALL_SECONDS:
                        notice = moved + _STALL_SECONDS
                        continue
                    if self._on_stall is not None:
                        self._on_stall(self._stall(now - moved, missing))
                    notice = now + _STALL_AGAIN_SECONDS
        except HopelessError as error:
            self._broken = error
            raise ClientError(str(error)) from error
        except BaseException as error:
            # Chunks are in flight whose sums nobody will collect.
            self._broken = error
            raise
        finally:
            part.serve()
        return sums, workers

    def _overdue(self, missing: int, timeout: float | None) -> str:
        text = f"{missing} chunks without a sum after {timeout} s"
        waiting = self.explain()
        return f"{text}; the first: {waiting[0]}" if waiting else text

    def _stall(self, seconds: float, missing: int) -> Stall:
        waiting = self.explain()
        if not waiting:
            return Stall(seconds, missing, None, None)
        oldest = waiting[0]
        nodes = {stream.stream: stream.node for stream in self._transport.plan.streams}
        return Stall(seconds, missing, oldest, nodes[oldest.stream])

    def _check(self, name: str, value: Any) -> None:
        if name not in self._keys:
            raise KeyError(f"{name!r} is not a key of this job, those are {', '.join(self._keys)}")
        if not isinstance(value, np.ndarray) or value.dtype != np.float32:
            what = getattr(value, "dtype", type(value).__name__)
            raise TypeError(f"{name}: a float32 array is needed, this is {what}")
        shape = self._shapes[self._keys[name]]
        # A key declared by its number of elements takes any shape of that many.
        if value.shape != shape and (len(shape) != 1 or value.size != shape[0]):
            raise ValueError(f"{name}: declared with shape {shape}, given {value.shape}")

    def _not_left(self) -> None:
        if self._left:
            raise UseAfterLeaveError(
                "this worker has left its job; make a new Client to join another"
            )

    def _connected(self) -> Participation:
        self._not_left()
        if self._part is None:
            raise RuntimeError("call connect_service first")
        return self._part

    def _running(self) -> tuple[Participation, WorkerFollower, Layout]:
        part = self._connected()
        if part.follower is None or part.transport is None or self._layout is None:
            raise RuntimeError("call init_service first")
        return part, part.follower, self._layout

    @property
    def _transport(self) -> WorkerTransport:
        """Of the plan at hand."""
        transport = self._running()[0].transport
        assert transport is not None
        return transport


def _shape(name: str, key: int | Floats) -> tuple[int, ...]:
    """Shape of a key as it was declared."""
    if isinstance(key, np.ndarray):
        if key.dtype != np.float32:
            raise TypeError(f"{name}: keys are float32, this array is {key.dtype}")
        return key.shape
    return (int(key),)


def _own_address() -> str:
    """The IPv4 address that packets to elsewhere leave from. Raises OSError if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737); connecting sends nothing
        except OSError as error:
            raise OSError(
                error.errno, f"this host has no default route ({error.strerror}); pass address="
            ) from error
        address: str = probe.getsockname()[0]
        return address
