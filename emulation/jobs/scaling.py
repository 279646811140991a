# SPDX-License-Identifier: Apache-2.0
"""Lets servers and workers of running jobs come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from emulation.jobs.context import TestbedContext
from emulation.jobs.jobrun import EmulatedJob
from emulation.jobs.service_status import read_status
from emulation.nodes.process_supervisor import JOBS_ADDRESS, ProcessSupervisor
from hosts.errors import ClientError
from hosts.session.job_service import Scaled, scale
from observability.control import ControlError
from observability.messages.jobs import ScaledJob
from specs.faultfile import Fault
from specs.scaling import Changes, changes, scaled_words, workers_words
from testbed.errors import JobError

_REPORT_SECONDS = 2.0
Waits = Callable[[float, str], None]


async def scale_job(
    context: TestbedContext,
    name: str,
    job: EmulatedJob | None,
    fault: Fault,
    waits: Waits = lambda seconds, why: None,
    *,
    planned: bool = False,
) -> ScaledJob:
    """Lets workers and servers of a job come and go; returns once that holds, and records it among
    the faults.

    name: of the job, submitted or external. job: the submitted one. fault: says who comes and goes.
    waits: called every two seconds with how long the servers take, and what they wait for. planned:
    it is one of the run's faults, and recorded even if nothing of it happens. Raises
    ``ControlError``.
    """
    faults, workers, servers = context.faults, changes(fault.workers), changes(fault.servers)
    record = faults.begin(fault.kind, fault.where, "change", lasting=True)
    words: list[str] = []
    done: ScaledJob = {"job": name, "servers": None, "workers": None, "killed": []}
    try:
        submitted = _submitted(name, workers, job) if fault.workers else None
        if fault.servers:  # first: workers change the plan epoch, and no map changes meanwhile
            moved = await _servers(context.nodes, name, servers, waits)
            words.append(scaled_words(moved.slices, moved.bytes, moved.from_round))
            if job is not None:
                job.scaled()
            done["servers"] = {
                "from_round": moved.from_round,
                "slices": moved.slices,
                "bytes": moved.bytes,
                "servers": list(moved.servers),
                "spares": list(moved.spares),
            }
        if submitted is not None:
            done["killed"] = await _workers(workers, submitted)
            done["workers"] = present = submitted.workers.present
            words.append(workers_words(len(present), done["killed"]))
    except ControlError as error:
        if not words and not planned:
            faults.faults.remove(record)
        words.append(f"were refused: {error}")
        raise
    finally:
        record.what = "; ".join(words)
        record.over = time.monotonic()
    context.tell(f"{fault.where} {record.what}")
    return done


async def _servers(nodes: ProcessSupervisor, name: str, servers: Changes, waits: Waits) -> Scaled:
    """Changes which servers of a job have slices; returns once that holds."""
    alive = [one for one in nodes.serving.alive if one.name == name]
    if not alive:
        there = ", ".join(one.name for one in nodes.serving.alive) or "none"
        raise ControlError(f"no job {name!r} runs; running: {there}")
    began = time.monotonic()
    calling = asyncio.get_running_loop().create_task(
        asyncio.to_thread(scale, JOBS_ADDRESS, alive[0].nonce, *servers)
    )
    try:
        while not (await asyncio.wait([calling], timeout=_REPORT_SECONDS))[0]:
            status = await read_status(_REPORT_SECONDS)
            jobs = () if status is None else status.jobs
            why = [one.reason for one in jobs if one.job == alive[0].number]
            waits(time.monotonic() - began, why[0] if why else "the controller does not answer")
        return await calling
    except ClientError as error:
        raise ControlError(str(error)) from error


def _submitted(name: str, workers: Changes, job: EmulatedJob | None) -> EmulatedJob:
    """Returns the job whose workers are to change, if it can."""
    if job is None or job.state != "running":
        text = f"no job {name!r} runs whose workers can change: those of submitted jobs can"
        raise ControlError(text)
    try:
        job.check_change(workers)
    except JobError as error:
        raise ControlError(str(error)) from error
    return job


async def _workers(workers: Changes, job: EmulatedJob) -> list[str]:
    """Lets workers of a job come and go; returns those that had to be killed."""
    try:
        return await job.change_workers(workers)
    except (ClientError, JobError) as error:
        raise ControlError(str(error)) from error
