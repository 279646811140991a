# SPDX-License-Identifier: Apache-2.0
"""Errors of a sweep as a whole; a failed trial is a result."""

from __future__ import annotations

from protocol.errors import Error


class SweepError(Error):
    """A sweep cannot start or go on, or some of its trials failed; the text says why."""
