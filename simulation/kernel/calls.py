# SPDX-License-Identifier: Apache-2.0
"""Remote procedure calls between nodes, in place of gRPC.

A `Carrier` takes requests there and answers back: after a latency each way, or over links.
Servicers are unchanged, with a context that aborts like gRPC's; callers get a stub whose calls wait
and fail like those of a generated one. Messages are copied, as on a wire.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import grpc
from greenlet import GreenletExit

from simulation.errors import ProcessEndedError
from simulation.kernel.engine import Engine, Node
from simulation.kernel.processes import Process
from simulation.kernel.task_node import TaskNode
from simulation.links.trains import NEVER, picoseconds

Result = TypeVar("Result")
Metadata = tuple[tuple[str, str], ...]
_RETRY_SECONDS = 0.01  # interval of attempts while waiting for a service
STREAMS = frozenset({"Watch", "Fetch", "Move", "Save"})
_FRAMING = 64  # bytes of a message beside its own: headers of HTTP/2 and gRPC


class CallError(grpc.RpcError):
    """A failed call; implements grpc.Call."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        """Implements grpc.Call."""
        return self._code

    def details(self) -> str:
        """Implements grpc.Call."""
        return self._details

    def trailing_metadata(self) -> Any:
        """Implements grpc.Call."""
        return self._metadata


class CallContext:
    """The context of a call at the servicer; implements grpc.ServicerContext."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._active = True
        self._callbacks: list[Callable[[], None]] = []
        self._metadata: Metadata = ()

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Implements grpc.ServicerContext."""
        self._metadata = metadata

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Implements grpc.ServicerContext."""
        raise CallError(code, details, self._metadata)

    def peer(self) -> str:
        """Implements grpc.ServicerContext."""
        return self._peer

    def is_active(self) -> bool:
        """Implements grpc.RpcContext."""
        return self._active

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Implements grpc.RpcContext."""
        if self._active:
            self._callbacks.append(callback)
        return self._active

    def end(self) -> None:
        """Ends the call and runs its callbacks."""
        if self._active:
            self._active = False
            for callback in self._callbacks:
                callback()


class Answering(NamedTuple):
    """A servicer, and the process of which it is a part, if its node has any."""

    servicer: Any
    process: Process | None = None


class Carrier(Protocol):
    """Takes the messages of calls from one node to another, and back."""

    def there(self, size: int, work: Callable[[], None]) -> Callable[[], None]:
        """Has `work` run at the servicer's node once `size` bytes have arrived there; call at the
        caller's. Returns a function that gives this up if it has not happened."""

    def back(self, size: int, work: Callable[[], None]) -> Callable[[], None]:
        """The same from the servicer's node to the caller's."""

    def watch(self, fail: Callable[[CallError], None]) -> Callable[[], None]:
        """Has `fail` run at the caller's node if the other one does not answer any more, until the
        result is called."""


class LatencyCarrier:
    """Takes messages of any size in the engine's latency of calls, whatever happens to links."""

    def __init__(self, engine: Engine, source: Node, target: Node) -> None:
        self._engine, self._source, self._target = engine, source, target

    def there(self, size: int, work: Callable[[], None]) -> Callable[[], None]:
        """Implements Carrier."""
        return self._post(self._source, self._target, work)

    def back(self, size: int, work: Callable[[], None]) -> Callable[[], None]:
        """Implements Carrier."""
        return self._post(self._target, self._source, work)

    def watch(self, fail: Callable[[CallError], None]) -> Callable[[], None]:
        """Implements Carrier: it never fails."""
        return _nothing

    def _post(self, source: Node, target: Node, work: Callable[[], None]) -> Callable[[], None]:
        self._engine.post(source, target, source.now + self._engine.control_latency, work)
        return _nothing


