# SPDX-License-Identifier: Apache-2.0
"""The worker process: ``python -m testbed.worker --help``.

Reads the job's nonce from its standard input, trains, and reports on its standard output, a JSON
object a line (``started``, ``progress``, ``waiting``, ``failed``, ``done``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hosts.client import Client, ClientError, PlanWithdrawnError, ServiceUnavailableError, Stall
from testbed.jobfile import JobFileError, load
from testbed.processes import CONSEQUENCE
from testbed.training import Progress, Replica, check_one_thread, digest, train

_REPORT_SECONDS = 0.2


class _Reporter:
    """Writes progress, not more often than somebody could follow."""

    def __init__(self, statistics: Callable[[], dict[str, Any]], per_pass: float) -> None:
        self._statistics = statistics
        self._per_pass = per_pass
        self._next = 0.0
        self._losses: list[float] = []  # of all iterations since the last report

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        self._losses.append(progress.loss)
        if now < self._next and progress.accuracy is None:
            return
        self._next = now + _REPORT_SECONDS
        emit(
            "progress",
            iteration=progress.iteration,
            epoch=progress.iteration / self._per_pass,
            losses=self._losses,
            accuracy=progress.accuracy,
            statistics=self._statistics(),
        )
        self._losses = []


def emit(what: str, **fields: Any) -> None:
    """Reports on standard output. A reader that is gone is no reason to fail."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"report": what, **fields}), flush=True)


def report_stall(stall: Stall) -> None:
    """Says that this worker waits, for how long, and what it knows of the oldest chunk."""
    emit(
        "waiting",
        seconds=stall.seconds,
        oldest=dataclasses.asdict(stall.oldest) if stall.oldest else None,
        text=str(stall),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The worker process; returns its exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # So that a worker that is told to stop leaves its job.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    nonce = sys.stdin.readline().strip()
    check_one_thread()
    job = load(options.job).spec
    replica = Replica(job, options.rank, options.world)
    try:
        client = Client(
            options.service,
            address=options.address,
            queue_bytes=options.queue_bytes,
            link_rate=options.link_rate,
            patience=job.patience,
            on_stall=report_stall,
        )
        with client:
            client.connect_service(nonce, rank=options.rank)
            client.init_service(
                {name: value.size for name, value in replica.parameters.items()},
                timeout=job.patience,
            )
            emit("started")
            reporter = _Reporter(lambda: dict(client.statistics), replica.per_pass)
            seconds = train(replica, job.iterations, client.push_pull, reporter)
            statistics = dict(client.statistics)
    except (ClientError, OSError) as error:  # TimeoutError is an OSError
        emit("failed", error=str(error))
        logging.getLogger("worker").error("%s", error)
        lost = isinstance(error, (PlanWithdrawnError, ServiceUnavailableError))
        return CONSEQUENCE if lost else 1
    if options.weights:
        np.savez(options.weights, **replica.parameters)  # type: ignore[arg-type]
    emit(
        "done",
        digest=digest(replica.parameters),
        accuracy=replica.model.accuracy(replica.test),
        seconds=seconds,
        statistics=statistics,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.worker",
        description="One worker of a job. Reads the job's nonce from standard input.",
    )
    parser.add_argument("--job", required=True, type=Path, metavar="FILE", help="job file")
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--world", required=True, type=int, help="number of workers")
    parser.add_argument("--service", required=True, metavar="unix:PATH", help="the job service")
    parser.add_argument("--address", required=True, metavar="IPV4", help="this host's address")
    parser.add_argument("--queue-bytes", type=int, help="queue of this host's interface")
    parser.add_argument("--link-rate", type=int, default=0, help="bit/s of this host's link")
    parser.add_argument("--weights", type=Path, metavar="NPZ", help="where to keep the weights")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except JobFileError as failure:
        print(failure, file=sys.stderr)
        sys.exit(1)
