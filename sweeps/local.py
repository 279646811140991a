# SPDX-License-Identifier: Apache-2.0
"""Runs trials in processes on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from emulation.nodes.processes import environment
from observability.processinfo import tail
from sweeps import code
from sweeps.execution import Outcome
from sweeps.trials import Trial

_END_SECONDS = 5.0
WORKER = (sys.executable, "-m", "sweeps.worker")


class LocalCrew:
    """A crew of ``slots`` processes, each running one trial at a time and restarted if it dies.

    logs: Folder for their output.
    """

    def __init__(self, slots: int, logs: Path, command: Sequence[str] = WORKER) -> None:
        self.slots = slots
        self._logs, self._command = logs, list(command)
        self._todo: queue.Queue[Trial | None] = queue.Queue()
        self._done: queue.Queue[tuple[Trial, Outcome]] = queue.Queue()
        self._ended = threading.Event()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True)
            for number in range(slots)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, trial: Trial) -> None:
        """Implements ``Crew.submit``."""
        self._todo.put(trial)

    def next(self) -> tuple[Trial, Outcome]:
        """Implements ``Crew.next``."""
        return self._done.get()

    def close(self) -> None:
        """Kills all processes, including running trials."""
        self._ended.set()
        for process in list(self._processes.values()):
            process.kill()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _serve(self, number: int) -> None:
        with (self._logs / f"process-{number}.log").open("w") as log:
            while (trial := self._todo.get()) is not None and not self._ended.is_set():
                self._done.put((trial, self._run(number, trial, log)))
            process = self._processes.pop(number, None)
            if process is not None:
                process.kill()
                process.communicate()

    def _run(self, number: int, trial: Trial, log: IO[str]) -> Outcome:
        began = time.monotonic()
        process = self._process(number, log)
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"known": code.digest(), **dataclasses.asdict(trial.order)}
        answer = ""
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            pass  # it died, which is reported below
        if answer.endswith("\n"):
            return Outcome(**json.loads(answer))
        del self._processes[number]
        process.stdout.close()
        status = process.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended ({status})"
        return Outcome(
            None,
            f"its process {how}",
            tail(Path(log.name)),
            f"process {process.pid}",
            time.monotonic() - began,
        )

    def _process(self, number: int, log: IO[str]) -> subprocess.Popen[str]:
        if number not in self._processes:
            self._processes[number] = subprocess.Popen(
                [*self._command, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
                start_new_session=True,  # Ctrl-C goes to the sweep, which ends them
            )
        return self._processes[number]
