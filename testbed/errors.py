# SPDX-License-Identifier: Apache-2.0
"""Errors of jobs, in either clock."""

from __future__ import annotations

__all__ = ["CONSEQUENCE", "JobError"]

# The exit status of a process that stopped only because the job or testbed around it did.
CONSEQUENCE = 75


class JobError(Exception):
    """A job was refused or failed; the text names the process and shows its log's tail.

    process: the name of the process that failed, None if it was none.
    """

    def __init__(self, text: str, process: str | None = None) -> None:
        super().__init__(text)
        self.process = process
