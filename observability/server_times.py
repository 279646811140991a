# SPDX-License-Identifier: Apache-2.0
"""Turns the job service's status of a measured job into rows of its servers and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from observability.messages.servers import JobServers, KeyTimes, MeasuredServers, ServerTimes
from observability.messages.summary import is_finished
from observability.record import RunDirectory, RunError, shown
from protocol import jobs_pb2
from protocol.partition import ChunkAssignment

NOT_MEASURED = "does not measure its servers: `balance: {measure: true}` in its file has it do so"


def measured(
    status: jobs_pb2.Job, keys: Mapping[str, int], where: ChunkAssignment
) -> MeasuredServers:
    """Returns what was measured of a job.

    keys: chunks of each key, by name, in order.
    where: the chunks' servers, by the ranks of the status.
    """
    rows = server_rows(status)
    return {"server_times": rows, "key_times": _key_rows(rows, keys, where) if rows else []}


def of_run(run: RunDirectory, job: str) -> JobServers:
    """Returns what the summary of a run has of a job's servers.

    Raises RunError if the run or the job is not over, or the job was not measured.
    """
    try:
        jobs = run.read_summary()["jobs"]
    except (OSError, ValueError) as error:
        raise RunError(f"{shown(run.summary)}: cannot be read: {error}") from error
    found = [one for one in jobs if one["job"] == job]
    if not found:
        there = f"there are: {', '.join(one['job'] for one in jobs)}" if jobs else "it had none"
        raise RunError(f"{shown(run.summary)}: no job {job!r}; {there}")
    one = found[-1]
    if not is_finished(one):
        text = f"job {job} is {one['state']}, and what was measured is known of finished jobs"
        raise RunError(f"{shown(run.summary)}: {text}")
    rows = one.get("server_times")
    if not rows:
        raise RunError(f"{shown(run.summary)}: job {job} {NOT_MEASURED}")
    return {
        "job": job,
        "state": one["state"],
        "server_times": rows,
        "key_times": one["key_times"],
    }


def server_rows(status: jobs_pb2.Job) -> list[ServerTimes]:
    """Returns a row for each server; none of a job that is not measured."""
    known = [one.blamed for one in status.times if not math.isnan(one.blamed)]
    return [_row(one, sum(known)) for one in status.times]


def _row(one: jobs_pb2.ServerTimes, blamed: float) -> ServerTimes:
    handling = _known(one.handled)
    waiting = _known(one.waited)
    whole = handling is not None and waiting is not None
    own = _known(one.blamed)
    return {
        "server": one.server,
        "rounds": one.rounds,
        "sums": _known(one.sums),
        "waiting": waiting,
        "handling": handling,
        "queueing": _known(one.queued),
        # Reports of servers and workers may be of different rounds.
        "propagation": max(0.0, one.waited - one.handled) if whole else None,
        "optimizer": _known(one.optimized),
        "holding": _known(one.holding),
        "summing": _known(one.summing),
        "received_per_second": _known(one.received),
        "sent_per_second": _known(one.sent),
        "blamed": own,
        "blame": None if own is None else own / blamed if blamed else 0.0,
        "straggles": one.straggles,
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _key_rows(
    rows: Sequence[ServerTimes], keys: Mapping[str, int], where: ChunkAssignment
) -> list[KeyTimes]:
    ends = np.cumsum(list(keys.values()))
    owners = where.servers[:-1]
    all_of_them = np.bincount(owners, minlength=len(rows))
    known = all(row["blamed"] is not None for row in rows)
    blamed = np.array([row["blamed"] or 0.0 for row in rows]) / np.maximum(all_of_them, 1)
    found: list[KeyTimes] = []
    for (name, count), end in zip(keys.items(), ends.tolist(), strict=True):
        own = np.bincount(owners[end - count : end], minlength=len(rows))
        most = sorted(np.flatnonzero(own).tolist(), key=lambda rank: -own[rank])
        found.append(
            {
                "key": name,
                "chunks": count,
                "servers": {rows[rank]["server"]: int(own[rank]) for rank in most},
                "blamed": float(own @ blamed) if known else None,
            }
        )
    return found
