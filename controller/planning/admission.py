# SPDX-License-Identifier: Apache-2.0
"""Admits jobs to the switches: reserves slots and multicast groups, or refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from controller.planning.slots import SlotBudget, SlotRange, SlotsExhaustedError
from controller.planning.tree_planner import PlanRefusedError, Tree, TreeKind

log = logging.getLogger(__name__)

LARGEST_WINDOW = 1 << 15
MOST_GROUPS = (1 << 16) - 1


class NoRoomError(PlanRefusedError):
    """Trees are possible, but not enough slots are free."""


class Admission(Enum):
    """A job's choice if switches lack slots; the numbers are those of the job service."""

    NETWORK = 0  # refuse the job
    SERVERS = 1  # run with servers alone

    def __str__(self) -> str:
        """The spelling of job files."""
        return self.name.lower()

    @staticmethod
    def of(text: str) -> Admission:
        """Parses the spelling of job files; raises KeyError for any other."""
        return Admission[text.upper()]


@dataclass(frozen=True)
class Reservation:
    """The resources that a job holds: its window, and a slot range for each switch node."""

    window: int
    places: dict[tuple[int, str], SlotRange]  # by (stream, switch)

    def slots(self) -> dict[str, int]:
        """Counts the slots held, by switch."""
        held: dict[str, int] = {}
        for _, switch in self.places:
            held[switch] = held.get(switch, 0) + 2 * self.window
        return held


class Resources:
    """Slots and multicast groups of all switches."""

    def __init__(self, switches: Iterable[str], slots: int) -> None:
        self.budgets = {switch: SlotBudget(switch, slots) for switch in switches}
        self._groups: dict[str, set[int]] = {switch: set() for switch in self.budgets}

    def admit(
        self,
        plan: Callable[[TreeKind], tuple[Tree, ...]],
        kind: TreeKind,
        window: int,
        choose: Callable[[Sequence[Tree]], int],
        admission: Admission,
    ) -> tuple[TreeKind, tuple[Tree, ...], Reservation]:
        """Reserves slots for a job; without room, falls back to servers alone if it allows that.

        plan: plans the trees of a kind.
        choose: chooses the window for trees, if `window` is 0.

        Returns the kind of tree, the trees and the reservation. Raises PlanRefusedError, and then
        reserves nothing; NoRoomError names what would fit.
        """
        trees = plan(kind)
        try:
            return kind, trees, self.reserve(trees, window or choose(trees), shrink=not window)
        except NoRoomError as refusal:
            if admission is not Admission.SERVERS:
                text = (
                    f"{refusal}; with admission {Admission.SERVERS} it would run without switches"
                )
                raise NoRoomError(text) from refusal
            log.info("no room, so without switches: %s", refusal)
        trees = plan(TreeKind.NONE)
        reservation = self.reserve(trees, window or choose(trees), shrink=not window)
        return TreeKind.NONE, trees, reservation

    def reserve(self, trees: Sequence[Tree], window: int, shrink: bool) -> Reservation:
        """Reserves 2 x window slots for every switch node.

        With ``shrink`` the window is halved until it fits. Raises NoRoomError, and then reserves
        nothing; its text names the window that would fit.
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
            raise NoRoomError(
                f"{refusal}; in all switches of the job a window of {window} would fit now"
            )
        raise NoRoomError(str(refusal))

    def claim(self, reservation: Reservation) -> None:
        """Takes a reservation made earlier; raises ValueError if one of its ranges is not free."""
        for (_, switch), place in reservation.places.items():
            self.budgets[switch].claim(place.base, 2 * reservation.window)
            self._groups[switch].add(place.group)

    def release(self, reservation: Reservation, keep: Collection[str] = ()) -> Reservation | None:
        """Frees all ranges except those in switches to ``keep``; returns what is still held."""
        kept = {}
        for (stream, switch), place in reservation.places.items():
            if switch in keep:
                kept[stream, switch] = place
                continue
            self.budgets[switch].free(place.base)
            self._groups[switch].remove(place.group)
        return Reservation(reservation.window, kept) if kept else None

    def _reserve(self, trees: Sequence[Tree], window: int) -> Reservation:
        places: dict[tuple[int, str], SlotRange] = {}
        try:
            for tree in trees:
                for node in tree.switches:
                    assert node.switch is not None
                    base = self.budgets[node.switch].allocate(2 * window)
                    places[tree.stream, node.switch] = SlotRange(base, self._group(node.switch))
        except SlotsExhaustedError:
            self.release(Reservation(window, places))
            raise
        return Reservation(window, places)

    def _group(self, switch: str) -> int:
        used = self._groups[switch]
        group = next(g for g in range(1, MOST_GROUPS + 1) if g not in used)
        used.add(group)
        return group
