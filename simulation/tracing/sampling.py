# SPDX-License-Identifier: Apache-2.0
"""Samples a number over time, one value for each short span."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[int, int, int], None]


class Sampled:
    """A sampled number.

    value: the number of the current span, whose index is `span`; 0 at first.
    level: the number of a span without updates.
    step: ps of a span.
    tell: called when the number changes, with the end of the span, its begin (ps) and the number.
    """

    def __init__(self, step: int, tell: Tell) -> None:
        self.span = self.value = self.level = 0
        self._step, self._tell = step, tell
        self._told = 0

    def advance(self, span: int) -> None:
        """Finishes all spans before this one."""
        if span <= self.span:
            return
        self._put(self.span, self.value)
        if span > self.span + 1:
            self._put(self.span + 1, self.level)
        self.span, self.value = span, self.level

    def _put(self, span: int, value: int) -> None:
        if value != self._told:
            self._told = value
            self._tell((span + 1) * self._step, span * self._step, value)
