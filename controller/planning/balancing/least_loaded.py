# SPDX-License-Identifier: Apache-2.0
"""Gives all servers of a job equally many bytes, however fast they are.

This is the usual static balancing of parameter servers: least-loaded assignment by size, at the
start of a job and whenever its servers change.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.planning.balancing.balancer import Measurements, Move
from controller.planning.balancing.levelling import levelled
from controller.planning.balancing.static import Static
from protocol.balance import Balance


class LeastLoaded(Static):
    """Moves slices whenever a job's servers are others than before."""

    def __init__(self, asked: Balance) -> None:
        super().__init__(asked)
        self._among: object = None

    def observe(self, measurements: Measurements) -> Iterable[Move]:
        """Implements Balancer."""
        yield from super().observe(measurements)
        load = measurements.load
        if load is None or load.moving:
            return
        among = measurements.epoch, frozenset(load.rates)
        if among == self._among:
            return
        owners = levelled(load.owners, load.chunks, dict.fromkeys(load.rates, 1.0))
        if owners == load.owners:
            self._among = among
        else:
            yield Move("equal bytes at all servers", moved=load.map_to(owners))
