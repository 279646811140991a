# SPDX-License-Identifier: Apache-2.0
"""Runs jobs on an emulated testbed: bring up, submit, wait, take down."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from emulation.lifecycle.launcher import Launch, launch
from observability import control
from observability.messages.events import EmitEvent, Event, Watcher, ended_by
from observability.messages.summary import FinishedJob
from observability.record import RunDirectory, shown
from observability.wording import count
from specs.faultfile import Fault
from testbed.errors import LaunchError
from topologies.model.units import time_text

_POLL_SECONDS = 0.2


@contextlib.contextmanager
def bringing_up(topology: Path, say: Callable[[str], None], **options: Any) -> Iterator[Launch]:
    """Wraps ``launcher.launch``: an interruption is reported and noted in the summary."""
    run: RunDirectory | None = None
    text = ""
    try:
        with launch(topology, **options) as launched:
            run = launched.run
            try:
                yield launched
            except (KeyboardInterrupt, SystemExit) as error:
                text = ended_by(error)
                say(f"{text}: taking the testbed down; its record is {shown(run.path)}")
                raise
    except (KeyboardInterrupt, SystemExit):
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
    topology: Path, jobs: list[Path], watcher: Watcher, faults: Sequence[Fault] = (), **options: Any
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
    with bringing_up(topology, watcher.note, jobs=jobs, **options) as launched:
        facts = launched.wait_until_up()
        nodes = [count(facts["workers"], "worker"), count(facts["servers"], "server")]
        nodes.append(count(facts["switches"], "switch", "switches"))
        watcher.note(
            f"{facts['topology']}: {', '.join(nodes)} ({facts['target']}), up after"
            f" {time_text(facts['seconds_up'], 2)}\n{shown(launched.run.path)}"
        )
        summaries = follow(launched, jobs, watcher.event, faults)
        status = launched.down()
        if status != 0:
            raise launched.failure()
    return launched, all(summary["matches_reference"] is not False for summary in summaries)
