# SPDX-License-Identifier: Apache-2.0
"""What jobs hold in the switches, slots and multicast groups, and whether one more fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from controller.install import Place
from controller.slots import SlotBudget, SlotsExhaustedError
from controller.trees import PlanRefusedError, Tree

__all__ = ["LARGEST_WINDOW", "Reservation", "Resources"]

LARGEST_WINDOW = 1 << 15
MOST_GROUPS = (1 << 16) - 1


@dataclass(frozen=True)
class Reservation:
    """What a job holds: its window, and a place for each tree node that is a switch."""

    window: int
    places: dict[tuple[int, str], Place]  # by (stream, switch)

    def slots(self) -> dict[str, int]:
        """Slots held, by switch."""
        held: dict[str, int] = {}
        for _, switch in self.places:
            held[switch] = held.get(switch, 0) + 2 * self.window
        return held


class Resources:
    """Slots and multicast groups of all switches."""

    def __init__(self, switches: Iterable[str], slots: int) -> None:
        self.budgets = {switch: SlotBudget(switch, slots) for switch in switches}
        self._groups: dict[str, set[int]] = {switch: set() for switch in self.budgets}

    def reserve(self, trees: Sequence[Tree], window: int, shrink: bool) -> Reservation:
        """Places for all tree nodes, 2 x window slots each.

        With ``shrink`` the window is halved until it fits. Raises PlanRefusedError, holding
        nothing, with the window that would fit.
        """
        refusal: SlotsExhaustedError | None = None
        wanted = window
        while window:
            try:
                reservation = self._reserve(trees, window)
            except SlotsExhaustedError as error:
                refusal = refusal or error
                window //= 2
                continue
            if window == wanted or shrink:
                return reservation
            self.release(reservation)
            raise PlanRefusedError(
                f"{refusal}; in all switches of the job a window of {window} would fit now"
            )
        raise PlanRefusedError(str(refusal))

    def claim(self, reservation: Reservation) -> None:
        """Take up a reservation made earlier. Raises ValueError if somebody else holds a place."""
        for (_, switch), place in reservation.places.items():
            self.budgets[switch].claim(place.base, 2 * reservation.window)
            self._groups[switch].add(place.group)

    def release(self, reservation: Reservation, keep: Collection[str] = ()) -> Reservation | None:
        """Give places back, except those in switches to ``keep``; returns what is still held."""
        kept = {}
        for (stream, switch), place in reservation.places.items():
            if switch in keep:
                kept[stream, switch] = place
                continue
            self.budgets[switch].free(place.base)
            self._groups[switch].remove(place.group)
        return Reservation(reservation.window, kept) if kept else None

    def _reserve(self, trees: Sequence[Tree], window: int) -> Reservation:
        places: dict[tuple[int, str], Place] = {}
        try:
            for tree in trees:
                for node in tree.switches:
                    assert node.switch is not None
                    base = self.budgets[node.switch].allocate(2 * window)
                    places[tree.stream, node.switch] = Place(base, self._group(node.switch))
        except SlotsExhaustedError:
            self.release(Reservation(window, places))
            raise
        return Reservation(window, places)

    def _group(self, switch: str) -> int:
        used = self._groups[switch]
        group = next(g for g in range(1, MOST_GROUPS + 1) if g not in used)
        used.add(group)
        return group
