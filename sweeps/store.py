# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep, which keeps results between calls.

``runs/sweeps/NAME/`` has ``trials/ID/`` with ``topology.yaml``, ``job.yaml`` and, once it is over,
``result.json``; the tables, the plot, and ``logs/`` of processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from observability import record
from sweeps.errors import SweepError
from sweeps.execution import JOB, Outcome, OutcomeRow
from sweeps.trials import Trial

State: TypeAlias = Literal["done", "failed"]
DONE: Final = "done"
FAILED: Final = "failed"


class Result(OutcomeRow):
    """The result of a trial: ``result.json``."""

    trial: str
    """Its identifier."""
    state: State
    attempts: int
    """How often it was run."""
    values: dict[str, Any]
    """Values of the sweep's axes, by path."""


class Store:
    """A sweep's folder (see the module). Create it with ``opened``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def logs(self) -> Path:
        """The folder for output of processes."""
        return self.path / "logs"

    @property
    def csv(self) -> Path:
        """The table as CSV."""
        return self.path / "results.csv"

    @property
    def parquet(self) -> Path:
        """The table as Parquet."""
        return self.path / "results.parquet"

    @property
    def plot(self) -> Path:
        """The plot."""
        return self.path / "plot.svg"

    def folder(self, trial: Trial) -> Path:
        """Returns a trial's folder."""
        return self.path / "trials" / trial.id

    def result(self, trial: Trial) -> Result | None:
        """Returns a trial's result, if it is over."""
        try:
            found: Result = json.loads((self.folder(trial) / "result.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found

    def keep(self, trial: Trial, outcome: Outcome, attempts: int) -> Result:
        """Writes a trial's result atomically; returns it."""
        folder = self.folder(trial)
        folder.mkdir(parents=True, exist_ok=True)
        order = trial.order
        files = {"topology.yaml": order.topology, JOB: order.job, **order.files}
        for name, text in files.items():
            (folder / name).write_text(text)
        result: Result = {
            "trial": trial.id,
            "state": FAILED if outcome.summary is None else DONE,
            "attempts": attempts,
            "values": trial.values,
            **outcome.to_message(),
        }
        draft = folder / "result.part"
        draft.write_text(json.dumps(result, indent=2, default=str) + "\n")
        draft.replace(folder / "result.json")
        return result


def default_folder(name: str) -> Path:
    """Returns the default folder of a sweep."""
    return record.runs_folder() / "sweeps" / name


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Store]:
    """Opens a folder exclusively. Raises ``SweepError`` if it is in use or cannot be created."""
    try:
        (path / "logs").mkdir(record.PRIVATE, parents=True, exist_ok=True)
        with (path / ".sweep").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SweepError(
                    f"{path}: another sweep or experiment is at work there; wait for it, or use"
                    " --to"
                ) from error
            yield Store(path)
    except BrokenPipeError:
        raise  # stdout's pipe is closed; not an error of the folder
    except OSError as error:
        raise SweepError(
            f"{error.filename or path}: the folder of results cannot be used: {error.strerror};"
            " --to FOLDER chooses another"
        ) from error
