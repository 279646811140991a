# SPDX-License-Identifier: Apache-2.0
"""``rackhub run``: up, submit, wait, down, with a view of it all."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed import jobfile
from testbed.control import ControlError, Emit
from testbed.launcher import Launch, LaunchError, launch
from testbed.view import View
from topologies.spec import load as load_topology
from topologies.topology import Topology

Message = dict[str, Any]
_POLL_SECONDS = 0.2


def check_jobs(topology: Topology, jobs: list[Path]) -> None:
    """Reads job files and places them on a topology; raises ``JobFileError``."""
    for path in jobs:
        jobfile.load(path).place(topology)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP become exceptions like Ctrl-C does, so that contexts are left in order."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(launched: Launch, jobs: list[Path], on_event: Emit) -> list[Message]:
    """Submits jobs at once and waits for all; raises the first error. Events come in order."""
    events: queue.Queue[Message | None] = queue.Queue()
    results: dict[int, Message] = {}
    errors: list[LaunchError] = []

    def one(number: int, path: Path) -> None:
        try:
            results[number] = launched.ask("submit", job=str(path.resolve()), on_event=events.put)
        except LaunchError as error:
            errors.append(error)
        finally:
            events.put(None)

    for number, path in enumerate(jobs):
        threading.Thread(target=one, args=(number, path), daemon=True).start()
    unfinished = len(jobs)
    while unfinished and not errors:
        # With a timeout: a signal handler runs only between waits.
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=_POLL_SECONDS)
            if event is None:
                unfinished -= 1
            else:
                on_event(event)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]


def run(topology: Path, jobs: list[Path], view: View, **options: Any) -> tuple[Launch, bool]:
    """Runs jobs on a topology of their own.

    options: those of ``launcher.launch``. Returns the launch, which is over, and whether all
    weights match the reference. Raises what ``launch`` does, ``JobFileError``, ``LaunchError``.
    """
    check_jobs(load_topology(topology), jobs)
    with ending_on_signals(), launch(topology, **options) as launched:
        facts = launched.wait_until_up()
        view.note(
            f"{facts['topology']}: {facts['workers']} workers, {facts['servers']} servers,"
            f" {facts['switches']} switches ({facts['target']}), up after"
            f" {facts['seconds_up']:.1f} s; {launched.run.path}"
        )
        try:
            summaries = follow(launched, jobs, view.event)
        except KeyboardInterrupt:
            view.note("interrupted: taking the testbed down")
            raise
        status = launched.down()
        if status != 0:
            raise launched.failure()
    return launched, all(summary["matches_reference"] for summary in summaries)


__all__ = ["ControlError", "check_jobs", "ending_on_signals", "follow", "run"]