class Stub:
    """Calls a service at another node, until `close`.

    find: returns the servicer at the time of a call, and its process; None while there is none.
    peer: the caller's address for the servicer.
    process: the caller's.
    carrier: of messages; None: one by latency.

    Calls of a process that is killed end as broken connections do.
    """

    def __init__(
        self,
        engine: Engine,
        source: TaskNode,
        target: TaskNode,
        find: Callable[[], Answering | None],
        peer: str,
        process: Process | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self.source, self.target, self.peer = source, target, peer
        self.process = process
        self.carrier = carrier or LatencyCarrier(engine, source, target)
        self._find = find
        self.closed = False
        self._streams: list[_Stream] = []
        self._methods: dict[str, _Method] = {}

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._methods.setdefault(name, _Method(self, name))

    def begin(
        self, name: str, work: Callable[[Any], None], broken: Callable[[CallError], None]
    ) -> None:
        """Has a task of the service's process, at its node, call `work` with the servicer; `broken`
        gets the error if there is none, or the process is killed before `work` returns."""
        found = self._find()
        if found is None:
            broken(CallError(grpc.StatusCode.UNAVAILABLE, "no service answers there"))
            return
        process = found.process
        cancel = None
        if process is not None:
            cancel = process.holds(
                lambda how: broken(CallError(grpc.StatusCode.UNAVAILABLE, f"the service {how}"))
            )

        def there() -> None:
            work(found.servicer)
            if cancel is not None:
                cancel()

        self.target.tasks.thread(there, name=name, process=process).start()

    def stream(self, one: _Stream) -> _Stream:
        """Registers a stream, which ends with the stub."""
        self._streams = [other for other in self._streams if not other.over]
        self._streams.append(one)
        return one

    def close(self) -> None:
        """Ends all calls."""
        self.closed = True
        for stream in self._streams:
            stream.cancel()


class _Method:
    def __init__(self, stub: Stub, name: str) -> None:
        self._stub, self._name = stub, name

    def __call__(
        self, request: Any, timeout: float | None = None, wait_for_ready: bool = False
    ) -> Any:
        stub, name = self._stub, self._name
        if stub.source.tasks.ending:
            raise GreenletExit
        if stub.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")  # as gRPC does
        if name in STREAMS:
            return stub.stream(_Stream(stub, name, request, timeout))
        runtime = stub.source.tasks
        until = runtime.now() + (float("inf") if timeout is None else timeout)
        while True:
            try:
                return _unary(stub, name, request, timeout)
            except CallError as error:
                away = error.code() == grpc.StatusCode.UNAVAILABLE
                if not (wait_for_ready and away) or runtime.now() >= until:
                    raise
            runtime.sleep(_RETRY_SECONDS)

    def future(self, request: Any, timeout: float | None = None) -> Future[Any]:
        """Starts the call; see grpc.UnaryUnaryMultiCallable."""
        tasks = self._stub.source.tasks
        future: Future[Any] = tasks.future()

        def work() -> None:
            try:
                answer = self(request, timeout)
            except (CallError, ValueError) as error:
                future.set_exception(error)
            else:
                future.set_result(answer)

        tasks.thread(work, name=self._name).start()
        return future


def _unary(stub: Stub, name: str, request: Any, timeout: float | None) -> Any:
    carrier = stub.carrier
    ended = stub.source.tasks.event()
    outcome: list[Any] = []
    sent, size = _copied(request)

    def work(servicer: Any) -> None:
        context = CallContext(stub.peer)
        try:
            answer, length = _copied(getattr(servicer, name)(sent, context))
        except CallError as error:
            answer, length = error, _FRAMING
        context.end()
        carrier.back(length, lambda: arrive(answer))

    def broken(error: CallError) -> None:
        carrier.back(_FRAMING, lambda: arrive(error))

    def arrive(answer: Any) -> None:
        outcome.append(answer)
        ended.set()

    unwatch = carrier.watch(arrive)
    give_up = carrier.there(size, lambda: stub.begin(name, work, broken))
    try:
        if not ended.wait(timeout):
            give_up()
            raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s")
    finally:
        unwatch()
    if isinstance(outcome[0], CallError):
        raise outcome[0]
    return outcome[0]


class _Stream:
    """The response stream of a call."""

    def __init__(self, stub: Stub, name: str, request: Any, timeout: float | None) -> None:
        self.over = False
        self._stub = stub
        self._context = CallContext(stub.peer)
        self._came: deque[Any] = deque()
        self._news = stub.source.tasks.event()
        self._timeout = timeout
        self._serving: Process | None = None
        sent, size = _copied(request)
        # At the servicer's node: parts sent, and what gives them up.
        self._sent: list[Callable[[], None]] = []
        # Parts that have overtaken others, by number, and the number of the next.
        self._early: dict[int, Any] = {}
        self._next = 0

        def work(servicer: Any) -> None:
            self._serving = stub.target.tasks.process
            try:
                for answer in getattr(servicer, name)(sent, self._context):
                    self._back(*_copied(answer))
                self._back(None)
            except CallError as error:
                self._back(error)
            self._context.end()

        def broken(error: CallError) -> None:
            self._context = CallContext(stub.peer)  # which nothing of the service holds
            self._back(error)

        self._unwatch = stub.carrier.watch(self._fail)
        self._give_up = stub.carrier.there(size, lambda: stub.begin(name, work, broken))
        self._forget: Callable[[], None] = _nothing
        if stub.process is not None:
            self._forget = stub.process.holds(lambda _: self.cancel())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._came:
            self._news.clear()
            if not self._news.wait(self._timeout):
                self.cancel(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        answer = self._came[0]
        if answer is None or isinstance(answer, CallError):
            self.over = True
            self._unwatch()
            self._forget()
            if answer is None:
                raise StopIteration
            raise answer
        return self._came.popleft()

    def cancel(
        self,
        code: grpc.StatusCode = grpc.StatusCode.CANCELLED,
        details: str = "Channel closed!",
    ) -> None:
        """Ends the stream, at the caller at once."""
        if self.over:
            return
        self._give_up()
        self._fail(CallError(code, details))
        tasks = self._stub.target.tasks

        def end() -> None:
            for give_up in self._sent:
                give_up()
            tasks.thread(self._context.end, "ended", process=self._serving).start()

        self._stub.carrier.there(_FRAMING, end)

    def _fail(self, error: CallError) -> None:
        """Ends the stream at the caller."""
        self.over = True
        self._came.clear()
        self._came.append(error)
        self._news.set()
        self._unwatch()
        self._forget()

    def _back(self, answer: Any, size: int = 0) -> None:
        number = len(self._sent)

        def arrive() -> None:
            self._early[number] = answer
            while not self.over and self._next in self._early:
                self._came.append(self._early.pop(self._next))
                self._next += 1
                self._news.set()

        self._sent.append(self._stub.carrier.back(max(size, _FRAMING), arrive))


def ask(
    engine: Engine,
    source: TaskNode,
    target: Node,
    work: Callable[[], Result],
    process: Callable[[], Process | None] = lambda: None,
    seconds: float = math.inf,
    *,
    insists: bool = False,
) -> Result:
    """Runs `work` at another node, in a task if it has any; returns its result or raises.

    process: returns, at that node, the task's. Raises ProcessEndedError if that is killed before
    the end of `work`.
    seconds: CallError is raised after that time if the node puts it off (`Node.put_off`); it
        executes `work` later only if the caller insists.
    """
    ended = source.tasks.event()
    outcome: list[tuple[bool, Any]] = []
    due = NEVER if seconds == math.inf else source.now + picoseconds(seconds)

    def there() -> None:
        answer: tuple[bool, Any]
        if outcome and not insists:
            return
        try:
            answer = True, work()
        except Exception as error:  # raised at the caller
            answer = False, error
        back(answer)

    def back(answer: tuple[bool, Any]) -> None:
        engine.post(target, source, target.now + engine.control_latency, lambda: arrive(answer))

    def arrive(answer: tuple[bool, Any]) -> None:
        outcome.append(answer)
        ended.set()

    def give_up() -> None:
        text = f"no answer within {seconds:g} s"
        arrive((False, CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text)))

    def begin() -> None:
        if not isinstance(target, TaskNode):
            if not target.put_off(there):
                there()
            elif due < NEVER:
                at = max(due, target.now + engine.control_latency)
                engine.post(target, source, at, give_up)
            return
        mine = process()
        cancel = None
        if mine is not None:
            name = mine.name
            cancel = mine.holds(lambda how: back((False, ProcessEndedError(f"{name} {how}"))))

        def within() -> None:
            there()
            if cancel is not None:
                cancel()

        task = getattr(work, "__name__", "work")
        target.tasks.thread(within, task, process=mine).start()

    engine.post(source, target, source.now + engine.control_latency, begin)
    ended.wait()
    well, result = outcome[0]
    if not well:
        raise result
    returned: Result = result
    return returned


def _copied(message: Any) -> tuple[Any, int]:
    """Returns a copy of a message, and its bytes on a wire."""
    data = message.SerializeToString()
    return type(message).FromString(data), _FRAMING + len(data)


def _nothing() -> None:
    pass
