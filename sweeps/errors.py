# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a sweep as a whole; a trial that fails is a result."""

from __future__ import annotations


class SweepError(Exception):
    """A sweep cannot start or go on, or some of its trials failed; the text says why."""
