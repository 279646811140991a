# SPDX-License-Identifier: Apache-2.0
"""Remote procedure calls between nodes, in place of gRPC: a latency each way instead of sockets.

Servicers are unchanged, with a context that aborts like gRPC's; callers get a stub whose calls wait
and fail like those of a generated one. Messages are copied, as on a wire.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, NoReturn, TypeVar

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


class Stub:
    """Calls a service at another node, until `close`.

    find: returns the servicer at the time of a call, and its process; None while there is none.
    peer: the caller's address for the servicer.
    process: the caller's.

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
    ) -> None:
        self.engine, self.source, self.target, self.peer = engine, source, target, peer
        self.process = process
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
    engine, source, target = stub.engine, stub.source, stub.target
    ended = source.tasks.event()
    outcome: list[Any] = []
    sent = _copied(request)

    def work(servicer: Any) -> None:
        context = CallContext(stub.peer)
        try:
            answer = _copied(getattr(servicer, name)(sent, context))
        except CallError as error:
            answer = error
        context.end()
        back(answer)

    def back(answer: Any) -> None:
        engine.post(target, source, target.now + engine.control_latency, lambda: arrive(answer))

    def arrive(answer: Any) -> None:
        outcome.append(answer)
        ended.set()

    engine.post(
        source,
        target,
        source.now + engine.control_latency,
        lambda: stub.begin(name, work, back),
    )
    if not ended.wait(timeout):
        raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout:g} s")
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
        sent = _copied(request)

        def work(servicer: Any) -> None:
            self._serving = stub.target.tasks.process
            try:
                for answer in getattr(servicer, name)(sent, self._context):
                    self._back(_copied(answer))
                self._back(None)
            except CallError as error:
                self._back(error)
            self._context.end()

        def broken(error: CallError) -> None:
            self._context = CallContext(stub.peer)  # which nothing of the service holds
            self._back(error)

        self._there(lambda: stub.begin(name, work, broken))
        self._forget: Callable[[], None] = lambda: None
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
        self.over = True
        self._came.clear()
        self._came.append(CallError(code, details))
        self._news.set()
        self._forget()
        tasks = self._stub.target.tasks
        self._there(lambda: tasks.thread(self._context.end, "ended", process=self._serving).start())

    def _there(self, work: Callable[[], None]) -> None:
        stub = self._stub
        at = stub.source.now + stub.engine.control_latency
        stub.engine.post(stub.source, stub.target, at, work)

    def _back(self, answer: Any) -> None:
        stub, node = self._stub, self._stub.target

        def arrive() -> None:
            if not self.over:
                self._came.append(answer)
                self._news.set()

        stub.engine.post(node, stub.source, node.now + stub.engine.control_latency, arrive)


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


def _copied(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())
