# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with virtual time itself."""

from __future__ import annotations


class VirtualError(Exception):
    """Anything that keeps a run in virtual time from going on; the subclasses say what."""


class CausalityError(VirtualError):
    """A node wanted to change its past: it sent, or called, at a time that is over."""


class DeadlockError(VirtualError):
    """Nothing is under way and no timer runs, yet the run is not done; the text says who waits."""


class TrainError(VirtualError, ValueError):
    """A train that is none: times that go back, frames longer than on the wire."""


class LinkError(VirtualError, ValueError):
    """A link that cannot be: its fields do not go together, or its end has a link already."""


class TraceFileError(VirtualError):
    """A file of trace events that cannot be written."""
