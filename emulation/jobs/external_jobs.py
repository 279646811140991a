# SPDX-License-Identifier: Apache-2.0
"""Jobs that users' own programs work in (docs/howto/use-the-api.md): they create them, or have them
created (``rackhub launch``), instead of submitting them.

The testbed knows only what the job service reports of them; their progress is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from emulation.jobs.service_status import read_status
from emulation.nodes.process_supervisor import JOBS_ADDRESS, ProcessSupervisor
from emulation.nodes.serving import JobLife
from hosts.errors import ClientError
from hosts.session.job_service import Service, create_service
from observability.control import ControlError
from observability.messages.jobs import CreatedJob, ExternalJob, JobState, NewJob, OtherJob
from observability.messages.waiting import JobExplanation
from protocol import jobs_pb2
from specs.jobspec import PropagationSpec
from testbed.jobrun import JobRun

_ANSWER_SECONDS = 4.0
# controller.jobs.job.State -> state of a submitted job.
_STATES: dict[str, JobState] = {
    "created": "starting",
    "waiting": "starting",
    "running": "running",
    "leaving": "running",
    "gone": "done",
    "failed": "failed",
}


class ExternalJobs:
    """Lists, explains and stops the external jobs of one testbed.

    jobs: submitted jobs, by name.
    """

    def __init__(self, nodes: ProcessSupervisor, jobs: Mapping[str, JobRun]) -> None:
        self._nodes = nodes
        self._jobs = jobs
        self._stopped: set[int] = set()  # on request
        self._last_rows: dict[str, ExternalJob] = {}  # last known row of each, by nonce

    async def create(self, new: NewJob) -> CreatedJob:
        """Creates a job. Raises ``ControlError``."""
        hosts = new["workers"], new["servers"]
        creating = asyncio.get_running_loop().create_task(
            asyncio.to_thread(
                create_service,
                JOBS_ADDRESS,
                new["name"],
                *hosts,
                tree=new["tree"],
                propagation=PropagationSpec(order=new["order"]).plan,
            )
        )
        try:
            service = await asyncio.shield(creating)
        except (ClientError, ValueError) as error:
            raise ControlError(f"job {new['name']}: {error}") from error
        except asyncio.CancelledError:
            creating.add_done_callback(self._unwanted)  # the request is on its way
            raise
        return {"job": new["name"], "number": service.job, "nonce": service.nonce}

    def _unwanted(self, creating: asyncio.Task[Service]) -> None:
        if not creating.cancelled() and creating.exception() is None:
            why = "its creator has gone"
            self._nodes.controller.stop_job(creating.result().job, why)

    @property
    def known(self) -> list[JobLife]:
        """All external jobs so far."""
        return [job for job in self._nodes.serving.known.values() if not self._submitted(job)]

    @property
    def alive(self) -> list[JobLife]:
        """External jobs that are not over, the oldest first."""
        return [job for job in self.known if job.until is None]

    def since(self, when: float) -> list[JobLife]:
        """Returns those that were alive at that time (``time.monotonic``) or later."""
        return [job for job in self.known if job.until is None or job.until >= when]

    def rows(self, status: jobs_pb2.StatusReply | None) -> list[ExternalJob]:
        """Returns a row for each external job.

        status: the job service's reply, which includes recently ended jobs; None if it does not
        answer.
        """
        known = {job.number: job for job in self.known}
        if status is None:
            return [self._row(job, None) for job in self.alive]
        return [self._row(known[one.job], one) for one in status.jobs if one.job in known]

    async def query(self) -> list[ExternalJob]:
        """Queries the job service and returns ``rows``."""
        return self.rows(await read_status(_ANSWER_SECONDS)) if self.known else []

    async def history(self, origin: float) -> list[OtherJob]:
        """Returns the last known row of every external job, the oldest first, with its times.

        origin: ``began`` and ``ended`` are seconds after it (``time.monotonic``); ``ended`` of a
        job that is alive is now.
        """
        await self.query()
        now = time.monotonic()
        found: list[OtherJob] = []
        for job in self.known:
            row = self._last_rows.get(job.nonce) or self._row(job, None)
            ended = now if job.until is None else job.until
            if job.until is not None and row["state"] in ("starting", "running"):
                row = {**row, "state": None, "present": None, "reason": ""}  # how is unknown
            found.append(
                {
                    **row,
                    "began": round(job.since - origin, 4),
                    "ended": round(ended - origin, 4),
                    "alive": job.until is None,
                }
            )
        return found

    async def why(self, name: str) -> JobExplanation | None:
        """Returns why a job waits, as far as the job service knows; None for unknown names."""
        found = [row for row in await self.query() if row["job"] == name]
        if not found:
            return None
        row = found[-1]
        running = row["state"] == "running"
        waits = row["state"] == "starting" or (running and bool(row["reason"]))
        return {
            "job": name,
            "state": row["state"],
            "waits": waits,
            "seconds": 0.0,
            "reason": row["reason"],
            "change": row["reason"] if running else "",
            "epoch": row["plan_epoch"],
            "chunks": [],
            # Its workers are no processes of the testbed and cannot be queried.
            "workers": None,
        }

    async def stop(self, name: str, why: str) -> bool:
        """Ends a job; returns False if none of that name is alive. Raises ``ControlError``."""
        for job in self.alive:
            if job.name == name:
                self._stopped.add(job.number)
                answer = await self._nodes.controller.stop_job(job.number, why)
                if answer != "done":
                    self._stopped.discard(job.number)
                    raise ControlError(f"job {name} is not stopped: {answer}")
                return True
        return False

    async def stop_all(self, why: str, seconds: float) -> None:
        """Ends all jobs; gives up waiting for the controller after so many seconds."""
        self._stopped |= {job.number for job in self.alive}
        answers = [self._nodes.controller.stop_job(job.number, why) for job in self.alive]
        if answers:
            await asyncio.wait(answers, timeout=seconds)

    # --- inside ---

    def _submitted(self, job: JobLife) -> bool:
        """Returns whether a job was submitted, also before the submitter knows its number."""
        own = self._jobs.get(job.name)
        if own is None:
            return False
        # A submitted job without a number has reserved its name, which is unique among live jobs.
        return own.number == job.number or (own.number == 0 and own.state == "starting")

    def _row(self, job: JobLife, status: jobs_pb2.Job | None) -> ExternalJob:
        state = None if status is None else _STATES[status.state]
        stopped = state == "failed" and job.number in self._stopped
        row: ExternalJob = {
            "job": job.name,
            "number": job.number,
            "state": "stopped" if stopped else state,
            "reason": "" if status is None else status.reason,
            "workers": len(job.workers),
            "present": status.world if status is not None and state == "running" else None,
            "tree": None if status is None else status.tree.lower().replace("_", "-"),
            "plan_epoch": None if status is None else status.epoch,
            "iteration": None,
            "iterations": None,
        }
        if status is not None:
            self._last_rows[job.nonce] = row
        return row
