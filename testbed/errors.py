# SPDX-License-Identifier: Apache-2.0
"""Errors of jobs on either clock."""

from __future__ import annotations

__all__ = ["CONSEQUENCE", "JobError"]

# Exit status of a process that ended only as a consequence of its job's or testbed's end.
CONSEQUENCE = 75


class JobError(Exception):
    """A job was refused or failed; the text names the process and shows its log's tail.

    process: name of the process that failed; None if no process did.
    """

    def __init__(self, text: str, process: str | None = None) -> None:
        super().__init__(text)
        self.process = process
