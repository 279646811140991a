# SPDX-License-Identifier: Apache-2.0
"""Reports the jobs that are alive on standard output (``--tell``), so that servers can join them.

Each line lists all of them and replaces the line before; it is printed when a job is created, ends
or changes its plan:

    {"jobs": [{"job": 1, "name": "digits", "nonce": "...", "workers": ["w0", "w1"],
               "servers": ["s0"], "switches": ["tor0"]}]}

``workers`` are hosts, ``servers`` processes, both by rank; ``switches`` hold slots for the job.
Nonces are secrets: write this to a pipe, never to a log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

from controller.jobs.job import Job
from controller.jobs.registry import JobTable
from protocol.runtime import REAL

_saying = REAL.lock()


def say(line: str) -> None:
    """Writes a line to standard output atomically; may be called from any thread."""
    with _saying:
        print(line, flush=True)


def tell(table: JobTable) -> None:
    """Reports jobs now and after every change; never returns."""
    told: list[tuple[int, int]] | None = None
    while True:
        with table.changed:
            while (now := [(job.number, job.epoch) for job in _alive(table)]) == told:
                table.changed.wait()
            line = json.dumps({"jobs": [message(job) for job in _alive(table)]})
        # Without the lock, as the reader may be slow.
        say(line)
        told = now


class JobNotice(TypedDict):
    """A live job."""

    job: int
    """Number of the job in packets."""
    name: str
    nonce: str
    """Secret that its members know."""
    workers: Sequence[str]
    """Hosts, by rank."""
    servers: Sequence[str]
    """Server processes, by rank."""
    switches: list[str]
    """Those that hold slots for it."""


def message(job: Job) -> JobNotice:
    """Builds the report of a job."""
    return {
        "job": job.number,
        "name": job.namespace,
        "nonce": job.nonce,
        "workers": job.workers,
        "servers": job.servers,
        "switches": sorted(job.slots),
    }


def _alive(table: JobTable) -> list[Job]:
    return [job for job in table.jobs() if not job.state.over]
