# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep: what its trials came to, kept from call to call.

``runs/sweeps/NAME/`` has ``trials/ID/`` with ``topology.yaml``, ``job.yaml`` and, once it is over,
``result.json``; the tables, the plot, and ``logs/`` of processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from observability import record
from sweeps.errors import SweepError
from sweeps.execution import Outcome
from sweeps.trials import Trial

Message = dict[str, Any]
DONE, FAILED = "done", "failed"


class Store:
    """See the module; ``opened`` makes one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def logs(self) -> Path:
        """What processes print."""
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
        """A trial's."""
        return self.path / "trials" / trial.id

    def result(self, trial: Trial) -> Message | None:
        """What a trial came to, if it is over."""
        try:
            found: Message = json.loads((self.folder(trial) / "result.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found

    def keep(self, trial: Trial, outcome: Outcome, attempts: int) -> Message:
        """Writes what a trial came to, whole or not at all; returns it."""
        folder = self.folder(trial)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "topology.yaml").write_text(trial.topology)
        (folder / "job.yaml").write_text(trial.job)
        state = FAILED if outcome.summary is None else DONE
        result = {"trial": trial.id, "state": state, "attempts": attempts, "values": trial.values}
        result |= outcome.to_message()
        draft = folder / "result.part"
        draft.write_text(json.dumps(result, indent=2, default=str) + "\n")
        draft.replace(folder / "result.json")
        return result


def default_folder(name: str) -> Path:
    """Where a sweep of a name is unless somebody says otherwise."""
    return record.runs_folder() / "sweeps" / name


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Store]:
    """The folder, for this process alone; ``SweepError`` if another has it, or it cannot be."""
    try:
        (path / "logs").mkdir(record.PRIVATE, parents=True, exist_ok=True)
        with (path / ".sweep").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"{path}: another sweep is at work there; wait for it, or use --to"
                raise SweepError(text) from error
            yield Store(path)
    except BrokenPipeError:
        raise  # whoever reads what is printed has left; the folder is not to blame
    except OSError as error:
        raise SweepError(
            f"{error.filename or path}: the sweep's folder cannot be used: {error.strerror};"
            " --to FOLDER chooses another"
        ) from error
