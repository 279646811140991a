# SPDX-License-Identifier: Apache-2.0
"""Errors of the simulation itself."""

from __future__ import annotations

from protocol.errors import Error


class VirtualError(Error):
    """Base of all errors that end a run in virtual time."""


class CausalityError(VirtualError):
    """A node sent a packet or a call at a time in the past."""


class DeadlockError(VirtualError):
    """No event is pending, yet the run is not done; the text lists what each node waits for."""


class TrainError(VirtualError, ValueError):
    """An invalid train, such as one with decreasing times."""


class LinkError(VirtualError, ValueError):
    """An invalid link: inconsistent fields, or a port that has a link already."""


class TraceFileError(VirtualError):
    """A trace file that cannot be written."""


class ProcessEndedError(Error):
    """A process was killed while it was asked; the text says how it ended."""
