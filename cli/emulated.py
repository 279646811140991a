# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on an emulated testbed: bring up, submit, wait, take down, with a progress view."""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cli import pipes
from cli.display.progress import View
from emulation.lifecycle.launcher import Launch, launch
from observability import control
from observability.control import ControlError
from observability.messages.events import EmitEvent, Event
from observability.messages.summary import FinishedJob
from observability.record import RunDirectory, shown
from observability.wording import count
from specs.faultfile import Fault
from testbed.errors import LaunchError
from topologies.model.units import time_text

_POLL_SECONDS = 0.2


class EndedError(SystemExit):
    """A signal asked this process to end, or its output pipe was closed."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name
        if number == signal.SIGPIPE:
            self.name += " (its output pipe is closed)"


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into exceptions, as Ctrl-C is, so that contexts exit in order."""

    def end(number: int, _: object) -> None:
        raise EndedError(signal.SIGPIPE if pipes.is_reader_gone() else number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def bringing_up(topology: Path, say: Callable[[str], None], **options: Any) -> Iterator[Launch]:
    """Wraps ``launcher.launch``: an interruption is printed and noted in the summary."""
    run: RunDirectory | None = None
    text = ""
    try:
        with ending_on_signals(), launch(topology, **options) as launched:
            run = launched.run
            try:
                yield launched
            except (KeyboardInterrupt, EndedError) as error:
                text = f"ended by {getattr(error, 'name', 'SIGINT')}"
                say(f"{text}: taking the testbed down; its record is {shown(run.path)}")
                raise
    except (KeyboardInterrupt, EndedError):
        if run is not None:
            run.note_failure(text or "ended by a signal", None)
        raise


def follow(
    launched: Launch, jobs: list[Path], on_event: EmitEvent, faults: Sequence[Fault] = ()
) -> list[FinishedJob]:
    """Submits jobs one by one, each as soon as the testbed has accepted the one before, and waits
    for all. Events come in order, and so do jobs in the summary.

    Args:
        faults: Injected while the first job runs.

    Raises:
        LaunchError: The first error of a job.
    """
    events: queue.Queue[Event | None] = queue.Queue()
    results: dict[int, FinishedJob] = {}
    errors: list[LaunchError] = []

    def one(number: int, path: Path) -> None:
        try:
            request = control.submission(path, faults if number == 0 else ())
            results[number] = launched.ask(
                partial(control.submit, request=request, on_event=events.put)
            )
        except LaunchError as error:
            errors.append(error)
        finally:
            events.put(None)

    def begin() -> None:
        for number, path in itertools.islice(waiting, 1):
            threading.Thread(target=one, args=(number, path), daemon=True).start()

    waiting = iter(enumerate(jobs))
    begin()
    unfinished = len(jobs)
    while unfinished and not errors:
        # Signal handlers run only between waits, so waits have a timeout.
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=_POLL_SECONDS)
            if event is None:
                unfinished -= 1
            else:
                on_event(event)
                if event["event"] == "starting":  # accepted
                    begin()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]


def run(
    topology: Path, jobs: list[Path], view: View, faults: Sequence[Fault] = (), **options: Any
) -> tuple[Launch, bool]:
    """Runs jobs on a testbed of their own and takes it down.

    Args:
        faults: Injected while the first job runs.
        options: Passed to ``launcher.launch``.

    Returns:
        The launch, which is over, and whether no job's weights differ from the reference.

    Raises:
        JobFileError, LaunchError: And what ``launcher.launch`` raises.
    """
    with bringing_up(topology, view.note, jobs=jobs, **options) as launched:
        facts = launched.wait_until_up()
        nodes = [count(facts["workers"], "worker"), count(facts["servers"], "server")]
        nodes.append(count(facts["switches"], "switch", "switches"))
        view.note(
            f"{facts['topology']}: {', '.join(nodes)} ({facts['target']}), up after"
            f" {time_text(facts['seconds_up'], 2)}\n{shown(launched.run.path)}"
        )
        summaries = follow(launched, jobs, view.event, faults)
        status = launched.down()
        if status != 0:
            raise launched.failure()
    return launched, all(summary["matches_reference"] is not False for summary in summaries)


__all__ = ["ControlError", "EndedError", "bringing_up", "ending_on_signals", "follow", "run"]
