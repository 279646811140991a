# SPDX-License-Identifier: Apache-2.0
"""Authenticates callers of the job service as members of a job. All functions raise JobError."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from controller.jobs.job import Job, JobError, Refusal, State
from controller.jobs.members import Member, Membership, Role
from protocol.call_status import LOST, REPLACED

__all__ = ["check_alive", "check_member", "find", "known"]


def find(jobs: Iterable[Job], nonce: str) -> Job:
    """Finds the job with this nonce, in constant time with respect to nonces."""
    found = None
    for job in jobs:
        if secrets.compare_digest(job.nonce.encode(), nonce.encode()):
            found = job
    if found is None:
        raise JobError(Refusal.PERMISSION_DENIED, "the nonce is no job's (or a forgotten one's)")
    return found


def known(jobs: Iterable[Job], nonce: str, role: Role, rank: int) -> tuple[Job, Membership]:
    """Finds a job and checks that it has a member of this rank."""
    job = find(jobs, nonce)
    count = len(job.workers if role is Role.WORKER else job.servers)
    if not 0 <= rank < count:
        text = f"{job} has {role}s 0 to {count - 1}, not {rank}"
        raise JobError(Refusal.INVALID_ARGUMENT, text)
    return job, Membership(role, rank)


def check_alive(job: Job) -> None:
    """Raises unless the job is alive."""
    if job.state is State.FAILED:
        raise JobError(Refusal.ABORTED, f"{job} failed: {job.reason}")
    if job.state is State.GONE:
        raise JobError(Refusal.FAILED_PRECONDITION, f"{job} is over: all workers have left")


def check_member(job: Job, place: Membership, process: int) -> Member:
    """Returns the member; raises unless this process is connected in its place and not lost."""
    member = job.members.get(place)
    if member is None:
        text = f"{job}: {job.name(place)} is not connected; call ConnectService first"
        raise JobError(Refusal.FAILED_PRECONDITION, text)
    if member.process != process:
        text = f"{job} goes on without this {job.name(place)}: another process is in its place"
        raise JobError(Refusal.ABORTED, text, REPLACED)
    if member.lost:
        text = f"{job} goes on without {job.name(place)}, which {member.lost}"
        raise JobError(Refusal.ABORTED, text, LOST)
    return member
