# SPDX-License-Identifier: Apache-2.0
"""Who is told what a worker does, as it does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Observer:
    """One that takes no notice. Layers are named as in ``Perceptron.layers``; iterations count from
    1.

    chunks_done: for whoever wants to know, from when it is `begun`: chunks so far whose sums are
    there.
    """

    chunks_done: Callable[[], int] = staticmethod(lambda: 0)

    def begun(self, chunks_done: Callable[[], int]) -> None:
        """It is in its job, and about to train."""
        self.chunks_done = chunks_done

    def begins(self, kind: str, what: str, iteration: int) -> None:
        """From now on it does something of a kind: `compute`, or `wait` for a layer."""

    def ends(self) -> None:
        """It has done it."""

    def pushed(self, layers: Iterable[str], iteration: int) -> None:
        """Gradients of these are there, and go out from now on."""

    def came(self, layers: Iterable[str]) -> None:
        """All that was pushed of these is summed."""


NOBODY = Observer()
