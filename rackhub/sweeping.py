# SPDX-License-Identifier: Apache-2.0
"""Sweeps of parameters in virtual time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, final

from observability.wording import count
from rackhub.given import FaultsSource, JobSource, Text, dumped, faults_file, job_file
from rackhub.results import frame
from rackhub.running import TopologySource, following, topology_of
from specs.sweepfile import SweepFile
from sweeps import curves, effects
from sweeps.errors import SweepError
from sweeps.local import LocalCrew
from sweeps.plot import draw
from sweeps.progress_view import SweepView
from sweeps.running import carry_out, check, write
from sweeps.store import Store, default_folder, opened
from sweeps.table import Row
from sweeps.trials import Trial

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


def sweep(
    topology: TopologySource,
    job: JobSource,
    axes: Mapping[str, Sequence[object]],
    *,
    seeds: int | Sequence[int] | None = None,
    exclude: Sequence[Mapping[str, object]] = (),
    plot: Mapping[str, object] | None = None,
    faults: FaultsSource | None = None,
    name: str = "sweep",
    to: str | Path | None = None,
    processes: int | None = None,
    progress: bool = False,
    **fields: object,
) -> Sweep:
    """Runs a job on a topology in virtual time for every combination of values.

    As ``rackhub sweep`` does: what is done is kept, and the same call goes on where it was stopped.

    Args:
        topology: A topology, its file, or the name of a shipped one.
        job: A job's file, the name of a shipped one, or a mapping of its fields.
        axes: Values by field: ``{"topology.defaults.rate": ["1 Gbit/s", "10 Gbit/s"], "job.window":
            [16, 64]}``.
        seeds: Seeds of topology and job, or their number.
        exclude: Combinations to leave out: all trials with these values.
        plot: ``x``, ``y`` and ``log`` of the plot, as in a sweep file.
        faults: What happens in each trial, as of ``run``; axes may be ``faults.FIELD``.
        name: Its name.
        to: Where results are kept; None: ``runs/sweeps/NAME``.
        processes: Trials at a time; None: as many as there are CPUs.
        progress: Show it.
        fields: Fields of the job file, in place of the job's own.

    Raises:
        SweepFileError: A trial cannot run; lists all problems.
        SweepError: Trials failed, each tried twice, or the folder cannot be used.
    """
    chosen = topology_of(topology)
    with ExitStack() as stack:
        base = stack.enter_context(chosen.written())
        base_job = stack.enter_context(job_file(job, fields))
        hits = stack.enter_context(faults_file(faults))
        content = {
            "name": name,
            "topology": base.path.absolute(),
            "job": base_job.path.absolute(),
            **({"faults": hits.path.absolute()} if hits is not None else {}),
            "axes": axes,
            **({"seeds": seeds} if seeds is not None else {}),
            **({"exclude": exclude} if exclude else {}),
            **({"plot": plot} if plot is not None else {}),
        }
        text = Text(dumped(content), "rackhub.sweep", {})
        file = stack.enter_context(text.written("sweep.yaml"))
        watcher = stack.enter_context(following(False))
        found, listed = check(file.path, watcher.note)
        store = stack.enter_context(opened(Path(to) if to is not None else default_folder(name)))
        view = _view(progress, store, listed)
        with view or nullcontext():
            state, rows = carry_out(
                found,
                listed,
                store,
                lambda: LocalCrew(processes or len(os.sched_getaffinity(0)), store.logs),
                view.take if view is not None else lambda *_: None,
            )
        write(found, store, None, rows, watcher.note)
    if state.failed:
        raise SweepError(
            f"{count(state.failed, 'trial')} of {state.trials:,} failed, each tried twice; their"
            f" logs are in {store.path}/trials/*/result.json"
        )
    return Sweep(found, store.path.resolve(), rows)


def _view(progress: bool, store: Store, listed: Sequence[Trial]) -> SweepView | None:
    if not progress:
        return None
    from rich.console import Console

    return SweepView(Console(highlight=False), store, listed)


@final
class Sweep:
    """The results of a sweep: a row for each trial, with units in the names of columns."""

    def __init__(self, file: SweepFile, path: Path, rows: list[Row]) -> None:
        self._file = file
        self.path = path
        """Its folder, with ``results.csv`` and each trial's files."""
        self.rows = rows
        """A row for each trial (docs/howto/sweep.md)."""

    @property
    def notes(self) -> list[str]:
        """Notes on axes along which all results are equal."""
        return list(effects.equal(self._file.axes, self.rows))

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a row for each trial. Raises ``Error`` if pandas is not installed."""
        return frame(self.rows)

    def plot(self) -> Figure:
        """Returns the plot: the median time of an iteration unless ``plot`` chose another ``y``,
        over the first axis of numbers. Raises ``SweepError`` if there is nothing to plot."""
        found = curves.figure(self._file.axes, self._file.spec.plot, self.rows)
        if isinstance(found, str):
            raise SweepError(f"no plot: {found}")
        return draw(found)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        axes = ", ".join(axis.path for axis in self._file.axes)
        return f"<Sweep {self._file.spec.name}: {count(len(self), 'trial')} over {axes}>"
