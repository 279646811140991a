# SPDX-License-Identifier: Apache-2.0
"""Contenders as processes at the hosts of an emulated testbed, over the same links."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from baselines.contest import GLOO, IN_NETWORK, Contender, ContestError, Outcome, Work, service_of
from baselines.members import Report
from emulation.lifecycle.execution import begin
from emulation.lifecycle.launcher import Launch
from emulation.nodes.processes import environment, python
from observability.links import Carried
from observability.processinfo import tail
from observability.record import RunDirectory
from planner.expected import Direction
from testbed.preflight import JobPlan

Message = dict[str, Any]
_FIRST_PORT = 20_000  # member m's, of TCP
_SETTLE_SECONDS = 0.1
_MOST_SETTLE_SECONDS = 30.0
_TOLD_LINKS = 5

__all__ = ["play", "settled"]


def play(
    launched: Launch,
    contender: Contender,
    plan: JobPlan,
    work: Work,
    tell: Callable[[Message], None] = lambda message: None,
) -> Outcome:
    """Runs a contender on a testbed that is up. tell: takes how many of its iterations are over.

    Raises ContestError if one of its processes fails, LaunchError if the testbed does."""
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(_Process(launched.run, contender, number))
            for number in range(len(contender.ends))
        ]
        for number, one in enumerate(members):
            one.tell(_description(contender, number, plan, work))
        for one in members:
            one.answer()
        told = _all(members, {"do": "prepare"})[0]
        _all(members, {"do": "open", "told": told})
        _iterate(members, 0)
        before = _settled(launched)
        reports = []
        for number in range(1, work.iterations + 1):
            tell({"iterations": 1 + work.iterations, "iterations_done": number})
            reports.append(_iterate(members, number))
        now = _settled(launched)
        _all(members, {"do": "close"})
    carried = {way: load.since(before[way]) for way, load in now.items()}
    return Outcome(contender, tuple(reports), carried)


def _iterate(members: Sequence[_Process], number: int) -> tuple[Report, ...]:
    answers = _all(members, {"do": "iterate", "number": number})
    return tuple(Report(**one) for one in answers)


def _settled(launched: Launch) -> dict[Direction, Carried]:
    """What links have carried when nothing is under way any more. Raises ContestError if something
    goes on and on: it is of nobody who is compared."""
    return settled(lambda: _carried(launched), _MOST_SETTLE_SECONDS)


def settled(read: Callable[[], dict[Direction, Carried]], most: float) -> dict[Direction, Carried]:
    """What is read twice in a row. Raises ContestError if that does not come in `most` seconds."""
    until = time.monotonic() + most
    before = read()
    while True:
        time.sleep(_SETTLE_SECONDS)  # counters can only be read again
        now = read()
        moving = [way for way, load in now.items() if load != before.get(way)]
        if not moving:
            return now
        if time.monotonic() > until:
            some = ", ".join(f"{way.node} ({way.interface})" for way in moving[:_TOLD_LINKS])
            more = f" and {len(moving) - _TOLD_LINKS} more" if len(moving) > _TOLD_LINKS else ""
            raise ContestError(
                f"all members are done, but after {most:g} s these still send: {some}{more};"
                " what links carry cannot be told. See with `rackhub exec NODE tcpdump -ni"
                " INTERFACE` what it is, or try again if the machine is busy"
            )
        before = now


def _carried(launched: Launch) -> dict[Direction, Carried]:
    return {
        Direction(row["from"], row["interface"]): Carried(
            row["bytes"], row["packets"], dropped=row["dropped"]
        )
        for row in launched.ask("status")["links"]
    }


class _Process:
    """``baselines.process`` for a member, at its host; a context manager."""

    def __init__(self, run: RunDirectory, contender: Contender, number: int) -> None:
        self._run, self._number = run, number
        self._node = contender.ends[number].node
        self._log = run.logs / f"{contender.name}-{number}.log"

    def __enter__(self) -> _Process:
        there, self._input = os.pipe()
        output, here = os.pipe()
        self._output = os.fdopen(output, "r", encoding="utf-8")
        try:
            with self._log.open("wb") as log:
                self._connection: socket.socket = begin(
                    self._run,
                    self._node,
                    python("baselines.process"),
                    [there, here, log.fileno()],
                    environment(),
                )
        except BaseException:
            os.close(self._input)
            self._output.close()
            raise
        finally:
            os.close(there)
            os.close(here)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._input)
        if error is None:
            self._output.read()  # until it has ended
        self._connection.close()  # which ends it, if it has not
        self._output.close()

    def tell(self, message: Message) -> None:
        """Sends a request."""
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(self._input, data) :]

    def answer(self) -> Any:
        """Waits for what it says. Raises ContestError if that is an error, or nothing."""
        line = self._output.readline()
        told = json.loads(line) if line else {"error": "its process ended"}
        if "error" in told:
            raise ContestError(f"{self._node}: {told['error']}\n{tail(self._log)}")
        return told["answer"]


def _all(members: Sequence[_Process], message: Message) -> list[Any]:
    for one in members:
        one.tell(message)
    return [one.answer() for one in members]


def _description(contender: Contender, number: int, plan: JobPlan, work: Work) -> Message:
    """See ``baselines.process.begin``."""
    told: Message = {
        "name": contender.name,
        "member": number,
        "workers": contender.workers,
        "sizes": work.sizes,
    }
    if contender.name == IN_NETWORK:
        return {**told, "job": service_of(plan)}
    told["addresses"] = [
        (str(end.ipv4), _FIRST_PORT + member) for member, end in enumerate(contender.ends)
    ]
    told["set_up_tcp"] = True  # at a host of this testbed, whose namespace is its own
    if contender.name == GLOO:
        return {**told, "interface": contender.ends[number].interface}
    peers = [a + b - number for a, b in contender.pairs if number in (a, b)]
    part = contender.part(number, work.size)
    return {**told, "peers": peers, "piece": contender.piece(work.size), "part": part}
