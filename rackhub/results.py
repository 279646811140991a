# SPDX-License-Identifier: Apache-2.0
"""The result of a job: typed figures, tables for pandas, and a plot."""

from __future__ import annotations

import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from observability import series
from observability.messages.jobs import Clock, Target
from observability.messages.summary import FinishedJob, Link, RunSummary, is_finished
from observability.record import RunDirectory, RunError
from observability.wording import where_summed
from protocol.errors import Error
from topologies.model.units import time_text

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Iteration:
    """An iteration of a job.

    number: From 1, or from the checkpoint that the job continues.
    seconds: Its duration at the worker with the most iterations; in virtual time, of that.
    loss: Mean over workers; None if nothing is learned.
    accuracy: Share of the test set, 0 to 1, where it was measured.
    workers: Number of workers in its sums; None if unknown.
    """

    number: int
    seconds: float
    loss: float | None
    accuracy: float | None
    workers: int | None


class Result:
    """The result of a job that is done.

    Times are in seconds (of virtual time in virtual time), sizes in bytes of frames without FCS,
    shares from 0 to 1.
    """

    def __init__(self, path: Path, job: FinishedJob) -> None:
        self.path = path
        """The run's directory: logs, ``summary.json``, the job's files."""
        self.job_summary = job
        """All that is known of the job; docs/reference/summary.md explains the keys."""
        known = series.read(path / series.FILE).jobs.get(job["job"], series.Curve()).iterations
        by_number = {one.number: one for one in known}
        first = job["iterations_before"] + 1
        times, workers = job["seconds_per_iteration"], job["workers_per_iteration"]
        self.iterations = tuple(
            Iteration(
                number,
                seconds,
                by_number[number].loss if number in by_number else None,
                by_number[number].accuracy if number in by_number else None,
                workers[number - first] if number - first < len(workers) else None,
            )
            for number, seconds in enumerate(times, first)
        )
        """What is known of each iteration."""

    @classmethod
    def load(cls, path: str | Path, job: str | None = None) -> Result:
        """Reads a run's directory.

        Args:
            path: Of the directory, such as ``runs/latest``.
            job: Its name; None: the first that is done.

        Raises:
            RunError: There is no such run, or no such job in it is done.
        """
        run = RunDirectory(Path(path).resolve())
        try:
            jobs = run.read_summary()["jobs"]
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is no run that is over: {error}") from error
        for one in jobs:
            if is_finished(one) and job in (None, one["job"]):
                links = one["links"] or (run.read_summary()["links"] if len(jobs) == 1 else [])
                return cls(run.path, {**one, "links": links})
        there = ", ".join(f"{one['job']} ({one['state']})" for one in jobs) or "none"
        raise RunError(f"{path}: no job {job or 'at all'} is done; jobs: {there}")

    @property
    def summary(self) -> RunSummary:
        """The run's whole ``summary.json``, with all of its jobs."""
        return RunDirectory(self.path).read_summary()

    @property
    def job(self) -> str:
        """The job's name."""
        return self.job_summary["job"]

    @property
    def topology(self) -> str:
        """The topology's name."""
        return self.job_summary["topology"]

    @property
    def clock(self) -> Clock:
        """``emulated`` or ``virtual``."""
        return self.job_summary["clock"]

    @property
    def target(self) -> Target:
        """Target that switches ran on."""
        return self.job_summary["target"]

    @property
    def iteration_seconds(self) -> tuple[float, ...]:
        """Duration of each iteration in seconds."""
        return tuple(one.seconds for one in self.iterations)

    @property
    def median_iteration_seconds(self) -> float:
        """Median duration of iterations in seconds."""
        return statistics.median(self.iteration_seconds)

    @property
    def cpu_bound(self) -> bool:
        """True if the machine was the bottleneck, so that times are not the network's."""
        return self.job_summary["machine"].get("cpu_bound", False)

    @property
    def test_accuracy(self) -> float | None:
        """Share of held-out examples that are classified right; None if nothing is learned."""
        return self.job_summary["test_accuracy"]

    @property
    def test_loss(self) -> float | None:
        """Mean cross entropy of held-out examples in nats; None if nothing is learned."""
        return self.job_summary["test_loss"]

    @property
    def matches_reference(self) -> bool | None:
        """True if the weights are bit-identical to those of one process that sums the same
        gradients; None where that cannot be said, as ``no_reference`` of ``job_summary`` explains.
        """
        return self.job_summary["matches_reference"]

    @property
    def share_in_network(self) -> float | None:
        """Share of chunks that switches summed; None without any."""
        network, server = where_summed(self.job_summary["chunks"], self.job_summary["plans"])
        return network / (network + server) if network + server else None

    @property
    def links(self) -> list[Link]:
        """Traffic of each direction of links while the job ran: ``bytes``, ``packets``,
        ``expected_bytes`` by the closed form, ``dropped`` frames. None where it is unknown; empty
        in virtual time if there were other jobs."""
        return self.job_summary["links"]

    def to_pandas(self, what: Literal["iterations", "links"] = "iterations") -> pandas.DataFrame:
        """Returns a row for each iteration, by number, or for each direction of a link.

        Raises:
            Error: pandas is not installed.
        """
        rows = self.links if what == "links" else [asdict(one) for one in self.iterations]
        table = frame(rows)
        return table if what == "links" else table.set_index("number")

    def plot(self) -> Figure:
        """Returns a figure of iterations over time, and of the bytes of the busiest links."""
        from rackhub.plots import draw

        losses = {one.number: one.loss for one in self.iterations if one.loss is not None}
        return draw({one.number: one.seconds for one in self.iterations}, losses, self.links)

    def _figures(self) -> dict[str, str]:
        accuracy, share = self.test_accuracy, self.share_in_network
        matches = {True: "yes", False: "no", None: "not known"}[self.matches_reference]
        return {
            "job": f"{self.job} on {self.topology}",
            "target, clock": f"{self.target}, {self.clock}",
            "iterations": f"{len(self.iterations):,}",
            "time per iteration": time_text(self.median_iteration_seconds, 4),
            **({"test accuracy": f"{accuracy:.4f}"} if accuracy is not None else {}),
            **({"summed by switches": f"{share:.1%}"} if share is not None else {}),
            "matches reference": matches,
            **({"CPU": "was the bottleneck: times are this machine's"} if self.cpu_bound else {}),
            "run": str(self.path),
        }

    def __repr__(self) -> str:
        return f"<Result {', '.join(f'{name}: {text}' for name, text in self._figures().items())}>"

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self._figures().items()
        )
        return f"<table>{''.join(rows)}</table>"


def frame(rows: Sequence[Mapping[str, object]]) -> pandas.DataFrame:
    """Returns rows as a data frame; raises ``Error`` if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise Error(
            "pandas is not installed: pip install 'rackhub[notebook]'; rows without it are in"
            " `iterations`, `links` and `rows`"
        ) from error
    return pandas.DataFrame(list(rows))
