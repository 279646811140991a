# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio: the same calls, awaited.

    async with AsyncClient("unix:/run/jobs.sock", address="10.0.0.1") as client:
        await client.connect_service(nonce, rank=0)
        await client.init_service({"weights": 7840, "bias": 10})
        last = await client.push({"bias": gradient_b})      # on its way
        first = await client.push({"weights": gradient_w})  # another one
        bias = (await last)["bias"]

It wraps a `Client` whose calls run in order in one thread, so the event loop never blocks.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from hosts.client.blocking import Client
from hosts.data.keys import Keys, Shapes, Types
from hosts.data.tensors import Sums
from protocol.consistency import Consistency
from protocol.optimizer_plan import OptimizerPlan
from protocol.payloads import Floats
from protocol.state import Arrays

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncClient:
    """A Client for asyncio, with the same options.

    Concurrent tasks' calls are made in the order in which they were started; it must be the same at
    all workers. `async with` leaves the job at its end, as `with` does for a Client.

    Args:
        service: As for Client.
        **options: As for Client.

    Attributes:
        client: The wrapped Client, for its properties.
    """

    def __init__(self, service: str | None = None, **options: Any) -> None:
        self.client = Client(service, **options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="calls")
        self._left = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._call(self.client.__exit__, kind, error, traceback)
        finally:
            self._end()

    async def connect_service(self, nonce: str | None = None, rank: int | None = None) -> None:
        """Joins the job, see Client.connect_service."""
        await self._call(self.client.connect_service, nonce, rank)

    async def init_service(
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
        """Declares the keys, see Client.init_service; `state` is called in the event loop."""
        loop = asyncio.get_running_loop()
        return await self._call(
            self.client.init_service,
            keys,
            shapes,
            dtypes,
            optimizer=optimizer,
            state=functools.partial(_ask, loop, state) if state is not None else None,
            restore=restore,
            consistency=consistency,
            timeout=timeout,
        )

    async def push(
        self,
        values: Mapping[str, Floats],
        *,
        average: bool = False,
        priority: int | None = None,
        out: Mapping[str, Floats] | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> asyncio.Future[Sums]:
        """Begins a push, see Client.push; await the returned future for its result."""
        push = functools.partial(self.client.push, priority=priority, copy=copy)
        future = await self._call(push, values, average=average, out=out, timeout=timeout)
        return asyncio.wrap_future(future)

    async def pull(
        self,
        keys: Iterable[str] | None = None,
        *,
        out: Mapping[str, Floats] | None = None,
        timeout: float | None = None,
    ) -> Sums:
        """Returns the last values of keys, see Client.pull. Pushes may begin meanwhile."""
        return await asyncio.to_thread(self.client.pull, keys, out=out, timeout=timeout)

    async def push_pull(
        self,
        values: Mapping[str, Floats],
        *,
        average: bool = False,
        priority: int | None = None,
        out: Mapping[str, Floats] | None = None,
        timeout: float | None = None,
    ) -> Sums:
        """Adds arrays over all workers, see Client.push_pull."""
        return await (
            await self.push(values, average=average, priority=priority, out=out, timeout=timeout)
        )

    async def all_reduce(
        self,
        arrays: Iterable[Floats],
        *,
        average: bool = False,
        out: Iterable[Floats] | None = None,
        timeout: float | None = None,
    ) -> list[Floats]:
        """See Client.all_reduce."""
        named, into = self.client.named(arrays), None if out is None else self.client.named(out)
        sums = await self.push_pull(named, average=average, out=into, timeout=timeout)
        return [sums[name] for name in named]

    async def checkpoint(self, path: str | Path) -> None:
        """Writes a checkpoint, see Client.checkpoint; `state` is called in the event loop."""
        await self._call(self.client.checkpoint, path)

    async def leave(self, reason: str = "", *, finished: bool = True) -> None:
        """Leaves the job, see Client.leave."""
        try:
            await self._call(self.client.leave, reason, finished=finished)
        finally:
            self._end()

    def _end(self) -> None:
        self._left = True
        self._thread.shutdown(wait=False)

    async def _call(self, call: Callable[_P, _T], *given: _P.args, **options: _P.kwargs) -> _T:
        work = functools.partial(call, *given, **options)
        if self._left:
            return work()  # raises UseAfterLeaveError, or does nothing
        loop = asyncio.get_running_loop()
        # Cancelling a task does not undo its call: all workers must make the same ones.
        return await asyncio.shield(loop.run_in_executor(self._thread, work))


def _ask(loop: asyncio.AbstractEventLoop, state: Callable[[], Arrays]) -> Arrays:
    """Calls `state` in the event loop's thread, where alone the application's state changes."""
    answer: Future[Arrays] = Future()

    def ask() -> None:
        try:
            answer.set_result(state())
        except BaseException as error:
            answer.set_exception(error)

    loop.call_soon_threadsafe(ask)
    return answer.result()
