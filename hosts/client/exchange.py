# SPDX-License-Identifier: Apache-2.0
"""A worker's keys as an application sees them: values in, and each key's last result out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hosts.data.tensors import Sums, Tensors, check_out
from hosts.errors import NoValueError, PriorityError
from hosts.session.calls import Call, Members, Workers
from hosts.session.stall_timeout import StallTimeout
from hosts.worker.transport import WorkerTransport
from protocol.payloads import Floats
from protocol.runtime import REAL, Runtime


class _Last(NamedTuple):
    """The last values of a key, from the call with that first ticket."""

    ticket: int
    values: Floats
    workers: Workers
    members: Members


class Exchange:
    """Makes calls of values and keeps their results.

    optimized: servers run an optimizer, so results are parameters.
    classes: of urgency that calls may choose from.
    """

    def __init__(self, tensors: Tensors, optimized: bool, runtime: Runtime = REAL) -> None:
        self.tensors = tensors
        self.optimized = optimized
        self._runtime = runtime
        self.classes = 1
        self._priorities: dict[str, int | None] = {}  # of keys that were pushed
        self._last: dict[str, _Last] = {}

    def call(
        self,
        values: Mapping[str, Floats],
        average: bool,
        out: Mapping[str, Floats] | None,
        patience: Callable[[int], StallTimeout],
        priority: int | None = None,
        *,
        copy: bool = True,
    ) -> tuple[Call, Callable[[WorkerTransport], int]]:
        """Returns a call with these values, of at least one key, and a function that submits it.

        out: arrays for results of some keys. patience: returns the StallTimeout of a call of so
        many chunks. priority: class of the keys, see Client.push. copy: the values may change
        before the call is done. Raises UnknownKeyError, WrongShapeError, WrongTypeError,
        TooLargeError, PriorityError.
        """
        tensors, given, into = self.tensors, dict(values), dict(out or {})
        names, selected, packed, sums = tensors.pack(given, copy=copy)
        check_out(into, given)
        self._check_priority(names, priority)

        def finish(workers: Workers, members: Members, ticket: int) -> Sums:
            result = tensors.unpack(names, given, sums, workers)
            result.members = members
            result.put(into)
            self.keep(result, ticket)
            return result

        numbers = [tensors.number(name) for name in names]
        chunks, lanes, ends = selected
        call = Call(numbers, ends, finish, patience(len(chunks)), self._runtime.future())

        def submit(transport: WorkerTransport) -> int:
            return transport.submit(chunks, packed, lanes, sums, priority, averages=average)

        return call, submit

    def _check_priority(self, names: Sequence[str], priority: int | None) -> None:
        """Keeps the priority of keys; raises PriorityError."""
        if priority is not None:
            priority = self._class(priority)
        if self.classes == 1:
            return
        for name in names:
            before = self._priorities.get(name, priority)
            if before != priority:
                raise PriorityError(
                    f"{name!r} is pushed with priority {_named(priority)}, and was with"
                    f" {_named(before)}: a key keeps its priority"
                )
        self._priorities.update(dict.fromkeys(names, priority))

    def _class(self, priority: object) -> int:
        """Returns a priority as a number of the job; raises PriorityError."""
        whole = isinstance(priority, int | np.integer) and not isinstance(priority, bool)
        if whole and 0 <= int(priority) < self.classes:  # type: ignore[call-overload]
            return int(priority)  # type: ignore[call-overload, no-any-return]
        allowed = (
            f"0 to {self.classes - 1}, which is sent first"
            if self.classes > 1
            else "none, as the job has one class of urgency (order priority gives it 8)"
        )
        raise PriorityError(f"priority {priority!r}; allowed: {allowed}")

    def parameters(self, initial: Mapping[str, Floats], transport: WorkerTransport) -> Sums:
        """Returns the current parameters of a worker that has joined, in the shapes of the initial
        ones."""
        names, *_ = self.tensors.pack(initial)
        found = self.tensors.unpack(names, initial, *transport.parameters())
        self.keep(found, -1)
        return found

    def keep(self, values: Sums, ticket: int) -> None:
        """Stores the results of the call with that first ticket; -1: of none."""
        for name, array in values.items():
            before = self._last.get(name)
            # A call of several keys may complete after later calls.
            if before is None or before.ticket < ticket:
                self._last[name] = _Last(ticket, array, values.workers[name], values.members)

    def last(self, names: Iterable[str] | None, out: Mapping[str, Floats] | None = None) -> Sums:
        """Returns the last results of these keys, or of all that were pushed, in the order
        declared; in the arrays of `out` where it has some.

        Raises NoValueError, and for `out` what `check_out` raises.
        """
        result = Sums()
        if names is None:
            names = [name for name in self.tensors.names if name in self._last]
        for name in names:
            last = self._last.get(name)
            if last is None:
                raise NoValueError(f"{name!r} was never pushed, so there is nothing to pull")
            result[name], result.workers[name] = last.values, last.workers
            result.members.update(last.members)
        if out:
            check_out(out, result)
            result.put(out)
        return result


def _named(priority: int | None) -> str:
    return "that of its place" if priority is None else str(priority)
