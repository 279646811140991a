# SPDX-License-Identifier: Apache-2.0
"""Calls between the servers of a job with an optimizer: gRPC over TCP, across the data network.

`ShardServer` serves other servers; `Peers` calls them. The state machines authorise calls by the
caller's address, which edge ports verify.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ipaddress import IPv4Address
from typing import Any, TypeVar

import grpc
import numpy as np

from hosts.data.snapshot import Chunks, Snapshot, from_message, pages, to_message
from hosts.net.environment import HERE, Connection, HostEnvironment
from hosts.server.chunk_fetches import MoveTask
from hosts.server.epoch_change import FetchTask
from hosts.server.state import NotHereError, UnknownPeerError, Update
from protocol import shards_pb2
from protocol.plan import Address
from protocol.shards_pb2_grpc import ShardServiceServicer

_log = logging.getLogger(__name__)

# A call that takes longer was lost with its connection (a restarted switch) and is retried.
_CALL_SECONDS = 2.0
_STREAM_SECONDS = 30.0  # the same for many chunks, over links that may be slow or busy
_AGAIN_SECONDS = 0.2
_WORK_SECONDS = 5.0  # for the thread that owns the state machines; then the caller retries

Result = TypeVar("Result")
Later = Callable[[Callable[[], None]], None]
# With job, epoch and the caller's IPv4 address.
Get = Callable[[int, int, int, Chunks], Snapshot]
Put = Callable[[int, int, int, Snapshot], None]
Load = Callable[[int, int, int, Snapshot, bool], None]
Move = Callable[[int, shards_pb2.FetchRequest], Snapshot]


class ShardServer(ShardServiceServicer):
    """Serves other servers at an address (`stop` ends it).

    later: runs work in the thread that owns the state machines.
    replicate, move, save, load: see ServerState.
    give: see ServerEpochs, with the job first.

    Raises OSError if the port is taken.
    """

    def __init__(
        self,
        address: Address,
        later: Later,
        replicate: Put,
        give: Get,
        move: Move,
        save: Get,
        load: Load,
        environment: HostEnvironment = HERE,
    ) -> None:
        self._runtime = environment.runtime
        self._later = later
        self._replicate = replicate
        self._give = give
        self._move = move
        self._save = save
        self._load = load
        self._stop = environment.answer(address, self)

    def stop(self) -> None:
        """Ends all calls."""
        self._stop()

    def Replicate(  # noqa: N802
        self, request: shards_pb2.Shard, context: grpc.ServicerContext
    ) -> shards_pb2.Held:
        """Stores copies that a primary has stepped; see shards.proto."""
        return self._put(self._replicate, request, context)

    def Load(  # noqa: N802
        self, request: shards_pb2.Shard, context: grpc.ServicerContext
    ) -> shards_pb2.Held:
        """Stores optimizer state of a checkpoint; see shards.proto."""

        def put(job: int, epoch: int, source: int, snapshot: Snapshot) -> None:
            self._load(job, epoch, source, snapshot, request.replica)

        return self._put(put, request, context)

    def _put(
        self, put: Put, request: shards_pb2.Shard, context: grpc.ServicerContext
    ) -> shards_pb2.Held:
        source = _source(context)
        self._do(context, lambda: put(request.job, request.epoch, source, from_message(request)))
        return shards_pb2.Held()

    def Fetch(  # noqa: N802
        self, request: shards_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[shards_pb2.Shard]:
        """Returns chunks while all members have halted; see shards.proto."""
        yield from self._get(self._give, request, context)

    def Move(  # noqa: N802
        self, request: shards_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[shards_pb2.Shard]:
        """Returns chunks that the caller has taken over; see shards.proto."""
        source = _source(context)
        yield from self._pages(lambda: self._move(source, request), request, context)

    def Save(  # noqa: N802
        self, request: shards_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[shards_pb2.Shard]:
        """Returns chunks for a checkpoint; see shards.proto."""
        yield from self._get(self._save, request, context)

    def _get(
        self, get: Get, request: shards_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[shards_pb2.Shard]:
        source = _source(context)

        def give() -> Snapshot:
            chunks = np.frombuffer(request.chunks, "<u4").astype(np.int64)
            return get(request.job, request.epoch, source, chunks)

        yield from self._pages(give, request, context)

    def _pages(
        self,
        give: Callable[[], Snapshot],
        request: shards_pb2.FetchRequest,
        context: grpc.ServicerContext,
    ) -> Iterator[shards_pb2.Shard]:
        for part in pages(self._do(context, give)):
            yield to_message(request.job, request.epoch, part)

    def _do(self, context: grpc.ServicerContext, work: Callable[[], Result]) -> Result:
        """Runs work in the thread that owns the state machines; aborts the call with the reason of
        a failure."""
        done: Future[Result] = self._runtime.future()

        def run() -> None:
            try:
                done.set_result(work())
            except ValueError as error:  # NotHereError included
                done.set_exception(error)

        self._later(run)
        try:
            return done.result(_WORK_SECONDS)
        except UnknownPeerError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except NotHereError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except concurrent.futures.TimeoutError:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"busy for {_WORK_SECONDS:g} s")
        raise AssertionError("abort returned")


def _source(context: grpc.ServicerContext) -> int:
    """Returns the IPv4 address of the caller; aborts the call if there is none."""
    kind, _, rest = context.peer().partition(":")
    if kind != "ipv4":
        context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{kind} callers are no servers")
    return int(IPv4Address(rest.rpartition(":")[0]))


class Peers:
    """Calls other servers, from this server's own address, until they answer.

    later: runs work in the thread that owns the state machines.
    """

    def __init__(self, later: Later, environment: HostEnvironment = HERE) -> None:
        self._later = later
        self._environment, self._runtime = environment, environment.runtime
        self._attempts = itertools.count(1)
        self._connections: dict[Address, Connection] = {}
        self._over = self._runtime.event()

    def close(self) -> None:
        """Ends all calls."""
        self._over.set()
        for connection in self._connections.values():
            connection.close()

    def replicate(
        self, update: Update, waits: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        """Sends an update to a backup, then calls `done`; retries while `waits(update)` is true."""
        message = to_message(update.job, update.epoch, update.snapshot)
        self._send(update, message, waits, done)

    def fetch(
        self,
        job: int,
        task: FetchTask,
        wants: Callable[[], bool],
        take: Callable[[Snapshot], None],
        done: Callable[[], None],
    ) -> None:
        """Fetches chunks in a thread: calls `take` for each part and `done` at the end.

        Retries while `wants` is true. All three run in the thread that owns the state machines.
        """
        request = shards_pb2.FetchRequest(
            job=job, epoch=task.epoch, chunks=task.chunks.astype("<u4").tobytes()
        )

        def ask(stub: Any) -> None:
            for message in stub.Fetch(request, timeout=_STREAM_SECONDS):
                part = from_message(message)
                self._later(lambda part=part: take(part))  # type: ignore[misc]
            self._later(done)

        self._insist(job, task.server, wants, ask)

    def move(
        self, task: MoveTask, wants: Callable[[], bool], done: Callable[[list[Snapshot]], None]
    ) -> None:
        """Makes a call in a thread, then calls `done` with its answer.

        Retries while `wants` is true. Both run in the thread that owns the state machines.
        """

        def ask(stub: Any) -> None:
            request = task.to_message(next(self._attempts))
            parts = [
                from_message(message) for message in stub.Move(request, timeout=_STREAM_SECONDS)
            ]
            self._later(lambda: done(parts))

        self._insist(task.job, task.server, wants, ask)

    def _insist(
        self, job: int, server: Address, wants: Callable[[], bool], ask: Callable[[Any], None]
    ) -> None:
        """Calls `ask` with a server's stub in a thread, until it succeeds or nobody wants it."""
        stub = self._stub(server)

        def again() -> None:
            while not self._over.is_set() and wants():
                try:
                    ask(stub)
                    return
                except (grpc.RpcError, ValueError) as error:
                    if self._over.is_set():
                        return
                    _log.info("job %d: fetching from %s: %s", job, server, _words(error))
                self._over.wait(_AGAIN_SECONDS)

        self._runtime.thread(again, name=f"fetch-{server}", daemon=True).start()

    def _send(
        self,
        update: Update,
        message: shards_pb2.Shard,
        waits: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        call = self._stub(update.backup).Replicate.future(message, timeout=_CALL_SECONDS)

        def ended(call: Any) -> None:
            if self._over.is_set():
                return
            error = call.exception()
            if error is None:
                self._later(done)
                return
            _log.info("job %d: replica at %s: %s", update.job, update.backup, _words(error))
            self._runtime.timer(_AGAIN_SECONDS, lambda: self._later(again)).start()

        def again() -> None:
            if waits() and not self._over.is_set():
                self._send(update, message, waits, done)

        call.add_done_callback(ended)

    def _stub(self, address: Address) -> Any:
        if address not in self._connections:
            self._connections[address] = self._environment.peer(address)
        return self._connections[address].stub


def _words(error: Any) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name.lower()}, {error.details()}"
    return str(error)
