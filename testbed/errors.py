# SPDX-License-Identifier: Apache-2.0
"""Errors of jobs and testbeds on either clock."""

from __future__ import annotations

from protocol.errors import Error

# Exit statuses of a process that ended only as a consequence: of its job's or testbed's end, or
# because the job goes on without it.
CONSEQUENCE = 75
LEFT_BEHIND = 76
CONSEQUENCES = CONSEQUENCE, LEFT_BEHIND


class JobError(Error):
    """A job was refused or failed; the text names the process and shows its log's tail.

    process: name of the process that failed; None if no process did.
    """

    def __init__(self, text: str, process: str | None = None) -> None:
        super().__init__(text)
        self.process = process


class LaunchError(Error):
    """The testbed cannot be started, or has failed; the text says why and shows a log."""
