# SPDX-License-Identifier: Apache-2.0
"""Finds the root cause of a job's failure from its first symptom."""

from __future__ import annotations

from collections.abc import Sequence

from emulation.nodes.processes import Process, ProcessError
from observability.processinfo import tail
from testbed.errors import CONSEQUENCES, JobError


def root_cause(
    job: str,
    error: Exception,
    said: str,
    stuck: Sequence[ProcessError],
    absent: Sequence[str],
    members: Sequence[tuple[str, Process]],
) -> JobError:
    """Returns the error to show for a failed job.

    error: the first error that was noticed.
    said: last error message of the process that it names; empty if there is none.
    stuck: an error for each process that is stuck.
    absent: members whose contributions are missing.
    members: names and processes of all workers and servers.
    """
    name = getattr(error, "name", None) or getattr(error, "process", None)
    if isinstance(error, ProcessError):
        symptom = f"{name} {error.what}" + (f": {said}" if said else "")
    else:
        symptom = str(error)
    if absent:
        symptom += f"; missing: {', '.join(absent)}"
    found: Exception = error
    if stuck:
        others = "".join(f"; {one.name} {one.what}" for one in stuck[1:])
        found = ProcessError(stuck[0].name, f"{stuck[0].what}{others}; {symptom}", stuck[0].log)
    elif isinstance(error, ProcessError) and error.status in CONSEQUENCES and said:
        # Only a consequence; the job service's reason names the member: worker 2 (w2), ...
        named = next((process for host, process in members if f"({host})" in said), None)
        if named is None:
            return JobError(f"job {job}: {said}\n{tail(error.log)}")
        found = ProcessError(named.name, f"is the cause: {said}", named.log)
    elif isinstance(error, ProcessError):
        found = ProcessError(error.name, symptom.removeprefix(f"{name} "), error.log)
    return JobError(f"job {job}: {found}", getattr(found, "name", name))
