# SPDX-License-Identifier: Apache-2.0
"""Errors of requests to a running pipeline."""

from __future__ import annotations


class PipelineError(Exception):
    """A request that a running pipeline refuses; the message gives the reason."""


class EntryExists(PipelineError):  # noqa: N818
    """A table already has an entry with this key (and, where priorities count, priority)."""


class EntryNotFound(PipelineError, KeyError):  # noqa: N818
    """There is no entry with this handle, or no such group or session."""

    def __str__(self) -> str:
        return str(self.args[0])


class TableFull(PipelineError):  # noqa: N818
    """The table holds as many entries as the program declares (`size`)."""


class EntryIsConstant(PipelineError):  # noqa: N818
    """The program declares the entries, or the default action, of this table `const`."""
