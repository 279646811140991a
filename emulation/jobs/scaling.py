# SPDX-License-Identifier: Apache-2.0
"""Lets servers and workers of running jobs come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from emulation.jobs.jobrun import EmulatedJob
from emulation.jobs.service_status import read_status
from emulation.nodes.process_supervisor import JOBS_ADDRESS, ProcessSupervisor
from hosts.errors import ClientError
from hosts.session.job_service import Scaled, scale
from observability.control import ControlError
from specs.scaling import Changes
from testbed.errors import JobError

__all__ = ["scale_servers", "scale_workers"]

_REPORT_SECONDS = 2.0


async def scale_servers(
    nodes: ProcessSupervisor,
    name: str,
    servers: Changes,
    job: EmulatedJob | None,
    waits: Callable[[float, str], None] = lambda seconds, why: None,
) -> Scaled:
    """Changes which servers of a job have slices; returns once that holds.

    name: of the job, submitted or external. job: the submitted one. waits: called every two seconds
    with how long it takes already, and what the job waits for. Raises ``ControlError``.
    """
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
        done = await calling
    except ClientError as error:
        raise ControlError(str(error)) from error
    if job is not None:
        job.scaled()
    return done


async def scale_workers(name: str, workers: Changes, job: EmulatedJob | None) -> list[str]:
    """Lets workers of a submitted job come and go; returns those that are in it then.

    name, job: as of ``scale_servers``. Raises ``ControlError``.
    """
    if job is None or job.state != "running":
        raise ControlError(f"no job {name!r} runs that was submitted, whose workers could change")
    try:
        await job.change_workers(*workers)
    except (ClientError, JobError) as error:
        raise ControlError(str(error)) from error
    return job.workers.present
