# SPDX-License-Identifier: Apache-2.0
"""Runs a contender as processes on the hosts of an emulated testbed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from baselines.comparison import (
    ComparisonError,
    Contender,
    Outcome,
    Work,
)
from baselines.contenders import service_of
from baselines.members import GLOO, IN_NETWORK, Report
from baselines.process import MemberSetup, Step
from emulation.lifecycle.execution import begin
from emulation.lifecycle.launcher import Launch
from emulation.nodes.processes import environment, python
from observability import control
from observability.links import Carried
from observability.messages.events import Within
from observability.processinfo import tail
from observability.record import RunDirectory
from planner.link_loads import Direction
from testbed.preflight import JobPlan

_FIRST_PORT = 20_000  # TCP port of member 0; member m adds m
_SETTLE_SECONDS = 0.1
_MOST_SETTLE_SECONDS = 30.0
_MOST_LINKS = 5  # named in an error message


def play(
    launched: Launch,
    contender: Contender,
    plan: JobPlan,
    work: Work,
    tell: Callable[[Within], None] = lambda message: None,
) -> Outcome:
    """Runs a contender on a running testbed.

    Args:
        tell: Receives the number of finished iterations.

    Raises:
        ComparisonError: A member process failed.
        LaunchError: The testbed failed.
    """
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(_Process(launched.run, contender, number))
            for number in range(len(contender.ends))
        ]
        for number, one in enumerate(members):
            one.tell(_description(contender, number, plan, work))
        for one in members:
            one.answer()
        prepared = _all(members, {"do": "prepare"})
        setup = next((one for one in prepared if one is not None), None)
        _all(members, {"do": "open", "setup": setup})
        _iterate(members, 0)
        before = _settled(launched)
        reports = []
        for number in range(1, work.iterations + 1):
            tell({"iterations": 1 + work.iterations, "iterations_done": number})
            reports.append(_iterate(members, number))
        now = _settled(launched)
        _all(members, {"do": "close"})
    carried = {way: load.since(before[way]) for way, load in now.items()}
    return Outcome(contender, tuple(reports), carried, "emulated")


def _iterate(members: Sequence[_Process], number: int) -> tuple[Report, ...]:
    answers = _all(members, {"do": "iterate", "number": number})
    return tuple(Report(**one) for one in answers)


def _settled(launched: Launch) -> dict[Direction, Carried]:
    """Returns link counters once traffic has stopped. Raises ComparisonError if it does not stop:
    then it is not the members' traffic."""
    return settled(lambda: _carried(launched), _MOST_SETTLE_SECONDS)


def settled(read: Callable[[], dict[Direction, Carried]], most: float) -> dict[Direction, Carried]:
    """Reads counters until two consecutive readings agree.

    Raises:
        ComparisonError: They still differ after `most` seconds.
    """
    until = time.monotonic() + most
    before = read()
    while True:
        time.sleep(_SETTLE_SECONDS)  # counters can only be polled
        now = read()
        moving = [way for way, load in now.items() if load != before.get(way)]
        if not moving:
            return now
        if time.monotonic() > until:
            some = ", ".join(f"{way.node} ({way.interface})" for way in moving[:_MOST_LINKS])
            more = f" and {len(moving) - _MOST_LINKS} more" if len(moving) > _MOST_LINKS else ""
            raise ComparisonError(
                f"all members are done, but after {most:g} s these still send: {some}{more};"
                " so link counters cannot be attributed. Find the traffic with `rackhub exec NODE"
                " tcpdump -ni INTERFACE`, or try again if the machine is busy"
            )
        before = now


def _carried(launched: Launch) -> dict[Direction, Carried]:
    return {
        Direction(row["from"], row["interface"]): Carried(
            row["bytes"], row["packets"], dropped=row["dropped"]
        )
        for row in launched.ask(control.status)["links"]
    }


class _Process:
    """A member's ``baselines.process`` on its host. A context manager."""

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
            self._output.read()  # waits for its end
        self._connection.close()  # kills it if it is still running
        self._output.close()

    def tell(self, message: MemberSetup | Step) -> None:
        """Sends a request."""
        with contextlib.suppress(BrokenPipeError):  # answer() reports the cause
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(self._input, data) :]

    def answer(self) -> Any:
        """Waits for the answer. Raises ComparisonError if it is an error or the process ended."""
        line = self._output.readline()
        message = json.loads(line) if line else {"error": "its process ended"}
        if "error" in message:
            raise ComparisonError(f"{self._node}: {message['error']}\n{tail(self._log)}")
        return message["answer"]


def _all(members: Sequence[_Process], message: Step) -> list[Any]:
    for one in members:
        one.tell(message)
    return [one.answer() for one in members]


def _description(contender: Contender, number: int, plan: JobPlan, work: Work) -> MemberSetup:
    """Returns the setup message for ``baselines.process.create_member``."""
    setup: MemberSetup = {
        "name": contender.name,
        "member": number,
        "workers": contender.workers,
        "sizes": work.sizes,
    }
    if contender.name == IN_NETWORK:
        return {**setup, "job": service_of(plan)} if number == 0 else setup
    setup["addresses"] = [
        (str(end.ipv4), _FIRST_PORT + member) for member, end in enumerate(contender.ends)
    ]
    setup["set_up_tcp"] = True  # the host's network namespace is the testbed's own
    if contender.name == GLOO:
        return {**setup, "interface": contender.ends[number].interface}
    peers = [a + b - number for a, b in contender.pairs if number in (a, b)]
    racks = [*contender.team.workers, *contender.team.servers]
    setup = {**setup, "racks": racks, "peers": peers, "piece": contender.piece}
    rank, switched = number - contender.workers, contender.switched
    if switched is not None and rank >= 0:
        setup["bounds"] = switched.bounds
        if rank == 0:
            setup["job"] = service_of(switched.plan)
    return setup
