# SPDX-License-Identifier: Apache-2.0
"""Callbacks for the progress of a worker's training."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Observer:
    """An observer that ignores all events; the base of others.

    Layers are named as in ``Perceptron.by_layer``; iterations count from 1.

    chunks_done: after `begun`, returns the number of chunks whose sums have arrived.
    iterated: called with the number of each iteration that has ended.
    """

    chunks_done: Callable[[], int] = staticmethod(lambda: 0)
    iterated: Callable[[int], None] = staticmethod(lambda iteration: None)

    def begun(self, chunks_done: Callable[[], int]) -> None:
        """The worker has joined its job and begins to train."""
        self.chunks_done = chunks_done

    def begins(self, kind: str, what: str, iteration: int) -> None:
        """The worker begins an activity of a kind: `compute`, or `wait` for a layer."""

    def ends(self) -> None:
        """The activity ends."""

    def pushed(self, layers: Iterable[str], iteration: int) -> None:
        """Gradients of these layers are pushed."""

    def came(self, layers: Iterable[str]) -> None:
        """The sums of all pushed gradients of these layers have arrived."""


NULL_OBSERVER = Observer()
