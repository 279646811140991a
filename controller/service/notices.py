# SPDX-License-Identifier: Apache-2.0
"""What the controller tells whoever started it, on its standard output, if asked to (``--tell``):
the jobs that are alive, whoever created them, so that servers can be made to join each.

A line has all of them, and replaces the one before; it comes when a job was created or is over, or
has another plan:

    {"jobs": [{"job": 1, "name": "digits", "nonce": "...", "workers": ["w0", "w1"],
               "servers": ["s0"], "switches": ["tor0"]}]}

``workers`` are hosts, ``servers`` processes, both by rank; ``switches`` hold slots for it. Nonces
are secrets, so this is for a pipe to a process that keeps them, never for a log.
"""

from __future__ import annotations

import json

from controller.jobs.job import Job
from controller.jobs.registry import JobTable
from protocol.runtime import REAL

__all__ = ["message", "say", "tell"]

_saying = REAL.lock()


def say(line: str) -> None:
    """Write a line to standard output, whole, whichever threads do."""
    with _saying:
        print(line, flush=True)


def tell(table: JobTable) -> None:
    """Tell of jobs, now and whenever there is news, and never return."""
    told: list[tuple[int, int]] | None = None
    while True:
        with table.changed:
            while (now := [(job.number, job.epoch) for job in _alive(table)]) == told:
                table.changed.wait()
            line = json.dumps({"jobs": [message(job) for job in _alive(table)]})
        # Without the lock: what reads this may be slow.
        say(line)
        told = now


def message(job: Job) -> dict[str, object]:
    """What is told of a job."""
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
